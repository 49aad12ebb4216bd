"""A-GEM, compared with its definition written out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategy_runs import (
    assert_close,
    build_strategy,
    compute_gradient,
    feature_stream,
    literal_descent,
    on_features,
    random_head,
)

from clear_mlflow.learning.device import RngPurpose, build_generator
from clear_mlflow.learning.samples import Batch
from clear_mlflow.learning.strategies.agem import project_gradient

SHAPES = ((2, 3), (3,), (1, 2, 2))


def split(flat):
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    parts = torch.split(torch.tensor(flat, dtype=torch.float32), sizes)
    return [part.reshape(shape).clone() for part, shape in zip(parts, SHAPES, strict=True)]


def literal_projection(gradient, reference):
    """Compute the projection with a branch, as in the paper."""
    along = sum(g * r for g, r in zip(gradient, reference, strict=True))
    if along >= 0:
        return gradient
    length = sum(r * r for r in reference)
    return [g - along / length * r for g, r in zip(gradient, reference, strict=True)]


numbers = st.lists(st.integers(-9, 9), min_size=13, max_size=13)


@settings(max_examples=100, deadline=None)
@given(numbers, numbers)
def test_the_projection_equals_the_papers(gradient, reference):
    projected = split(gradient)
    project_gradient(projected, split(reference))
    flat = torch.cat([part.flatten() for part in projected])
    expected = literal_projection(gradient, reference)
    assert flat.tolist() == pytest.approx(expected, abs=1e-4)
    if expected is gradient:
        assert flat.tolist() == gradient
    else:
        assert torch.dot(flat, torch.tensor(reference).float()).item() == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("batch", [0, 5, 100])
def test_three_buckets_equal_the_written_out_ones(batch):
    stream = feature_stream()
    parameters = on_features(strategy="agem", strategy_args=f"batch={batch}", memory=6, seed=3)
    model, reference_model = random_head()
    strategy, trainer = build_strategy(stream, parameters, model)
    size = {0: 4, 5: 5, 100: 6}[batch]  # as many as batch_size; as asked; as there are
    cases = set()
    for bucket_index in range(3):
        samples, indices = stream.train(bucket_index), strategy._buffer.sample_indices
        pairs = zip(indices.bucket.tolist(), indices.index.tolist(), strict=True)
        memories = [(stream.train(b).images[i], int(stream.labels(b)[i])) for b, i in pairs]

        def gradient(batch, epoch, step, memories=memories, bucket_index=bucket_index):
            own_gradient = compute_gradient(reference_model, batch)
            if not memories:
                return own_gradient
            draws, order = build_generator(3, RngPurpose.MEMORY, bucket_index, epoch), []
            while len(order) < (step + 1) * size:
                order += torch.randperm(len(memories), generator=draws).tolist()
            of_step = order[step * size : (step + 1) * size]
            inputs = torch.stack([memories[n][0] for n in of_step])
            labels = torch.tensor([memories[n][1] for n in of_step])
            reference = compute_gradient(reference_model, Batch(inputs, labels, labels))
            flat = torch.cat([part.flatten() for part in own_gradient]).tolist()
            other = torch.cat([part.flatten() for part in reference]).tolist()
            projected = literal_projection(flat, other)
            cases.add(projected is flat)
            parts = torch.split(torch.tensor(projected), [part.numel() for part in own_gradient])
            return [p.reshape(part.shape) for p, part in zip(parts, own_gradient, strict=True)]

        literal_descent(reference_model, samples, parameters, bucket_index, gradient=gradient)
        strategy.learn(bucket_index, trainer)
        strategy.after_bucket(bucket_index)
        assert_close(list(model.parameters()), list(reference_model.parameters()))
        assert len(strategy._buffer) == 6
    assert cases == {True, False}
