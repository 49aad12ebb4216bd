"""Send runs that were recorded offline, and what trainings left on local disk, to a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Run
from mlflow.environment_variables import MLFLOW_TRACKING_URI
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.disk import find_offline_folder
from clear_mlflow.core.errors import ClearError, TrackingError
from clear_mlflow.core.text import show_blank
from clear_mlflow.journal.offline_store import (
    list_headless_runs,
    list_offline_runs,
    read_offline_run,
)
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
from clear_mlflow.scoring import ActionResult
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.client import connect_store, mlflow_errors, resolve_store_uri, switch_store
from clear_mlflow.store.lease import check_not_being_trained, detect_dead_trainer, get_trainer_token
from clear_mlflow.store.offline import HEADER, is_offline_folder, list_offline_folders
from clear_mlflow.store.ui_urls import format_run_links
from clear_mlflow.tracking.copy_runs import FAILED, IN_USE, RunCopier
from clear_mlflow.tracking.lifecycle import log_ensemble_summary
from clear_mlflow.tracking.run_sources import open_sources

SENT = "sent"
_KILLED = Outcome("KILLED", "its process was killed while the tracking store was away")


def list_sync_folders(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """List the offline folders and the run folders to sync.

    An offline folder is a store with complete runs. A run folder contains files of one run that are
    not uploaded yet. Each path is one of them, or has some directly in it; run folders next to
    offline folders are skipped. Raises TrackingError if a path contains neither.

    paths: empty for the offline folders at CLEAR_MLFLOW_OFFLINE, or else at offline_runs in the
    working folder, and all run folders in the default locations of this machine.
    """
    if not paths:
        folder = find_offline_folder() or Path("offline_runs")
        folders = list_offline_folders(folder)
        if not folders and any(folder.glob(f"*/{HEADER_JSON}")):
            raise TrackingError(f"{folder} contains runs, but lacks its {HEADER}; copy it again")
        return folders, list_folders_to_upload(None)
    offline: list[Path] = []
    waiting: list[Path] = []
    for path in paths:
        if folders := list_offline_folders(path):
            offline += folders
        else:
            waiting += list_folders_to_upload(path)
    return offline, waiting


def copy_offline_folders(folders: Sequence[Path], experiment: str | None) -> Iterator[ActionResult]:
    """Copy the runs of offline folders to the tracking store.

    Yields a result for each run. An offline folder is an MLflow store on local disk, recorded
    without a server. The folders are not deleted. One that cannot be read yields a single result
    with the error. Raises TrackingError if the store cannot be reached.

    experiment: name of the experiment of all copies, or None; see :class:`RunCopier`.
    """
    copier: RunCopier | None = None
    for folder in folders:
        try:
            sources = open_sources(str(folder))
        except ClearError as error:
            yield ActionResult(None, "", FAILED, str(error), str(folder), is_problem=True)
            continue
        for path in list_offline_runs(folder):
            try:
                read_offline_run(path)
            except ClearError as error:
                yield ActionResult(None, "", FAILED, str(error), path.name, is_problem=True)
        for path in list_headless_runs(folder):
            message = f"{path} contains rows, but lacks its {HEADER_JSON}"
            yield ActionResult(None, "", FAILED, message, path.name, is_problem=True)
        if copier is None:
            client = connect_store(experiment=experiment, can_be_offline=False)
            copier = RunCopier(client, experiment)
        yield from copier.copy_runs(sources)


def list_folders_to_upload(folder: Path | None) -> list[Path]:
    """List *folder* or the run folders in it, or raise TrackingError.

    Raises TrackingError if there are none. folder: None for all run folders in the default
    locations of this machine, which may be none.
    """
    if folder is None:
        return find_run_folders()
    if (folder / HEADER_JSON).is_file():
        return [folder]
    try:
        folders = list_run_folders(folder)
    except OSError as error:
        raise TrackingError(
            f"{show_blank(str(folder))} cannot be read: {error.strerror}"
        ) from error
    if not folders:
        raise TrackingError(
            f"{folder} contains nothing that waits for a store; expected {HEADER_JSON} or "
            "offline.json in it, or in folders in it"
        )
    return folders


def sync_folders(
    folders: Sequence[Path], *, use_recorded_store: bool = False
) -> Iterator[ActionResult]:
    """Upload and delete run folders, and set the runs' final status.

    Scores the runs and deletes the folders that were uploaded. A run whose process was killed
    becomes KILLED. Yields a result for each folder; an error is in the result and does not stop the
    others.

    use_recorded_store: upload to the store that a folder's run.json names, even if
    MLFLOW_TRACKING_URI names another one; only for folders in a default location.
    """
    for folder in folders:
        yield _sync_folder(folder, use_recorded_store)


def _sync_folder(path: Path, use_recorded_store: bool) -> ActionResult:
    run_id, num_sent = None, 0
    try:
        header: RunHeader = read_header(path)
        run_id = header.run_id
        if run_id is None:
            raise TrackingError(f"{path} belongs to a run that was never opened in a store")
        if not header.tracking_uri:
            missing = "" if is_offline_folder(path.parent) else f", which lacks its {HEADER}"
            raise TrackingError(
                f"{path} was recorded offline; sync its folder, {path.parent}{missing}"
            )
        folder = RunFolder.reopen(path)
        is_stored = False
        try:
            client = _connect(header, path, use_recorded_store)
            run = _read_run(client, run_id, header.tracking_uri)
            # A process may train into the run; the one that wrote this folder has unlocked it.
            if get_trainer_token(run) not in (None, header.process):
                check_not_being_trained(client, run, "sync again when it has ended")
            outcome = folder.read_outcome() or (
                _KILLED if detect_dead_trainer(client, run) else None
            )
            for _ in Uploader(client, run_id).upload_folder(run, folder):
                num_sent += 1
            message = _close_run(client, client.get_run(run_id), outcome)
            is_stored = True
        finally:
            folder.close(remove=is_stored)
    except (ClearError, OSError) as error:
        action = IN_USE if isinstance(error, FolderLockedError) else FAILED
        detail = f"{num_sent} sent; {error}"
        return ActionResult(run_id, "", action, detail, str(path), is_problem=action == FAILED)
    links: tuple[str, ...] = ()
    with suppress(ClearError), mlflow_errors(f"look at run {run_id}"):
        links = tuple(format_run_links(client, run))
    detail = f"{num_sent} sent; {message}"
    return ActionResult(run_id, str(run.info.run_name), SENT, detail, str(path), links=links)


def _close_run(client: MlflowClient, run: Run, outcome: Outcome | None) -> str:
    """Score a run, store its outcome, and describe what was done."""
    run_id = run.info.run_id
    is_ensemble = run.data.tags.get(names.KIND_TAG) == names.KIND_ENSEMBLE
    if not is_ensemble:
        score(client, run_id)
    status = str(run.info.status)
    what_was_done = "closed" if is_ensemble else "scored"
    message = f"{what_was_done}; its status stays {status}"
    if outcome is not None and outcome.status is not None:
        # evaluate sets KILLED on a run whose process is gone and did not report how it ended.
        is_changed = status in ("RUNNING", "KILLED") and status != outcome.status
        outcome = replace(outcome, status=outcome.status if is_changed else None)
        message = f"{what_was_done}, {store_outcome(client, run_id, outcome).info.status}"
    parent_id = run_id if is_ensemble else run.data.tags.get(MLFLOW_PARENT_RUN_ID)
    if parent_id is not None:
        log_ensemble_summary(client, parent_id)
    return message


def _connect(header: RunHeader, folder: Path, use_recorded_store: bool) -> MlflowClient:
    """Switch MLflow to MLFLOW_TRACKING_URI or run.json's store, and connect.

    The latter only for a folder in a default location: another folder may come from anyone, and
    credentials would be sent to the store that it names.
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
    return connect_store(opens_run=False)


def _read_run(client: MlflowClient, run_id: str, tracking_uri: str) -> Run:
    with mlflow_errors(f"read run {run_id} (its process wrote to {tracking_uri})"):
        run = client.get_run(run_id)
    if run.info.lifecycle_stage == LifecycleStage.DELETED:
        raise TrackingError(
            f"run {run_id} is deleted: restore it (mlflow runs restore --run-id {run_id}), or "
            "remove the folder"
        )
    return run
