"""Frozen backbones from torchvision or timm, each with its transform, and their features."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clear_mlflow.core.errors import ConfigError, DataError, require_package
from clear_mlflow.core.untrusted import MAX_FEATURES_WIDTH, hash_file
from clear_mlflow.data.decode import (
    LibraryTransform,
    UndecodableError,
    build_damage_error,
    iter_decoded,
)
from clear_mlflow.data.features import check_extraction_name
from clear_mlflow.data.features.extracted import Extraction, get_array_path
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.images import ImageTable
from clear_mlflow.data.stream import BucketStream, iter_with_progress
from clear_mlflow.learning.device import (
    RngPurpose,
    allow_tf32,
    copy_to_device,
    is_memory_error,
    seed_everything,
    translate_oom,
)
from clear_mlflow.learning.inference.weights import build_download_error, load_weights, read_weights
from clear_mlflow.learning.models import (
    build_torchvision_model,
    download_default_weights,
    find_head,
    parse_hash_prefix,
)
from clear_mlflow.learning.parameters.recipes import DEFAULT_WEIGHTS
from clear_mlflow.learning.parameters.recipes import NONE as RANDOM_WEIGHTS
from clear_mlflow.learning.training.observers import FetchedTensor

_RANDOM_SEED = 0
_TIMM_PREFIX = "timm:"  # before the name of a timm model
_TIMM_FILE = "model.safetensors"  # in each of timm's repositories on the Hugging Face hub


_BATCH_SIZES = {"cpu": 16, "cuda": 128}  # if so many images fit into memory
_OOM_ADVICE = "pass a smaller backbone or another device, or end other programs on it"


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network without its head, and where its weights come from."""

    model: nn.Module  # from (N, 3, H, W) to (N, width)
    name: str
    weights: str  # sha256: and the hash of the weights file, or random:SEED
    geometry: LibraryTransform  # from an image to the network's input
    weights_tag: str = ""  # the library's name for published weights


def load_backbone(name: str, weights: str) -> Backbone:
    """Seed global generators, build a frozen backbone, and download missing weights.

    It is on the CPU, without its head, in evaluation mode. name: of a torchvision model, or
    timm:NAME. weights: ``DEFAULT`` for published ones, ``none`` for random ones, or path of a file,
    only for torchvision.

    Raises ConfigError if the model does not exist, or if its weights cannot be downloaded, and
    DataError if a file of weights does not fit.
    """
    if name.startswith(_TIMM_PREFIX):
        return _load_timm(name.removeprefix(_TIMM_PREFIX), weights)
    return _load_torchvision(name, weights)


def _load_torchvision(name: str, weights: str) -> Backbone:
    """Build a torchvision backbone, and download missing ``DEFAULT`` weights.

    Random weights, and a file that torchvision does not publish, get the usual transform: 256
    pixels, of which the central 224 are cropped. Raises the errors of :func:`load_backbone`.
    """
    import torchvision.models

    if name not in torchvision.models.list_models(module=torchvision.models):
        raise ConfigError(
            f"unknown backbone {name!r}; expected a torchvision classification model, for example "
            "resnet50, or timm: and the name of a timm model"
        )
    path, source, tag = None, f"random:{_RANDOM_SEED}", ""
    preset = _standard_preset()
    if weights != RANDOM_WEIGHTS:
        is_default = weights == DEFAULT_WEIGHTS
        path = download_default_weights(name) if is_default else Path(weights).expanduser()
        source = _hash_weights(path)
        preset, tag = find_preset(name, source.removeprefix("sha256:"))
    seed_everything(_RANDOM_SEED, RngPurpose.WEIGHTS)
    model = build_torchvision_model(name, image_size=preset.crop_size[0])
    head_name, head = find_head(model)
    if path is not None:
        head_state = {f"{head_name}.{key}": value for key, value in head.state_dict().items()}
        state = {k: v for k, v in read_weights(path, name).items() if k not in head_state}
        load_weights(model, state, path=path, name=name, defaults=head_state)
    model.set_submodule(head_name, nn.Identity())
    return Backbone(model.eval(), name, source, build_torchvision_transform(preset), tag)


def find_preset(name: str, digest: str) -> tuple[Any, str]:
    """Return transform and tag of published weights by SHA-256, or the default.

    Returns the usual transform and an empty tag if torchvision lacks such weights for the model.
    digest: hexadecimal, without ``sha256:``.
    """
    import torchvision.models

    for weights in torchvision.models.get_model_weights(name):
        prefix = parse_hash_prefix(str(weights.url))
        if prefix is not None and digest.startswith(prefix):
            return weights.transforms(), str(weights.name)
    return _standard_preset(), ""


def _standard_preset() -> Any:
    """Return torchvision's usual transform: the central 224 of 256 pixels."""
    from torchvision.models import ResNet18_Weights

    return ResNet18_Weights.IMAGENET1K_V1.transforms()


def build_torchvision_transform(preset: Any) -> LibraryTransform:
    """Wrap the transform that torchvision publishes for weights, including its resampling."""
    text = " ".join(repr(preset).split())
    return LibraryTransform(
        lambda image: preset(image).numpy(), side=preset.resize_size[0], text=text
    )


def _load_timm(name: str, weights: str) -> Backbone:
    """Build a timm backbone, and download missing ``DEFAULT`` weights.

    The tag is in the name, or the default.

    weights: ``DEFAULT`` for the tag's (downloaded if they are missing), or ``none`` for random
    ones. Raises ConfigError for other weights, an unknown name, or if timm is not installed.
    """
    with require_package("timm", f"backbone {_TIMM_PREFIX}{name}"):
        import timm
    if not timm.is_model(name):
        raise ConfigError(
            f"unknown backbone {_TIMM_PREFIX + name!r}; expected one that timm.list_models() "
            "lists, for example timm:vit_small_patch14_dinov2"
        )
    architecture = name.partition(".")[0]
    try:
        config: Any = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        tags = [model.partition(".")[2] for model in timm.list_pretrained(f"{architecture}.*")]
        raise ConfigError(
            f"backbone {_TIMM_PREFIX + name!r} has no weights of that tag; expected one of "
            f"{', '.join(filter(None, tags)) or 'none'}"
        ) from None
    full_name = _TIMM_PREFIX + architecture + (f".{config.tag}" if config.tag else "")
    transform = _build_timm_transform(config)
    seed_everything(_RANDOM_SEED, RngPurpose.WEIGHTS)
    if weights == RANDOM_WEIGHTS:
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
        return Backbone(model.eval(), full_name, f"random:{_RANDOM_SEED}", transform)
    if weights != DEFAULT_WEIGHTS:
        raise ConfigError(
            f"weights is {weights}, but timm backbones use their own weights: pass --weights "
            f"{DEFAULT_WEIGHTS}, or {RANDOM_WEIGHTS} to try things out",
            parameter="weights",
        )
    path = _download_timm_weights(config, full_name)
    overlay = {"state_dict": read_weights(path, full_name), "custom_load": False}
    model = timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay)
    return Backbone(model.eval(), full_name, _hash_weights(path), transform, config.tag)


def _download_timm_weights(config: Any, full_name: str) -> Path:
    """Download a tag's weights once, and return their cached path."""
    if not config.hf_hub_id:
        raise ConfigError(
            f"{full_name} is not published with weights; pass --weights {RANDOM_WEIGHTS}, or "
            "another backbone"
        )
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )
    from huggingface_hub.errors import HfHubHTTPError

    cached_path = try_to_load_from_cache(config.hf_hub_id, _TIMM_FILE)
    if isinstance(cached_path, str):
        return Path(cached_path)
    url = hf_hub_url(config.hf_hub_id, _TIMM_FILE)
    # The bases include everything that the hub's HTTP library raises, whichever one it uses.
    network_errors: tuple[type[Exception], ...] = (OSError, *HfHubHTTPError.__bases__)
    try:
        # Fails at once if the hub cannot be reached; hf_hub_download would retry for 30 seconds.
        get_hf_file_metadata(url)
        return Path(hf_hub_download(config.hf_hub_id, _TIMM_FILE))
    except network_errors as error:
        advice = "copy the folder HF_HOME from a machine that has them"
        raise build_download_error(f"of {full_name}", url, error, advice) from None


def _build_timm_transform(config: Any) -> LibraryTransform:
    from timm.data import create_transform, resolve_data_config

    data_config = resolve_data_config(pretrained_cfg=config.to_dict())
    transform: Any = create_transform(**data_config, is_training=False)
    height, width = data_config["input_size"][1:]
    mean, std = (" ".join(f"{x:g}" for x in data_config[name]) for name in ("mean", "std"))
    return LibraryTransform(
        lambda image: transform(image).numpy(),
        side=math.ceil(max(height, width) / data_config["crop_pct"]),
        text=(
            f"timm: {height} x {width}, crop {data_config['crop_pct']:g} "
            f"{data_config['crop_mode']}, {data_config['interpolation']}, mean {mean}, "
            f"deviation {std}"
        ),
    )


def _hash_weights(path: Path) -> str:
    try:
        return f"sha256:{hash_file(path)}"
    except OSError as error:
        raise DataError(
            f"weights {path_text(path)} cannot be read: {reason(error)}; pass --weights PATH, "
            f"{DEFAULT_WEIGHTS} or {RANDOM_WEIGHTS}"
        ) from None


def extract_features(
    stream: BucketStream,
    backbone: Backbone,
    *,
    name: str,
    cache_dir: Path,
    device: torch.device,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Compute and store a stream's missing features, and return their folder.

    name: name of the features. on_image: called with the numbers of images that are done and of all
    images. Raises ConfigError if other features have the name, DataError if an image is damaged or
    the folder cannot be written, and TrainingError if memory runs out.
    """
    extraction = Extraction(
        name,
        backbone.name,
        backbone.weights,
        str(backbone.geometry),
        weights_tag=backbone.weights_tag,
    )
    check_extraction_name(stream, extraction, cache_dir=cache_dir)
    folder = extraction.folder(stream, cache_dir=cache_dir)
    sets = iter_with_progress(stream.image_sets, on_image)
    for number, (images, on_ready) in enumerate(sets):
        path = get_array_path(folder, number)
        if not extraction.is_stored(path, images):
            with translate_oom(_OOM_ADVICE):
                model = backbone.model.to(device).to(memory_format=torch.channels_last)
                geometry = backbone.geometry
                array = compute_features(
                    model, images, geometry=geometry, device=device, on_image=on_ready
                )
            extraction.write(path, images, array)
        on_ready(len(images))
    return folder


def compute_features(
    model: nn.Module,
    images: ImageTable,
    *,
    geometry: LibraryTransform,
    device: torch.device,
    on_image: Callable[[int], None] = lambda done: None,
) -> NDArray[np.float32]:
    """Compute the features of images in their order, (N, width) float32.

    Takes smaller batches if memory runs out.
    Raises DataError if an image is damaged, or if the features are not finite vectors.
    """
    batch_size = _BATCH_SIZES[device.type]
    batches: list[NDArray[np.float32]] = []
    computing: deque[FetchedTensor] = deque()
    done = 0
    with torch.inference_mode(), allow_tf32(False):
        for batch in _transform_batches(images, geometry, batch_size):
            while len(batch):
                try:
                    inputs = copy_to_device(batch[:batch_size], device)
                    features: Tensor = model(inputs.contiguous(memory_format=torch.channels_last))
                except RuntimeError as error:
                    if min(batch_size, len(batch)) == 1 or not is_memory_error(error):
                        raise
                    batch_size = min(batch_size, len(batch)) // 2
                    continue
                computing.append(FetchedTensor(features.float()))
                batch, done = batch[batch_size:], done + len(inputs)
            # The next batch is prepared while a GPU computes this one.
            while len(computing) > (device.type != "cpu"):
                batches.append(computing.popleft().read().numpy())
            on_image(done)
        batches += [features.read().numpy() for features in computing]
    array = np.concatenate(batches)
    if array.ndim != 2 or not 0 < array.shape[1] <= MAX_FEATURES_WIDTH:
        raise DataError(
            f"the backbone returns features of shape {array.shape[1:]} for an image; expected "
            f"1 to {MAX_FEATURES_WIDTH} numbers: pass another backbone"
        )
    if not np.isfinite(array).all():
        raise DataError(
            "the backbone's output is not finite for an image, so its weights are damaged; pass "
            "other weights"
        )
    return array


def _transform_batches(
    images: ImageTable, geometry: LibraryTransform, batch_size: int
) -> Iterator[Tensor]:
    """Yield batches of (N, 3, H, W) images, transformed, on the CPU."""
    pending: list[NDArray[np.float32]] = []
    for file, image in zip(images.files, iter_decoded(images, geometry), strict=True):
        if isinstance(image, UndecodableError):
            raise build_damage_error({file: str(image)})
        pending.append(image)
        if len(pending) == batch_size:
            yield torch.from_numpy(np.stack(pending))
            pending.clear()
    if pending:
        yield torch.from_numpy(np.stack(pending))
