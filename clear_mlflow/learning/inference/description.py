"""What a stored model is, as its own file says it: enough to build it again and to ask it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, MAX_FEATURES_WIDTH, json_object

_KEY = "clear_mlflow"  # of a safetensors file's metadata
OF_A_STRATEGY = {_KEY: "null"}  # metadata of a network that its class alone can build
# Tensors of a model on standardised vectors, (width,): what they are less, and what times.
STANDARDISED = ("standardise.mean", "standardise.scale")
_LARGEST_SIDE = 9433  # pixels: a square of 89 million, above which no image is decoded


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A model after some buckets."""

    model: str  # its name, as build_model knows it
    num_classes: int
    class_names: tuple[str, ...]  # the index is the class
    width: int  # numbers per image, of a model on stored features; 0: it takes images
    image_size: int  # side of the square that is cropped from an image, pixels
    augment: str  # how test images are scaled; see samples/photos.py
    precision: str  # what it was tested in, as a training's parameter of that name
    strategy: str  # what trained it
    dataset: str  # what it was trained on
    bucket: str  # key of the bucket that was trained last
    requirements: tuple[str, ...]  # packages that it needs, as pip takes them

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
        told = json_object(text, MAX_CONFIG_BYTES)
        lists = {name: tuple(map(str, told[name])) for name in ("class_names", "requirements")}
        return _checked(ModelDescription(**{**told, **lists}))
    except (OSError, SafetensorError, RecordError, LookupError, TypeError, ValueError) as error:
        raise RecordError(
            f"{path.name} is no file of weights that says what it is of ({error})"
        ) from error


def _checked(about: ModelDescription) -> ModelDescription:
    """The same, of types and sizes that a model can have; anybody may have written the file."""
    for field in fields(about):
        value, kind = getattr(about, field.name), str(field.type).partition("[")[0]
        if type(value).__name__ != kind:
            raise ValueError(f"{field.name} is a {type(value).__name__}, expected a {kind}")
    if len(about.class_names) != about.num_classes or about.num_classes < 1:
        raise ValueError(f"{len(about.class_names)} names for {about.num_classes} classes")
    if not 0 <= about.width <= MAX_FEATURES_WIDTH or not 1 <= about.image_size <= _LARGEST_SIDE:
        raise ValueError(f"images of {about.image_size} pixels, features of {about.width} numbers")
    return about
