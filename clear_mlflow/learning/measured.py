"""The interface of a training, in this process or in a child: metadata, rows and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.matrix import AccuracyRow, get_measured_split
from clear_mlflow.core.record import TIMES, DatasetIdentity
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
    """A message of a training: a row with its files, a training state, a test, or curve points."""

    row: AccuracyRow | None = None
    predictions: bytes | None = None  # content of the row's predictions file
    model: bytes | None = None  # content of the row's file of weights
    state: bytes | None = None  # to resume after the last row: content of the state file
    state_problem: str | None = None  # reason why that state cannot be stored
    test: AnytimeRow | None = None  # within the bucket in training
    curve: tuple[CurvePoint, ...] = ()  # points since the last message with any


# Receives messages in order. Must return quickly: training waits for it.
OnMessage = Callable[[Measurement], None]


@dataclass(frozen=True, kw_only=True)
class StreamMetadata:
    """Metadata of a dataset, for the record and the tracking store."""

    name: str
    digest: str
    source: str  # path or address of the data, for display
    buckets: tuple[str, ...]
    num_classes: int = 0  # 0 if not known
    num_train: tuple[int, ...] = ()  # images per bucket; empty if not known
    num_test: tuple[int, ...] = ()  # images per bucket; empty if not known
    protocol: str = "iid"  # or "streaming": a bucket's test set is its training set
    split: str = "released"  # or a number, "validation", "validation:N", or "none"
    warnings: tuple[str, ...] | None = ()  # None if this program does not read the data
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

    @property
    def row_fields(self) -> dict[str, Any]:
        """The fields of a RowRecord that all rows on this dataset have in common."""
        return {
            "dataset": DatasetIdentity(self.name, self.digest),
            "protocol": self.protocol,
            "split": get_measured_split(self.split),
            "extra": self._optional_fields,
        }

    @property
    def profile(self) -> dict[str, Any]:
        """The description of this dataset for the tracking store, in JSON types."""
        counts = {"num_train": self.num_train, "num_test": self.num_test}
        return {
            "digest": self.digest,
            "protocol": self.protocol,
            "split": self.split,
            **({"num_classes": self.num_classes} if self.num_classes else {}),
            **{key: dict(zip(self.buckets, n, strict=True)) for key, n in counts.items() if n},
            **({} if self.warnings is None else {"warnings": self.warnings}),
            **({"licence": self.licence} if self.licence else {}),
            **({"absent_classes": self.absent} if self.absent else {}),
            **self._optional_fields,
        }

    @property
    def _optional_fields(self) -> dict[str, Any]:
        """What rows and the profile contain only if there is any."""
        features = {"name": self.features, "digest": self.features_digest}
        return {
            **({"features": features} if self.features is not None else {}),
            **({"left_out": self.num_left_out} if self.num_left_out else {}),
            **({"scenario": self.scenario} if self.scenario else {}),
            **({TIMES: list(self.times)} if self.times else {}),
        }


def ignore(_: object) -> None:
    """Do nothing: the default callback."""


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

    def rows(self, on_message: OnMessage = ignore) -> Iterator[Measurement]:
        """Yield rows when they are measured, from row 0, and pass on messages without a row.

        A resumed training first yields the stored row that it continues from. A row's training
        state follows it, except after the last row.
        """
        ...
