"""Missing artifacts, for example on an unmounted disk, are an error and not "no rows"."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest
from commands import invoke
from stored_runs import histories, rows_folder, stored_run
from trainings import FOUR_BUCKETS, KnownTraining

import clear_mlflow
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.errors import RecordError
from clear_mlflow.store import names
from clear_mlflow.store.lease import Lease
from clear_mlflow.store.rows import list_row_sizes
from clear_mlflow.store.search import select_runs
from clear_mlflow.tracking import run_recorder
from clear_mlflow.tracking.resume import detect_rows, read_resume_point
from clear_mlflow.tracking.tracked_training import train_in_process
from clear_mlflow.tracking.training_run import TrainingRun

MISSING = "are missing from its artifacts"


@pytest.fixture
def trained(trained_runs):
    return trained_runs["naive", 0]


@pytest.fixture
def unmount(tmp_path):
    def away():
        root = tmp_path / "artifacts"
        root.rename(tmp_path / "the disk")
        root.mkdir()

    return away


def known(store, run_id):
    run = store.get_run(run_id)
    return run.info.status, run.data.tags, run.data.params, histories(store, run_id)


def files_below(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "command", [("evaluate", "--runs", "RUN"), ("evaluate", "--runs", "test"), ("compare", "RUN")]
)
def test_commands_reject_the_run_and_leave_it_unchanged(store, trained, unmount, tmp_path, command):
    run_id = trained.info.run_id
    before = known(store, run_id)
    unmount()
    done = invoke(*(word.replace("RUN", run_id) for word in command))
    assert done.exit_code == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == (9 if "test" in command else 1)
    assert all(MISSING in line and "is a disk not mounted" in line for line in errors)
    assert known(store, run_id) == before
    assert before[1][names.ROWS_TAG] == "complete"
    assert not files_below(tmp_path / "artifacts")


def test_an_interrupted_run_with_missing_rows_is_rejected(store, trained, unmount):
    """Its points show that there were rows, before any scoring."""
    run_id = trained.info.run_id
    for tag in (names.ROWS_TAG, names.SCORED_TAG, names.MATRIX_TAG, names.VERSIONS_TAG):
        store.delete_tag(run_id, tag)
    before = known(store, run_id)
    unmount()
    with pytest.raises(RecordError, match=MISSING):
        detect_rows(store, run_id)
    chosen = select_runs(store, run_ids=(run_id,))
    (verdict,) = rescore_runs(store, chosen, explicit=False, dry_run=False)
    assert MISSING in verdict.detail
    assert known(store, run_id) == before


def test_a_run_interrupted_in_its_first_bucket_with_missing_rows_is_rejected(
    store, experiment_id, unmount, monkeypatch
):
    monkeypatch.setattr(run_recorder, "build_row_points", lambda *_: [])
    run = store.create_run(experiment_id)
    Lease(store, run.info.run_id).acquire()
    training = KnownTraining(FOUR_BUCKETS)
    with TrainingRun(store, run.info.run_id, training.config, {}) as tracked:
        tracked.log_dataset(training.dataset)
        tracked.log(next(iter(training.rows())))
    assert not histories(store, run.info.run_id)
    unmount()
    with pytest.raises(RecordError, match=MISSING):
        list_row_sizes(store, store.get_run(run.info.run_id))


@dataclass
class MovedAway(KnownTraining):
    """A training whose artifacts are moved away after row 2."""

    unmount: Callable[[], object] = lambda: None

    def rows(self, *args):
        for measured in super().rows(*args):
            if measured.row.row == 3:
                self.unmount()
            yield measured


def test_a_training_with_missing_rows_at_its_end_fails(store, experiment_id, unmount):
    with pytest.raises(RecordError, match=r"stored rows that are missing now in .*: 0, 1, 2; put"):
        train_in_process(store, MovedAway(FOUR_BUCKETS, unmount=unmount), {})
    (run,) = store.search_runs([experiment_id])
    assert run.info.status == "FAILED"
    assert "missing now" in run.data.tags[names.ERROR_TAG]
    assert "partial: 2 of 4 rows" in str(clear_mlflow.load(run.info.run_id))
    done = invoke("evaluate", "--runs", run.info.run_id)
    assert "2 of 4 rows" in done.output
    assert mlflow.active_run() is None


def test_no_training_continues_in_it(store, trained, unmount, tmp_path):
    run_id = trained.info.run_id
    points = histories(store, run_id)
    unmount()
    with pytest.raises(RecordError, match=MISSING):
        read_resume_point(store, run_id, tmp_path)
    with mlflow.start_run(run_id=run_id), pytest.raises(RecordError, match=MISSING):
        train_in_process(store, KnownTraining(FOUR_BUCKETS), {})
    assert histories(store, run_id) == points
    assert store.get_run(run_id).data.tags[names.ROWS_TAG] == "complete"


def test_missing_rows_are_named_from_the_first_to_the_last(store, trained):
    for row in range(4):
        (rows_folder(trained) / f"row_00{row}.json").unlink()
    (result,) = clear_mlflow.evaluate([trained.info.run_id])
    assert f"{MISSING} (row_000.json to row_003.json in" in result.detail


@pytest.mark.slow
def test_a_missing_row_of_a_matrix_too_large_for_a_tag_is_noticed(store, experiment_id):
    """The tag of a complete run tells the number of rows."""
    counts = random.Random(0)
    correct = [[counts.randrange(101) for _ in range(90)] for _ in range(91)]
    run = stored_run(store, experiment_id, correct)
    (scored,) = rescore_runs(store, [run], explicit=False, dry_run=False)
    assert scored.action == "scored"
    before = known(store, run.info.run_id)
    assert names.MATRIX_TAG not in before[1]
    (rows_folder(run) / "row_090.json").unlink()
    (verdict,) = rescore_runs(
        store, [store.get_run(run.info.run_id)], explicit=False, dry_run=False
    )
    assert f"{MISSING} (row_090.json in" in verdict.detail
    assert known(store, run.info.run_id) == before
