"""The protocol of a training reaches its rows, its metrics and its tags."""

import dataclasses
import json
from pathlib import Path

import pytest
from trainings import FOUR_BUCKETS, KnownTraining

from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.metrics import summarize
from clear_mlflow.tracking.tracked_training import train_in_process


class StreamingTraining(KnownTraining):
    """The known rows, as if each bucket were tested on its training images."""

    @property
    def config(self):
        return TrainConfig.resolve({"protocol": "streaming"})

    @property
    def metadata(self):
        return dataclasses.replace(super().metadata, protocol="streaming", split="none")


@pytest.fixture
def finished(store, experiment_id):
    train_in_process(store, StreamingTraining(FOUR_BUCKETS), {"protocol": "streaming"})
    (run,) = store.search_runs([experiment_id])
    return run


def test_streaming_is_recorded_and_masks_trained_buckets(store, finished):
    """Only next-domain accuracy and forward transfer remain, during and after training."""
    logged = {name for name in finished.data.metrics if "bucket" not in name}
    assert logged == set(summarize_streaming())
    assert "clear/next_domain_accuracy" in logged
    assert "clear/in_domain_accuracy" not in logged
    assert finished.data.tags["protocol"] == "streaming"
    profile = json.loads(finished.inputs.dataset_inputs[0].dataset.profile)
    assert (profile["protocol"], profile["split"]) == ("streaming", "none")
    for step in range(5):
        row = store.download_artifacts(
            finished.info.run_id, f"accuracy_matrix/rows/row_{step:03}.json"
        )
        assert json.loads(Path(row).read_text(encoding="utf-8"))["protocol"] == "streaming"


def test_a_bucket_has_no_accuracy_after_it_was_trained_on(store, finished):
    """Its series ends before the step that trains on it."""
    for j in range(4):
        points = store.get_metric_history(finished.info.run_id, f"test_accuracy/bucket_0{j + 1}")
        assert sorted(point.step for point in points) == list(range(j + 1))


def summarize_streaming():
    metadata = KnownTraining(FOUR_BUCKETS).metadata
    matrix = AccuracyMatrix.from_rows(
        AccuracyRow(i, metadata.buckets, tuple(correct), metadata.num_test)
        for i, correct in enumerate(FOUR_BUCKETS)
    )
    return summarize(matrix, "streaming")
