"""LwF, compared with its definition in plain Python."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_streams import config
from strategy_runs import (
    assert_close,
    build_strategy,
    feature_stream,
    image_stream,
    literal_descent,
    on_features,
    random_head,
)

from clear_mlflow.learning.models import build_model
from clear_mlflow.learning.strategies.lwf import compute_distillation_loss


def literal_softmax(row, temperature):
    powers = [math.exp(z / temperature) for z in row]
    return [power / sum(powers) for power in powers]


numbers = st.floats(-8, 8, width=32)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(*[numbers] * 6), min_size=1, max_size=4),
    st.sampled_from([0.5, 1.0, 2.0, 5.0]),
)
def test_the_distillation_loss_equals_the_papers_sum(rows, temperature):
    """Minus the sum of y_old' log y', softened by 1 / T. Mean over images."""
    expected = 0.0
    for row in rows:
        new, old = (literal_softmax(half, temperature) for half in (row[:3], row[3:]))
        expected -= sum(p * math.log(q) for p, q in zip(old, new, strict=True)) / len(rows)
    table = torch.tensor(rows)
    own_loss = compute_distillation_loss(table[:, :3], table[:, 3:], temperature=temperature)
    assert own_loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_three_buckets_equal_the_written_out_ones():
    stream = feature_stream()
    parameters = on_features(strategy="lwf", strategy_args="strength=1.6,temperature=3")
    model, reference = random_head()
    strategy, trainer = build_strategy(stream, parameters, model)
    for bucket_index in range(3):
        teacher = copy.deepcopy(reference)

        def gradient(batch, epoch, step, teacher=teacher, first=bucket_index == 0):
            new, old = reference(batch.inputs), teacher(batch.inputs).detach()
            loss = -new.log_softmax(1)[range(len(new)), batch.labels].mean()
            if not first:
                soft = (old / 3).softmax(1)
                loss = loss - 1.6 * (soft * (new / 3).log_softmax(1)).sum(1).mean()
            return torch.autograd.grad(loss, list(reference.parameters()))

        samples = stream.train(bucket_index)
        literal_descent(reference, samples, parameters, bucket_index, gradient=gradient)
        strategy.learn(bucket_index, trainer)
        strategy.after_bucket(bucket_index)
        assert_close(list(model.parameters()), list(reference.parameters()))


def test_the_teacher_is_in_evaluation_mode_and_learns_nothing(tmp_path):
    stream = image_stream(tmp_path)
    torch.manual_seed(0)
    model = build_model("small_cnn", num_classes=3, image_size=8)
    strategy, _ = build_strategy(stream, config(strategy="lwf"), model)
    teachers = []
    trainer = SimpleNamespace(train_bucket=lambda *_, **__: teachers.append(strategy._old))
    strategy.learn(0, trainer)
    strategy.learn(1, trainer)
    assert teachers[0] is None
    assert not teachers[1].training
    assert teachers[1] is not model
    assert not any(weight.requires_grad for weight in teachers[1].parameters())
    assert strategy._old is None
