"""What all strategies trained by gradient descent have in common."""

import numpy as np
import pytest
import torch
from learning_streams import config
from strategy_runs import assert_identical, image_stream, train_rows
from torch import nn

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.models import get_head
from clear_mlflow.learning.strategies import load_strategy, parse_strategy_arguments
from clear_mlflow.learning.strategies._base import build_untrained_model
from clear_mlflow.learning.strategies._weights import collect_gradients

REGULARISED = ("ewc", "si", "lwf", "agem")
ANEW = ("from_scratch", "gdumb")  # these end with another backbone
STRATEGIES = (*REGULARISED, *ANEW, "joint", "er_ace", "derpp", "cwr")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STRATEGIES, "naive", "cumulative", "replay"])
def test_images_are_trained_on_and_the_same_seed_gives_the_same_bits(tmp_path, name):
    stream = image_stream(tmp_path)

    def weights(seed):
        options = {"precision": "bf16", "clip_norm": 1, "label_smoothing": 0.1}
        rows, model = train_rows(stream, config(strategy=name, seed=seed, **options))
        assert [row.row for row in rows] == [0, 1, 2, 3]
        assert {(row.buckets, row.num_instances) for row in rows} == {(stream.keys, (4, 4, 4))}
        return torch.cat([tensor.flatten().double() for tensor in model.state_dict().values()])

    first = weights(1)
    assert first.isfinite().all()
    torch.rand(5)
    np.random.rand(5)
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_frozen_backbone_does_not_change(tmp_path, name):
    settings = config(strategy=name, freeze="backbone", precision="bf16")
    stream = image_stream(tmp_path)
    _, model = train_rows(stream, settings)
    untrained = build_untrained_model(
        load_strategy(settings.strategy), stream, settings, *((2,) if name in ANEW else ())
    )
    head = set(get_head(model).parameters())
    for weight, other in zip(model.parameters(), untrained.parameters(), strict=True):
        assert torch.equal(weight, other) == (weight not in head)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ewc", "si", "lwf"])
def test_strength_zero_equals_naive(tmp_path, name):
    stream = image_stream(tmp_path)
    rows, model = train_rows(stream, config(strategy=name, strategy_args="strength=0"))
    naive, reference = train_rows(stream, config(strategy="naive"))
    assert rows == naive
    assert_identical(model, reference)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ewc", "strength=-1", "strength is -1.0 in strategy_args; pass 0 or more"),
        ("ewc", "gamma=1.5", "gamma is 1.5 in strategy_args; pass 0 to 1"),
        ("ewc", "images=-1", "images is -1 in strategy_args; pass 0 or more"),
        ("ewc", "lambda=1", "which is not an argument of strategy ewc; expected strength"),
        ("si", "strength=-1", "strength is -1.0 in strategy_args; pass 0 or more"),
        ("si", "damping=0", "damping is 0.0 in strategy_args; pass a number above 0"),
        ("lwf", "strength=-1", "strength is -1.0 in strategy_args; pass 0 or more"),
        ("lwf", "temperature=0", "temperature is 0.0 in strategy_args; pass a number above 0"),
        ("agem", "buffer=box", "unknown buffer 'box' in strategy_args; expected one of"),
        ("agem", "batch=-1", "batch is -1 in strategy_args; pass 0 or more"),
        ("derpp", "alpha=-0.1", "in strategy_args; pass 0 or more"),
        ("derpp", "beta=-1", "in strategy_args; pass 0 or more"),
        ("joint", "epochs=-1", "in strategy_args; pass 0 or more"),
        ("gdumb", "epochs=-1", "in strategy_args; pass 0 or more"),
        ("replay", "batches=half", "pass shuffled or balanced"),
    ],
)
def test_impossible_arguments_are_rejected(name, arguments, message):
    with pytest.raises(ConfigError, match=message) as refused:
        parse_strategy_arguments(config(strategy=name, strategy_args=arguments))
    assert "\n" not in str(refused.value)


def test_an_array_as_an_argument_is_a_one_line_error():
    for arguments in ({"lambda": np.eye(3)}, {"strength": np.eye(3)}):
        with pytest.raises(ConfigError) as refused:
            parse_strategy_arguments(config(strategy="ewc", strategy_args=arguments))
        assert "\n" not in str(refused.value)


def test_a_weight_without_effect_on_the_loss_has_a_zero_gradient():
    """Lists of weights and gradients keep one length."""
    model = nn.Linear(2, 2)
    model.weight.sum().backward()
    own_gradients = collect_gradients(list(model.parameters()))
    assert [gradient.tolist() for gradient in own_gradients] == [[[1, 1], [1, 1]], [0, 0]]
    assert own_gradients[1] is model.bias.grad
