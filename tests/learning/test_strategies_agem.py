"""A-GEM against its definition: the projection in both cases, and the whole stream written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategy_runs import (
    assert_close,
    feature_stream,
    gradient_of_loss,
    literal_descent,
    on_features,
    random_head,
    strategy_on,
)

from clear_mlflow.learning.device import RngPurpose, generator
from clear_mlflow.learning.samples.decoded import Batch
from clear_mlflow.learning.strategies.agem import project

SHAPES = ((2, 3), (3,), (1, 2, 2))


def split(flat):
    """A row of numbers as tensors of several shapes."""
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    parts = torch.split(torch.tensor(flat, dtype=torch.float32), sizes)
    return [part.reshape(shape).clone() for part, shape in zip(parts, SHAPES, strict=True)]


def literal_projection(gradient, reference):
    """With a branch, as in the paper."""
    along = sum(g * r for g, r in zip(gradient, reference, strict=True))
    if along >= 0:
        return gradient
    length = sum(r * r for r in reference)
    return [g - along / length * r for g, r in zip(gradient, reference, strict=True)]


numbers = st.lists(st.integers(-9, 9), min_size=13, max_size=13)


@settings(max_examples=100, deadline=None)
@given(numbers, numbers)
def test_the_projection_is_the_papers(gradient, reference):
    """What points apart is taken away; what does not stays to the bit; nothing is divided by 0."""
    ours = split(gradient)
    project(ours, split(reference))
    flat = torch.cat([part.flatten() for part in ours])
    expected = literal_projection(gradient, reference)
    assert flat.tolist() == pytest.approx(expected, abs=1e-4)
    if expected is gradient:
        assert flat.tolist() == gradient
    else:
        assert torch.dot(flat, torch.tensor(reference).float()).item() == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("batch", [0, 5, 100])
def test_three_buckets_equal_the_written_out_ones(batch):
    """Which images limit which step, how many of them, and what becomes of the gradient."""
    stream = feature_stream()
    asked = on_features(strategy="agem", strategy_args=f"batch={batch}", memory=6, seed=3)
    model, twin = random_head()
    strategy, descent = strategy_on(stream, asked, model)
    size = {0: 4, 5: 5, 100: 6}[batch]  # as many as batch_size; as asked; as there are
    cases = set()
    for position in range(3):
        samples, picks = stream.train(position), strategy._buffer.picks
        held = [
            (stream.train(int(b)).images[i], int(stream.labels(int(b))[i]))
            for b, i in zip(picks.bucket, picks.index, strict=True)
        ]
        orders = {}

        def gradient(
            batch, epoch, step, held=held, orders=orders, position=position, samples=samples
        ):
            ours = gradient_of_loss(twin, batch)
            if not held:
                return ours
            num_steps = len(samples) // 4 + (len(samples) % 4 > 1)
            if epoch not in orders:
                draws = generator(3, RngPurpose.MEMORY, position, epoch)
                orders[epoch] = []
                while len(orders[epoch]) < num_steps * size:
                    orders[epoch] += torch.randperm(len(held), generator=draws).tolist()
            of_step = orders[epoch][step * size : (step + 1) * size]
            inputs = torch.stack([held[n][0] for n in of_step])
            labels = torch.tensor([held[n][1] for n in of_step])
            reference = gradient_of_loss(twin, Batch(inputs, labels, labels))
            flat = torch.cat([part.flatten() for part in ours]).tolist()
            other = torch.cat([part.flatten() for part in reference]).tolist()
            projected = literal_projection(flat, other)
            cases.add(projected is flat)
            parts = torch.split(torch.tensor(projected), [part.numel() for part in ours])
            return [p.reshape(part.shape) for p, part in zip(parts, ours, strict=True)]

        literal_descent(twin, samples, asked, position, gradient=gradient)
        strategy.learn(position, descent)
        strategy.after_bucket(position)
        assert_close(list(model.parameters()), list(twin.parameters()))
        assert len(strategy._buffer) == 6
    assert cases == {True, False}
