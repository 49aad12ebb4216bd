"""The interface of a training, in this process or in a child: metadata, rows and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from clear_mlflow.core.anytime import AnytimeRow
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


# Receives points in order. Must return quickly: training waits for it.
OnCurve = Callable[[Sequence[CurvePoint]], None]
# Receives the tests within a bucket, in order.
OnTest = Callable[[AnytimeRow], None]


@dataclass(frozen=True)
class TrainingState:
    """The state from which a training can be resumed after a row, except the last one."""

    row: int
    file: bytes | None = None  # content of the state file, or None if it cannot be stored
    problem: str | None = None  # reason why it cannot be stored


# Receives the state after each row except the last. Must return quickly: training waits for it.
OnState = Callable[[TrainingState], None]


@dataclass(frozen=True)
class MeasuredRow:
    """A row with its files."""

    row: AccuracyRow
    predictions: bytes | None = None  # content of the predictions file, or None
    model: bytes | None = None  # content of the file of weights, or None
    curve: tuple[CurvePoint, ...] = ()  # points that on_curve did not receive


@dataclass(frozen=True, kw_only=True)
class StreamMetadata:
    """Metadata of a dataset, for the record and the tracking store."""

    name: str
    digest: str
    source: str  # path or address of the data, for display
    num_classes: int
    buckets: tuple[str, ...]
    num_train: tuple[int, ...]  # images per bucket
    num_test: tuple[int, ...]  # images per bucket
    protocol: str = "iid"  # or "streaming": a bucket's test set is its training set
    split: str = "released"  # or a number, "validation", "validation:N", or "none"
    warnings: tuple[str, ...] = ()
    features: str | None = None  # name of stored features, or None for images
    features_digest: str | None = None
    num_left_out: int = 0  # damaged images that were left out
    times: tuple[str, ...] = ()  # a date for each bucket, such as 2004-05-17, or ()
    # Name and arguments of the scenario, and "classes": the new classes of each bucket. {}: domain.
    scenario: dict[str, Any] = field(default_factory=dict)
    # Classes without images, by split and bucket.
    absent: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    licence: str = ""  # licence of the images, or "" if it is not known
    evaluation_set: bytes | None = None  # content of the EvaluationSet's file, or None


def ignore(_: object) -> None:
    """Do nothing: the default of all callbacks."""


class Training(Protocol):
    """A training that is ready to begin."""

    @property
    def config(self) -> TrainConfig:
        """The resolved parameters."""
        ...

    @property
    def metadata(self) -> StreamMetadata:
        """The dataset that is trained on."""
        ...

    def for_member(self, config: TrainConfig) -> Training:
        """Return the training of one member of an ensemble, on the same loaded data.

        config: one of ``self.config.split_seeds()``. Train the members in that order.
        """
        ...

    def rows(
        self, on_curve: OnCurve = ignore, on_test: OnTest = ignore, on_state: OnState = ignore
    ) -> Iterator[MeasuredRow]:
        """Yield rows when they are measured, from row 0.

        A resumed training first yields the stored row that it continues from.
        """
        ...
