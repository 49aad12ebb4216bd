"""What a stored model is, as its own file says it: enough to build it again and to ask it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, json_object

_KEY = "clear_mlflow"  # of a safetensors file's metadata


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A model after some buckets.

    Args:
        model: its name, as :func:`~clear_mlflow.learning.models.build_model` knows it.
        num_classes: width of its output.
        class_names: the index is the class.
        width: numbers per image, of a model on stored features; 0: it takes images.
        image_size: side of the square that is cropped from an image, pixels.
        augment: how test images are scaled; see :mod:`~clear_mlflow.learning.samples.augment`.
        precision: what it was tested in, as a training's parameter of that name.
        channels_last: the memory layout that it was tested in.
        strategy: what trained it.
        dataset: what it was trained on.
        bucket: key of the bucket that was trained last.
        requirements: packages that it needs, as pip takes them.
    """

    model: str
    num_classes: int
    class_names: tuple[str, ...]
    width: int
    image_size: int
    augment: str
    precision: str
    channels_last: bool
    strategy: str
    dataset: str
    bucket: str
    requirements: tuple[str, ...]

    def as_metadata(self) -> dict[str, str]:
        """As a safetensors file holds it beside the weights."""
        return {_KEY: json.dumps(asdict(self))}


def read_description(path: Path) -> ModelDescription | None:
    """What a file of weights says that it is of; None of one from before files said it.

    Raises:
        RecordError: the file is damaged.
    """
    # Imported here: a server's owner, whose runs hold no models, need not install it.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
        if _KEY not in metadata:
            return None
        told = json_object(metadata[_KEY], MAX_CONFIG_BYTES)
        lists = {name: tuple(map(str, told[name])) for name in ("class_names", "requirements")}
        return ModelDescription(**{**told, **lists})
    except (OSError, SafetensorError, RecordError, LookupError, TypeError) as error:
        raise RecordError(
            f"{path.name} is no file of weights that says what it is of ({error})"
        ) from error
