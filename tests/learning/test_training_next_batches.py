"""Batches in the order of time, predicted before they are trained on; labels that arrive late."""

import copy
import dataclasses

import feature_streams
import numpy as np
import pytest
import torch
from device_waits import DEVICE, DeviceWaits
from feature_streams import made_up
from image_tables import add_times
from learning_streams import CPU, config, random_stream
from one_line_errors import check_error
from strategy_runs import assert_identical, on_features, train_all, train_rows, train_with_states
from torch import nn

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.checkpoint import parse_state
from clear_mlflow.learning.parameters.conflicts import STRATEGY_CONFLICTS, check_conflicts
from clear_mlflow.learning.photos import SampleIndices
from clear_mlflow.learning.samples import DecodedStream, FeatureStream, compute_batch_bounds
from clear_mlflow.learning.session import check_stream, resolve_config
from clear_mlflow.learning.strategies.naive import Naive
from clear_mlflow.learning.strategies.replay import Replay
from clear_mlflow.learning.training.observers import PrequentialTests

COUNTS = (9, 7, 10, 3)
ONLINE = {"time_order": "on", "prequential": "0,1,10"}


def dated_features(counts=COUNTS, device=CPU, **options):
    stream, stored = made_up(tuple((count, 20) for count in counts), **options)
    return FeatureStream(add_times(stream), stored, device=device)


def dated_images(folder, train=(7, 6, 5)):
    stream, _ = random_stream(folder, train=train, test=(4,) * len(train), side=8)
    return DecodedStream(add_times(stream), image_size=8, augment="random_crop_flip", device=CPU)


def list_in_order(stream):
    """Return features and labels of a feature stream in the order of time, and of contents."""
    inputs, labels = [], []
    for bucket, samples in enumerate(map(stream.train, range(len(stream.keys)))):
        table = stream._sets["train"][bucket]
        keys = [*zip(table.times.tolist(), table.contents, strict=True)]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        inputs += [samples.images[order]]
        labels += [samples.labels[order]]
    return torch.cat(inputs), torch.cat(labels)


STEPS: list[tuple[nn.Module, torch.Tensor]] = []


class Watched(Naive):
    """Keeps the model before each step, and the labels of the step."""

    def compute_loss(self, forward, batch):
        STEPS.append((copy.deepcopy(self.model), batch.labels, batch.inputs))
        return super().compute_loss(forward, batch)


class WatchedReplay(Watched, Replay):
    pass


class Product(nn.Module):
    """A layer for torch's meta device, which does not support autocast."""

    def __init__(self):
        super().__init__()
        size = feature_streams.WIDTH, feature_streams.CLASSES
        self.weight = nn.Parameter(torch.empty(size, device=DEVICE))

    def forward(self, inputs):
        return inputs @ self.weight


def list_bounds(counts, batch_size=4):
    starts = np.cumsum([0, *counts])
    return [
        (int(first) + start, int(first) + stop)
        for first, count in zip(starts, counts, strict=False)
        for start, stop in compute_batch_bounds(count, batch_size)
    ]


def count_right(models, inputs, labels, bounds):
    """Return the expected counts, if model t is the one before batch t is trained on."""
    expected = []
    for t, (start, stop) in enumerate(bounds):
        row = [-1, -1, -1]
        for column, distance in enumerate((0, 1, 10)):
            if t >= distance:
                predicted = models[t - distance](inputs[start:stop]).argmax(dim=1)
                row[column] = int((predicted == labels[start:stop]).sum())
        expected.append(row)
    return expected


@pytest.mark.parametrize("epochs", [1, 2])
def test_counts_are_those_of_each_model_on_each_later_batch(epochs):
    STEPS.clear()
    stream = dated_features()
    parameters = on_features(strategy=f"{__name__}:Watched", epochs=epochs, **ONLINE)
    record = train_all(stream, parameters)[-1].prequential
    inputs, labels = list_in_order(stream)
    assert torch.equal(torch.from_numpy(record.label.astype(np.int64)), labels)
    bounds, steps, first_visits = list_bounds(COUNTS), iter(STEPS), []
    for count in COUNTS:  # the models of further epochs predict nothing
        num_steps = len(compute_batch_bounds(count, 4))
        first_visits += [next(steps) for _ in range(epochs * num_steps)][:num_steps]
    models = [model for model, *_ in first_visits]
    assert record.correct.tolist() == count_right(models, inputs, labels, bounds)
    assert record.size.tolist() == [stop - start for start, stop in bounds]
    assert torch.equal(torch.cat([trained for _, trained, _ in first_visits]), labels)


def test_no_image_is_trained_on_before_it_is_predicted_if_others_are_replayed():
    STEPS.clear()
    stream = dated_features()
    parameters = on_features(strategy=f"{__name__}:WatchedReplay", epochs=1, **ONLINE)
    record = train_all(stream, parameters)[-1].prequential
    inputs, labels = list_in_order(stream)
    new = iter(range(len(labels)))
    next_image, models, bounds = next(new), [], list_bounds(COUNTS)
    starts = {start for start, _ in bounds}
    for model, _, trained in STEPS:
        for image in trained:
            if next_image is not None and torch.equal(image, inputs[next_image]):
                models += [model] if next_image in starts else []
                next_image = next(new, None)
    assert next_image is None  # all of them, in the order of time
    assert len(STEPS) > len(bounds)
    assert record.correct.tolist() == count_right(models, inputs, labels, bounds)


def test_the_file_has_the_times_of_each_batch():
    stream = dated_features()
    record = train_all(stream, on_features(**ONLINE))[-1].prequential
    times = np.concatenate([np.sort(table.times) for table in stream._sets["train"]])
    assert record.first_time.tolist() == [times[start] for start, _ in list_bounds(COUNTS)]
    assert record.last_time.tolist() == [times[stop - 1] for _, stop in list_bounds(COUNTS)]
    assert record.bucket.tolist() == [0, 0, 1, 1, 2, 2, 2, 3]


def test_equal_times_are_not_in_the_order_of_labels():
    """Tables are sorted by label: that would make runs of labels within a day."""
    stream, _ = made_up(((400, 20),))
    table = add_times(stream, days=2).train[0]
    rows = np.lexsort((table.contents, table.labels))
    ordered = table.take(rows).take(table.take(rows).time_order)
    assert ordered.files == table.take(table.time_order).files
    assert (np.diff(ordered.times) >= 0).all()
    assert (np.diff(ordered.labels) != 0).mean() > 0.5  # three of four, by chance


def assert_predictions_change_nothing(make_stream, parameters):
    ordered = dataclasses.replace(parameters, time_order="on")
    rows, states, weights = train_with_states(make_stream(), ordered)
    online = dataclasses.replace(ordered, prequential="0,1,10")
    again, online_states, online_weights = train_with_states(make_stream(), online)
    assert again == rows
    assert_identical(online_weights, weights)
    for state, other in zip(states, online_states, strict=True):
        first, second = (parse_state(content).snapshot for content in (state, other))
        for name in ("random", "strategy", "trained"):
            assert first.description[name] == second.description[name]
    shuffled, _, _ = train_with_states(make_stream(), parameters)
    assert shuffled != rows  # the order is another method, which is recorded


@pytest.mark.parametrize("strategy", ["replay", "derpp", "ewc", "cumulative"])
def test_a_head_on_features_learns_the_same(strategy):
    parameters = on_features(strategy=strategy, optimizer_state="keep")
    assert_predictions_change_nothing(dated_features, parameters)


def test_a_network_learns_the_same(tmp_path):
    folders = iter(range(9))
    settings = config(strategy="strategy_runs:WithNoise", epochs=1)
    assert_predictions_change_nothing(lambda: dated_images(tmp_path / str(next(folders))), settings)


def test_images_are_predicted_at_their_centre(tmp_path):
    stream = dated_images(tmp_path)
    order = stream._sets["train"][1].time_order[:4]
    centre = stream.train(1).images.centre_crops().cut(0, 6)
    loaded = stream.load_in_time_order(1, 4)
    assert torch.equal(loaded.cut(0, 4), centre[torch.from_numpy(order)])
    assert torch.equal(loaded.labels, stream.train(1).labels[torch.from_numpy(order)])


@pytest.mark.parametrize("strategy", ["replay", "naive"])
def test_a_resumed_training_has_the_same_record_to_the_bit(strategy):
    parameters = on_features(strategy=strategy, optimizer_state="keep", **ONLINE)
    records = [trained.prequential for trained in train_all(dated_features(), parameters)]
    assert records[0] is None
    _, states, _ = train_with_states(dated_features(), parameters)
    for row in range(len(COUNTS)):
        resumed = train_all(dated_features(), parameters, parse_state(states[row]))
        again = [trained.prequential.to_bytes() for trained in resumed]
        assert again == [record.to_bytes() for record in records[row + 1 :]]
    assert records[-1].after(2).to_bytes() == records[2].to_bytes()


def test_no_prediction_has_the_host_wait_for_the_device(monkeypatch):
    for home in (DEVICE, CPU):
        select = "clear_mlflow.learning.samples.select_storage_device"
        monkeypatch.setattr(select, lambda num_bytes, device, home=home: home)
        stream = dated_features(device=DEVICE)
        made = PrequentialTests(Product(), on_features(**ONLINE), stream)
        order = stream._sets["train"][1].time_order
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
            made.begin_bucket(1, SampleIndices(np.ones_like(order), order), [(0, 4), (4, 7)])
        with DeviceWaits(monkeypatch) as device:
            for _ in range(2):
                made.predict_before_step()
        assert device.waits == []
        assert device.copies == (4 if home == CPU else 0)  # distances 0 and 1; 10 is beyond


@pytest.mark.parametrize("delay", [1, 2])
@pytest.mark.parametrize("strategy", ["naive", "replay", "ewc"])
def test_with_late_labels_each_row_is_that_of_an_earlier_model(strategy, delay):
    in_time, _ = train_rows(dated_features(), on_features(strategy=strategy))
    late, _ = train_rows(dated_features(), on_features(strategy=strategy, label_delay=delay))
    correct = [row.correct for row in in_time]
    assert [row.correct for row in late] == [correct[0]] * delay + correct[: len(late) - delay]
    assert [row.row for row in late] == list(range(len(COUNTS) + 1))
    flops = [row.cost.training_flops for row in late]
    assert flops[: delay + 1] == [0] * (delay + 1)
    assert flops[delay + 1] == in_time[1].cost.training_flops > 0
    stored = [row.cost.stored_bytes for row in late]
    assert stored[delay:] == [row.cost.stored_bytes for row in in_time][: len(late) - delay]


@pytest.mark.parametrize("row", [0, 1, 3])
def test_a_training_with_late_labels_is_resumed_to_the_bit(row):
    parameters = on_features(strategy="replay", optimizer_state="keep", label_delay=2)
    rows, states, weights = train_with_states(dated_features(), parameters)
    again = train_with_states(dated_features(), parameters, parse_state(states[row]))
    assert again[:2] == (rows[row + 1 :], states[row + 1 :])
    assert_identical(again[2], weights)


@pytest.mark.parametrize(
    "strategy", ["gdumb", f"{__name__.rpartition('.')[2]}:Halves", "strategy_runs:Twice"]
)
def test_strategies_that_train_on_other_images_are_rejected(strategy):
    """Whether an image was trained on before would depend on the strategy."""
    parameters = on_features(strategy=strategy, **ONLINE)
    check_error(
        ConfigError,
        f"strategy {strategy} does not train once on",
        train_all,
        dated_features(),
        parameters,
    )


class Halves(Naive):
    """Trains on every second image."""

    def load_training_set(self, bucket_index):
        indices = self.stream.train(bucket_index).list_indices(bucket_index)
        return self.stream.select(indices.take(np.arange(0, len(indices), 2)))


@pytest.mark.parametrize("strategy", ["joint", "ncm", "slda"])
def test_strategies_without_steps_in_each_bucket_are_rejected(strategy):
    parameters = on_features(strategy=strategy, model="linear", **ONLINE)
    check_error(
        ConfigError, f"prequential is 0,1,10, but strategy {strategy}", resolve_config, parameters
    )


def test_several_processes_are_rejected():
    values = {**on_features(**ONLINE).values(), "strategy_class": Naive, "num_epochs": 1}
    values |= {"num_processes": 2}
    message = "prequential is 0,1,10 and this is one of 2 processes"
    check_error(ConfigError, message, check_conflicts, STRATEGY_CONFLICTS, **values)


def test_a_stream_whose_order_is_not_time_is_rejected():
    stream, _ = made_up()
    parameters = on_features(time_order="on")
    message = check_error(
        ConfigError, "bucket 1 of made-up lacks times", check_stream, parameters, stream
    )
    assert "pass a dataset with a column of times and borders=UNIT" in message
    same_day = add_times(stream, days=1)
    message = "bucket 1 of made-up has one time for all its images"
    check_error(ConfigError, message, check_stream, parameters, same_day)
    check_stream(parameters, add_times(stream))
    check_stream(on_features(), stream)


def test_a_delay_beyond_the_stream_is_rejected():
    stream, _ = made_up()
    message = "label_delay is 3 and made-up has 3 buckets"
    check_error(ConfigError, message, check_stream, on_features(label_delay=3), stream)
    check_stream(on_features(label_delay=2), stream)
