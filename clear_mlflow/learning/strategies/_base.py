"""What a strategy is, and how one is found by its name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import cast

from clear_mlflow.config import TrainConfig
from clear_mlflow.errors import ConfigError
from clear_mlflow.learning.features import TrainingStream
from clear_mlflow.learning.images import Samples
from clear_mlflow.learning.strategies import strategy_names


class Strategy(ABC):
    """What a learner does against forgetting; one object lives through one run.

    The training loop asks it once per bucket, in stream order, and never looks at what it keeps.

    Args:
        config: the run's parameters.
        stream: what is trained on. A strategy that asks it only for the bucket that the loop is at
            learns from the past alone.
    """

    def __init__(self, config: TrainConfig, stream: TrainingStream) -> None:
        self.config = config
        self.stream = stream

    @abstractmethod
    def training_set(self, position: int) -> Samples:
        """The images that the model is trained on while the stream is at a bucket."""

    def after_bucket(self, position: int) -> None:
        """What is left to do once a bucket is trained on, before its row is measured."""
        return


def load_strategy(name: str) -> type[Strategy]:
    """Find a strategy's class, to be made with a run's parameters and stream.

    A strategy is one module of this package, which holds a class of the module's name in
    CamelCase: ``replay`` has ``Replay``, ``from_scratch`` would have ``FromScratch``.

    Raises:
        ConfigError: there is no such strategy.
    """
    if name not in strategy_names():
        raise ConfigError(f"unknown strategy {name!r}; known are {', '.join(strategy_names())}")
    module = importlib.import_module(f"{__package__}.{name}")
    class_name = "".join(word.capitalize() for word in name.split("_"))
    return cast("type[Strategy]", getattr(module, class_name))
