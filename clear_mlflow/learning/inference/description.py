"""What a stored model is, as its own file says it: enough to build it again and to ask it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, MAX_FEATURES_WIDTH, convert, json_object

_KEY = "clear_mlflow"  # of a safetensors file's metadata
OF_A_STRATEGY = {_KEY: "null"}  # metadata of a network that its class alone can build
# Tensors of a model on standardised vectors, (width,): what they are less, and what times.
STANDARDISED = ("standardise.mean", "standardise.scale")
_LARGEST_SIDE = 9433  # pixels: a square of 89 million, above which no image is decoded


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A model after some buckets; anybody may have written the file that says so."""

    model: str  # its name, as build_model knows it
    num_classes: int
    class_names: tuple[str, ...]  # the index is the class
    # Numbers per image, of a model on stored features; 0: it takes images.
    width: Annotated[int, Meta(ge=0, le=MAX_FEATURES_WIDTH)]
    # Side of the square that is cropped from an image, pixels.
    image_size: Annotated[int, Meta(ge=1, le=_LARGEST_SIDE)]
    augment: str  # how test images are scaled; see samples/photos.py
    precision: str  # what it was tested in, as a training's parameter of that name
    strategy: str  # what trained it
    dataset: str  # what it was trained on
    bucket: str  # key of the bucket that was trained last
    requirements: tuple[str, ...]  # packages that it needs, as pip takes them
    # Under scenario=task: the classes among which a prediction is chosen, by bucket key.
    classes_by_bucket: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def as_metadata(self) -> dict[str, str]:
        """As a safetensors file holds it beside the weights."""
        return {_KEY: json.dumps(asdict(self))}


def read_description(path: Path) -> ModelDescription | None:
    """What a file of weights says that it is of; None of a network of a strategy's own making."""
    # Imported here: a server's owner, whose runs hold no models, need not install it.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {})[_KEY]
        if text == OF_A_STRATEGY[_KEY]:
            return None
        about: ModelDescription = convert(json_object(text, MAX_CONFIG_BYTES), ModelDescription)
        if len(about.class_names) != about.num_classes or about.num_classes < 1:
            raise RecordError(f"{len(about.class_names)} names for {about.num_classes} classes")
        if any(not {*c} or {*c} - {*about.class_names} for c in about.classes_by_bucket.values()):
            raise RecordError("a bucket with unknown classes, or without classes")
        return about
    except (OSError, SafetensorError, RecordError, LookupError) as error:
        raise RecordError(
            f"{path.name} is no file of weights that says what it is of ({error})"
        ) from error
