"""torchvision's classification models as frozen backbones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torchvision.models
from torch import nn

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.device import RngPurpose, seed_everything
from clear_mlflow.learning.inference.backbone import (
    DEFAULT_WEIGHTS,
    RANDOM_SEED,
    RANDOM_WEIGHTS,
    Backbone,
    Geometry,
    downloaded,
    fill,
    hash_of,
    read_weights,
)
from clear_mlflow.learning.models import named_head

_IMAGENET_MEAN = [0.485, 0.456, 0.406]  # what Normaliser subtracts

# What torchvision sets by itself when it is given weights, and not when they are loaded later:
# auxiliary heads, which return nothing in eval mode, and an input that is normalised once more.
_AS_WITH_WEIGHTS: Mapping[str, bool] = {
    "aux_logits": True,
    "init_weights": False,
    "transform_input": True,
}
_MADE_WITH: Mapping[str, Mapping[str, bool]] = {
    "googlenet": _AS_WITH_WEIGHTS,
    "inception_v3": _AS_WITH_WEIGHTS,
}


def torchvision_backbone(name: str, weights: str) -> Backbone:
    """Build a backbone and give it its weights.

    A file that is one of torchvision's own weights, by its hash, gets the resizing and cropping
    that those were made for; any other the standard one. A head that the file holds is left out,
    whatever number of classes it has. *weights* is as ``load_backbone`` takes it.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise ConfigError(
            f"unknown backbone {name!r}; expected a torchvision classification model, for example "
            "resnet50, or timm: and the name of a model of timm's"
        )
    if weights == RANDOM_WEIGHTS:
        geometry = Geometry()
        model, _ = _without_head(name, geometry)
        return Backbone(model.eval(), name, f"random:{RANDOM_SEED}", geometry)
    path = _downloaded(name) if weights == DEFAULT_WEIGHTS else Path(weights).expanduser()
    digest = hash_of(path)
    geometry, tag = _published(name, digest)
    model, head = _without_head(name, geometry)
    found = read_weights(path, name)
    of_head = {f"{head}.weight", f"{head}.bias"}
    found = {key: value for key, value in found.items() if key not in of_head}
    fill(model, found, path=path, name=name)
    return Backbone(model.eval(), name, f"sha256:{digest}", geometry, tag)


def _without_head(name: str, geometry: Geometry) -> tuple[nn.Module, str]:
    """A model with random weights and the identity for its head, and the head's name."""
    seed_everything(RANDOM_SEED, RngPurpose.WEIGHTS)
    options: dict[str, object] = dict(_MADE_WITH.get(name, {}))
    if name.startswith("vit_"):  # its positions are of one size of images
        options["image_size"] = geometry.crop
    model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    head, _ = named_head(model)
    model.set_submodule(head, nn.Identity())
    return model, head


def _downloaded(name: str) -> Path:
    """The default weights, from torch's own cache or from where torchvision has them."""
    url = str(torchvision.models.get_model_weights(name)["DEFAULT"].url)
    return downloaded(url, hash_prefix=_hash_in(url))


def _hash_in(url: str) -> str | None:
    """The first characters of the file's SHA-256, which torchvision puts into its name."""
    match = re.search(r"-([0-9a-f]{8,64})\.", url)
    return match[1] if match else None


def _published(name: str, digest: str) -> tuple[Geometry, str]:
    """What torchvision's own weights were made for, and their tag; of others, the standard."""
    for weights in torchvision.models.get_model_weights(name):
        prefix = _hash_in(str(weights.url))
        if prefix is not None and digest.startswith(prefix):
            made_for = weights.transforms()
            if made_for.mean != _IMAGENET_MEAN:
                raise ConfigError(
                    f"weights {weights} want images with the mean {made_for.mean}; expected "
                    f"ImageNet's, {_IMAGENET_MEAN}: pass other weights or another backbone"
                )
            geometry = Geometry(resize=made_for.resize_size[0], crop=made_for.crop_size[0])
            return geometry, str(weights.name)
    return Geometry(), ""
