"""Add the metrics against training from scratch to compared runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.comparison.groups import NOT_LOGGED, ComparedRun, format_run
from clear_mlflow.comparison.wording import list_differences
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.metrics import DROP_PARTS, SCRATCH_METRICS, ScratchMatrix, compute_values

# Parameters that a model and its budget consist of: with other values, a difference between two
# runs is not due to training from scratch.
_SHARED = (
    "model",
    "weights",
    "freeze",
    "features",
    "image_size",
    "budget",
    "stream_rate",
    "epochs",
)


def add_scratch_metrics(
    runs: Sequence[ComparedRun], oracle: str
) -> tuple[list[ComparedRun], list[str]]:
    """Return the runs with metrics against scratch, and a warning.

    A run is measured against the oracle's run of its seed, or their mean if there is none. An
    oracle's run that diverged or ended early is not used, unless all did.

    oracle: label of the runs that were trained from scratch, for example ``from_scratch``. Raises
    ConfigError if no run has it, or if a run was tested on other data, or trained with another
    model or budget, than the oracle.
    """
    oracles = [run for run in runs if oracle in run.labels.values()]
    if not oracles:
        raise ConfigError(
            f"oracle is {safe_repr(oracle)}, which no run has as its strategy or another label; "
            "choose runs that were trained with strategy=from_scratch as well",
            parameter="oracle",
        )
    results, undefined = list[ComparedRun](), list[str]()
    for run in runs:
        comparable = [other for other in oracles if other.record.dataset == run.record.dataset]
        if not comparable:
            differences = ", ".join(list_differences(oracles[0].record.dataset, run.record.dataset))
            raise ConfigError(
                f"oracle is {safe_repr(oracle)}, but {format_run(run)} was tested under other "
                f"conditions: {differences}; compare only runs with one test set",
                parameter="oracle",
            )
        _check_shared(run, comparable[0], oracle)
        scratch = _measure(run, _select_complete(comparable))
        values, errors = compute_values(scratch, SCRATCH_METRICS)
        undefined += [f"{format_run(run)}: {errors[n]}" for n in DROP_PARTS if n in errors][:1]
        results.append(replace(run, summary={**run.summary, **values}, scratch=scratch))
    if not undefined:
        return results, []
    count = f"{len(undefined)} of {format_count(len(runs), 'run')}"
    return results, [f"against_scratch is undefined for {count}; {undefined[0]}."]


def _check_shared(run: ComparedRun, oracle_run: ComparedRun, oracle: str) -> None:
    for name in _SHARED:
        values = [r.method_params.get(name, NOT_LOGGED) for r in (oracle_run, run)]
        if NOT_LOGGED not in values and values[0] != values[1]:
            raise ConfigError(
                f"oracle is {safe_repr(oracle)}, which was trained with {name}={values[0]}, and "
                f"{format_run(run)} with {name}={values[1]}; train it with the same model and "
                "budget, or leave the run out",
                parameter="oracle",
            )


def _select_complete(oracles: Sequence[ComparedRun]) -> Sequence[ComparedRun]:
    """Return the oracles with most rows of those that did not diverge, or all if all did."""
    valid = [run for run in oracles if not run.diverged] or oracles
    most = max(run.record.matrix.num_rows for run in valid)
    return [run for run in valid if run.record.matrix.num_rows == most]


def _measure(run: ComparedRun, oracles: Sequence[ComparedRun]) -> ScratchMatrix:
    """Return a run's rows, and those from scratch of its seed, or all."""
    same_seed = [other for other in oracles if other.seed == run.seed and run.seed is not None]
    grids = [_orient(other)[1:] for other in same_seed[:1] or oracles]
    rows = _orient(run)[1 : run.record.matrix.num_rows + 1]
    return ScratchMatrix(rows, np.mean(grids, axis=0).diagonal())


def _orient(run: ComparedRun) -> NDArray[np.float64]:
    """Return the cells of a run, negated if lower is better."""
    return run.grid if run.record.matrix.score.higher_is_better else -run.grid
