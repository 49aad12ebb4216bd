"""The loss curve of a training in MLflow: every point once, despite outages and kills."""

import math

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric
from stored_runs import histories, only_run
from trainings import FOUR_BUCKETS, KnownTraining

from clear_mlflow.journal.run_folder import RunFolder, get_unsent_root, list_candidate_folders
from clear_mlflow.learning.measured import CurvePoint, Measurement, ignore
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.client import MAX_POINTS
from clear_mlflow.store.lease import Lease
from clear_mlflow.tracking.run_recorder import RunRecorder
from clear_mlflow.tracking.sync import list_folders_to_upload, sync_folders
from clear_mlflow.tracking.tracked_training import train_in_process

pytestmark = pytest.mark.usefixtures("own_cache")

FIRST = CurvePoint(1, 2.5, 0.1, 100.0, 1_000)
SECOND = CurvePoint(3, 1.5, 0.05, 200.0, 2_000)
THIRD = CurvePoint(5, 0.5, 0.025, 300.0, 3_000)


@pytest.fixture
def run_id(store, experiment_id):
    new_run_id = store.create_run(experiment_id).info.run_id
    Lease(store, new_run_id).acquire()
    return new_run_id


def read_curve(store, run_id):
    points = histories(store, run_id)
    return {name: points[name] for name in names.CURVE if name in points}


def build_series(*points):
    return {
        names.CURVE_LOSS: [(p.step, p.time, p.loss) for p in points],
        names.CURVE_LR: [(p.step, p.time, p.lr) for p in points],
        names.CURVE_SPEED: [(p.step, p.time, p.images_per_second) for p in points],
    }


def test_a_curve_has_three_series_over_optimiser_steps(store, experiment_id):
    training = KnownTraining(FOUR_BUCKETS, live={1: [FIRST]}, curve={1: [SECOND], 2: [THIRD]})
    train_in_process(store, training, {})
    (run,) = store.search_runs([experiment_id])
    assert read_curve(store, run.info.run_id) == build_series(FIRST, SECOND, THIRD)
    score(store, run.info.run_id)
    assert read_curve(store, run.info.run_id) == build_series(FIRST, SECOND, THIRD)


class Watched(KnownTraining):
    """In its first bucket, waits until the store has a point of it."""

    store: MlflowClient
    seen: dict[str, float]

    def rows(self, on_message=ignore):
        for measured in super().rows(on_message):
            if measured.row.row == 1:
                (run,) = self.store.search_runs(["1"])
                while names.CURVE_LOSS not in run.data.metrics:
                    run = self.store.get_run(run.info.run_id)
                self.seen = dict(run.data.metrics)
            yield measured


def test_a_point_is_in_the_store_while_its_bucket_is_trained_on(store):
    training = Watched(FOUR_BUCKETS, live={1: [FIRST]})
    training.store = store
    train_in_process(store, training, {})
    assert training.seen[names.CURVE_LOSS] == FIRST.loss
    assert "renate/average_accuracy" not in training.seen


def test_an_interrupted_training_loses_no_point(store, experiment_id):
    training = KnownTraining(FOUR_BUCKETS[:2], curve={1: [FIRST]})
    measure_rows = training.rows

    def rows(on_message):
        yield from measure_rows()
        on_message(Measurement(curve=(SECOND,)))  # without a later row
        raise RuntimeError("out of power")

    training.rows = rows
    with pytest.raises(RuntimeError, match="out of power"):
        train_in_process(store, training, {})
    run_id = only_run(store, experiment_id).info.run_id
    assert read_curve(store, run_id) == build_series(FIRST, SECOND)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_in_no_chart(store, experiment_id, loss):
    diverged = CurvePoint(3, loss, 0.05, 200.0, 2_000)
    train_in_process(store, KnownTraining(FOUR_BUCKETS, curve={1: [FIRST, diverged]}), {})
    expected = build_series(FIRST, diverged)
    del expected[names.CURVE_LOSS][1]
    assert read_curve(store, only_run(store, experiment_id).info.run_id) == expected


def left_spool(store, run_id, *batches):
    journal = RunFolder.create(get_unsent_root() / run_id, run_id, store.tracking_uri)
    for batch in batches:
        journal.append_metrics(batch)
    journal.close()


def test_unsent_points_are_sent_if_the_run_lacks_their_step(store, run_id):
    """Another machine resumed the run and logged the same steps at other times."""
    for name, ((step, time, value), *_) in build_series(SECOND).items():
        store.log_metric(run_id, name, value + 0.25, timestamp=time + 99, step=step)
    store.set_terminated(run_id)
    before = read_curve(store, run_id)
    waiting = [
        [Metric(name, *(value, time, step)) for step, time, value in points]
        for name, points in build_series(FIRST, SECOND, THIRD).items()
    ]
    row_point = Metric("renate/average_accuracy", 0.5, 1_000, 1)
    left_spool(store, run_id, [*waiting[0], row_point], waiting[1], waiting[2])
    (synced,) = sync_folders(list_folders_to_upload(get_unsent_root() / run_id))
    assert synced.action == "sent", synced.detail
    expected = build_series(FIRST, SECOND, THIRD)
    for name, points in expected.items():
        points[1] = before[name][0]
    assert histories(store, run_id) == expected, "a row's point follows from the row alone"


def test_a_repeated_bucket_duplicates_no_point(store, run_id):
    store.log_metric(run_id, names.CURVE_LOSS, 9.0, timestamp=500, step=FIRST.step)
    writer = RunRecorder(store, run_id, ())
    writer.curve_steps = {(names.CURVE_LOSS, FIRST.step)}
    writer.open(store.get_run(run_id))
    writer.write_curve([FIRST, SECOND])
    writer.close(None)
    expected = build_series(FIRST, SECOND)
    expected[names.CURVE_LOSS][0] = (FIRST.step, 500, 9.0)
    assert read_curve(store, run_id) == expected


@pytest.mark.parametrize("full", [1, 2])
def test_points_are_written_to_another_disk_if_one_is_full(
    store, run_id, monkeypatch, tmp_path, capfd, full
):
    """If both are full, they are lost, and the training continues."""
    monkeypatch.chdir(tmp_path)
    full_folders = list_candidate_folders(run_id)[:full]
    append_metrics = RunFolder.append_metrics

    def append(folder, points):
        if folder.folder in full_folders:
            raise OSError(28, "No space left on device")
        return append_metrics(folder, points)

    writer = RunRecorder(store, run_id, ())
    writer.open(store.get_run(run_id))
    points = [CurvePoint(step, 1 / step, 0.1, 5.0, step) for step in range(1, MAX_POINTS)]
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", append)
        writer.write_curve(points)
    writer.close(None)
    errors = capfd.readouterr().err
    assert ("metrics.json is lost" in errors) == (full == 2)
    assert "()" not in errors
    assert read_curve(store, run_id) == (build_series(*points) if full == 1 else {})
    assert list_folders_to_upload(None) == []
