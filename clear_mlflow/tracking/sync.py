"""Upload what training processes left on local disk, and close their runs."""

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
    FolderLockedError,
    Outcome,
    RunFolder,
    RunHeader,
    find_run_folders,
    list_candidate_folders,
    list_run_folders,
    read_header,
)
from clear_mlflow.journal.uploader import Uploader, store_outcome
from clear_mlflow.scoring import read_scores, score
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors, preflight, resolve_store_uri, switch_store
from clear_mlflow.store.lease import check_not_being_trained, is_expired, read_trainer_token
from clear_mlflow.store.ui_urls import format_run_links
from clear_mlflow.tracking.lifecycle import log_member_summary

_KILLED = Outcome("KILLED", "its process was killed while the tracking store was away")


class _MembersOpenError(TrackingError):
    """The run of an ensemble cannot be ended while the run of a member is RUNNING."""


@dataclass(frozen=True)
class SyncResult:
    """The result of uploading the local folder of one run."""

    folder: Path
    run_id: str | None  # None if the folder's header cannot be read
    num_sent: int  # entries that the store took
    message: str  # what was done, or why not, in one line
    is_stored: bool  # True if the store has everything; the folder is removed then
    links: tuple[str, ...] = ()  # lines with addresses of the run
    is_live: bool = False  # True if its process is alive, and uploads by itself


def select_folders(folder: Path | None) -> list[Path]:
    """Return the run folders to upload: *folder*, those directly in it, or by default all.

    A run folder has the files of one run that the store did not take. All are those in the default
    locations of this machine. Raises TrackingError if *folder* neither is a run folder nor contains
    one.
    """
    if folder is None:
        return find_run_folders()
    if (folder / HEADER_JSON).is_file():
        return [folder]
    try:
        folders = list_run_folders(folder)
    except OSError as error:
        raise TrackingError(f"{folder} cannot be read: {error.strerror}") from error
    if not folders:
        raise TrackingError(
            f"{folder} contains nothing that waits for a store; expected {HEADER_JSON} in it, or "
            "in folders in it"
        )
    return folders


def sync_folders(
    folders: Sequence[Path], *, use_recorded_store: bool = False
) -> Iterator[SyncResult]:
    """Upload the files in run folders and end each run as its training ended.

    Yields a result for each folder, also if its upload failed. Folders of ensembles come last.

    use_recorded_store: upload a folder in a default location to the store that its run.json names,
    even if MLFLOW_TRACKING_URI is set to another store.
    """
    open_ensembles = []
    for folder in folders:
        try:
            yield _sync_folder(folder, use_recorded_store)
        except _MembersOpenError:
            open_ensembles.append(folder)
    for folder in open_ensembles:  # their members are closed now
        try:
            yield _sync_folder(folder, use_recorded_store)
        except _MembersOpenError as error:
            yield SyncResult(folder, read_header(folder).run_id, 0, str(error), is_stored=False)


def _sync_folder(path: Path, use_recorded_store: bool) -> SyncResult:
    """Upload one run folder, end its run, and delete the folder.

    Errors are returned in the result, except _MembersOpenError, which is raised.
    """
    run_id, num_sent = None, 0
    try:
        header = read_header(path)
        run_id = header.run_id
        if run_id is None:
            raise TrackingError(f"{path} belongs to a run that has no id in any store")
        folder = RunFolder.reopen(path)
        is_stored = False
        try:
            client = _connect(header, path, use_recorded_store)
            run = _get_run(client, run_id, header.tracking_uri)
            # A process may train into the run; the one that wrote this folder has unlocked it.
            if read_trainer_token(run) not in (None, header.process):
                check_not_being_trained(client, run, "sync again when it has ended")
            outcome = folder.read_outcome() or (_KILLED if is_expired(client, run) else None)
            for _ in Uploader(client, run_id).upload_folder(run, folder):
                num_sent += 1
            message = _close_run(client, client.get_run(run_id), outcome)
            is_stored = True
        finally:
            folder.close(remove=is_stored)
    except _MembersOpenError:
        raise
    except (ClearError, OSError) as error:
        is_live = isinstance(error, FolderLockedError)
        return SyncResult(path, run_id, num_sent, str(error), is_stored=False, is_live=is_live)
    links: tuple[str, ...] = ()
    with suppress(ClearError), mlflow_errors(f"look at run {run_id}"):
        links = tuple(format_run_links(client, run))
    return SyncResult(path, run_id, num_sent, message, is_stored=True, links=links)


def _close_run(client: MlflowClient, run: Run, outcome: Outcome | None) -> str:
    """Score a run, set its final status and error, and return what was done in one line.

    outcome: final status and error; None keeps the status. Raises _MembersOpenError if the run is
    of an ensemble and a member's run is RUNNING.
    """
    run_id, status = run.info.run_id, str(run.info.status)
    if run.data.tags.get(names.KIND_TAG) == names.KIND_ENSEMBLE:
        members = _list_members(client, run)
        if any(str(member.info.status) == "RUNNING" for member in members):
            raise _MembersOpenError("its members are not all stored yet")
        statuses = [str(member.info.status) for member in members]
        num_seeds = len(run.data.params.get("seeds", "").split(","))
        if names.MEMBERS_TAG not in run.data.tags and statuses == ["FINISHED"] * num_seeds:
            scores = {number: read_scores(client, run) for number, run in enumerate(members)}
            log_member_summary(client, run_id, scores)
    else:
        score(client, run_id)
    if outcome is None or outcome.status is None:
        return f"scored; its status stays {status}"
    # evaluate sets KILLED on a run whose process is gone and did not report how it ended.
    is_changed = status in ("RUNNING", "KILLED") and status != outcome.status
    new_status = outcome.status if is_changed else None
    closed = store_outcome(client, run_id, Outcome(new_status, outcome.error, outcome.diverged))
    return f"scored, {closed.info.status}"


def _list_members(client: MlflowClient, run: Run) -> list[Run]:
    """Return the child runs of an ensemble's run, one per member."""
    with mlflow_errors(f"read the members of run {run.info.run_id}"):
        return list(
            client.search_runs(
                [run.info.experiment_id],
                f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run.info.run_id}' "
                f"AND tags.`{names.KIND_TAG}` = '{names.KIND_TRAIN}'",
                max_results=1000,
            )
        )


def _connect(header: RunHeader, folder: Path, use_recorded_store: bool) -> MlflowClient:
    """Connect to the store of MLFLOW_TRACKING_URI, or to the one that a folder's run.json names.

    The latter only for a folder in a default location: another folder may come from anyone, and
    credentials would be sent to the store that it names. Raises TrackingError if no store is
    usable.
    """
    uri = MLFLOW_TRACKING_URI.get()
    is_trusted = folder.absolute() in list_candidate_folders(folder.name)
    if use_recorded_store and is_trusted and uri:
        is_other_store = mask_credentials(resolve_store_uri(uri)) != header.tracking_uri
        uri = None if is_other_store else uri
    if not uri:
        if header.password or not is_trusted:
            reason = "needs credentials" if header.password else "is named only by its folder"
            raise TrackingError(
                f"the store of run {header.run_id} {reason}; set MLFLOW_TRACKING_URI to it "
                f"({header.tracking_uri}, as its process wrote down)"
            )
        uri = header.tracking_uri
    switch_store(uri)  # messages name it
    return preflight(opens_run=False)


def _get_run(client: MlflowClient, run_id: str, tracking_uri: str) -> Run:
    """Return a stored run, or raise TrackingError if it is deleted or does not exist.

    tracking_uri: where the run's process stored it, for the message.
    """
    with mlflow_errors(f"read run {run_id} (its process wrote to {tracking_uri})"):
        run = client.get_run(run_id)
    if run.info.lifecycle_stage == LifecycleStage.DELETED:
        raise TrackingError(
            f"run {run_id} is deleted: restore it (mlflow runs restore --run-id {run_id}), or "
            "remove the folder"
        )
    return run
