"""Compute features of images with a frozen backbone, and store them for linear heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import MAX_FEATURES_WIDTH
from clear_mlflow.data.decode import LibraryTransform, build_damage_error, decode_blocks
from clear_mlflow.data.features import check_extraction_name
from clear_mlflow.data.features.extracted import Extraction, array_file
from clear_mlflow.data.stream import BucketStream, ImageSet, iter_image_sets, iter_with_progress
from clear_mlflow.learning.device import allow_tf32, translate_oom
from clear_mlflow.learning.inference.backbones import Backbone

_BATCH_SIZES = {"cpu": 16, "cuda": 128}
_OOM_ADVICE = "pass a smaller backbone or another device, or end other programs on it"


def extract(
    stream: BucketStream,
    backbone: Backbone,
    *,
    name: str,
    cache_dir: Path,
    device: torch.device,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Compute and store the features of all images that have none, and return their folder.

    on_image: called with the numbers of images that are done and of all images.
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
    sets = list(iter_image_sets(stream))
    total = sum(map(len, sets))
    arrays = [
        extraction.read(array_file(folder, number), images) for number, images in enumerate(sets)
    ]
    if all(array is not None for array in arrays):
        on_image(total, total)
        return folder
    with translate_oom(_OOM_ADVICE):
        model = backbone.model.to(device).to(memory_format=torch.channels_last)
    for number, (images, on_ready) in enumerate(iter_with_progress(sets, on_image)):
        array = arrays[number]
        if array is None:
            with translate_oom(_OOM_ADVICE):
                array = compute_features(
                    model,
                    images,
                    geometry=backbone.geometry,
                    device=device,
                    on_image=on_ready,
                )
            extraction.write(array_file(folder, number), images, array)
        on_ready(len(images))
    return folder


def compute_features(
    model: nn.Module,
    images: ImageSet,
    *,
    geometry: LibraryTransform,
    device: torch.device,
    on_image: Callable[[int], None] = lambda done: None,
) -> NDArray[np.float32]:
    """Compute the features of images in their order, (N, width) float32.

    Raises DataError if an image is damaged, or if the features are not finite vectors.
    """
    batches: list[NDArray[np.float32]] = []
    done = 0
    for batch in _transform_batches(images, geometry, device):
        with torch.inference_mode(), allow_tf32(False):
            features: Tensor = model(batch)
            batches.append(features.float().cpu().numpy())
        done += len(batch)
        on_image(done)
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
    images: ImageSet, geometry: LibraryTransform, device: torch.device
) -> Iterator[Tensor]:
    """Yield batches of (N, 3, H, W) images, transformed for the backbone."""
    batch_size = _BATCH_SIZES[device.type]
    pending: list[NDArray[np.float32]] = []
    for block in decode_blocks(images, geometry):
        if block.damaged:
            raise build_damage_error(block.damaged)
        pending += block.images
        while len(pending) >= batch_size:
            yield _stack(pending[:batch_size], device)
            del pending[:batch_size]
    if pending:
        yield _stack(pending, device)


def _stack(images: list[NDArray[np.float32]], device: torch.device) -> Tensor:
    batch = torch.from_numpy(np.stack(images)).to(device)
    return batch.contiguous(memory_format=torch.channels_last)
