"""Runs that cannot be closed because the store is away: how they ended is kept for ``sync``."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.environment_variables import (
    MLFLOW_HTTP_REQUEST_MAX_RETRIES,
    MLFLOW_HTTP_REQUEST_TIMEOUT,
)

from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.warning import warn
from clear_mlflow.journal.spool import SPOOL_JSON, End, Spool, left_spools, places
from clear_mlflow.store.compat import forget_system_metrics

_HURRIED = {MLFLOW_HTTP_REQUEST_MAX_RETRIES.name: "0", MLFLOW_HTTP_REQUEST_TIMEOUT.name: "5"}


def leave_outcome(client: MlflowClient, run_id: str, end: End, folder: Path | None = None) -> str:
    """Keep on local disk how a training ended.

    Args:
        client: the store that is away.
        run_id: of the run that stays open there.
        end: what ``clear-mlflow sync`` will close it with.
        folder: the run's spool, where something of it waits in one.

    Returns:
        What to do about it, for people; empty where no disk takes it.
    """
    known = [folder] if folder else left_spools(run_id)
    kept: list[Callable[[], Path]] = [partial(Path, path) for path in known]
    for place in chain(kept, places(run_id)):
        try:
            where = place()
            if (where / SPOOL_JSON).is_file():
                spool = Spool.take(where)
            else:
                spool = Spool.create(where, run_id, client.tracking_uri)
            try:
                spool.write_end(end)
            finally:
                spool.close()
        except (OSError, ClearError) as error:
            warn(f"how run {run_id} ended could not be kept for sync: {error}")
            continue
        return f"the run is open there until 'clear-mlflow sync {shlex.quote(str(where))}'"
    return ""


def release(run_id: str, end: Callable[[str], object]) -> None:
    """Let go of MLflow's active run, whose store is away, within seconds.

    Args:
        run_id: of the run.
        end: what ends it, if it is ours to end; it is left RUNNING.
    """
    if _is_active(run_id):
        with hurried(), suppress(Exception):
            end("RUNNING")
    if not _is_active(run_id) and (monitor := forget_system_metrics(run_id)):
        # It may hang in a call to the store.
        threading.Thread(target=monitor.finish, daemon=True).start()


@contextmanager
def hurried() -> Iterator[None]:
    """Let a call to a store that is known to be away fail at once, or after 5 s if it is silent."""
    before = {name: os.environ.get(name) for name in _HURRIED}
    os.environ.update(_HURRIED)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _is_active(run_id: str) -> bool:
    active = mlflow.active_run()
    return active is not None and active.info.run_id == run_id
