"""Training on stored features."""

from __future__ import annotations

import mlflow
import numpy as np
import torch
from feature_files import KIND, write_released_features
from feature_streams import config, made_up, train_rows, training
from released_layout import write_released

from clear_mlflow.core.record import RowRecord
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.photos import SampleIndices
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import FeatureStream
from clear_mlflow.learning.session import StreamTraining
from clear_mlflow.process.training_process import TrainingProcess
from clear_mlflow.tracking.tracked_training import train_in_process


def test_the_untrained_linear_head_predicts_the_first_class():
    stream, _ = made_up()
    firsts = tuple(int((bucket.labels == 0).sum()) for bucket in stream.test)
    assert train_rows(config(seed=1))[0] == train_rows(config(seed=2))[0] == firsts


def test_a_stream_of_features_keeps_every_row_with_its_label():
    stream, features = made_up()
    placed = FeatureStream(stream, features, device=torch.device("cpu"))
    assert placed.keys == ("1", "2", "3")
    assert placed.train_counts == (30, 17, 24)
    for i, images in enumerate(stream.train):
        np.testing.assert_array_equal(placed.train(i).images.numpy(), features.train[i])
        np.testing.assert_array_equal(placed.train(i).labels.numpy(), images.labels)
    held_out = placed.test()
    np.testing.assert_array_equal(held_out.images.numpy(), np.concatenate(features.test))
    np.testing.assert_array_equal(held_out.bucket.numpy(), np.repeat([0, 1, 2], [20, 9, 13]))
    assert held_out.counts == (20, 9, 13)
    indices = SampleIndices(np.array([2, 0, 2]), np.array([5, 1, 0]))
    samples = placed.select(indices)
    expected = [features.train[2][5], features.train[0][1], features.train[2][0]]
    np.testing.assert_array_equal(samples.images.numpy(), expected)
    classes = [stream.train[b].labels[n] for b, n in ((2, 5), (0, 1), (2, 0))]
    assert samples.labels.tolist() == classes


def test_features_select_the_papers_protocol():
    linear = TrainConfig.resolve({"features": KIND, "dataset": "clear10", "data_root": "x"})
    assert (linear.model, linear.batch_size, linear.lr, linear.momentum) == ("linear", 512, 1, 0.9)
    assert TrainConfig.resolve({"dataset": "clear10", "data_root": "x"}).model == "resnet18"
    assert config(batch_size=3).batch_size == 3


def test_a_run_on_custom_features_records_them(store, experiment_id, tmp_path):
    root = write_released(tmp_path / "data", train=4)
    write_released_features(root / "train")
    parameters = {"dataset": "clear10", "data_root": str(root), "features": KIND, "split": "1"}
    parameters |= {"epochs": "3", "device": "cpu", "strategy": "replay", "memory": "4"}
    with TrainingProcess(TrainConfig.resolve(parameters)) as process:
        assert process.config.model == "linear"
        dataset = process.dataset
        train_in_process(store, process, parameters)
    (run,) = store.search_runs([experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.tags["features"] == KIND
    assert run.data.tags["features_digest"] == dataset.features["digest"]
    assert run.data.params["model"] == "linear"
    text = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/accuracy_matrix/rows/row_003.json")
    record = RowRecord.from_json(text, source="row")
    assert record.extra["features"] == dataset.features


def test_a_run_on_images_records_no_features():
    assert training(config()).dataset.features["name"] == "made_up"
    stream, _ = made_up()
    images = TrainConfig.resolve({"device": "cpu", "model": "small_cnn"})
    assert StreamTraining(images, stream, TrainingProgress()).dataset.features == {}
