"""What a row cost: the training since the row before it, and its test apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_TEXT_CHARACTERS, converted

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class RowCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a row cost; None is not known, and never 0.

    FLOPs, images, bytes and parameters are the same on every machine, seconds and memory of
    *device* alone.

    Args:
        training_flops: of convolutions, matrix products and attention, forward and backward; a
            multiplication and an addition are two.
        test_flops: of the row's test, and of tests inside its bucket.
        images: of the bucket, that steps trained on; an image counts in every epoch.
        replayed_images: of other buckets, likewise.
        stored_bytes: what the strategy keeps once the bucket is done.
        trainable_parameters: of the model, as the bucket was trained.
        seconds: that training took.
        device_seconds: seconds of all GPUs together, else of the processors.
        test_seconds: that tests took.
        peak_bytes: the most memory of the first process's GPU, else of that process so far.
        device: the GPU's or the processor's name.
    """

    training_flops: _Count | None = None
    test_flops: _Count | None = None
    images: _Count | None = None
    replayed_images: _Count | None = None
    stored_bytes: _Count | None = None
    trainable_parameters: _Count | None = None
    seconds: _Seconds | None = None
    device_seconds: _Seconds | None = None
    test_seconds: _Seconds | None = None
    peak_bytes: _Count | None = None
    device: Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS)] | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that are known."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def row_cost(given: RowCost | Mapping[str, object] | None) -> RowCost | None:
    """What a loop said that a row cost, checked; RecordError, or ConfigError of a name unknown."""
    if given is None:
        return None
    fields = given.as_json() if isinstance(given, RowCost) else dict(given)
    if unknown := sorted(map(str, fields.keys() - set(RowCost.__struct_fields__))):
        raise ConfigError(
            f"cost names {shown(unknown[0])}; expected some of "
            f"{', '.join(RowCost.__struct_fields__)}"
        )
    found: RowCost = converted(fields, RowCost, "cost")
    return found
