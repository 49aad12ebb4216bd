"""The interface of a training, in this process or in a child: dataset, rows and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.learning.parameters.config import TrainConfig


@dataclass(frozen=True)
class CurvePoint:
    """Loss and speed over a window of optimiser steps."""

    step: int  # last step of the window, counted from 1 over all buckets
    loss: float  # mean loss in the window; NaN or infinite if it diverged
    lr: float  # learning rate of the last step
    images_per_second: float  # images of the training set, without those from a buffer
    time: int  # end of the window, milliseconds since 1970


@dataclass(frozen=True)
class Measurement:
    """A message of a training: row, state, test, or curve points."""

    row: AccuracyRow | None = None
    predictions: bytes | None = None  # content of the row's predictions file
    prequential: bytes | None = None  # content of the run's file of predictions before training
    model: bytes | None = None  # content of the row's file of weights
    state: bytes | None = None  # to resume after the last row: content of the state file
    state_problem: str | None = None  # reason why that state cannot be stored
    test: AnytimeRow | None = None  # within the bucket in training
    curve: tuple[CurvePoint, ...] = ()  # points since the last message with any


# Receives messages in order. Must return quickly: training waits for it.
OnMessage = Callable[[Measurement], None]


def ignore(_: object) -> None:
    """Do nothing: the default callback."""


class Training(Protocol):
    """A training that is ready to begin."""

    @property
    def config(self) -> TrainConfig:
        """The resolved parameters."""
        ...

    @property
    def dataset(self) -> DatasetDescription:
        """The dataset that is trained on."""
        ...

    def for_member(self, config: TrainConfig) -> Training:
        """Return the training of one member, on the same loaded data.

        config: one of ``self.config.split_seeds()``. Train the members in that order.
        """
        ...

    def rows(self, on_message: OnMessage = ignore) -> Iterator[Measurement]:
        """Train, yield each row when it is measured, and send other messages.

        A resumed training first yields the stored row that it continues from. A row's training
        state follows it, except after the last row.
        """
        ...
