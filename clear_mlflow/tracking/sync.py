"""Send what training processes left on local disk, and close the runs that wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Run
from mlflow.environment_variables import MLFLOW_TRACKING_URI
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ClearError, TrackingError
from clear_mlflow.journal.run_folder import (
    HEADER_JSON,
    FolderHeldError,
    Outcome,
    RunFolder,
    RunHeader,
    candidate_folders,
    find_run_folders,
    list_run_folders,
    read_header,
)
from clear_mlflow.journal.uploader import Uploader
from clear_mlflow.scoring import Scores, read_scores, score
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors, preflight, resolve_store_uri, switch_store
from clear_mlflow.store.lease import check_not_held, is_expired, read_trainer_token
from clear_mlflow.store.ui_urls import format_run_links
from clear_mlflow.tracking import lifecycle

_MEMBERS_WAIT = "its members are not all stored yet"
_KILLED = Outcome("KILLED", "its process was killed while the tracking store was away")


@dataclass(frozen=True)
class Synced:
    """What became of one journal."""

    folder: Path
    run_id: str | None  # as far as it could be read
    sent: int  # entries that the store took
    detail: str  # what was done, or why not, in one line
    done: bool  # whether the store now has all of it; the folder is gone then
    links: tuple[str, ...] = ()  # lines that say where to look at the run
    is_live: bool = False  # whether the process that writes it lives, and sends it itself


def find_journals(folder: Path | None) -> list[Path]:
    """Journals to send: a folder that is one, those in it, or those in the default places."""
    if folder is None:
        return find_run_folders()
    if (folder / HEADER_JSON).is_file():
        return [folder]
    try:
        found = list_run_folders(folder)
    except OSError as error:
        raise TrackingError(f"{folder} cannot be read: {error.strerror}") from error
    if not found:
        raise TrackingError(
            f"{folder} holds nothing that waits for a store; expected {HEADER_JSON} in it, or in "
            "folders in it"
        )
    return found


def sync_each(folders: Sequence[Path], *, to_named_store: bool = False) -> Iterator[Synced]:
    """Send what waits in journals, run by run, and close each run as its training ended.

    to_named_store: send this user's own journals to the stores that they name, whatever
    MLFLOW_TRACKING_URI is.
    """
    early = []
    for folder in folders:
        synced = _sync_one(folder, to_named_store)
        # The run above an ensemble's members sums them up: it is closed when all of them are.
        if synced.detail == _MEMBERS_WAIT:
            early.append(folder)
        else:
            yield synced
    for folder in early:
        yield _sync_one(folder, to_named_store)


def _sync_one(folder: Path, to_named_store: bool) -> Synced:
    run_id, sent = None, 0
    try:
        origin = read_header(folder)
        run_id = origin.run_id
        journal = RunFolder.reopen(folder, run_id)
        done = False
        try:
            client = _connect(origin, folder, to_named_store)
            run = _run_of(client, origin)
            # Another process may train; the writer of this journal has released its lock.
            if read_trainer_token(run) not in (None, origin.process):
                check_not_held(client, run, "sync again when it has ended")
            end = journal.read_outcome() or (_KILLED if is_expired(client, run) else None)
            for _ in Uploader(client).upload_folder(run, journal):
                sent += 1
            detail = _close(client, client.get_run(run_id), end)
            done = detail != _MEMBERS_WAIT
        finally:
            journal.close(remove=done)
    except (ClearError, OSError) as error:
        is_live = isinstance(error, FolderHeldError)
        return Synced(folder, run_id, sent, str(error), done=False, is_live=is_live)
    links: tuple[str, ...] = ()
    with suppress(ClearError), mlflow_errors(f"look at run {run_id}"):  # it is stored and closed
        links = tuple(format_run_links(client, run))
    return Synced(folder, run_id, sent, detail, done, links)


def _close(client: MlflowClient, run: Run, end: Outcome | None) -> str:
    """Score a run whose rows are all there, give it the status that is true, and say so."""
    run_id = run.info.run_id
    if run.data.tags.get(names.KIND_TAG) == names.KIND_ENSEMBLE:
        members = _members(client, run)
        if members is None:
            return _MEMBERS_WAIT
        if names.MEMBERS_TAG not in run.data.tags:
            lifecycle.summarize_members(client, run_id, members)
    else:
        score(client, run_id)
    status = str(run.info.status)
    if end is None or end.status is None:
        return f"scored; its status stays {status}"
    # evaluate sets KILLED on a run whose process is gone and did not report how it ended.
    new = end.status if status in ("RUNNING", "KILLED") and status != end.status else None
    closed = lifecycle.end(client, run_id, new, end.error, diverged=end.diverged)
    return f"scored, {closed.info.status}"


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


def _connect(origin: RunHeader, folder: Path, to_named_store: bool) -> MlflowClient:
    """Connect to the store of the environment, or to the one that a journal of this user names."""
    uri = MLFLOW_TRACKING_URI.get()
    # A journal in another place may be anyone's: credentials would be sent where it says.
    is_own = folder.absolute() in candidate_folders(folder.name)
    if (
        to_named_store
        and is_own
        and uri
        and mask_credentials(resolve_store_uri(uri)) != origin.tracking_uri
    ):
        uri = None
    if not uri:
        if origin.password or not is_own:
            why = "needs credentials" if origin.password else "is named by its journal alone"
            raise TrackingError(
                f"the store of run {origin.run_id} {why}; set MLFLOW_TRACKING_URI to it "
                f"({origin.tracking_uri}, as its process wrote down)"
            )
        uri = origin.tracking_uri
    switch_store(uri)  # messages name it
    return preflight(opens_run=False)


def _run_of(client: MlflowClient, origin: RunHeader) -> Run:
    with mlflow_errors(f"read run {origin.run_id} (its process wrote to {origin.tracking_uri})"):
        run = client.get_run(origin.run_id)
    if run.info.lifecycle_stage == LifecycleStage.DELETED:
        raise TrackingError(
            f"run {origin.run_id} is deleted: restore it (mlflow runs restore --run-id "
            f"{origin.run_id}), or remove the folder"
        )
    return run
