"""timm's models as frozen backbones, each with the transform that its weights were made for."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import one_line
from clear_mlflow.data.decoding.decode import OwnTransform
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.learning.device import RngPurpose, seed_everything
from clear_mlflow.learning.inference.backbone import (
    DEFAULT_WEIGHTS,
    RANDOM_SEED,
    RANDOM_WEIGHTS,
    Backbone,
    downloaded,
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
        digest, tag = f"random:{RANDOM_SEED}", ""
    else:
        is_own = weights == DEFAULT_WEIGHTS
        path = _downloaded(config, full_name) if is_own else Path(weights).expanduser()
        digest, tag = f"sha256:{hash_of(path)}", config.tag if is_own else ""
        model = _loaded(name, path, config, full_name)
    return Backbone(model.eval(), full_name, digest, _transform(config), tag)


def _loaded(name: str, path: Path, config: Any, full_name: str) -> nn.Module:
    """The model with a file's weights, as timm itself adapts them; none may be missing."""
    import timm

    state = read_weights(path, full_name)
    for key in _of_heads(name, config, state):
        del state[key]
    if not state:
        raise DataError(f"{path_text(path)} holds no weights; expected a state dict of {full_name}")
    # As many classes as the model has, so that timm does not let weights be missing.
    overlay = {"state_dict": state, "num_classes": 0, "custom_load": False}
    try:
        model: nn.Module = timm.create_model(
            name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay
        )
    except Exception as error:  # what adapts weights of another network has no set of exceptions
        raise DataError(
            f"{path_text(path)} is no state dict of {full_name}: {one_line(reason(error), 200)}; "
            "pass the backbone that it is of"
        ) from None
    return model


def _of_heads(name: str, config: Any, state: Collection[str]) -> list[str]:
    """The names of a file's weights that are of the model's heads."""
    import timm

    heads = (config.classifier,) if isinstance(config.classifier, str) else config.classifier or ()
    found = {f"{head}.{part}" for head in heads for part in ("weight", "bias")}
    # Some heads normalise before they classify; what of that is left without a head stays.
    if within := tuple(head.rpartition(".")[0] + "." for head in heads if "." in head):
        kept = timm.create_model(name, pretrained=False, num_classes=0).state_dict().keys()
        found |= {key for key in state if key.startswith(within) and key not in kept}
    return sorted(found & set(state))


def _downloaded(config: Any, full_name: str) -> Path:
    """The weights of a tag, from Hugging Face's own cache or hub, or from where they lie."""
    if not config.hf_hub_id:
        if not config.url:
            raise ConfigError(
                f"there are no published weights of {full_name}; pass --weights PATH or "
                f"{RANDOM_WEIGHTS}"
            )
        return downloaded(config.url, hash_prefix=None)
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
        raise not_downloaded(f"of {full_name}", url, error) from None


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
