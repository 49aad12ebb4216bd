"""Stored runs as a comparison needs them: labels to group by, and parameters of the method."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.comparison.groups import NOT_LOGGED, ComparedRun, RunWithoutRows
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.record import Record
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, convert, json_object
from clear_mlflow.metrics import Predictions
from clear_mlflow.scoring.run_record import read_predictions
from clear_mlflow.store import names

# A parameter of another program with one of these words in its name does not affect results.
_RUN_WORDS = {"seed", "seeds", "run", "experiment", "dir", "folder", "host", "hostname", "workers"}
_RUN_WORDS |= {"device", "devices", "gpu", "gpus", "asked"}
# Those that are usually chosen by their results.
_TUNED = {"lr", "learning_rate", "momentum", "weight_decay", "batch_size", "epochs", "optimizer"}
_TEST_SET = ("dataset", "protocol", "split", "score", "strategy", "local_rank")
_ARGUMENTS = ("strategy/", "dataset/", "scenario/")  # each is a logged parameter


def read_predicted_classes(client: MlflowClient, run: Run, record: Record) -> Predictions | None:
    """Read a run's predicted classes, if stored, without probabilities.

    Raises RecordError if they are damaged, and TrackingError if the store cannot be reached.
    """
    predictions = read_predictions(client, run, record)
    if predictions is None:
        return None
    # Only right or wrong is compared; probabilities would take a hundred times the memory.
    rows = {row: replace(x, probabilities=None) for row, x in predictions.rows.items()}
    return replace(predictions, rows=rows)


def get_run_name(run: Run) -> str:
    """Return a run's name, or its id without one."""
    return str(run.info.run_name or run.info.run_id)


def has_diverged(run: Run) -> bool:
    """Return True if a run is tagged as diverged."""
    return bool(run.data.tags.get(names.DIVERGED_TAG) == "true")


def build_compared_run(run: Run, record: Record, summary: Mapping[str, float]) -> ComparedRun:
    """Return a run with labels and parameters.

    summary: values by metric name.
    """
    test_conditions = {
        "dataset": record.dataset.name,
        "protocol": record.dataset.protocol,
        "split": record.dataset.split,
        "seed": "none" if record.seed is None else str(record.seed),
    }
    params, described = _get_params(run), _read_described(run)
    return ComparedRun(
        run_id=run.info.run_id,
        name=get_run_name(run),
        record=record,
        summary=summary,
        labels={**test_conditions, **_get_labels(run, params, described)},
        method_params=_find_method_parameters(run, params, described),
        tuned=frozenset(described.get("tuned", _TUNED)),
        params=params,
        diverged=has_diverged(run),
        test_every=run.data.tags.get(names.ANYTIME_TAG),
    )


def build_run_without_rows(run: Run) -> RunWithoutRows:
    """Return a diverged run without rows as comparisons list it."""
    params, described = _get_params(run), _read_described(run)
    labels = _get_labels(run, params, described)
    seed = labels.get("seed", "")
    return RunWithoutRows(
        run_id=run.info.run_id,
        name=get_run_name(run),
        seed=int(seed) if seed.isascii() and seed.isdecimal() and len(seed) < 20 else None,
        labels=labels,
        method_params=_find_method_parameters(run, params, described),
    )


def _read_described(run: Run) -> dict[str, dict[str, str | None]]:
    """Return the parameters that a training described, {} without any."""
    with suppress(RecordError):
        content = json_object(run.data.tags.get(names.PARAMETERS_TAG, "{}"), MAX_TAG_BYTES)
        described: dict[str, dict[str, str | None]] = convert(
            content, dict[str, dict[str, str | None]], names.PARAMETERS_TAG
        )
        return described
    return {}


def _get_labels(
    run: Run, params: Mapping[str, str], described: Mapping[str, Mapping[str, str | None]]
) -> dict[str, str]:
    """Return a run's parameters and tags by name, for groups.

    Skips tags of MLflow and this package. ``auto`` is replaced by the value that was used, and a
    value without effect in the run by "not logged".
    """
    tags = run.data.tags
    return {
        **{name: text or NOT_LOGGED for name, text in described.get("unlogged", {}).items()},
        **params,
        **{n: tag for n, tag in tags.items() if not n.startswith(("mlflow.", "clear_mlflow."))},
        **{n.removeprefix("used/"): text for n, text in params.items() if n.startswith("used/")},
        **_find_method_parameters(run, params, described),
    }


def _find_method_parameters(
    run: Run, params: Mapping[str, str], described: Mapping[str, Mapping[str, str | None]]
) -> dict[str, str]:
    """Return the parameters that affect results, or "not logged" by name.

    Adds the stream that they were tuned on, if it is tagged. Of other programs' runs, returns all
    but those whose names are about the test set, seeds, folders or machines.
    """
    tags = {n: tag for n, tag in run.data.tags.items() if n == names.TUNED_ON}
    if described:
        stated = {**described.get("method", {}), **described.get("tuned", {})}
        return {
            **{name: NOT_LOGGED if text is None else text for name, text in stated.items()},
            **{name: text for name, text in params.items() if name.startswith(_ARGUMENTS)},
            **tags,
        }
    words = {name: {*re.split(r"[^a-z0-9]+", name.lower())} for name in params}
    return {
        name.removeprefix("used/"): params[name]
        for name in sorted(params, key=lambda name: name.startswith("used/"))
        if name not in _TEST_SET and not words[name] & _RUN_WORDS
    } | tags


def _get_params(run: Run) -> dict[str, str]:
    """Return parameters without the shell quotes that ``mlflow run`` adds (mlflow #6811)."""
    return {
        name: _remove_shell_quotes(value) if value.startswith("'") else value
        for name, value in run.data.params.items()
    }


def _remove_shell_quotes(value: str) -> str:
    """Return a value as it was before shlex.quote."""
    with suppress(ValueError):
        words = shlex.split(value)
        if len(words) == 1 and shlex.quote(words[0]) == value:
            return words[0]
    return value
