"""A stream that does not wait, compared with a plain loop that skips by its own clock."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from feature_streams import CLASSES, WIDTH
from learning_streams import CPU, config, iter_training_batches
from strategy_runs import (
    assert_identical,
    feature_stream,
    image_stream,
    on_features,
    train_all,
    train_costs,
    train_with_states,
)
from torch.nn.functional import cross_entropy, log_softmax, mse_loss

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.buffers import ClassBalanced, Reservoir
from clear_mlflow.learning.checkpoint import parse_state
from clear_mlflow.learning.device import RngPurpose, build_generator
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.photos import SampleIndices, list_bucket_indices
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import compute_batch_bounds, draw_order
from clear_mlflow.learning.session import resolve_config
from clear_mlflow.learning.strategies import list_strategies, load_strategy
from clear_mlflow.learning.strategies._base import build_untrained_model
from clear_mlflow.learning.strategies._rehearsal import draw_buffer_batches
from clear_mlflow.learning.training.limits import StreamClock

COUNTS = (29, 33, 31)
WAITING = ("gdumb", "joint", "ncm", "slda")
IN_PASSING = sorted(set(list_strategies()) - set(WAITING))


def build_one_pass_parameters(strategy, rate="naive:1", **changes):
    """Return parameters of one pass in steps of four images, as text."""
    return on_features(strategy=strategy, epochs="1", lr="0.1", stream_rate=rate, **changes)


def literal(settings):
    """Return each bucket's images seen by steps, and the counts of all rows.

    The clock counts images of the stream: naive learning takes 1 / rate of one for each image.
    """
    stream, strategy = feature_stream(COUNTS), settings.strategy
    model = build_untrained_model(load_strategy(settings.strategy), stream, settings)
    rate = Fraction(settings.stream_rate.split(":")[1])
    buffer_class = Reservoir if strategy == "derpp" else ClassBalanced
    buffer = buffer_class(capacity=settings.memory, num_classes=CLASSES, seed=0)
    seen_images, rows, late = [], [count_correct(stream, model)], Fraction(0)
    remembered, logits = [], {}  # (bucket, image), and what was answered to it
    parabolas = []
    for bucket_index, count in enumerate(COUNTS):
        image_ids = [(bucket_index, n) for n in range(count)]
        if strategy == "replay":
            image_ids += remembered
        samples = stream.select(SampleIndices(*np.array(image_ids).T))
        steps = compute_batch_bounds(len(image_ids), 4)
        rehearsed = [()] * len(steps)
        if strategy == "derpp" and remembered:
            buffer_samples = stream.select(SampleIndices(*np.array(remembered).T))
            stored_logits = torch.stack([logits[image_id] for image_id in remembered])
            where = (buffer_samples, len(steps), settings, CPU, bucket_index, 0)
            draws = (draw_buffer_batches(*where, which) for which in (0, 1))
            rehearsed = list(zip(*draws, strict=True))
        batches = iter_training_batches(
            samples, batch_size=4, device=CPU, seed=0, bucket_index=bucket_index, epoch=0
        )
        velocity = [torch.zeros_like(weight) for weight in model.parameters()]
        free, num_shown, own = late, 0, []
        for batch, rehearsed_batch in zip(batches, rehearsed, strict=True):
            new = [n for n in batch.chosen.tolist() if n < count]
            begins, num_shown = num_shown, num_shown + len(new)
            if free >= num_shown:
                continue
            images = len(batch.labels) + sum(len(part.labels) for part in rehearsed_batch)
            free = max(free, Fraction(begins)) + images * rate
            own += new
            outputs = model(batch.inputs)
            loss = cross_entropy(outputs, batch.labels)
            if rehearsed_batch:
                imitated, repeated = rehearsed_batch
                distance = mse_loss(model(imitated.inputs), stored_logits[imitated.chosen])
                of_repeated = cross_entropy(model(repeated.inputs), repeated.labels)
                loss = loss + distance / 2 + of_repeated / 2
            for n, output in zip(batch.chosen.tolist(), outputs.detach(), strict=True):
                logits[bucket_index, n] = output
            slopes = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for i, weight in enumerate(model.parameters()):
                    pulled = slopes[i]
                    for firm, anchor in parabolas[-1:]:
                        pulled = pulled + firm[i] * (weight - anchor[i])
                    velocity[i] = 0.8 * velocity[i] + pulled + 0.01 * weight
                    weight -= 0.1 * velocity[i]
        seen_images.append(sorted(own))
        labels = stream.labels(bucket_index)[seen_images[-1]]
        if strategy in ("replay", "derpp"):
            retained = buffer.update(bucket_index, labels)
            candidates = remembered + [(bucket_index, n) for n in seen_images[-1]]
            remembered = [candidates[n] for n in retained]
        if strategy == "ewc":
            chosen = min(2, len(own))
            parabolas.append(fisher(stream, model, bucket_index, seen_images[-1], parabolas))
            # Answers to all; of each image's a forward pass, a backward pass a class, and squares.
            flops = chosen * (2 * 2 + CLASSES * 2) * WIDTH * CLASSES
            flops += 2 * chosen * CLASSES * (WIDTH + 1) * CLASSES
            free += Fraction(flops, 4 * WIDTH * CLASSES) * rate
        late = max(Fraction(0), free - num_shown)
        rows.append(count_correct(stream, model))
    return seen_images, rows


def fisher(stream, model, bucket_index, seen_images, parabolas):
    """Return EWC's importances and weights: one image, one label at a time."""
    samples, weights = stream.train(bucket_index), list(model.parameters())
    draws = build_generator(0, RngPurpose.FISHER, bucket_index, 0)
    order = torch.randperm(len(seen_images), generator=draws)[:2]
    totals = [torch.zeros_like(weight) for weight in weights]
    for n in order.tolist():
        log_probs = log_softmax(model(samples.images[seen_images[n]]), dim=0)
        for label in range(CLASSES):
            slopes = torch.autograd.grad(log_probs[label], weights, retain_graph=True)
            for total, slope in zip(totals, slopes, strict=True):
                total += log_probs[label].exp().detach() * slope**2 / len(order)
    here = [weight.detach().clone() for weight in weights]
    if parabolas:
        before, weights_there = parabolas[-1]
        before = [firm / 3 for firm in before]
        totals = [a + b for a, b in zip(totals, before, strict=True)]
        share = [1 - b / a.clamp_min(1e-38) for a, b in zip(totals, before, strict=True)]
        here = [t + s * (h - t) for t, s, h in zip(weights_there, share, here, strict=True)]
    return [3 * total for total in totals], here


def count_correct(stream, model):
    held_out = stream.test()
    right = model(held_out.images).argmax(dim=1) == held_out.labels
    return tuple(int(right[held_out.bucket == n].sum()) for n in range(len(held_out.counts)))


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("rate", ["naive:0.7", "naive:1", "naive:2.5"])
@pytest.mark.parametrize("strategy", ["naive", "replay", "ewc", "derpp"])
def test_seen_images_equal_those_of_a_literal_clock(strategy, rate):
    stream = feature_stream(COUNTS)
    changes = {"strategy_args": "images=2"} if strategy == "ewc" else {"memory": "20"}
    settings = build_one_pass_parameters(strategy, rate, **changes)
    rows = [trained.row for trained in train_all(stream, settings)]
    seen_images, counts = literal(settings)
    assert [stream.seen_indices[bucket_index].tolist() for bucket_index in range(3)] == seen_images
    assert [row.correct for row in rows] == counts
    assert [row.cost.images for row in rows] == [0, *map(len, seen_images)]
    keeps_up = strategy == "naive" and rate != "naive:2.5"
    assert (sum(map(len, seen_images)) == sum(COUNTS)) == keeps_up


@pytest.mark.parametrize(
    ("cost", "taken"),
    [
        (1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (Fraction(4, 3), [0, 1, 2, 4, 5, 6, 8, 9]),
        (2, [0, 2, 4, 6, 8]),
        (Fraction(5, 2), [0, 2, 5, 7]),
        (6, [0, 6]),
    ],
)
def test_missed_batches_equal_those_of_the_papers_program(cost, taken):
    """Ghunaim et al., arXiv:2302.01047: the delays of ER, LwF, RWalk, MIR and GSS."""
    costs, stream = SimpleNamespace(flops=0), feature_stream((40,))
    stream_clock = StreamClock(Fraction(15), stream, costs)  # a batch of 4 images in 60 FLOPs
    stream_clock.begin_steps(stream.train(0), 0, compute_batch_bounds(40, 4), 1)
    stream_clock.begin_epoch(draw_order(40, 0, 0, 0))
    skipped = []
    for number in range(10):
        if stream_clock.take_batch():
            costs.flops += int(60 * cost)
            skipped.append(number)
    assert skipped == taken
    assert stream_clock.end_epoch(40) == 4 * len(taken)


def test_naive_keeps_up_with_its_own_pace(tmp_path):
    changes = {"epochs": "1", "batch_size": "2"}
    settings = config(**changes, stream_rate="naive:1")
    streams = [image_stream(tmp_path, train=(8, 6, 7)) for _ in range(2)]
    waiting = train_with_states(streams[0], config(**changes))
    passed = train_with_states(streams[1], settings)
    assert [row.correct for row in passed[0]] == [row.correct for row in waiting[0]]
    assert_identical(passed[2], waiting[2])
    fast = replace(settings, stream_rate="naive:2")
    costs = train_costs(image_stream(tmp_path, train=(8, 6, 8)), fast)
    assert [cost.images for cost in costs] == [0, 4, 4, 4]
    # The same by images per PFLOP.
    fast = replace(settings, stream_rate=repr(2e15 / (costs[1].training_flops // 4)))
    costs = train_costs(image_stream(tmp_path, train=(8, 6, 8)), fast)
    assert [cost.images for cost in costs] == [0, 4, 4, 4]


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("strategy", IN_PASSING)
def test_missed_images_are_never_used(strategy, monkeypatch):
    stream = feature_stream(COUNTS)
    samples = [stream.train(k).images.tolist() for k in range(3)]
    images = {tuple(row): (k, n) for k in range(3) for n, row in enumerate(samples[k])}
    used, fetch = set(), stream._fetch

    def fetching(indices, split="train"):
        for image in zip(indices.bucket.tolist(), indices.index.tolist(), strict=True):
            assert split == "test" or image in seen_images or image[0] == bucket_index
        return fetch(indices, split)

    def passes(module, inputs):
        if module.training:
            used.update(images[tuple(row)] for row in inputs[0].tolist())

    monkeypatch.setattr(stream, "_fetch", fetching)
    changes = {"strategy_args": "images=1"} if strategy == "ewc" else {"memory": "12"}
    settings = build_one_pass_parameters(strategy, "naive:1.7", **changes)
    seen_images, bucket_index, keep_only = set(), 0, stream.keep_only

    def keeping(bucket, images):
        nonlocal bucket_index
        seen_images.update((bucket, n) for n in images.tolist())
        bucket_index = bucket + 1
        keep_only(bucket, images)

    monkeypatch.setattr(stream, "keep_only", keeping)
    for trained_bucket in train(stream, settings, progress=TrainingProgress()):
        if bucket_index == 0:
            trained_bucket.model.register_forward_pre_hook(passes)
            continue
        assert used <= seen_images
        own = {image for image in seen_images if image[0] == bucket_index - 1}
        assert own <= used
        assert 0 < len(own) == trained_bucket.row.cost.images < COUNTS[bucket_index - 1]
        used.clear()


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("strategy", IN_PASSING)
def test_a_killed_run_continues_in_the_same_stream(strategy):
    settings = build_one_pass_parameters(strategy, "naive:1.3", memory="12")
    rows, states, _ = train_with_states(feature_stream(COUNTS), settings)
    for k in range(3):
        again = train_with_states(feature_stream(COUNTS), settings, parse_state(states[k]))
        assert again[:2] == (rows[k + 1 :], states[k + 1 :])
        assert [list_costs(row) for row in again[0]] == [list_costs(row) for row in rows[k + 1 :]]


def list_costs(row):
    return row.cost.training_flops, row.cost.images, row.cost.replayed_images


def test_a_complete_bucket_may_be_missed(tmp_path):
    """While EWC computes importances of the first bucket, which stay unchanged."""
    stream = image_stream(tmp_path)
    settings = config(strategy="ewc", epochs="1", stream_rate="naive:1")
    rows = [trained.row for trained in train_all(stream, settings)]
    assert [row.cost.images for row in rows] == [0, 7, 0, 0]
    assert rows[1].correct == rows[2].correct == rows[3].correct
    assert rows[1].cost.training_flops > 0 == rows[2].cost.training_flops


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": "3"}, "a bucket takes 3 epochs; .*: pass epochs=1"),
        *(
            ({"strategy": strategy}, f"strategy {strategy} does not learn from a bucket")
            for strategy in WAITING
        ),
        *(
            ({"stream_rate": rate}, f"stream_rate is '{rate}'; expected off; a multiple of")
            for rate in ("fast", "naive:0", "images:3")
        ),
    ],
)
def test_invalid_options_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        resolve_config(on_features(**{"epochs": "1", "stream_rate": "naive:1", **changes}))
    assert "\n" not in str(error.value)


def test_a_second_pass_over_a_bucket_is_rejected():
    with pytest.raises(ConfigError, match="trains more than once on a bucket"):
        train_all(feature_stream(), build_one_pass_parameters("strategy_runs:Twice"))


def test_indices_of_a_reduced_bucket_count_its_remaining_images():
    stream = feature_stream((6,))
    everything = stream.train(0)
    stream.keep_only(0, np.array([1, 4]))
    assert torch.equal(stream.train(0).images, everything.images[[1, 4]])
    assert stream.labels(0).tolist() == everything.labels[[1, 4]].tolist()
    second = stream.select(list_bucket_indices(0, 2).take(np.array([1])))
    assert torch.equal(second.images, everything.images[[4]])
