"""Which runs are meant, and stored runs as objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from mlflow.entities import Run as MlflowRun

from clear_mlflow.api.bundle import ARCHIVE, drop_copies, list_bundles, read_bundles
from clear_mlflow.api.run import Run
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.store.client import MlflowClient, is_missing_store, preflight, set_up_mlflow
from clear_mlflow.store.matrices import read_matrices
from clear_mlflow.store.search import MissingRun, expand_run_id, has_experiment, select_runs

_RUN_ID = re.compile(r"[0-9a-f]{32}")
# A run, as an object or by its id or at least six of its first digits; an experiment, by its name;
# several of them; None: all experiments.
Runs: TypeAlias = "str | Path | Run | Iterable[str | Path | Run] | None"


def load(run: str | Path) -> Run:
    """A stored run, by its id, or a bundle, by its path: ``paper.tar.xz/NAME`` in an archive.

    Raises:
        RecordError: the bundle was changed.
        TrackingError: there is none of this id, or the store does not answer.
    """
    client = open_store()
    runs, are_runs = chosen(client, [run])
    if not are_runs:
        raise ConfigError(f"{safe_repr(str(run))} is an experiment; pass the id of one of its runs")
    first_run, *others = those_there(runs, "load")
    if others:
        first = Path(first_run.info.artifact_uri).name
        raise ConfigError(
            f"{run} holds {len(others) + 1} bundles; name one, as {run}/{first}, or take them all: "
            f"clear_mlflow.runs({str(run)!r})"
        )
    return Run(client, first_run)


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
        found = select_runs(client, filter=filter)
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
    """Return the chosen runs, and True if they were named one by one."""
    if of is None and filter is None and not unscored_only:
        raise ConfigError(
            "no runs are chosen; name runs or an experiment, or pass filter=TEXT, or, to evaluate, "
            "unscored_only=True for all runs that lack a score"
        )
    if of is None:
        return select_runs(client, filter=filter, unscored_only=unscored_only), False
    ids: list[str] = []
    bundled: list[MlflowRun] = []
    experiments: list[str] = []
    names_of_runs = [of] if isinstance(of, (Run, Path, str)) else list(of)
    for name in names_of_runs:
        if isinstance(name, Run):
            if name.is_bundle:
                bundled.append(name.entity)
            else:
                ids.append(name.run_id)
        elif not isinstance(name, (str, Path)):
            raise ConfigError(f"runs holds {safe_repr(name)}; expected runs, their ids, or paths")
        elif isinstance(name, str) and _RUN_ID.fullmatch(name):
            ids.append(name)
        # A folder may have the name of an experiment; a Path always names the folder.
        elif isinstance(name, str) and _is_experiment(client, name):
            experiments.append(name)
        elif paths := list_bundles(Path(name)):
            bundled += chain.from_iterable(map(read_bundles, paths))
        elif isinstance(name, Path) or "/" in name or name.endswith(ARCHIVE):
            raise ConfigError(
                f"{safe_repr(str(name), 200)} is no bundle, nor a folder that holds any"
            )
        elif (run_id := expand_run_id(client, name)) == name and len(names_of_runs) == 1:
            experiments.append(name)  # reported with the names of all experiments
        else:
            ids.append(run_id)
    if not (ids or bundled or experiments):
        raise ConfigError("no run arrived; pass runs, their ids, or an experiment's name")
    if filter is not None and (ids or bundled):
        raise ConfigError(f"filter is {safe_repr(filter)} beside runs by name; pass one of them")
    runs_by_name = select_runs(client, run_ids=ids, unscored_only=unscored_only) if ids else ()
    runs_of_experiments = [
        select_runs(client, experiment=name, filter=filter, unscored_only=unscored_only)
        for name in experiments
    ]
    runs = chain(*runs_of_experiments, runs_by_name, bundled)
    return (drop_copies(client, runs) if bundled else runs), bool(ids or bundled)


def _is_experiment(client: MlflowClient, text: str) -> bool:
    return not is_missing_store(client.tracking_uri) and has_experiment(client, text)
