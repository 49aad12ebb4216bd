"""How runs end: status, reason, scores and tags."""

import json
import os
import signal
import statistics

import mlflow
import pytest
from commands import invoke
from forked import run_python
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from offline_folders import create_offline_folder
from stored_runs import rows_folder, stored_run

from clear_mlflow.core.errors import DivergedError, TrackingError, TrainingDied
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.run_folder import OUTCOME_JSON, Outcome, RunFolder, find_run_folders
from clear_mlflow.journal.uploader import UnsentError, store_outcome
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.lease import (
    Lease,
    LeaseLostError,
    build_lease_tags,
    check_not_being_trained,
    format_lease,
)
from clear_mlflow.tracking.lifecycle import (
    RunResult,
    build_result,
    end_expired_run,
    end_project_run,
    end_run,
    log_ensemble_summary,
    open_run,
)
from clear_mlflow.tracking.resume import detect_rows
from clear_mlflow.tracking.sync import sync_folders


def running(store, experiment_id, correct=((1, 1), (6, 3), (4, 7))):
    run_id = stored_run(store, experiment_id, correct).info.run_id
    store.update_run(run_id, status="RUNNING")
    Lease(store, run_id).acquire()
    Lease(store, run_id).renew()
    return run_id


def end_and_load(store, run_id):
    run = store.get_run(run_id)
    return (
        run.info.status,
        *(run.data.tags.get(name) for name in (names.ERROR_TAG, names.DIVERGED_TAG)),
    )


def test_a_closed_run_has_a_reason_and_no_process(store, experiment_id):
    happened = []

    class Watched(MlflowClient):
        def set_terminated(self, run_id, status=None, end_time=None):
            super().set_terminated(run_id, status, end_time)
            happened.append(names.PROCESS_TAG in store.get_run(run_id).data.tags)

    run_id = running(store, experiment_id)
    outcome = Outcome("FAILED", "no more " * 2000, diverged=True)
    run = store_outcome(Watched(store.tracking_uri), run_id, outcome)
    assert happened == [True]
    assert run.info.status == "FAILED"
    status, error, diverged = end_and_load(store, run_id)
    assert (status, diverged) == ("FAILED", "true")
    assert error == ("no more " * 2000)[:8000]
    assert names.PROCESS_TAG not in store.get_run(run_id).data.tags
    store_outcome(store, run_id, Outcome("FAILED"))  # another evaluate closes it, too
    running_run = running(store, experiment_id)
    store_outcome(store, running_run, Outcome(None, "stopped"))
    assert end_and_load(store, running_run) == ("RUNNING", "stopped", None)
    assert names.PROCESS_TAG not in store.get_run(running_run).data.tags


def test_a_run_in_training_is_rejected(store, experiment_id, monkeypatch):
    run_id = running(store, experiment_id)
    message = (
        rf"another process trains into run .* now \(process {os.getpid()} of this machine.*; wait"
    )
    with pytest.raises(TrackingError, match=message):
        check_not_being_trained(store, store.get_run(run_id), "wait")
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    before = store.get_run(run_id).data.tags
    with pytest.raises(TrackingError, match="unset MLFLOW_RUN_ID"):
        open_run(store, "a run", lambda run: None)
    with pytest.raises(TrackingError, match="unset MLFLOW_RUN_ID"):
        detect_rows(store, run_id)
    assert store.get_run(run_id).data.tags == before
    assert mlflow.active_run() is None
    store.delete_tag(run_id, names.PROCESS_TAG)
    check_not_being_trained(store, store.get_run(run_id), "wait")


def test_a_completed_run_is_scored_and_finished(store, experiment_id):
    for sets_status, status in ((True, "FINISHED"), (False, "RUNNING")):
        run_id = running(store, experiment_id)
        result = end_run(store, run_id, build_result(None, run_id), sets_status=sets_status)
        assert (result.exit_code, result.status, result.problem) == (0, "FINISHED", None)
        assert end_and_load(store, run_id) == (status, None, None)
        assert store.get_run(run_id).data.metrics["renate/average_accuracy"] == (
            result.scores.results["renate/average_accuracy"].value
        )


def test_an_invalid_record_fails_a_run(store, experiment_id):
    for before, code, status in (
        (RunResult(0, "FINISHED", None), 2, "FAILED"),
        (RunResult(130, "KILLED", None, error="stopped"), 130, "KILLED"),
    ):
        run_id = running(store, experiment_id)
        (rows_folder(store.get_run(run_id)) / "row_001.json").write_text("{")
        result = end_run(store, run_id, before)
        assert (result.exit_code, result.status) == (code, status)
        stored_status, error, _ = end_and_load(store, run_id)
        assert stored_status == status
        assert all("row_001.json" in str(problem) for problem in (result.problem, error))


def test_the_summary_of_an_ensemble_has_what_all_members_define(store, experiment_id):
    """A member of one bucket has no forgetting."""
    tags = {names.KIND_TAG: names.KIND_ENSEMBLE}
    parent_id = store.create_run(experiment_id, tags=tags).info.run_id
    store.log_param(parent_id, "seeds", "0,1,2")
    scores = []
    for correct in ((1, 1), (6, 3), (4, 7)), ((1, 1), (8, 3), (2, 9)), ((1, 1), (6, 3)):
        log_ensemble_summary(store, parent_id)
        assert not store.get_run(parent_id).data.metrics
        run_id = running(store, experiment_id, correct)
        scores.append(score(store, run_id))
        store.set_tag(run_id, names.KIND_TAG, names.KIND_TRAIN)
        store.set_tag(run_id, MLFLOW_PARENT_RUN_ID, parent_id)
        store.set_terminated(run_id)
    log_ensemble_summary(store, parent_id)
    data = store.get_run(parent_id).data
    values = [of_member.results["clear/accuracy"].value for of_member in scores]
    assert data.metrics["mean/clear/accuracy"] == pytest.approx(statistics.fmean(values))
    assert data.metrics["std/clear/accuracy"] == pytest.approx(statistics.stdev(values))
    assert not any("forgetting" in name for name in data.metrics)
    assert data.tags[names.MEMBERS_TAG] == "3"


@pytest.mark.parametrize(
    ("before", "is_kept"),
    [("mine", True), ("bold-replay-3", True), ("replay-foal-3", True), ("upbeat-foal-91", False)],
)
def test_a_run_that_exists_keeps_the_name_that_a_person_gave_it(
    store, experiment_id, monkeypatch, before, is_kept
):
    """A name that MLflow generated, of two words and a number, is replaced."""
    run_id = store.create_run(experiment_id, run_name=before).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    assert open_run(store, "a run", lambda run: None) == run_id
    mlflow.end_run()
    assert store.get_run(run_id).info.run_name == (before if is_kept else "a run")


def test_a_run_taken_over_by_another_process_is_left_to_it(store):
    run_id = open_run(store, "a run", lambda run: None)
    taken = json.dumps({**json.loads(format_lease()), "host": "another", "token": "another's"})
    store.set_tag(run_id, names.HOLDER_TAG, taken)
    before = store.get_run(run_id)
    for error, code in ((None, 2), (LeaseLostError("lost"), 2), (KeyboardInterrupt(), 1)):
        result = end_run(store, run_id, build_result(error, run_id))
        assert (result.exit_code, result.has_lost_lease) == (code, True)
        assert isinstance(result.problem, LeaseLostError)
        assert mlflow.active_run() is None
    after = store.get_run(run_id)
    assert (after.info.status, after.data.tags) == ("RUNNING", before.data.tags)


@pytest.mark.parametrize(
    ("error", "received", "expected"),
    [
        (TrainingDied(1), [], (1, "FAILED")),
        (TrainingDied(-signal.SIGKILL), [], (137, "KILLED")),
        (TrainingDied(-signal.SIGSEGV), [], (1, "FAILED")),
        (TrainingDied(-signal.SIGTERM), [signal.SIGINT], (130, "KILLED")),
        (TrackingError("no"), [signal.SIGTERM], (143, "KILLED")),
        (TrackingError("no"), [], (2, "FAILED")),
    ],
)
def test_outcome_of_a_training_in_a_child_process(error, received, expected):
    result = build_result(error, "r", received)
    assert (result.exit_code, result.status) == expected
    assert result.run_id == "r"
    unsent = UnsentError("waits")
    unsent.__cause__ = error
    result = build_result(unsent, "r", received)
    assert (result.exit_code, result.status, result.unsent) == (*expected, unsent)


def test_outcome_of_a_training_in_this_process():
    for error, status in (
        (None, "FINISHED"),
        (SystemExit(0), "FINISHED"),
        (SystemExit(3), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (ValueError("x"), "FAILED"),
        (UnsentError("waits"), "FINISHED"),
    ):
        assert build_result(error, "r").status == status
    result = build_result(DivergedError("no number"), "r")
    assert (result.status, result.error, result.diverged) == ("FAILED", "no number", True)
    assert build_result(ValueError("x"), "r").error == "ValueError: x"


def test_the_outcome_is_kept_while_the_store_is_unreachable(store, experiment_id):
    run_id = running(store, experiment_id)
    unsent = UnsentError("waits")
    unsent.__cause__ = DivergedError("no number")
    result = end_run(store, run_id, build_result(unsent, run_id))
    assert result.exit_code == 2
    assert store.get_run(run_id).info.status == "RUNNING"
    (folder,) = find_run_folders(run_id)
    store.set_terminated(run_id, "KILLED")
    (synced,) = sync_folders([folder])
    assert synced.action == "sent"
    assert not folder.exists()
    assert end_and_load(store, run_id) == ("FAILED", "no number", "true")
    assert "clear/accuracy" in store.get_run(run_id).data.metrics


def leave_rows(store, run_id, tmp_path, reason=None):
    journal = RunFolder.create(tmp_path / run_id, run_id, store.tracking_uri)
    if reason is not None:
        journal.append_json(OUTCOME_JSON, reason)
    journal.close()
    return journal.folder


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        ("RUNNING", None, "RUNNING"),
        ("RUNNING", Outcome("FINISHED"), "FINISHED"),
        ("FAILED", Outcome("FINISHED"), "FAILED"),
        ("KILLED", Outcome("FINISHED"), "FINISHED"),
        ("RUNNING", Outcome(None), "RUNNING"),
    ],
)
def test_the_status_that_sync_sets(store, experiment_id, tmp_path, status, message, expected):
    run_id = running(store, experiment_id)
    store.update_run(run_id, status=status)
    (synced,) = sync_folders([leave_rows(store, run_id, tmp_path, message)])
    assert synced.action == "sent", synced.detail
    assert store.get_run(run_id).info.status == expected
    assert "clear/accuracy" in store.get_run(run_id).data.metrics


def test_a_run_of_a_dead_process_is_closed_as_killed(store, experiment_id, tmp_path):
    run_id = running(store, experiment_id)
    store.set_tag(
        run_id, names.PROCESS_TAG, json.dumps({**json.loads(format_lease()), "started": 0})
    )
    (synced,) = sync_folders([leave_rows(store, run_id, tmp_path)])
    assert synced.action == "sent"
    status, error, _ = end_and_load(store, run_id)
    assert status == "KILLED"
    assert "killed while the tracking store was away" in error
    deleted = running(store, experiment_id)
    store.delete_run(deleted)
    folder = leave_rows(store, deleted, tmp_path, Outcome("FINISHED"))
    (synced,) = sync_folders([folder])
    assert synced.action == "failed"
    assert "is deleted: restore it" in synced.detail
    assert folder.exists()


def test_a_run_with_a_renewed_lease_is_not_closed(store, experiment_id):
    observed = store.get_run(running(store, experiment_id))
    store.set_tag(observed.info.run_id, names.HOLDER_TAG, "another")
    with pytest.raises(TrackingError, match="trained into again; it is left as it is"):
        end_expired_run(store, observed)
    assert store.get_run(observed.info.run_id).info.status == "RUNNING"


def test_a_project_run_without_a_training_is_ended(store, experiment_id, monkeypatch):
    project = {"mlflow.project.entryPoint": "main"}
    for tags, status in (
        (project, "KILLED"),
        ({}, "RUNNING"),
        ({**project, **build_lease_tags()}, "RUNNING"),
    ):
        run_id = store.create_run(experiment_id, tags=tags).info.run_id
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
        end_project_run(RunResult(130, "KILLED", None, error="stopped"))
        assert store.get_run(run_id).info.status == status


DIES = """
import os, sys
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from clear_mlflow.process.training_process import TrainingProcess

create_run, number = SqlAlchemyStore.create_run, int(sys.argv[1])

def create_and_die(*arguments, **options):
    global number
    run = create_run(*arguments, **options)
    number -= 1
    if number == 0:
        os.kill(os.getpid(), 9)
    return run

SqlAlchemyStore.create_run = create_and_die
if number == 0:  # before the data are loaded
    TrainingProcess.config = property(lambda self: os.kill(os.getpid(), 9))
if sys.argv[2] == "track":
    import clear_mlflow
    clear_mlflow.track(buckets=2).__enter__()
from clear_mlflow.cli import main
main(sys.argv[2:])
"""
ENSEMBLE = ("train", "--seeds", "0,1", "--strategy", "ncm", "--features", "pixels")


@pytest.mark.parametrize(
    ("number", "command", "run_type"),
    [
        (1, ("train",), "train"),
        (1, ENSEMBLE, "ensemble"),
        (2, ENSEMBLE, "train"),
        (1, ("track",), "train"),
        (1, ("import", "matrix.csv", "--orientation", "rows"), "train"),
        (1, ("sweep", "grid.yaml"), "sweep"),
        (2, ("sweep", "grid.yaml"), "train"),
        (1, ("sync", "offline_runs"), "train"),
        (0, ("train",), "train"),
    ],
)
def test_a_run_has_its_kind_as_soon_as_it_exists(
    store, experiment_id, empty_store, tmp_path, monkeypatch, number, command, run_type
):
    """The process is killed right after the call that creates its nth run.

    A run that ``mlflow run`` creates has it before the data are loaded.
    """
    (tmp_path / "matrix.csv").write_text("0.9,0.5\n0.8,0.9\n")
    grid = "fixed: {features: pixels}\ngrid: {strategy: [ncm]}\n"
    (tmp_path / "grid.yaml").write_text(grid)
    client, offline_experiment = create_offline_folder(tmp_path / "offline_runs")
    tags = {names.KIND_TAG: "train", names.VERSION_TAG: __version__}
    client.set_terminated(client.create_run(offline_experiment, tags=tags).info.run_id)
    if number == 0:
        project = store.create_run(experiment_id, tags={"mlflow.project.entryPoint": "main"})
        monkeypatch.setenv("MLFLOW_RUN_ID", project.info.run_id)
    done = run_python("-c", DIES, str(number), *command, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL, done.stderr
    ids = [experiment.experiment_id for experiment in store.search_experiments()]
    run = store.search_runs(ids, order_by=["attributes.start_time DESC"])[0]
    assert run.data.tags[names.KIND_TAG] == run_type
    assert run.data.tags[names.VERSION_TAG] == __version__
    if run_type == "train":
        monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
        resumed = invoke("train", "--resume", run.info.run_id)
        assert f"run {run.info.run_id} lacks config.json" in resumed.stderr
