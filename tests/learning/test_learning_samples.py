"""Decoding, batches of bytes, and crops."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning_streams import CPU, iter_training_batches, random_stream, read_pixels, squares

from clear_mlflow.data.decode import DecodedImages
from clear_mlflow.data.decoded_cache import DecodedCache
from clear_mlflow.data.stream import Bucket
from clear_mlflow.learning.device import RngPurpose, build_generator, derive_seed
from clear_mlflow.learning.models import build_model, get_input_dtype
from clear_mlflow.learning.photos import (
    Photos,
    build_augmentation,
    gather_mirrored_lines,
    join_indices,
    list_bucket_indices,
    wrap_photos,
)
from clear_mlflow.learning.samples import (
    DecodedStream,
    Samples,
    compute_batch_bounds,
    multiply_and_add,
    normalise,
)


def batches(samples, **changes):
    """Return the batches of one epoch as a list."""
    options = {"batch_size": 3, "device": CPU, "seed": 0}
    options |= {"bucket_index": 0, "epoch": 0, **changes}
    epoch = iter_training_batches(samples, **options)
    return [(batch.inputs, batch.labels) for batch in epoch]


def literal_normalised(pixel, channel):
    """Convert one byte to the model's input, by the definition."""
    mean, std = (0.485, 0.456, 0.406)[channel], (0.229, 0.224, 0.225)[channel]
    return (pixel / 255 - mean) / std


@given(st.integers(1, 200), st.integers(1, 70))
def test_batches_cover_every_image_once_and_never_leave_one_alone(count, batch_size):
    """A remainder of one image joins the previous batch. All other batches are full."""
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
    transform = build_augmentation(name, 4)
    assert transform.crop == (name != "none")
    photos = wrap_photos(DecodedImages(flat, np.array(sizes)), transform)
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
    scattered = Photos(parts, where, np.zeros_like(where), photos.sizes, transform)
    again = scattered.training_crops(order, torch.Generator().manual_seed(seed))
    assert torch.equal(again.cut(0, len(order)), cut)
    together = scattered.to(CPU)
    assert len(together.parts) == 1
    assert torch.equal(together.parts[0], torch.from_numpy(flat))


def test_an_epoch_without_crops_has_every_image_once_and_unchanged():
    """Small images are neither cropped nor mirrored, and labels stay with their images."""
    pixels = torch.randint(0, 256, (10, 8, 8, 3), dtype=torch.uint8)
    epoch = batches(Samples(squares(pixels), torch.arange(10)))
    labels = torch.cat([labels for _, labels in epoch])
    assert sorted(labels.tolist()) == list(range(10))
    assert labels.tolist() != list(range(10))
    for images, labels in epoch:
        assert torch.equal(images, normalise(pixels[labels]))


def test_order_and_crops_depend_only_on_seed_bucket_and_epoch():
    """Not on earlier draws. Each of the three changes them."""
    pixels = torch.randint(0, 256, (20, 10, 10, 3), dtype=torch.uint8)
    transform = build_augmentation("random_crop_flip", 8)
    samples = Samples(squares(pixels, transform), torch.arange(20))
    first = batches(samples)
    torch.rand(17)
    for (images, labels), (again, same) in zip(first, batches(samples), strict=True):
        assert torch.equal(images, again)
        assert torch.equal(labels, same)
    for other in ({"seed": 1}, {"bucket_index": 1}, {"epoch": 1}):
        assert batches(samples, **other)[0][1].tolist() != first[0][1].tolist()


def test_seeds_differ_by_purpose_and_take_any_whole_number():
    """Seeds are stable in [0, 2**63), for integers of any size."""
    seeds = {derive_seed(0, purpose, 1) for purpose in RngPurpose}
    assert len(seeds) == len(RngPurpose)
    assert 0 <= derive_seed(10**40, RngPurpose.ORDER, 3, 2) < 2**63
    assert build_generator(3, RngPurpose.ORDER, 1).initial_seed() == derive_seed(
        3, RngPurpose.ORDER, 1
    )


def test_a_decoded_stream_has_every_file_in_its_bucket(tmp_path):
    """Test sets are contiguous with their bucket's position. Training sets come one by one."""
    stream, pixels = random_stream(tmp_path, train=(3, 5, 4), test=(2, 1, 4), side=8)
    decoded = DecodedStream(stream, image_size=8, device=CPU)
    held_out = decoded.test()
    assert held_out.counts == (2, 1, 4)
    assert held_out.bucket.tolist() == [0, 0, 1, 2, 2, 2, 2]
    expected = np.concatenate([pixels[path] for b in stream.buckets for path in b.test.paths])
    assert np.array_equal(held_out.cut(0, 7).numpy().reshape(expected.shape), expected)
    labels = np.concatenate([bucket.test.labels for bucket in stream.buckets])
    assert held_out.labels.tolist() == labels.tolist()
    for bucket_index, bucket in enumerate(stream.buckets):
        samples = decoded.train(bucket_index)
        assert samples.labels.tolist() == bucket.train.labels.tolist()
        expected = np.concatenate([pixels[path] for path in bucket.train.paths])
        assert np.array_equal(read_pixels(samples).numpy().reshape(expected.shape), expected)


def test_images_from_the_cache_are_the_same(tmp_path):
    """To the bit, and all come from its files."""
    stream, _ = random_stream(tmp_path / "data", train=(3, 5), test=(2, 4), side=70)
    buckets = tuple(
        Bucket(b.key, add_contents(b.train), add_contents(b.test)) for b in stream.buckets
    )
    stream = dataclasses.replace(stream, buckets=buckets)
    options = {"image_size": 64, "augment": "random_crop_flip", "device": CPU}
    uncached = DecodedStream(stream, **options)
    for _ in range(2):  # the first builds, the second finds it built
        cached = DecodedStream(stream, **options, cache=DecodedCache(tmp_path / "cache"))
        for bucket_index in range(2):
            samples = cached.train(bucket_index)
            literal = uncached.train(bucket_index).images
            assert torch.equal(samples.images.parts[0], literal.parts[0])
            assert np.array_equal(samples.images.sizes, literal.sizes)
            assert torch.equal(samples.labels, uncached.train(bucket_index).labels)
        held_out, same = cached.test(), uncached.test()
        all_images = 0, sum(same.counts)
        assert torch.equal(held_out.cut(*all_images), same.cut(*all_images))
        for part in held_out.images.photos.parts:  # a copy would have to fit into memory
            assert mapped_at(part.data_ptr()).endswith(".npy")
        assert torch.equal(held_out.bucket, same.bucket)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 4


def mapped_at(address):
    """Return the file that is mapped at an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, *_, file = line.split(maxsplit=5)
        first_address, end = (int(bound, 16) for bound in bounds.split("-"))
        if first_address <= address < end:
            return file
    raise AssertionError(f"nothing is mapped at {address:x}")


def add_contents(images):
    """Return an image set with content hashes, as a dataset's reader returns it."""
    contents = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in images.paths)
    return dataclasses.replace(images, contents=contents)


def test_picked_images_are_those_of_their_buckets(tmp_path):
    """In any order, with repeats, and without a copy in main memory."""
    stream, _ = random_stream(tmp_path / "s", train=(4, 3, 5), test=(1, 1, 1), side=80)
    cache = DecodedCache(tmp_path / "cache")
    decoded = DecodedStream(stream, image_size=64, augment="random_crop", device=CPU, cache=cache)
    selected = join_indices(list_bucket_indices(2, 5), list_bucket_indices(0, 4)).take(
        np.array([8, 0, 3, 3, 5])
    )
    samples = decoded.select(selected)
    assert len(samples) == 5
    labels = [decoded.labels(b)[i] for b, i in zip(selected.bucket, selected.index, strict=True)]
    assert samples.labels.tolist() == labels
    assert len(samples.images.parts) == 2
    copied = samples.images.to(CPU)
    copied_pixels = copied.parts[0].view(5, 64, 64, 3)
    for n, (bucket, index) in enumerate(zip(selected.bucket, selected.index, strict=True)):
        bucket_pixels = decoded.train(int(bucket)).images.parts[0].view(-1, 64, 64, 3)
        assert torch.equal(copied_pixels[n], bucket_pixels[index])
    options = {"batch_size": 2, "epoch": 3}
    again = batches(Samples(copied, samples.labels), **options)
    for (inputs, labels), (same, same_labels) in zip(
        batches(samples, **options), again, strict=True
    ):
        assert torch.equal(inputs, same)
        assert torch.equal(labels, same_labels)
