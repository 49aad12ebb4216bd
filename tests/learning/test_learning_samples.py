"""Batches of bytes, normalisation, crops and their random numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning_streams import CPU, list_batches, squares
from strategy_runs import assert_identical

from clear_mlflow.data.decode import DecodedImages
from clear_mlflow.learning.device import RngPurpose, build_generator, derive_seed
from clear_mlflow.learning.models import build_model, get_input_dtype
from clear_mlflow.learning.photos import (
    Photos,
    gather_mirrored_lines,
    wrap_photos,
)
from clear_mlflow.learning.samples import Samples, compute_batch_bounds, multiply_and_add, normalise


def literal_normalised(pixel, channel):
    mean, std = (0.485, 0.456, 0.406)[channel], (0.229, 0.224, 0.225)[channel]
    return (pixel / 255 - mean) / std


@given(st.integers(1, 200), st.integers(1, 70))
def test_batches_cover_every_image_once_and_never_leave_one_alone(count, batch_size):
    bounds = compute_batch_bounds(count, batch_size)
    assert [i for start, stop in bounds for i in range(start, stop)] == list(range(count))
    sizes = [stop - start for start, stop in bounds]
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes[-1] <= batch_size + 1
    assert count == 1 or batch_size == 1 or 1 not in sizes


def test_normalisation_equals_its_definition_pixel_by_pixel():
    images = torch.randint(0, 256, (2, 3, 4, 3), dtype=torch.uint8)
    result = normalise(images)
    assert result.shape == (2, 3, 3, 4)
    assert result.is_contiguous(memory_format=torch.channels_last)
    for (i, row, column, channel), pixel in np.ndenumerate(images.numpy()):
        expected = literal_normalised(float(pixel), channel)
        assert result[i, channel, row, column].item() == pytest.approx(expected, abs=1e-5)


def test_a_gpu_converts_bytes_in_one_operation():
    """It rounds once, which differs in the last float32 digit."""
    every = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 3)
    line = every.reshape(1, 1, 768)
    scale, shift = torch.rand(768) / 60, -2 * torch.rand(768)
    twice_rounded = line.float() * scale + shift
    torch.testing.assert_close(
        multiply_and_add(line, scale, shift, torch.float32), twice_rounded, rtol=0, atol=5e-7
    )
    halves = multiply_and_add(line, scale, shift, torch.bfloat16)
    assert halves.dtype == torch.bfloat16
    torch.testing.assert_close(halves.float(), twice_rounded, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("model", ["small_cnn", "resnet18", "vit_b_32", "googlenet"])
def test_images_have_the_dtype_of_the_first_convolution(model):
    """A model that scales its input gets float32."""
    built = build_model(model, num_classes=3, image_size=32)
    assert get_input_dtype(built, "off") == get_input_dtype(built, "tf32") == torch.float32
    expected = torch.float32 if model == "googlenet" else torch.bfloat16
    assert get_input_dtype(built, "bf16") == expected
    assert normalise(torch.zeros(1, 4, 4, 3, dtype=torch.uint8), expected).dtype == expected


@given(
    st.lists(st.tuples(st.integers(4, 9), st.integers(4, 9)), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=8),
    st.sampled_from(["random_crop", "random_crop_flip", "none"]),
    st.integers(0, 2**32),
)
def test_crops_equal_a_loop_over_images(sizes, chosen, name, seed):
    random = np.random.default_rng(seed)
    images = [random.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in sizes]
    flat = np.concatenate([image.reshape(-1) for image in images])
    photos = wrap_photos(DecodedImages(flat, np.array(sizes)), 4, name)
    order = torch.tensor(chosen) % len(images)
    crops = photos.training_crops(order, torch.Generator().manual_seed(seed))
    cut = crops.cut(0, len(order))
    for i, n in enumerate(order.tolist()):
        row, left_edge = divmod(int(crops.first[i]) - int(photos.first[n]), sizes[n][1] * 3)
        literal = images[n][row : row + 4, left_edge // 3 : left_edge // 3 + 4]
        assert literal.shape == (4, 4, 3)
        if crops.mirrored is not None and crops.mirrored[i]:
            literal = literal[:, ::-1]
        assert np.array_equal(cut[i].numpy(), literal)
    assert torch.equal(crops.cut(1, len(order)), cut[1:])
    if crops.mirrored is not None:  # as on a GPU
        lines = crops.first[:, None] + torch.arange(4) * crops.step[:, None]
        assert torch.equal(gather_mirrored_lines(photos.parts[0], lines, 4, crops.mirrored), cut)
    # Several parts, as buckets are: each image in one of its own, in another order.
    parts = tuple(torch.from_numpy(image.reshape(-1)) for image in reversed(images))
    where = np.arange(len(images))[::-1].copy()
    scattered = Photos(parts, where, np.zeros_like(where), photos.sizes, 4, name)
    again = scattered.training_crops(order, torch.Generator().manual_seed(seed))
    assert torch.equal(again.cut(0, len(order)), cut)
    together = scattered.to(CPU)
    assert len(together.parts) == 1
    assert torch.equal(together.parts[0], torch.from_numpy(flat))


def test_an_epoch_without_crops_has_every_image_once_and_unchanged():
    pixels = torch.randint(0, 256, (10, 8, 8, 3), dtype=torch.uint8)
    epoch = list_batches(Samples(squares(pixels), torch.arange(10)))
    labels = torch.cat([labels for _, labels in epoch])
    assert sorted(labels.tolist()) == list(range(10))
    assert labels.tolist() != list(range(10))
    for images, labels in epoch:
        assert torch.equal(images, normalise(pixels[labels]))


def test_order_and_crops_depend_only_on_seed_bucket_and_epoch():
    pixels = torch.randint(0, 256, (20, 10, 10, 3), dtype=torch.uint8)
    samples = Samples(squares(pixels, 8, "random_crop_flip"), torch.arange(20))
    first = list_batches(samples)
    torch.rand(17)
    assert_identical(list_batches(samples), first)
    for other in ({"seed": 1}, {"bucket_index": 1}, {"epoch": 1}):
        assert list_batches(samples, **other)[0][1].tolist() != first[0][1].tolist()


def test_seeds_differ_by_purpose_and_take_any_whole_number():
    seeds = {derive_seed(0, purpose, 1) for purpose in RngPurpose}
    assert len(seeds) == len(RngPurpose)
    assert 0 <= derive_seed(10**40, RngPurpose.ORDER, 3, 2) < 2**63
    assert build_generator(3, RngPurpose.ORDER, 1).initial_seed() == derive_seed(
        3, RngPurpose.ORDER, 1
    )
