"""What a tracked run needs of a training, here or in a child: its facts and its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.learning.parameters.config import TrainConfig


@dataclass(frozen=True)
class CurvePoint:
    """How training went over a window of steps, up to and with the one that it names."""

    step: int  # of the optimiser, counted from 1 over all buckets
    loss: float  # mean over the window of what steps descended; NaN or infinite where it diverged
    lr: float  # of the last step
    images_per_second: float  # of the training set; not those from a strategy's buffer
    time: int  # when the window ended, in milliseconds since the epoch


# Takes points in their order; it must not keep training waiting.
OnCurve = Callable[[Sequence[CurvePoint]], None]
# Takes tests inside a bucket in their order.
OnTest = Callable[[AnytimeRow], None]


@dataclass(frozen=True)
class TrainingState:
    """What a training is resumed from after a row that is not the last one."""

    row: int
    file: bytes | None = None  # its content; None: it could not be kept
    problem: str | None = None  # why it could not


# Takes a state, perhaps from a thread of its own, while the next bucket is trained on; the one
# before was taken by then.
OnState = Callable[[TrainingState], None]


@dataclass(frozen=True)
class MeasuredRow:
    """A row, and what it was counted from."""

    row: AccuracyRow
    predictions: bytes | None = None  # the file of core's RowPredictions; None: not kept
    model: bytes | None = None  # the file of the model's weights, as safetensors; None: not kept
    curve: tuple[CurvePoint, ...] = ()  # points of its bucket that were not handed over before


@dataclass(frozen=True, kw_only=True)
class StreamMetadata:
    """What the record and the tracking store say of a dataset."""

    name: str
    digest: str
    source: str  # where it was read from, for people; never opened again
    num_classes: int
    buckets: tuple[str, ...]
    num_train: tuple[int, ...]  # images per bucket
    num_test: tuple[int, ...]  # images per bucket
    protocol: str = "iid"  # or "streaming": each bucket's test set is its training set
    split: str = "released"  # a number, "validation", "validation:N"; "none": nothing held out
    warnings: tuple[str, ...] = ()
    features: str | None = None  # name of the stored features trained on; None for the images
    features_digest: str | None = None
    num_left_out: int = 0  # damaged images
    times: tuple[str, ...] = ()  # a date for each bucket, as 2004-05-17; empty where not known
    # Of any but domain: its name and arguments, and "classes", those that each bucket brings.
    scenario: dict[str, Any] = field(default_factory=dict)
    # Of each split, the buckets that lack classes, and these; of classes that come and go.
    absent: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    licence: str = ""  # of the images; empty where it is not known
    evaluation_set: bytes | None = None  # the file of predictions.EvaluationSet; None: not kept


def ignore(measured: object) -> None:
    """An :data:`OnCurve`, :data:`OnTest` and :data:`OnState` for a caller that wants only rows."""


class Training(Protocol):
    """A training that is ready to begin."""

    @property
    def config(self) -> TrainConfig:
        """The parameters in force, all resolved."""
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
        """Yield rows as they are measured. A resumed training repeats the last one first."""
        ...
