"""Custom strategies, such as the one in examples/."""

import sys
from typing import Any

import pytest
import torch
from learning_streams import config
from strategy_runs import image_stream, train_rows

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import PARAMETERS, TrainConfig
from clear_mlflow.learning.parameters.option_fields import OPTIMISATION
from clear_mlflow.learning.session import resolve_config
from clear_mlflow.learning.strategies import load_strategy
from clear_mlflow.learning.strategies.naive import Naive
from clear_mlflow.learning.strategies.ncm import Ncm
from clear_mlflow.learning.strategies.replay import Replay

NAME = "examples.own_strategy:PullTowardsPast"


@pytest.fixture
def importable(project, monkeypatch):
    """Put the checkout on the path, as for a training process."""
    monkeypatch.syspath_prepend(project)
    yield
    for name in ("examples.own_strategy", "examples"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("importable")
def test_the_example_strategy_trains(tmp_path):
    settings = resolve_config(config(strategy=NAME, strategy_args="strength=2"))
    assert settings.strategy_args == {"strength": 2.0}
    assert resolve_config(config(strategy=NAME)).strategy_args == {"strength": 1.0}
    rows, model = train_rows(image_stream(tmp_path), settings)
    assert len(rows) == 4
    _, naive = train_rows(image_stream(tmp_path), config(strategy="naive"))
    pairs = list(zip(model.parameters(), naive.parameters(), strict=True))
    assert not any(torch.equal(weight, other) for weight, other in pairs)


class Doubled(Naive):
    """Uses epochs, and therefore does not replace them."""

    @classmethod
    def count_epochs(cls, config, arguments):
        return 2 * config.epochs


class Margin(Naive):
    """Computes another loss."""

    def compute_loss(self, forward, batch):
        return torch.nn.functional.multi_margin_loss(forward(batch.inputs), batch.labels)


class Halved(Naive):
    """Has the criterion of its base class in its own."""

    def criterion(self, logits, labels):
        return super().criterion(logits, labels) / 2


class Smoothed(Replay):
    """Reads label_smoothing in another method."""

    def compute_loss_share(self, forward, batch):
        return (lambda: self.measure(forward, batch))()

    def measure(self, forward, batch):
        return forward(batch.inputs).square().mean() * self.config.label_smoothing


def weigh(loss, config):
    return loss * config.label_smoothing


class Passed(Naive):
    """Passes its configuration to a function that reads label_smoothing."""

    def compute_loss(self, forward, batch):
        return weigh(forward(batch.inputs).square().mean(), self.config)


class Squared(Replay):
    """Computes another loss, and its base class has a criterion."""

    def compute_loss_share(self, forward, batch):
        return forward(batch.inputs).square().mean()


class Loop(Naive):
    """Takes steps without the trainer, and may read any parameter."""

    def learn(self, bucket_index, trainer):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.config.lr)
        batches: Any = self.load_training_set(bucket_index)
        for batch in batches:
            self.compute_loss(self.model, batch).backward()
            optimizer.step()


class Means(Ncm):
    """Takes no steps, like its base class."""


ON_PIXELS = {"model": "linear", "features": "pixels"}
TUNED = {name for name, option in PARAMETERS.items() if option.group == OPTIMISATION}


@pytest.mark.parametrize(
    ("parameters", "replaced"),
    [
        ({"strategy": "naive"}, set()),
        ({"strategy": "joint"}, set()),
        ({"strategy": "gdumb", "strategy_args": "epochs=3"}, {"epochs"}),
        ({"strategy": f"{__name__}:Doubled"}, set()),
        ({"strategy": f"{__name__}:Margin"}, {"label_smoothing"}),
        ({"strategy": f"{__name__}:Squared"}, {"label_smoothing"}),
        ({"strategy": f"{__name__}:Halved"}, set()),
        ({"strategy": f"{__name__}:Passed"}, set()),
        ({"strategy": f"{__name__}:Loop"}, set()),
        ({"strategy": f"{__name__}:Smoothed"}, set()),
        ({"strategy": "ncm", **ON_PIXELS}, set()),
        ({"strategy": f"{__name__}:Means", **ON_PIXELS}, TUNED),
    ],
)
def test_replaced_parameters_follow_from_hooks(parameters, replaced):
    settings = resolve_config(config(**parameters))
    assert settings.replaced == replaced
    assert resolve_config(settings).replaced == replaced
    assert settings.ignored_parameters >= replaced


@pytest.mark.usefixtures("importable")
def test_the_example_buffer_trains(tmp_path):
    """A custom buffer is built from public names only."""
    settings = resolve_config(config(strategy="examples.own_buffer:ReplayNewest", memory="4"))
    assert len(train_rows(image_stream(tmp_path), settings)[0]) == 4


OWN_ARGUMENTS = """
from dataclasses import dataclass
from typing import Literal
from clear_mlflow.learning.strategies import Strategy

class Own(Strategy):
    @dataclass(frozen=True)
    class Arguments:
        value: {hint} = {default!r}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def write(hint, default, **parameters):
        name = f"own_{tmp_path.name}_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(OWN_ARGUMENTS.format(hint=hint, default=default))
        return config(strategy=f"{name}:Own", **parameters)

    return write


@pytest.mark.parametrize(
    ("hint", "default", "text", "value"),
    [
        ("int | None", None, "3", 3),
        ("int | None", 3, "none", None),
        ("Literal['a', 'b', 2]", "a", "2", 2),
        ("float", 0.5, "1e-3", 0.001),
        ("bool", False, "yes", True),
        ("bool | None", None, "no", False),
        ("Literal['a', 2] | None", "a", "none", None),
        ("str", "x", "a=b", "a=b"),
    ],
)
def test_arguments_round_trip(own, hint, default, text, value):
    for parameters, expected in (({}, default), ({"strategy_args": f"value={text}"}, value)):
        settings = resolve_config(own(hint, default, **parameters))
        assert settings.strategy_args == {"value": expected}
        assert resolve_config(TrainConfig.resolve(settings.as_text())) == settings


@pytest.mark.parametrize(
    ("hint", "default", "parameters"),
    [
        ("tuple[int, ...]", (1, 2), {}),
        ("str", "a,b", {}),
        ("str", " a", {}),
        ("int", 0.5, {}),
        ("int | None", None, {"strategy_args": "value=x"}),
        ("Literal['a', 'b']", "a", {"strategy_args": "value=c"}),
        ("tuple[int, ...]", (), {"strategy_args": "value=1"}),
    ],
)
def test_an_argument_that_text_cannot_store_is_rejected(own, hint, default, parameters):
    """Otherwise the run could not be resumed."""
    with pytest.raises(ConfigError, match=r"value.*expected"):
        resolve_config(own(hint, default, **parameters))


def test_the_named_object_must_be_a_strategy(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text("OTHER = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, problem in (("OTHER", "expected a subclass"), ("Missing", "cannot be loaded")):
        with pytest.raises(ConfigError, match=problem):
            load_strategy(f"theirs:{name}")
    sys.modules.pop("theirs")
