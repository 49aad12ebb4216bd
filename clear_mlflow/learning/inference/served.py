"""A stored model as MLflow loads it, by this module's name: images in, classes out."""

from __future__ import annotations

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
from clear_mlflow.data.decoding.decode import decode_bytes
from clear_mlflow.learning.device import autocast, resolve_device, tf32
from clear_mlflow.learning.inference.description import (
    STANDARDISED,
    ModelDescription,
    read_description,
)
from clear_mlflow.learning.models import build_model, feature_model, logits_in_float32
from clear_mlflow.learning.samples.decoded import normalise
from clear_mlflow.learning.samples.photos import augmentation, wrap_photos

# The one column of what is asked, where it is images.
IMAGE_COLUMN = "image"
_BATCH = 64


class ServedModel:
    """Answers for images of any size, or for features, as the run's own tests did."""

    def __init__(self, model: nn.Module, about: ModelDescription, device: torch.device) -> None:
        self.about = about
        self._device = device
        self._model = model.eval().to(device).to(memory_format=torch.channels_last)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Predict a table of encoded images, or (N, width) features, of params' ``bucket``."""
        is_excluded = self._excluded_classes((params or {}).get("bucket"))
        inputs = self._features(model_input) if self.about.width else self._images(model_input)
        classes, likelihoods = [], []
        arithmetic = tf32(self.about.precision == "tf32")
        with torch.inference_mode(), arithmetic, logits_in_float32(self._model):
            for start in range(0, len(inputs), _BATCH):
                with autocast(self._device, self.about.precision):
                    logits: Tensor = self._model(self._inputs(inputs[start : start + _BATCH]))
                logits = logits.masked_fill(is_excluded, -torch.inf)
                chosen = logits.argmax(dim=1, keepdim=True)
                likelihood = logits.float().softmax(dim=1).gather(1, chosen)
                classes.append(chosen[:, 0].cpu().numpy())
                likelihoods.append(likelihood[:, 0].cpu().numpy())
        number = np.concatenate([np.empty(0, np.int64), *classes])
        return pd.DataFrame(
            {
                "class": number,
                "label": [self.about.class_names[n] for n in number],
                "probability": np.concatenate([np.empty(0), *likelihoods]).astype(np.float64),
            }
        )

    def _excluded_classes(self, bucket: Any) -> Tensor:
        """Return a (classes,) mask of the classes that cannot be predicted for a bucket."""
        names, classes = self.about.class_names, self.about.classes_by_bucket
        if classes and bucket not in classes:
            raise RecordError(
                f"bucket is {bucket!r}, but this model predicts the classes of one bucket "
                f"(scenario=task); pass params={{'bucket': KEY}}, one of {[*classes]!s:.200}"
            )
        allowed = classes[bucket] if classes else names
        return torch.tensor([name not in allowed for name in names], device=self._device)

    def _inputs(self, some: Any) -> Tensor:
        if self.about.width:
            return torch.from_numpy(some).to(self._device)
        size = self.about.image_size
        view = augmentation(self.about.augment, size)
        photos = wrap_photos(decode_bytes(some, view.resize), view)
        return normalise(photos.centre_crops().cut(0, len(some)).to(self._device))

    def _images(self, model_input: Any) -> Sequence[bytes]:
        if not isinstance(model_input, pd.DataFrame) or IMAGE_COLUMN not in model_input:
            raise RecordError(
                f"a {type(model_input).__name__} was asked about; expected a table with a column "
                f"{IMAGE_COLUMN!r} of encoded images"
            )
        return list(model_input[IMAGE_COLUMN])

    def _features(self, model_input: Any) -> NDArray[np.float32]:
        asked = np.ascontiguousarray(model_input, dtype=np.float32)
        if asked.ndim != 2 or asked.shape[1] != self.about.width:
            raise RecordError(
                f"features of shape {asked.shape} were asked about; expected (N, "
                f"{self.about.width})"
            )
        return asked


def load_served_model(path: Path) -> ServedModel:
    """Build the model that a safetensors file of weights says it is of."""
    if (about := read_description(path)) is None:
        raise RecordError(f"{path.name} does not say what it is of; its own program can load it")
    model: nn.Module = (
        feature_model(about.model, about.width, num_classes=about.num_classes)
        if about.width
        else build_model(about.model, num_classes=about.num_classes, image_size=about.image_size)
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
            f"{path.name} does not hold the weights of {about.model} ({str(error)[:200]})"
        ) from error
    return ServedModel(model, about, device)


def _load_pyfunc(path: str) -> ServedModel:
    """What MLflow calls with the path of the weights."""
    return load_served_model(Path(path))
