"""Features of images: one pass through a frozen backbone, stored for linear heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import MAX_FEATURES_WIDTH
from clear_mlflow.data.decoding.decode import OwnTransform, build_damage_error, decode_blocks
from clear_mlflow.data.features.extracted import Extraction, array_file
from clear_mlflow.data.features.stored import check_extraction_name
from clear_mlflow.data.stream import BucketStream, ImageSet, count_images, image_sets
from clear_mlflow.learning.device import tf32, translate_oom
from clear_mlflow.learning.inference.backbone import Backbone
from clear_mlflow.learning.inference.timm_backbones import PREFIX, timm_backbone
from clear_mlflow.learning.inference.torchvision_backbones import torchvision_backbone

_BATCH = {"cpu": 16, "cuda": 128}
_LESS_MEMORY = "pass a smaller backbone or another device, or end what else runs on it"


def load_backbone(name: str, weights: str) -> Backbone:
    """A frozen backbone of torchvision's, or ``timm:NAME``; weights: a file, DEFAULT or none."""
    if name.startswith(PREFIX):
        return timm_backbone(name.removeprefix(PREFIX), weights)
    return torchvision_backbone(name, weights)


def extract(
    stream: BucketStream,
    backbone: Backbone,
    *,
    name: str,
    cache_dir: Path,
    device: torch.device,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Compute and store the features of all images, a set at a time, once; gives the folder."""
    extraction = Extraction(
        name,
        backbone.name,
        backbone.weights,
        str(backbone.geometry),
        weights_tag=backbone.weights_tag,
    )
    check_extraction_name(stream, extraction, cache_dir=cache_dir)
    folder = extraction.folder(stream, cache_dir=cache_dir)
    sets = list(image_sets(stream))
    total = sum(map(len, sets))
    arrays = [
        extraction.read(array_file(folder, number), images) for number, images in enumerate(sets)
    ]
    if all(array is not None for array in arrays):
        on_image(total, total)
        return folder
    with translate_oom(_LESS_MEMORY):
        model = backbone.model.to(device).to(memory_format=torch.channels_last)
    for number, (images, on_ready) in enumerate(count_images(sets, on_image)):
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
            extraction.write(array_file(folder, number), images, array)
        on_ready(len(images))
    return folder


def features_of(
    model: nn.Module,
    images: ImageSet,
    *,
    geometry: OwnTransform,
    device: torch.device,
    on_image: Callable[[int], None] = lambda done: None,
) -> NDArray[np.float32]:
    """(N, width), float32, of a set of images in its order, by a model on the device."""
    found: list[NDArray[np.float32]] = []
    done = 0
    for batch in _transformed(images, geometry, device):
        with torch.inference_mode(), tf32(False):
            features: Tensor = model(batch)
            found.append(features.float().cpu().numpy())
        done += len(batch)
        on_image(done)
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


def _transformed(images: ImageSet, own: OwnTransform, device: torch.device) -> Iterator[Tensor]:
    """Batches of (N, 3, H, W): images as the backbone's own library transforms them."""
    waiting: list[NDArray[np.float32]] = []
    for block in decode_blocks(images, own):
        if block.damaged:
            raise build_damage_error(block.damaged)
        waiting += block.images
        while len(waiting) >= _BATCH[device.type]:
            yield _batch(waiting[: _BATCH[device.type]], device)
            del waiting[: _BATCH[device.type]]
    if waiting:
        yield _batch(waiting, device)


def _batch(images: list[NDArray[np.float32]], device: torch.device) -> Tensor:
    batch = torch.from_numpy(np.stack(images)).to(device)
    return batch.contiguous(memory_format=torch.channels_last)
