"""Load a stored model for MLflow, which calls this module by its name: images in, classes out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.decode import Resize, decode_bytes
from clear_mlflow.data.sources import is_custom_function
from clear_mlflow.learning.device import allow_tf32, autocast, resolve_device
from clear_mlflow.learning.inference.description import (
    STANDARDISED,
    ModelDescription,
    read_description,
)
from clear_mlflow.learning.models import build_feature_model, build_model, logits_in_float32
from clear_mlflow.learning.photos import wrap_photos
from clear_mlflow.learning.samples import normalise

IMAGE_COLUMN = "image"
_BATCH = 64


class ServedModel:
    """Predicts classes of images or features, as in a run's tests.

    Images may have any size.
    """

    def __init__(
        self, model: nn.Module, description: ModelDescription, device: torch.device
    ) -> None:
        self._description = description
        self._device = device
        self._model = model.eval().to(device)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Predict the classes of images or features, a row per input.

        Returns columns ``class`` (number), ``label`` (name of the class) and ``probability``.

        model_input: table with the files' contents in the column ``image``, or for a model on
        features an array or table of (N, width) numbers.
        params: with scenario=task, ``bucket``, the key of the inputs' bucket; else ignored.

        Raises RecordError if the input has another form or ``bucket`` is unknown, and DataError if
        an image is damaged.
        """
        model = self._description
        is_excluded = self._mask_classes((params or {}).get("bucket"))
        read = self._convert_features if model.width else _get_image_column
        inputs: Any = read(model_input)
        classes, likelihoods = [], []
        arithmetic = allow_tf32(model.precision == "tf32")
        with torch.inference_mode(), arithmetic, logits_in_float32(self._model):
            for start in range(0, len(inputs), _BATCH):
                with autocast(self._device, model.precision):
                    logits: Tensor = self._model(self._build_batch(inputs[start : start + _BATCH]))
                logits = logits.masked_fill(is_excluded, -torch.inf)
                chosen = logits.argmax(dim=1, keepdim=True)
                likelihood = logits.float().softmax(dim=1).gather(1, chosen)
                classes.append(chosen[:, 0].cpu().numpy())
                likelihoods.append(likelihood[:, 0].cpu().numpy())
        labels = np.concatenate([np.empty(0, np.int64), *classes])
        return pd.DataFrame(
            {
                "class": labels,
                "label": [model.class_names[label] for label in labels],
                "probability": np.concatenate([np.empty(0), *likelihoods]).astype(np.float64),
            }
        )

    def _mask_classes(self, bucket: Any) -> Tensor:
        """Return a (classes,) mask of excluded classes, or raise RecordError."""
        names, classes = self._description.class_names, self._description.classes_by_bucket
        if classes and bucket not in classes:
            raise RecordError(
                f"bucket is {bucket!r}, but this model predicts the classes of one bucket "
                f"(scenario=task); pass params={{'bucket': KEY}}, one of {[*classes]!s:.200}"
            )
        allowed = classes[bucket] if classes else names
        return torch.tensor([name not in allowed for name in names], device=self._device)

    def _build_batch(self, inputs: Any) -> Tensor:
        if self._description.width:
            return torch.from_numpy(inputs).to(self._device)
        side = self._description.image_size
        photos = wrap_photos(decode_bytes(inputs, Resize(side)), side)
        return normalise(photos.centre_crops().cut(0, len(inputs)).to(self._device))

    def _convert_features(self, model_input: Any) -> NDArray[np.float32]:
        """Convert features to finite (N, width) float32, or raise RecordError."""
        expected = f"expected (N, {self._description.width}) finite numbers"
        try:
            with np.errstate(over="ignore"):  # beyond the range of 32 bits, it is inf
                features = np.ascontiguousarray(model_input, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise RecordError(f"got features {safe_repr(model_input)}; {expected}") from error
        if features.ndim != 2 or features.shape[1] != self._description.width:
            raise RecordError(f"got features of shape {features.shape}; {expected}")
        is_finite = np.isfinite(features).all(axis=1)
        if not is_finite.all():
            raise RecordError(
                f"got NaN, inf, or more than 32-bit floats can store in the features of input "
                f"{is_finite.argmin() + 1} of {len(features)}; {expected}"
            )
        return features


def _get_image_column(model_input: Any) -> Sequence[bytes]:
    if not isinstance(model_input, pd.DataFrame) or IMAGE_COLUMN not in model_input:
        raise RecordError(
            f"got a {type(model_input).__name__}; expected a table with a column "
            f"{IMAGE_COLUMN!r} of encoded images"
        )
    return list(model_input[IMAGE_COLUMN])


def load_served_model(path: Path) -> ServedModel:
    """Build the model that a safetensors file describes, with its weights.

    The model is on a GPU if torch can use one. Raises RecordError if the file cannot be read, lacks
    a description, if the weights do not fit it, or if it needs a user's function that
    CLEAR_MLFLOW_MODEL does not name, and ConfigError if the model does not exist.
    """
    description = read_description(path)
    if description is None:
        raise RecordError(
            f"{path.name} lacks a description of its model; load it with the program that wrote it"
        )
    name, num_classes = description.model, description.num_classes
    if is_custom_function(name) and os.environ.get("CLEAR_MLFLOW_MODEL", "").strip() != name:
        raise RecordError(
            f"{path.name} needs the model {name}, code of somebody's own; what a store names is "
            f"not imported unless you name it, too: set CLEAR_MLFLOW_MODEL={name} if you know it"
        )
    model: nn.Module = (
        build_feature_model(name, description.width, num_classes=num_classes)
        if description.width
        else build_model(name, num_classes=num_classes, image_size=description.image_size)
    )
    try:
        weights = load_file(path)
        device = torch.device(resolve_device("auto"))
        if STANDARDISED[0] in weights:
            mean, scale = (weights.pop(name).to(device) for name in STANDARDISED)
            model.register_forward_pre_hook(lambda _, inputs: ((inputs[0] - mean) * scale,))
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise RecordError(
            f"{path.name} does not contain the weights of {name} ({str(error)[:200]})"
        ) from error
    return ServedModel(model, description, device)


def _load_pyfunc(path: str) -> ServedModel:
    """Load the model in a file of weights. MLflow calls this function."""
    return load_served_model(Path(path))
