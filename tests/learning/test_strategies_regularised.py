"""What the strategies that hold weights, answers or gradients have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from feature_streams import CLASSES, WIDTH
from learning_streams import config
from strategy_runs import feature_stream, image_stream, on_features, rows_of, strategy_on
from torch import nn

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.models import head_of
from clear_mlflow.learning.samples.decoded import Batch
from clear_mlflow.learning.strategies._base import check_strategy
from clear_mlflow.learning.strategies._weights import gradients, pull

STRATEGIES = ("ewc", "si", "lwf", "agem")


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("precision", ["off", "bf16"])
def test_images_are_trained_on_and_the_same_seed_gives_the_same_bits(tmp_path, name, precision):
    """Through the whole loop, with batch normalisation, in either precision."""
    settings = config(strategy=name, precision=precision, clip_norm=1, label_smoothing=0.1)
    (rows, model), (again, twin) = (
        rows_of(image_stream(tmp_path / str(i)), settings) for i in range(2)
    )
    assert len(rows) == 4
    assert rows == again
    for weight, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert weight.isfinite().all()
        assert torch.equal(weight, other)


def test_they_forget_less_than_naive_on_features_that_wander():
    """A head of zeros, and a strategy of its own: another result, from the second bucket on."""
    stream = feature_stream((20, 20, 20), wander=2.5)
    naive, _ = rows_of(stream, on_features(strategy="naive", epochs=5))
    for name, arguments in (
        ("ewc", "strength=3"),
        ("si", "strength=1"),
        ("lwf", "strength=1"),
        ("agem", "batch=40"),
    ):
        settings = on_features(strategy=name, strategy_args=arguments, epochs=5, memory=40)
        rows, _ = rows_of(stream, settings)
        assert rows[:2] == naive[:2]
        assert sum(rows[-1].correct[:2]) > sum(naive[-1].correct[:2]) + 10, name


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_in_a_step_waits_for_the_device(name):
    """On a device whose tensors hold no numbers, whatever reads one fails."""
    nowhere = torch.device("meta")
    model = nn.Linear(WIDTH, CLASSES, device=nowhere)
    weights = list(model.parameters())
    strategy, _ = strategy_on(feature_stream(), on_features(strategy=name), model)
    batch = Batch(
        torch.empty(4, WIDTH, device=nowhere),
        torch.empty(4, dtype=torch.int64, device=nowhere),
        torch.empty(4, dtype=torch.int64, device=nowhere),
    )
    # As in the middle of a later bucket.
    if name == "ewc":
        strategy._curvature = strategy._vertex = strategy._stiffness = weights
    elif name == "lwf":
        strategy._old = model
        strategy._answers = torch.empty(9, CLASSES, device=nowhere)
    elif name == "agem":
        batch = replace(batch, rehearsed=(batch,))
    loss = strategy.share_of_loss(model, batch)
    loss.backward()
    strategy.before_step()
    strategy.after_step()
    assert loss.device == weights[0].grad.device == nowhere
    with pytest.raises(RuntimeError):
        loss.item()


@pytest.mark.parametrize("name", ["ewc", "si", "lwf"])
def test_a_strength_of_nothing_is_naive(tmp_path, name):
    """To the bit: what a strategy measures between steps and buckets disturbs nothing."""
    stream = image_stream(tmp_path)
    rows, model = rows_of(stream, config(strategy=name, strategy_args="strength=0"))
    naive, twin = rows_of(stream, config(strategy="naive"))
    assert rows == naive
    for weight, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(weight, other)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_frozen_backbone_stays_as_it_is(tmp_path, name):
    """What is not trained is neither measured nor held, and the head still learns."""
    stream = image_stream(tmp_path)
    settings = config(strategy=name, freeze="backbone")
    _, model = rows_of(stream, settings)
    _, untrained = rows_of(stream, config(strategy=name, freeze="backbone", lr=1e-12))
    head = set(head_of(model).parameters())
    for weight, other in zip(model.parameters(), untrained.parameters(), strict=True):
        assert torch.allclose(weight, other, rtol=0, atol=1e-9) == (weight not in head)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ewc", "strength=-1", "strength is -1.0 in strategy_args; pass 0 or more"),
        ("ewc", "gamma=1.5", "gamma is 1.5 in strategy_args; pass 0 to 1"),
        ("ewc", "images=-1", "images is -1 in strategy_args; pass 0 or more"),
        ("ewc", "lambda=1", "'lambda=1', which is no argument of strategy ewc; known are strength"),
        ("si", "strength=-1", "strength is -1.0 in strategy_args; pass 0 or more"),
        ("si", "damping=0", "damping is 0.0 in strategy_args; pass a number above 0"),
        ("lwf", "strength=-1", "strength is -1.0 in strategy_args; pass 0 or more"),
        ("lwf", "temperature=0", "temperature is 0.0 in strategy_args; pass a number above 0"),
        ("agem", "buffer=box", "unknown buffer 'box' in strategy_args; known are"),
        ("agem", "batch=-1", "batch is -1 in strategy_args; pass 0 or more"),
    ],
)
def test_what_cannot_be_is_refused(name, arguments, message):
    """In one line that says what to pass."""
    with pytest.raises(ConfigError) as refused:
        check_strategy(config(strategy=name, strategy_args=arguments))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_agem_without_memory_is_refused():
    """It has nothing to limit a step with."""
    with pytest.raises(ConfigError, match="strategy agem keeps images in a buffer"):
        check_strategy(config(strategy="agem", memory=0))


def test_the_pull_is_the_gradient_of_the_written_out_parabolas():
    """Against autograd."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    weights = list(model.parameters())
    anchor = [torch.randn_like(weight) for weight in weights]
    stiffness = [torch.rand_like(weight) for weight in weights]
    energy = sum(
        (stiff * (weight - end) ** 2).sum() / 2
        for weight, end, stiff in zip(weights, anchor, stiffness, strict=True)
    )
    expected = torch.autograd.grad(energy, weights)
    for ours, theirs in zip(pull(weights, anchor, stiffness), expected, strict=True):
        assert not ours.requires_grad
        torch.testing.assert_close(ours, theirs)


def test_a_weight_that_the_loss_does_not_reach_has_a_gradient_of_zeros():
    """Lists of weights and of gradients stay of one length."""
    model = nn.Linear(2, 2)
    model.weight.sum().backward()
    ours = gradients(list(model.parameters()))
    assert [gradient.tolist() for gradient in ours] == [[[1, 1], [1, 1]], [0, 0]]
    assert ours[1] is model.bias.grad
