"""The description in a stored model's file, from which it is built again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import format_count
from clear_mlflow.core.untrusted import (
    MAX_CONFIG_BYTES,
    MAX_FEATURES_WIDTH,
    convert,
    parse_json_object,
)

_KEY = "clear_mlflow"  # of a safetensors file's metadata
NOT_DESCRIBED = {_KEY: "null"}  # metadata of a network that only its strategy's class can build
# Tensors of a model on standardised vectors, (width,): subtracted, then multiplied.
STANDARDISED = ("standardise.mean", "standardise.scale")
_LARGEST_SIDE = 9433  # pixels: a square of 89 million, above which no image is decoded


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A model after some buckets, from a file by anybody."""

    model: str  # name for build_model
    num_classes: int
    class_names: tuple[str, ...]  # the index is the class
    # Numbers per image for a model on stored features, or 0 for a model of images.
    width: Annotated[int, Meta(ge=0, le=MAX_FEATURES_WIDTH)]
    # Side of the square that is cropped from an image, in pixels.
    image_size: Annotated[int, Meta(ge=1, le=_LARGEST_SIDE)]
    augment: str  # how training images were cropped
    precision: str  # of its tests, a value of the option of that name
    strategy: str
    dataset: str
    bucket: str  # key of the bucket that was trained last
    requirements: tuple[str, ...]  # packages that it needs, in pip's format
    # With scenario=task: the classes that may be predicted, by bucket key.
    classes_by_bucket: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def as_metadata(self) -> dict[str, str]:
        """Return it as the metadata of a safetensors file."""
        return {_KEY: json.dumps(asdict(self))}


def read_description(path: Path) -> ModelDescription | None:
    """Read the description in a file of weights, or None if undescribed.

    Returns None if the file states that only the strategy's class can build the model. Raises
    RecordError if the file cannot be read, lacks a description, or has an invalid one.
    """
    # Imported here, since servers whose runs lack models need not install it.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {})[_KEY]
        if text == NOT_DESCRIBED[_KEY]:
            return None
        model: ModelDescription = convert(
            parse_json_object(text, MAX_CONFIG_BYTES), ModelDescription
        )
        if len(model.class_names) != model.num_classes or model.num_classes < 1:
            count = format_count(len(model.class_names), "name")
            raise RecordError(f"{count} for {format_count(model.num_classes, 'class', 'classes')}")
        if any(not {*c} or {*c} - {*model.class_names} for c in model.classes_by_bucket.values()):
            raise RecordError("a bucket with unknown classes, or without classes")
        return model
    except (OSError, SafetensorError, RecordError, LookupError) as error:
        raise RecordError(
            f"{path.name} is not a file of weights with a valid description ({error})"
        ) from error
