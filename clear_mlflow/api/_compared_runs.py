"""Read runs as a comparison needs them: matrices with labels and parameters, and predictions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from numbers import Real

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.comparison.groups import NOT_LOGGED, ComparedRun, RunWithoutRows
from clear_mlflow.core.errors import ClearError, ConfigError
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.learning.parameters.logged import find_method_parameters, list_unlogged_parameters
from clear_mlflow.metrics import Predictions
from clear_mlflow.scoring.run_record import read_predictions
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors


def keep_most_common_score(
    compared_runs: list[ComparedRun],
) -> tuple[list[ComparedRun], list[str]]:
    """Return the runs with the most common score (accuracy, rmse ...), without the others.

    The second result is a sentence for the user on each score that was left out.
    """
    by_score: dict[Score, list[ComparedRun]] = {}
    for compared_run in compared_runs:
        by_score.setdefault(compared_run.record.matrix.score, []).append(compared_run)
    most_common = max(by_score, key=lambda score: len(by_score[score]))
    sentences = [
        f"{len(runs)} run{'s are' if len(runs) > 1 else ' is'} left out because the score is "
        f"{score.name} ({score.better} is better), while {most_common.name} is compared."
        for score, runs in by_score.items()
        if score != most_common
    ]
    return by_score[most_common], sentences


def convert_margin(margin: float, score: Score) -> float:
    """Convert a margin to the score's unit: percentage points of accuracy become a fraction.

    Raises ConfigError if the margin is not above 0.
    """
    maximum, unit = (
        (100, "percentage points") if score.is_accuracy else (sys.float_info.max, "a number")
    )
    if not isinstance(margin, Real) or not 0 < margin <= maximum:
        raise ConfigError(
            f"margin is {safe_repr(margin)}; expected {unit} above 0, for example 1 or 0.5"
        )
    return margin / 100 if score.is_accuracy else margin


def read_predicted_classes(
    client: MlflowClient, bundles: Mapping[str, Run], compared_run: ComparedRun
) -> tuple[ComparedRun, Predictions | None, str | None]:
    """Read the predicted classes of a run, without probabilities.

    Returns the run, and predictions or None, and the error or None. Both are None if the run has
    no predictions. bundles: runs by id that were read from bundles instead of the store.
    """
    try:
        with mlflow_errors(f"read run {compared_run.run_id}"):
            run = bundles.get(compared_run.run_id) or client.get_run(compared_run.run_id)
        predictions = read_predictions(client, run, compared_run.record)
        if predictions is None:
            return compared_run, None, None
        # Only right or wrong is compared; probabilities would take a hundred times the memory.
        rows = {row: replace(x, probabilities=None) for row, x in predictions.rows.items()}
        return compared_run, replace(predictions, rows=rows), None
    except ClearError as error:
        return compared_run, None, str(error)


def get_run_name(run: Run) -> str:
    """Return the name of a run, or its id if it has none."""
    return str(run.info.run_name or run.info.run_id)


def has_diverged(run: Run) -> bool:
    """Return True if the training stopped because its loss was not finite."""
    return bool(run.data.tags.get(names.DIVERGED_TAG) == "true")


def build_compared_run(run: Run, record: Record, summary: Mapping[str, float]) -> ComparedRun:
    """Return a run as the comparison needs it: matrix, labels to group by, and parameters.

    summary: values of its metrics by name.
    """
    test_conditions = {
        "dataset": record.dataset.name,
        "protocol": record.protocol,
        "split": record.split,
        "seed": "none" if record.seed is None else str(record.seed),
    }
    return ComparedRun(
        run_id=run.info.run_id,
        name=get_run_name(run),
        record=record,
        summary=summary,
        labels={**test_conditions, **_get_labels(run)},
        method_params=find_method_parameters(_get_params(run), NOT_LOGGED),
        params=_get_params(run),
        diverged=has_diverged(run),
        test_every=run.data.tags.get(names.ANYTIME_TAG),
    )


def build_run_without_rows(run: Run) -> RunWithoutRows:
    """Return the entry of the comparison for a diverged run, which lacks a matrix."""
    labels = _get_labels(run)
    seed = labels.get("seed", "")
    return RunWithoutRows(
        run_id=run.info.run_id,
        name=get_run_name(run),
        seed=int(seed) if seed.isascii() and seed.isdecimal() and len(seed) < 20 else None,
        labels=labels,
        method_params=find_method_parameters(_get_params(run), NOT_LOGGED),
    )


def _get_labels(run: Run) -> dict[str, str]:
    """Return parameters and tags of a run by name, to group runs by."""
    params, tags = run.data.params, run.data.tags
    return {
        **list_unlogged_parameters(params),
        **_get_params(run),
        **{n: tag for n, tag in tags.items() if not n.startswith(("mlflow.", "clear_mlflow."))},
        # The value that a run used overrides the requested one, which may be "auto".
        **{n.removeprefix("used/"): text for n, text in params.items() if n.startswith("used/")},
        **find_method_parameters(_get_params(run), NOT_LOGGED),
    }


def _get_params(run: Run) -> dict[str, str]:
    """Return parameters without the shell quotes that ``mlflow run`` adds (mlflow #6811)."""
    return {name: _remove_shell_quotes(value) for name, value in run.data.params.items()}


def _remove_shell_quotes(value: str) -> str:
    """Return a value as it was before shlex.quote. Other values are returned unchanged."""
    with suppress(ValueError):
        words = shlex.split(value)
        if len(words) == 1 and shlex.quote(words[0]) == value:
            return words[0]
    return value
