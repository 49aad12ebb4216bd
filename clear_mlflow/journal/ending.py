"""Runs that cannot be closed because the store is away: how they ended is kept for ``sync``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

from mlflow import MlflowClient
from mlflow.environment_variables import (
    MLFLOW_HTTP_REQUEST_MAX_RETRIES,
    MLFLOW_HTTP_REQUEST_TIMEOUT,
)

from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.warning import warn
from clear_mlflow.journal.spool import SPOOL_JSON, End, Spool, left_spools, places

_HURRIED = {MLFLOW_HTTP_REQUEST_MAX_RETRIES.name: "0", MLFLOW_HTTP_REQUEST_TIMEOUT.name: "5"}


def leave_outcome(client: MlflowClient, run_id: str, end: End, folder: Path | None = None) -> str:
    """Keep on local disk how a training ended.

    Args:
        client: the store that is away.
        run_id: of the run that stays open there.
        end: what ``clear-mlflow sync`` will close it with.
        folder: the run's journal, where something of it waits in one.

    Returns:
        What to do about it, for people; empty where no disk takes it.
    """
    known = [folder] if folder else left_spools(run_id)
    kept: list[Callable[[], Path]] = [partial(Path, path) for path in known]
    for place in chain(kept, places(run_id)):
        try:
            where = place()
            if (where / SPOOL_JSON).is_file():
                spool = Spool.take(where, run_id)
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
