"""Which runs are meant, and stored runs as objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from mlflow.entities import Run as MlflowRun

from clear_mlflow.api.bundle import ARCHIVE, bundles_in, drop_copies, read_bundles
from clear_mlflow.api.run import Run
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.core.text import ExperimentName, shown
from clear_mlflow.store.client import MlflowClient, is_missing, preflight, set_up_mlflow
from clear_mlflow.store.matrices import read_matrices
from clear_mlflow.store.search import MissingRun, has_experiment, select

_RUN_ID = re.compile(r"[0-9a-f]{32}")
# A run, by its id or as an object; an experiment, by its name; several runs; None: all experiments.
Runs: TypeAlias = "str | Path | Run | Iterable[str | Path | Run] | None"


def load(run: str | Path) -> Run:
    """A stored run, by its id, or a bundle, by its path: ``paper.tar.xz/NAME`` in an archive.

    Raises:
        RecordError: the bundle was changed.
        TrackingError: there is none of this id, or the store does not answer.
    """
    client = open_store()
    found, *more = those_there(chosen(client, [run])[0], "load")
    if more:
        first = Path(found.info.artifact_uri).name
        raise ConfigError(
            f"{run} holds {len(more) + 1} bundles; name one, as {run}/{first}, or take them all: "
            f"clear_mlflow.runs({str(run)!r})"
        )
    return Run(client, found)


def runs(
    experiment: str | Path | None = None,
    filter: str | None = None,  # noqa: A002
) -> list[Run]:
    """All runs of an experiment that hold an accuracy matrix, newest first.

    Args:
        experiment: its name or id, or the path of bundles; None: all experiments.
        filter: in MLflow's search syntax, as ``"tags.strategy = 'replay'"``.

    Raises:
        ConfigError, RecordError: there is no bundle, or it was changed.
        TrackingError: there is no such experiment, or the store does not answer.
    """
    client = open_store()
    if experiment is None:
        found = select(client, filter=filter)
    else:
        found, _ = chosen(client, experiment, filter=filter)
    stored = read_matrices(client, those_there(found, "read"), metrics=())
    return [Run(client, one.run, record=one.record) for one in stored if one.record is not None]


def those_there(runs: Iterable[MlflowRun | MissingRun], verb: str) -> list[MlflowRun]:
    """Runs that were found; a TrackingError where one of them was not."""
    listed = list(runs)
    if missing := [run for run in listed if isinstance(run, MissingRun)]:
        more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
        raise TrackingError(f"cannot {verb} run {missing[0].run_id}{more}: {missing[0].problem}")
    return [run for run in listed if isinstance(run, MlflowRun)]


def open_store() -> MlflowClient:
    """The store of the environment, to read and to write into runs that are there."""
    set_up_mlflow()
    return preflight(opens_run=False)


def chosen(
    client: MlflowClient,
    of: Runs,
    *,
    filter: str | None = None,  # noqa: A002
    unscored_only: bool = False,
) -> tuple[Iterator[MlflowRun | MissingRun], bool]:
    """The runs that are meant, and whether they were named one by one."""
    if isinstance(of, (Run, Path)) or (isinstance(of, str) and _names_runs(client, of)):
        of = [of]
    if of is None and filter is None and not unscored_only:
        raise ConfigError(
            "no runs are chosen; name runs or an experiment, or pass filter=TEXT, or, to evaluate, "
            "only=unscored (in Python unscored_only=True) for all runs that lack a score"
        )
    if of is None or isinstance(of, str):
        return select(client, experiment=of, filter=filter, unscored_only=unscored_only), False
    if filter is not None:
        raise ConfigError(f"filter is {shown(filter)} beside runs by name; pass one of them")
    ids: list[str] = []
    bundled: list[MlflowRun] = []
    for run in of:
        if isinstance(run, Run) and run.is_bundle:
            bundled.append(run.entity)
        elif isinstance(run, Run):
            ids.append(run.run_id)
        elif not isinstance(run, (str, Path)):
            raise ConfigError(f"runs holds {shown(run)}; expected runs, their ids, or paths")
        elif found := [] if _RUN_ID.fullmatch(str(run)) else bundles_in(Path(run)):
            bundled += chain.from_iterable(map(read_bundles, found))
        elif isinstance(run, Path) or "/" in run or run.endswith(ARCHIVE):
            raise ConfigError(f"{shown(str(run), 200)} is no bundle, nor a folder that holds any")
        else:
            ids.append(str(run))
    if not ids and not bundled:
        raise ConfigError("no run arrived; pass runs, their ids, or an experiment's name")
    named = select(client, run_ids=ids, unscored_only=unscored_only) if ids else ()
    runs = chain(named, bundled)
    return (drop_copies(client, runs) if bundled else runs), True


def _names_runs(client: MlflowClient, text: str) -> bool:
    """Whether a text is a run's id or a path of bundles, and not an experiment's name."""
    if isinstance(text, ExperimentName):
        return False
    if _RUN_ID.fullmatch(text):
        return True
    # A folder of an experiment's name may lie here by chance; a Path says that it is meant.
    if not bundles_in(Path(text)):
        return False
    return is_missing(client.tracking_uri) or not has_experiment(client, text)
