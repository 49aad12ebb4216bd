"""timm's models as frozen backbones, each with the transform that its weights were made for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
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
    hash_of,
    not_downloaded,
    read_weights,
)

PREFIX = "timm:"  # before the name of a model of timm's
_WEIGHTS_FILE = "model.safetensors"  # of every repository of timm's on the hub


def timm_backbone(name: str, weights: str) -> Backbone:
    """A backbone without its head, with the transform of the tag in its name, or the default's."""
    try:
        import timm
    except ImportError:
        raise ConfigError(
            f"backbone {PREFIX}{name} needs the package timm; pip install 'clear_mlflow[timm]', or "
            "pass a model of torchvision's, for example resnet50"
        ) from None
    if not timm.is_model(name):
        raise ConfigError(
            f"unknown backbone {PREFIX + name!r}; expected one that timm.list_models() lists, for "
            "example timm:vit_small_patch14_dinov2"
        )
    architecture = name.partition(".")[0]
    try:
        config: Any = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{architecture}.*")]
        raise ConfigError(
            f"backbone {PREFIX + name!r} has no weights of that tag; expected one of "
            f"{', '.join(filter(None, tags)) or 'none'}"
        ) from None
    full_name = PREFIX + architecture + (f".{config.tag}" if config.tag else "")
    seed_everything(RANDOM_SEED, RngPurpose.WEIGHTS)
    if weights == RANDOM_WEIGHTS:
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
        return Backbone(model.eval(), full_name, f"random:{RANDOM_SEED}", _transform(config))
    if weights != DEFAULT_WEIGHTS:
        raise ConfigError(
            f"weights is {weights}, and timm's backbones take their own: pass --weights "
            f"{DEFAULT_WEIGHTS}, or {RANDOM_WEIGHTS} to try things out"
        )
    path = _downloaded(config, full_name)
    overlay = {"state_dict": read_weights(path, full_name), "custom_load": False}
    model = timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay)
    digest = f"sha256:{hash_of(path)}"
    return Backbone(model.eval(), full_name, digest, _transform(config), config.tag)


def _downloaded(config: Any, full_name: str) -> Path:
    """The weights of a tag, from Hugging Face's own cache or hub."""
    if not config.hf_hub_id:
        raise ConfigError(
            f"there are no published weights of {full_name}; pass --weights {RANDOM_WEIGHTS}, or "
            "another backbone"
        )
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )
    from huggingface_hub.errors import HfHubHTTPError

    there = try_to_load_from_cache(config.hf_hub_id, _WEIGHTS_FILE)
    if isinstance(there, str):
        return Path(there)
    url = hf_hub_url(config.hf_hub_id, _WEIGHTS_FILE)
    # The bases are those of all that the HTTP library raises, whichever one the hub's client uses.
    network_errors: tuple[type[Exception], ...] = (OSError, *HfHubHTTPError.__bases__)
    try:
        # Once: of a hub that is out of reach, hf_hub_download asks again for half a minute.
        get_hf_file_metadata(url)
        return Path(hf_hub_download(config.hf_hub_id, _WEIGHTS_FILE))
    except network_errors as error:
        raise not_downloaded(
            f"of {full_name}", url, error, "copy the folder HF_HOME from a machine that has them"
        ) from None


def _transform(config: Any) -> OwnTransform:
    """What timm makes of an image in evaluation, for one tag."""
    from timm.data import create_transform, resolve_data_config

    wanted = resolve_data_config(pretrained_cfg=config.to_dict())
    transform: Any = create_transform(**wanted, is_training=False)

    def make(image: Image.Image) -> NDArray[np.float32]:
        made: NDArray[np.float32] = transform(image).numpy()
        return made

    height, width = wanted["input_size"][1:]
    numbers = {name: " ".join(f"{x:g}" for x in wanted[name]) for name in ("mean", "std")}
    return OwnTransform(
        make,
        side=math.ceil(max(height, width) / wanted["crop_pct"]),
        text=(
            f"timm: {height} x {width}, crop {wanted['crop_pct']:g} {wanted['crop_mode']}, "
            f"{wanted['interpolation']}, mean {numbers['mean']}, deviation {numbers['std']}"
        ),
    )
