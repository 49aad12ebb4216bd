"""Strategies with a memory or a new model, compared with their definitions written out."""

import copy
import dataclasses
import itertools
import math
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from feature_streams import CLASSES, made_up
from learning_streams import CPU, config, iter_training_batches, read_pixels, write_stream
from one_line_errors import check_error
from strategy_runs import (
    assert_identical,
    build_strategy,
    feature_stream,
    image_stream,
    on_features,
    random_head,
    train_all,
)
from torch import nn

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.buffers import AuthorsReservoir
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import Batch, DecodedStream, FeatureStream
from clear_mlflow.learning.strategies import load_strategy, parse_strategy_arguments
from clear_mlflow.learning.strategies._base import build_untrained_model
from clear_mlflow.learning.strategies._rehearsal import draw_buffer_batches
from clear_mlflow.learning.strategies.er_ace import (
    compute_present_cross_entropy,
    find_present_classes,
)
from clear_mlflow.learning.strategies.naive import Naive
from clear_mlflow.learning.training.trainer import Trainer

WITH_MEMORY = ["replay", "gdumb", "er_ace", "derpp", "agem"]


@pytest.mark.parametrize("strategy", WITH_MEMORY)
def test_memory_zero_is_a_one_line_error(strategy):
    check_error(
        ConfigError,
        "memory is 0, but strategy",
        parse_strategy_arguments,
        config(strategy=strategy, memory=0),
    )


@pytest.mark.parametrize("strategy", WITH_MEMORY)
def test_memory_can_be_a_fraction_of_the_stream(strategy):
    stream = feature_stream()
    head, _ = random_head()
    made, _ = build_strategy(stream, on_features(strategy=strategy, memory=0.4), head)
    assert made._buffer.capacity == 10
    of_hundred = feature_stream((40, 40, 20))
    for n in range(1, 100):
        settings = on_features(strategy=strategy, memory=f"0.{n:02d}")
        assert build_strategy(of_hundred, settings, head)[0]._buffer.capacity == n
    small = on_features(memory="0.00005")
    assert TrainConfig.resolve(small.as_text()) == small
    with pytest.raises(ConfigError, match="less than one of 26 training images"):
        build_strategy(stream, on_features(strategy=strategy, memory=0.01), head)


def trained_alone(stream, settings, samples, bucket_index, epochs=None):
    where = (bucket_index,) if bucket_index else ()
    model = build_untrained_model(load_strategy(settings.strategy), stream, settings, *where)
    if epochs is not None:
        settings = dataclasses.replace(settings, epochs=epochs)
    hooks = Naive(settings, stream, model, Naive.Arguments())
    trainer = Trainer(model, settings, bucket_keys=stream.keys, progress=TrainingProgress())
    trainer.train_bucket(samples, bucket_index=bucket_index, strategy=hooks)
    return model


@pytest.mark.parametrize("optimizer_state", ["reset", "keep"])
def test_from_scratch_equals_a_new_run_on_each_bucket(optimizer_state, tmp_path):
    stream = image_stream(tmp_path)
    settings = config(strategy="from_scratch", optimizer_state=optimizer_state, seed=3)
    starts = []
    for bucket_index, row in enumerate(train(stream, settings, progress=TrainingProgress())):
        if bucket_index == 0:
            continue
        expected = trained_alone(stream, settings, stream.train(bucket_index - 1), bucket_index - 1)
        assert_identical(row.model, expected)
        where = (bucket_index - 1,) if bucket_index > 1 else ()
        starts.append(
            next(
                build_untrained_model(
                    load_strategy(settings.strategy), stream, settings, *where
                ).parameters()
            )
        )
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[1], starts[2])


@pytest.mark.parametrize("epochs", [0, 5])
def test_joint_trains_once_on_the_complete_stream(epochs, tmp_path):
    stream = image_stream(tmp_path)
    settings = config(strategy="joint", strategy_args=f"epochs={epochs}")
    strategy, _ = build_strategy(stream, settings, random_head()[0])
    samples = strategy.load_training_set(0)
    parts = [stream.train(bucket_index) for bucket_index in range(3)]
    assert torch.equal(read_pixels(samples), torch.cat([read_pixels(part) for part in parts]))
    assert torch.equal(samples.labels, torch.cat([part.labels for part in parts]))

    expected = trained_alone(stream, settings, samples, 0, epochs or None)
    rows = []
    for row in train(stream, settings, progress=TrainingProgress()):
        rows.append(row.row.correct)
        if row.row.row:
            assert_identical(row.model, expected)
    assert rows[1] == rows[2] == rows[3]


@pytest.mark.parametrize(("buffer", "epochs"), [("greedy_balanced", 0), ("class_balanced", 3)])
def test_gdumb_equals_a_new_run_on_its_memory(buffer, epochs, tmp_path):
    stream = image_stream(tmp_path)
    settings = config(strategy="gdumb", strategy_args=f"buffer={buffer},epochs={epochs}", memory=5)
    reference, _ = build_strategy(stream, settings, random_head()[0])
    for row in train(stream, settings, progress=TrainingProgress()):
        if row.row.row == 0:
            continue
        bucket_index = row.row.row - 1
        reference._buffer.update(bucket_index, stream.labels(bucket_index))
        memory = stream.select(reference._buffer.sample_indices)
        assert 0 < len(memory) <= 5
        expected = trained_alone(stream, settings, memory, bucket_index, epochs or None)
        assert_identical(row.model, expected)
    default = parse_strategy_arguments(config(strategy="gdumb"))
    assert default.buffer == "greedy_balanced"  # the paper's


def test_the_authors_of_clear_fine_tune_on_their_buffer(tmp_path):
    stream = image_stream(tmp_path)
    args = "buffer=biased_reservoir,alpha=1,update=authors"
    settings = config(strategy="gdumb", strategy_args=args, memory=7)
    reference, _ = build_strategy(stream, settings, random_head()[0])
    assert isinstance(reference._buffer, AuthorsReservoir)
    model = build_untrained_model(load_strategy(settings.strategy), stream, settings)
    trainer = Trainer(model, settings, bucket_keys=stream.keys, progress=TrainingProgress())
    hooks = Naive(settings, stream, model, Naive.Arguments())
    *_, last = train(stream, settings, progress=TrainingProgress())
    for bucket_index in range(3):
        reference._buffer.update(bucket_index, stream.labels(bucket_index))
        samples = stream.select(reference._buffer.sample_indices)
        trainer.train_bucket(samples, bucket_index=bucket_index, strategy=hooks)
    assert_identical(last.model, model)
    with pytest.raises(ConfigError, match="or authors with buffer=biased_reservoir"):
        parse_strategy_arguments(config(strategy="gdumb", strategy_args="update=authors"))


@pytest.mark.parametrize(("batch_size", "size"), [("3", 3), ("7", 7), ("64", 7), ("full", 7)])
def test_rehearsal_cycles_through_the_buffer(batch_size, size):
    buffer_samples = feature_stream().train(1)
    settings = on_features(batch_size=batch_size)
    steps = list(draw_buffer_batches(buffer_samples, 10, settings, CPU, 0, 0))
    assert [len(step.labels) for step in steps] == [size] * 10
    times = Counter(int(n) for step in steps for n in step.chosen)
    assert len(times) == 7
    assert max(times.values()) - min(times.values()) <= 1
    for step in steps:
        assert torch.equal(step.inputs, buffer_samples.images[step.chosen])
        assert torch.equal(step.labels, buffer_samples.labels[step.chosen])

    def order(*where):
        batches = draw_buffer_batches(buffer_samples, 10, settings, CPU, *where)
        return torch.cat([step.chosen for step in batches]).tolist()

    assert order(0, 0) == torch.cat([step.chosen for step in steps]).tolist()
    assert order(0, 0) not in [order(0, 1), order(1, 0), order(0, 0, 1)]


def compute_log_softmax(logits, classes, label):
    return logits[label] - math.log(sum(math.exp(logits[c]) for c in classes))


def literal_loss(model, batch, classes=range(CLASSES)):
    pairs = zip(model(batch.inputs).tolist(), batch.labels.tolist(), strict=True)
    return -sum(compute_log_softmax(row, classes, label) for row, label in pairs) / len(
        batch.labels
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_asymmetric_cross_entropy_is_over_classes_that_occur(smoothing):
    draws = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=draws, requires_grad=True)
    labels = torch.tensor([1, 3, 3, 1, 1, 3])
    loss = compute_present_cross_entropy(logits, labels, find_present_classes(labels, 5), smoothing)
    expected = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        expected -= (1 - smoothing) * compute_log_softmax(row, (1, 3), label) / 6
        expected -= smoothing * sum(compute_log_softmax(row, (1, 3), c) / 2 for c in (1, 3)) / 6
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.equal(gradient[:, [0, 2, 4]], torch.zeros(6, 3))
    assert (gradient[:, [1, 3]] != 0).all()


def after_first_bucket(settings):
    """Return a strategy in the second bucket, its head, and a batch of classes 0 and 1."""
    stream = feature_stream()
    model, _ = random_head()
    strategy, trainer = build_strategy(stream, settings, model)
    strategy.learn(0, trainer)
    strategy.after_bucket(0)
    samples = strategy.load_training_set(1)
    few = torch.flatten((samples.labels < 2).nonzero())[:3]
    rehearsed = next(iter(strategy.load_rehearsal_batches(1, 0, 2)))
    batch = Batch(samples.images[few], samples.labels[few], few, rehearsed=rehearsed)
    return stream, strategy, model, batch


def test_er_ace_adds_both_losses_of_equation_4():
    settings = on_features(strategy="er_ace", epochs=2)
    stream, strategy, model, batch = after_first_bucket(settings)
    buffer_samples = stream.select(strategy._buffer.sample_indices)
    old = next(draw_buffer_batches(buffer_samples, 2, settings, CPU, 1, 0))
    present = set(batch.labels.tolist())
    assert len(present) < CLASSES
    expected = literal_loss(model, batch, present) + literal_loss(model, old)
    assert strategy.compute_loss_share(model, batch).item() == pytest.approx(expected, rel=1e-5)


def test_balanced_replay_is_one_mean_over_both_batches():
    settings = on_features(strategy="replay", strategy_args="batches=balanced", batch_size=3)
    stream, strategy, model, first = after_first_bucket(settings)
    samples = strategy.load_training_set(1)
    new = {"inputs": samples.images[:3], "labels": samples.labels[:3], "total": 3}
    batch = dataclasses.replace(first, **new)
    buffer_samples = stream.select(strategy._buffer.sample_indices)
    old = next(draw_buffer_batches(buffer_samples, 2, settings, CPU, 1, 0))
    assert len(old.labels) == 3
    expected = (literal_loss(model, batch) + literal_loss(model, old)) / 2
    assert strategy.compute_loss_share(model, batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("alpha", "beta"), [(0.7, 0.3), (0.0, 1.0), (2.0, 0.0)])
def test_derpp_is_equation_6(alpha, beta):
    settings = on_features(strategy="derpp", strategy_args=f"alpha={alpha},beta={beta}")
    stream, strategy, model, batch = after_first_bucket(settings)
    buffer_samples = stream.select(strategy._buffer.sample_indices)
    imitated, repeated = (
        next(draw_buffer_batches(buffer_samples, 2, settings, CPU, 1, 0, which)) for which in (0, 1)
    )
    assert not torch.equal(imitated.chosen, repeated.chosen)
    expected = literal_loss(model, batch) + beta * literal_loss(model, repeated)
    stored = strategy._logits[imitated.chosen].tolist()
    for row, then in zip(model(imitated.inputs).tolist(), stored, strict=True):
        for now, before in zip(row, then, strict=True):
            expected += alpha * (now - before) ** 2 / (len(stored) * CLASSES)
    assert strategy.compute_loss_share(model, batch).item() == pytest.approx(expected, rel=1e-5)


def test_derpp_stores_the_logits_of_the_last_epochs_steps():
    stream = feature_stream()
    settings = on_features(strategy="derpp", memory=12)
    model, _ = random_head()
    strategy, trainer = build_strategy(stream, settings, model)
    logits_by_image = {}

    class Listening(nn.Module):
        """Records the logits of each image of the bucket."""

        def forward(self, inputs):
            logits = model(inputs)
            for features, row in zip(inputs, logits.tolist(), strict=True):
                latest[tuple(features.tolist())] = row
            return logits

    for bucket_index in range(3):
        latest = {}
        trainer._wrapped_model = Listening()
        trainer._compiled_models = [trainer._wrapped_model] * 2
        rehearsed = strategy._buffer.sample_indices
        strategy.learn(bucket_index, trainer)
        # Images of the buffer pass through the model, too, and their answers are not stored.
        for bucket, index in zip(rehearsed.bucket, rehearsed.index, strict=True):
            latest.pop(tuple(stream.train(int(bucket)).images[index].tolist()), None)
        logits_by_image |= latest
        strategy.after_bucket(bucket_index)
        buffer_samples = stream.select(strategy._buffer.sample_indices)
        assert strategy._logits.dtype == torch.float32
        assert strategy._logits.shape == (len(buffer_samples), CLASSES)
        expected = [logits_by_image[tuple(features.tolist())] for features in buffer_samples.images]
        assert strategy._logits.tolist() == expected
    assert set(strategy._buffer.sample_indices.bucket) == {0, 1, 2}, "the test sees old logits kept"


def test_derpp_stores_logits_of_the_training_mode(tmp_path):
    """With batch normalisation, they differ from those of a test."""
    stream = image_stream(tmp_path)
    settings = config(strategy="derpp", epochs=1, batch_size="full", memory=7, lr=1e-9)
    model = build_untrained_model(load_strategy(settings.strategy), stream, settings)
    reference = copy.deepcopy(model)
    strategy, trainer = build_strategy(stream, settings, model)
    strategy.learn(0, trainer)
    strategy.after_bucket(0)
    options = {"batch_size": "full", "device": CPU, "seed": 0, "bucket_index": 0, "epoch": 0}
    (batch,) = iter_training_batches(stream.train(0), **options)
    expected = torch.empty(7, stream.num_classes)
    expected[batch.chosen] = reference.train()(batch.inputs).detach()
    torch.testing.assert_close(strategy._logits, expected[strategy._buffer.sample_indices.index])
    tested = reference.eval()(batch.inputs)[batch.chosen.argsort()]
    assert (strategy._logits - tested).abs().max() > 0.01


def stream_without_classes(folder):
    """Return three buckets of noise with classes {0, 1}, {1, 2} and {0, 1, 2}, unbalanced."""
    draws = np.random.default_rng(0)
    labels = [[0, 0, 0, 1, 1], [1, 2, 2, 2, 2, 2], [0, 1, 1, 2]]
    images = [draws.integers(0, 256, (len(of), 8, 8, 3), dtype=np.uint8) for of in labels]
    stream = write_stream(folder, images, labels, num_classes=3)
    return DecodedStream(stream, image_size=8, device=CPU), labels


def test_cwr_equals_algorithm_1_written_out(tmp_path):
    """Class by class, with the head's initial weights as in the paper."""
    stream, labels = stream_without_classes(tmp_path)
    settings = config(strategy="cwr", epochs=2, lr=0.1)
    model = build_untrained_model(load_strategy(settings.strategy), stream, settings)
    strategy, trainer = build_strategy(stream, settings, model)
    head = model[-1]
    consolidated = {c: ([0.0] * head.in_features, 0.0) for c in range(3)}
    past = dict.fromkeys(range(3), 0)
    starts = []
    begin_epoch = strategy.begin_epoch

    def note(bucket_index, epoch, num_steps):
        if epoch == 0:
            starts.append((head.weight.tolist(), head.bias.tolist()))
        begin_epoch(bucket_index, epoch, num_steps)

    strategy.begin_epoch = note
    for bucket_index, of_bucket in enumerate(labels):
        current = Counter(of_bucket)
        strategy.learn(bucket_index, trainer)
        weight, bias = starts[-1]
        for c in range(3):
            expected = consolidated[c] if c in current else ([0.0] * head.in_features, 0.0)
            assert weight[c] == pytest.approx(expected[0], abs=1e-6)
            assert bias[c] == pytest.approx(expected[1], abs=1e-6)

        trained_w, trained_b = head.weight.tolist(), head.bias.tolist()
        strategy.after_bucket(bucket_index)
        mean_w = np.mean([trained_w[c] for c in current])
        mean_b = np.mean([trained_b[c] for c in current])
        for c in current:
            w_past = math.sqrt(past[c] / current[c])
            before_w, before_b = consolidated[c]
            consolidated[c] = (
                [
                    (w_past * before + trained - mean_w) / (w_past + 1)
                    for before, trained in zip(before_w, trained_w[c], strict=True)
                ],
                (w_past * before_b + trained_b[c] - mean_b) / (w_past + 1),
            )
            past[c] += current[c]
        for c in range(3):  # what is tested with
            assert head.weight[c].tolist() == pytest.approx(consolidated[c][0], abs=1e-6)
            assert head.bias[c].item() == pytest.approx(consolidated[c][1], abs=1e-6)
    assert max(map(abs, consolidated[2][0])) > 1e-3, "something was learned"


@pytest.mark.parametrize("optimizer_state", ["reset", "keep"])
def test_cwr_changes_nothing_but_the_head_after_the_first_bucket(optimizer_state, tmp_path):
    stream = image_stream(tmp_path)
    options = {"optimizer_state": optimizer_state, "weight_decay": 0.1, "clip_norm": 1}
    rows = train(stream, config(strategy="cwr", **options), progress=TrainingProgress())
    states = [copy.deepcopy(row.model.state_dict()) for row in rows]
    head = tuple(states[0])[-2:]
    for name in states[0]:
        assert not torch.equal(states[0][name], states[1][name]), name
        for before, after in itertools.pairwise(states[1:]):
            assert torch.equal(before[name], after[name]) == (name not in head), name


@pytest.mark.parametrize(
    ("strategy", "arguments"),
    [("er_ace", "none"), ("derpp", "none"), ("agem", "none"), ("replay", "batches=balanced")],
)
def test_the_old_buffer_is_freed_before_the_next_one_is_loaded(strategy, arguments):
    fetched, alive = [], []

    class Watched(FeatureStream):
        def _fetch(self, indices, *split):
            images = super()._fetch(indices, *split)
            if len(indices) == settings.memory:  # no bucket has as many
                alive.append([earlier() is not None for earlier in fetched])
                fetched.append(weakref.ref(images))
            return images

    stream, stored = made_up(tuple((count, 9) for count in (9, 7, 10, 8)))
    settings = on_features(strategy=strategy, strategy_args=arguments)
    train_all(Watched(stream, stored, device=CPU), settings)
    assert alive == [[], [False], [False] * 2]
