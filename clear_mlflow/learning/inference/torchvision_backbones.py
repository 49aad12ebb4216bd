"""torchvision's classification models as frozen backbones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torchvision.models
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data.decoding.decode import OwnTransform
from clear_mlflow.learning.device import RngPurpose, seed_everything
from clear_mlflow.learning.inference.backbone import (
    DEFAULT_WEIGHTS,
    RANDOM_SEED,
    RANDOM_WEIGHTS,
    Backbone,
    fill,
    hash_of,
    read_weights,
)
from clear_mlflow.learning.models import (
    default_weights,
    hash_in,
    named_head,
    torchvision_model,
)

# Of weights that are not torchvision's own: 256 pixels, of which the central 224 are taken.
_STANDARD = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.transforms


def torchvision_backbone(name: str, weights: str) -> Backbone:
    """A backbone without its head; torchvision's own files, by hash, bring their transform."""
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise ConfigError(
            f"unknown backbone {name!r}; expected a torchvision classification model, for example "
            "resnet50, or timm: and the name of a model of timm's"
        )
    path, digest, made_for, tag = None, f"random:{RANDOM_SEED}", _STANDARD(), ""
    if weights != RANDOM_WEIGHTS:
        is_default = weights == DEFAULT_WEIGHTS
        path = default_weights(name) if is_default else Path(weights).expanduser()
        digest = f"sha256:{hash_of(path)}"
        made_for, tag = _published(name, digest.removeprefix("sha256:"))
    seed_everything(RANDOM_SEED, RngPurpose.WEIGHTS)
    model = torchvision_model(name, image_size=made_for.crop_size[0])
    place, head = named_head(model)
    if path is not None:
        of_head = {f"{place}.{key}": value for key, value in head.state_dict().items()}
        found = read_weights(path, name)
        state = {key: value for key, value in found.items() if key not in of_head}
        fill(model, state, path=path, name=name, may_lack=of_head)
    model.set_submodule(place, nn.Identity())
    return Backbone(model.eval(), name, digest, _transform(made_for), tag)


def _published(name: str, digest: str) -> tuple[Any, str]:
    """What torchvision's own weights were made for, and their tag; of others, the standard."""
    for weights in torchvision.models.get_model_weights(name):
        prefix = hash_in(str(weights.url))
        if prefix is not None and digest.startswith(prefix):
            return weights.transforms(), str(weights.name)
    return _STANDARD(), ""


def _transform(made_for: Any) -> OwnTransform:
    """Torchvision's preset of the evaluation of some weights, resampling included."""

    def make(image: Image.Image) -> NDArray[np.float32]:
        made: NDArray[np.float32] = made_for(image).numpy()
        return made

    return OwnTransform(make, side=made_for.resize_size[0], text=" ".join(repr(made_for).split()))
