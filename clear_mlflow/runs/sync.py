"""Send what training processes left on local disk, and close the runs that wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Run
from mlflow.environment_variables import (
    MLFLOW_TRACKING_PASSWORD,
    MLFLOW_TRACKING_TOKEN,
    MLFLOW_TRACKING_URI,
    MLFLOW_TRACKING_USERNAME,
)
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clear_mlflow.core.errors import ClearError, TrackingError
from clear_mlflow.journal.resend import send_waiting
from clear_mlflow.journal.spool import (
    SPOOL_JSON,
    STATUSES,
    End,
    Origin,
    Spool,
    left_spools,
    read_origin,
)
from clear_mlflow.runs import lifecycle
from clear_mlflow.scoring.scores import Scores, read_scores, write_scores
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.heartbeat import is_abandoned, is_from_here
from clear_mlflow.store.ui_urls import run_links

_CREDENTIALS = (MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD, MLFLOW_TRACKING_TOKEN)
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_MOST_SPOOLS = 10_000
_MEMBERS_WAIT = "its members are not all stored yet"
_KILLED = End("KILLED", "its process was killed while the tracking store was away")


@dataclass(frozen=True)
class Synced:
    """What became of one journal.

    Args:
        folder: the journal.
        run_id: of its run, as far as it could be read.
        sent: entries that the store took.
        detail: what was done, or why not, in one line.
        done: whether the store now has all of it; the folder is gone then.
        scores: of the rows that are stored.
    """

    folder: Path
    run_id: str | None
    sent: int
    detail: str
    done: bool
    scores: Scores | None = None
    links: tuple[str, ...] = ()  # lines that say where to look at the run


def find_spools(folder: Path | None) -> list[Path]:
    """Journals to send: a folder that is one, those in it, or those in the default places.

    Raises:
        TrackingError: the folder holds none.
    """
    if folder is None:
        return left_spools()
    if (folder / SPOOL_JSON).is_file():
        return [folder]
    try:
        found = sorted(path for path in folder.iterdir() if (path / SPOOL_JSON).is_file())
    except OSError as error:
        raise TrackingError(f"{folder} cannot be read: {error.strerror}") from error
    if not found:
        raise TrackingError(
            f"{folder} holds nothing that waits for a store; expected {SPOOL_JSON} in it, or in "
            "folders in it"
        )
    if len(found) > _MOST_SPOOLS:
        raise TrackingError(f"{folder} holds {len(found)} runs; name one of them")
    return found


def sync_each(folders: Sequence[Path]) -> Iterator[Synced]:
    """Send what waits, run by run, and close each run as its training ended.

    What was sent already is sent again to no effect. A store that stops answering leaves the rest
    where it is, for the next time.

    Args:
        folders: journals, which may come from anywhere.
    """
    named = MLFLOW_TRACKING_URI.get()
    early = []
    for folder in folders:
        synced = _sync_one(folder, named)
        # The run above an ensemble's members sums them up: it is closed when all of them are.
        if synced.detail == _MEMBERS_WAIT:
            early.append(folder)
        else:
            yield synced
    for folder in early:
        yield _sync_one(folder, named)


def _sync_one(folder: Path, named: str | None) -> Synced:
    run_id, sent = None, 0
    try:
        origin = read_origin(folder)
        run_id = origin.run_id
        client = _client_of(origin, named)
        run = _run_of(client, origin)
        spool = Spool.take(folder, run_id)
        done = False
        try:
            # A process of this machine would hold the journal, which is held here.
            if not is_from_here(run):
                lifecycle.refuse_second(client, run, "sync again when it has ended")
            end = spool.end() or (_KILLED if is_abandoned(client, run) else None)
            for _ in send_waiting(client, run, spool):
                sent += 1
            scores, told = _close(client, client.get_run(run_id), end)
            done = told != _MEMBERS_WAIT
        finally:
            spool.close(remove=done)
    except ClearError as error:
        return Synced(folder, run_id, sent, str(error), done=False)
    links: tuple[str, ...] = ()
    with suppress(ClearError), mlflow_errors(f"look at run {run_id}"):  # it is stored and closed
        links = tuple(run_links(client, run))
    return Synced(folder, run_id, sent, told, done, scores, links)


def _close(client: MlflowClient, run: Run, end: End | None) -> tuple[Scores | None, str]:
    """Score a run whose rows are all there, and give it the status that is true."""
    run_id = run.info.run_id
    if run.data.tags.get(names.KIND_TAG) == names.KIND_ENSEMBLE:
        members = _members(client, run)
        if members is None:
            return None, _MEMBERS_WAIT
        if names.MEMBERS_TAG not in run.data.tags:
            lifecycle.summarize_members(client, run_id, members)
        scores = None
    else:
        scores = read_scores(client, run)
        write_scores(client, scores)
    status = str(run.info.status)
    if end is None or end.status not in STATUSES:
        return scores, f"scored; its status stays {status}"
    # evaluate sets KILLED on a run whose process is gone and did not report how it ended.
    new = end.status if status in ("RUNNING", "KILLED") and status != end.status else None
    closed = lifecycle.end(client, run_id, new, end.error, diverged=end.diverged)
    return scores, f"scored, {closed.info.status}"


def _members(client: MlflowClient, run: Run) -> dict[int, Scores] | None:
    """Scores of an ensemble's members by seed; None while one of them is open."""
    with mlflow_errors(f"read the members of run {run.info.run_id}"):
        runs = client.search_runs(
            [run.info.experiment_id],
            f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run.info.run_id}' "
            f"AND tags.`{names.KIND_TAG}` = '{names.KIND_TRAIN}'",
            max_results=1000,
        )
    if any(str(member.info.status) == "RUNNING" for member in runs):
        return None
    return {number: read_scores(client, member) for number, member in enumerate(runs)}


def _client_of(origin: Origin, named: str | None) -> MlflowClient:
    """The store that a journal is sent to: the environment names it, or else the journal does.

    A run's id is unique in all stores, so no other run is found by accident. The store that a
    journal names is asked only where that gives away no credentials.

    Raises:
        TrackingError: the environment has to name it.
    """
    if named:
        return MlflowClient(named)
    uri = origin.tracking_uri
    ask = f"set MLFLOW_TRACKING_URI to it ({uri}, as its process wrote down)"
    if origin.password:
        raise TrackingError(f"the store of run {origin.run_id} needs credentials; {ask}")
    scheme = urlsplit(uri).scheme.split("+")[0]
    if scheme in ("http", "https"):
        # They would be sent to the address in the journal, which anyone may have made.
        if any(variable.get() for variable in _CREDENTIALS):
            raise TrackingError(
                f"there are credentials in the environment, and no word on the store of run "
                f"{origin.run_id} that they are for; {ask}"
            )
    elif scheme == "sqlite":
        path = Path("/" + uri.partition(":///")[2].lstrip("/"))
        if not path.is_file():
            raise TrackingError(f"the store of run {origin.run_id} is not there: {path}")
    elif scheme not in _DATABASES:
        raise TrackingError(f"the store of run {origin.run_id} is of an unknown kind; {ask}")
    mlflow.set_tracking_uri(uri)  # for what is said of it
    return MlflowClient(uri)


def _run_of(client: MlflowClient, origin: Origin) -> Run:
    with mlflow_errors(f"read run {origin.run_id} (its process wrote to {origin.tracking_uri})"):
        run = client.get_run(origin.run_id)
    if run.info.lifecycle_stage == LifecycleStage.DELETED:
        raise TrackingError(
            f"run {origin.run_id} is deleted: restore it (mlflow runs restore --run-id "
            f"{origin.run_id}), or remove the folder"
        )
    return run
