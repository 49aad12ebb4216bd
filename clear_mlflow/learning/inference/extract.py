"""Features of images: one pass through a frozen torchvision backbone, stored for linear heads."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.models
from numpy.typing import NDArray
from torch import Tensor, nn

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_FEATURES_WIDTH, MAX_WEIGHTS_BYTES
from clear_mlflow.data.decoding.decode import Resize, decode
from clear_mlflow.data.features.extracted import (
    Extraction,
    array_file,
    is_extracted,
    read_array,
    write_array,
    write_sidecar,
)
from clear_mlflow.data.features.stored import refuse_taken_name
from clear_mlflow.data.features.torch_files import load_torch_file
from clear_mlflow.data.files import path_text, reason
from clear_mlflow.data.sealed import SealedFiles, UnsealedFileError
from clear_mlflow.data.stream import BucketStream, ImageSet, counted, image_sets
from clear_mlflow.learning.device import RngPurpose, seed_everything, tf32, translate_oom
from clear_mlflow.learning.samples.decoded import Normaliser

DEFAULT_WEIGHTS = "DEFAULT"
RANDOM_WEIGHTS = "none"

_IMAGENET_CLASSES = 1000
_IMAGENET_MEAN = [0.485, 0.456, 0.406]  # what Normaliser subtracts
_RANDOM_SEED = 0
_IMAGES_AT_ONCE = 256  # decoded and held in memory; a whole bucket of CLEAR-100 is gigabytes
_BATCH = {"cpu": 16, "cuda": 128}
_LESS_MEMORY = "pass a smaller backbone or another device, or end what else runs on it"
_DOWNLOAD_TIMEOUT = 30.0  # seconds without a byte

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


@dataclass(frozen=True)
class Geometry:
    """How an image becomes a backbone's input: shorter side to *resize*, central square *crop*."""

    resize: int = 256
    crop: int = 224

    def __str__(self) -> str:
        return f"resize {self.resize}, centre crop {self.crop}, ImageNet mean and deviation"


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network without its head, and what is known of where it comes from."""

    model: nn.Module  # from (N, 3, crop, crop) to (N, width)
    name: str
    weights: str  # sha256: and the hash of the weights file, or random:SEED
    geometry: Geometry


def load_backbone(name: str, weights: str) -> Backbone:
    """Build a backbone and give it its weights.

    A file that is one of torchvision's own weights, by its hash, gets the resizing and cropping
    that those were made for; any other the standard one. A head that the file holds is left out,
    whatever number of classes it has.

    Args:
        name: a torchvision classification model that ends in a linear layer.
        weights: a file with a state dict; ``DEFAULT`` for torchvision's, downloaded where they are
            not there yet; ``none`` for random ones (always the same), which are for trying out.

    Raises:
        ConfigError: there is no such backbone, or its weights cannot be downloaded.
        DataError: the file is damaged, wants to run code, or is of another network.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise ConfigError(
            f"unknown backbone {name!r}; expected a torchvision classification model, for example "
            "resnet50"
        )
    seed_everything(_RANDOM_SEED, RngPurpose.WEIGHTS)
    model: nn.Module = torchvision.models.get_model(name, weights=None, **_MADE_WITH.get(name, {}))
    head = _remove_head(model, name)
    if weights == RANDOM_WEIGHTS:
        return Backbone(model.eval(), name, f"random:{_RANDOM_SEED}", Geometry())
    path = _downloaded(name) if weights == DEFAULT_WEIGHTS else Path(weights).expanduser()
    digest = _hash(path)
    found = load_torch_file(path, max_bytes=MAX_WEIGHTS_BYTES)
    _fill(model, found, head=head, path=path, name=name)
    return Backbone(model.eval(), name, f"sha256:{digest}", _geometry(name, digest))


def extract(
    stream: BucketStream,
    backbone: Backbone,
    *,
    name: str,
    cache_dir: Path,
    device: torch.device,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Compute and store the features of all images of a stream, once.

    Every set of images (a bucket's training or test images) is a file that exists whole or not
    at all: an interrupted extraction resumes with the set that it was at.

    Args:
        stream: the dataset.
        backbone: what computes them.
        name: by which they are used.
        cache_dir: where they are stored.
        device: where the backbone runs.
        on_image: called with the numbers of images done and to be done in all.

    Returns:
        The folder that holds them.

    Raises:
        ConfigError: the name is that of other features already.
        DataError: an image cannot be decoded, the backbone's output is not finite, or the cache
            cannot be written.
        TrainingError: the device has not enough memory.
    """
    extraction = Extraction(name, backbone.name, backbone.weights, str(backbone.geometry))
    refuse_taken_name(stream, extraction, cache_dir=cache_dir)
    folder = extraction.folder(stream, cache_dir=cache_dir)
    sets = list(image_sets(stream))
    total = sum(map(len, sets))
    arrays = [
        _read(array_file(folder, number), extraction.subject(images))
        for number, images in enumerate(sets)
    ]
    if is_extracted(folder) and all(array is not None for array in arrays):
        on_image(total, total)
        return folder
    with translate_oom(_LESS_MEMORY):
        model = backbone.model.to(device).to(memory_format=torch.channels_last)
    width = 0
    for number, (images, on_ready) in enumerate(counted(sets, on_image)):
        array = arrays[number]
        if array is None:
            with translate_oom(_LESS_MEMORY):
                array = features_of(
                    model,
                    images,
                    geometry=backbone.geometry,
                    device=device,
                    on_image=on_ready,
                )
            write_array(array_file(folder, number), array, extraction.subject(images))
        width = array.shape[1]
        on_ready(len(images))
    write_sidecar(folder, extraction, stream, width=width)
    return folder


def _read(path: Path, subject: str) -> NDArray[np.float32] | None:
    """A file of features; None where they have to be computed."""
    try:
        return read_array(path, subject, SealedFiles())
    except (UnsealedFileError, OSError):
        return None


def features_of(
    model: nn.Module,
    images: ImageSet,
    *,
    geometry: Geometry,
    device: torch.device,
    on_image: Callable[[int], None] = lambda done: None,
) -> NDArray[np.float32]:
    """The features of a set of images, in its order.

    Args:
        model: from (N, 3, crop, crop) to (N, width), in eval mode, on *device*.
        images: N files.
        geometry: how an image becomes the model's input.
        device: where the model is.
        on_image: called with the number of images done so far.

    Returns:
        (N, width), float32.

    Raises:
        DataError: an image cannot be decoded, or the model's output is not finite.
    """
    normalise = Normaliser(geometry.crop, device)
    found: list[NDArray[np.float32]] = []
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        stop = min(start + _IMAGES_AT_ONCE, len(images))
        some = images.take(np.arange(start, stop))
        decoded = decode(some, Resize(geometry.resize, square=True))
        margin = (geometry.resize - geometry.crop) // 2
        inside = slice(margin, margin + geometry.crop)
        cropped = torch.from_numpy(decoded.squares(geometry.resize))[:, inside, inside]
        for first in range(0, stop - start, _BATCH[device.type]):
            batch = cropped[first : first + _BATCH[device.type]].contiguous()
            with torch.inference_mode(), tf32(False):
                features: Tensor = model(normalise(batch))
                found.append(features.float().cpu().numpy())
            on_image(start + first + len(batch))
    array = np.concatenate(found)
    if array.ndim != 2 or not 0 < array.shape[1] <= MAX_FEATURES_WIDTH:
        raise DataError(
            f"the backbone gives features of the shape {array.shape[1:]} for an image; expected "
            f"1 to {MAX_FEATURES_WIDTH} numbers: pass another backbone"
        )
    if not np.isfinite(array).all():
        raise DataError(
            "the backbone's output is not finite for some image; pass other weights, for these "
            "are damaged"
        )
    return array


def _remove_head(model: nn.Module, name: str) -> str:
    """Replace the last layer by the identity; give the name that its weights had."""
    heads = [
        str(path)
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == _IMAGENET_CLASSES
    ]
    if not heads:
        raise ConfigError(
            f"backbone {name} has no linear head that could be left out; pass another, for example "
            "resnet50"
        )
    # Auxiliary heads come before the head itself.
    model.set_submodule(heads[-1], nn.Identity())
    return heads[-1]


def _fill(model: nn.Module, found: Any, *, head: str, path: Path, name: str) -> None:
    """Load a state dict whose keys and shapes are those of the model, its head apart."""
    if not isinstance(found, Mapping):
        raise DataError(
            f"{path_text(path)} holds a {type(found).__name__}; expected a state dict of {name}: "
            "names and tensors"
        )
    given = {key: value for key, value in found.items() if key not in _head_keys(head)}
    expected = model.state_dict()
    # Files of old torch versions lack these counters, which nothing here reads.
    missing = sorted(k for k in expected.keys() - given if not k.endswith("num_batches_tracked"))
    foreign = sorted(map(str, given.keys() - expected.keys()))
    if missing or foreign:
        first = f"lacks {shown(missing[0])}" if missing else f"has {shown(foreign[0])} beyond it"
        raise DataError(
            f"{path_text(path)} is no state dict of {name}: it {first} ({len(missing)} names are "
            f"missing, {len(foreign)} are foreign); pass the backbone that it is of"
        )
    for key, value in given.items():
        if not isinstance(value, Tensor) or value.shape != expected[key].shape:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise DataError(
                f"{path_text(path)} is no state dict of {name}: {shown(key)} is {shape}, expected "
                f"{tuple(expected[key].shape)}; pass the backbone that it is of"
            )
    try:
        model.load_state_dict(given, strict=False)
    except RuntimeError as error:  # a sparse or quantised tensor, of the right shape
        raise DataError(f"{path_text(path)} cannot be loaded: {reason(error)}") from None


def _head_keys(head: str) -> tuple[str, str]:
    return f"{head}.weight", f"{head}.bias"


def _downloaded(name: str) -> Path:
    """The default weights, from torch's own cache or from where torchvision has them."""
    weights = torchvision.models.get_model_weights(name)["DEFAULT"]
    url = str(weights.url)
    file_name = url.rsplit("/", 1)[-1]
    path = Path(torch.hub.get_dir(), "checkpoints", file_name)
    if path.is_file():
        return path
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT)  # torch's download has none: it would wait forever
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), hash_prefix=_hash_in(url), progress=True)
    except (OSError, RuntimeError) as error:  # URLError is an OSError; a wrong hash is no OSError
        cause = getattr(error, "reason", None)  # a URLError holds what really happened
        why = reason(cause if isinstance(cause, BaseException) else error)
        raise ConfigError(
            f"the weights {file_name} cannot be downloaded ({why}); fetch {url} on a "
            "machine with network and pass --weights PATH"
        ) from None
    finally:
        socket.setdefaulttimeout(timeout)
    return path


def _hash_in(url: str) -> str | None:
    """The first characters of the file's SHA-256, which torchvision puts into its name."""
    match = re.search(r"-([0-9a-f]{8,64})\.", url)
    return match[1] if match else None


def _geometry(name: str, digest: str) -> Geometry:
    for weights in torchvision.models.get_model_weights(name):
        prefix = _hash_in(str(weights.url))
        if prefix is not None and digest.startswith(prefix):
            made_for = weights.transforms()
            if made_for.mean != _IMAGENET_MEAN:
                raise ConfigError(
                    f"weights {weights} want images with the mean {made_for.mean}; expected "
                    f"ImageNet's, {_IMAGENET_MEAN}: pass other weights or another backbone"
                )
            return Geometry(resize=made_for.resize_size[0], crop=made_for.crop_size[0])
    return Geometry()


def _hash(path: Path) -> str:
    content = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(2**20):
                content.update(block)
    except OSError as error:
        raise DataError(
            f"weights {path_text(path)} cannot be read: {reason(error)}; pass --weights PATH, "
            f"{DEFAULT_WEIGHTS} or {RANDOM_WEIGHTS}"
        ) from None
    return content.hexdigest()
