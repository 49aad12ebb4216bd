"""Decoding once, batches of bytes, and where they are cropped."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning_streams import CPU, random_stream, write_stream

from clear_mlflow.core.errors import DataError
from clear_mlflow.data.decoding.decoded_cache import DecodedCache
from clear_mlflow.data.stream import Bucket
from clear_mlflow.learning.device import RngPurpose, derive_seed, generator
from clear_mlflow.learning.samples.decoded import (
    DecodedStream,
    Normaliser,
    Samples,
    ScatteredImages,
    _augment_on_device,
    _augment_on_host,
    batch_bounds,
    centre_crop,
    crop_margin,
    training_batches,
)
from clear_mlflow.learning.samples.indices import joined, whole_bucket


def batches(samples, **changes):
    """One epoch as a list."""
    options = {"image_size": 8, "batch_size": 3, "device": CPU, "seed": 0}
    options |= {"position": 0, "epoch": 0, **changes}
    epoch = training_batches(samples, **options)
    return [(batch.inputs, batch.labels) for batch in epoch]


def numbered_samples(count, side):
    """Images whose first row of bytes tells which image, and every pixel where it is."""
    images = torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8)
    return Samples(images, torch.arange(count))


def normalised(images):
    """The model's input, by a normaliser of its own."""
    return Normaliser(images.shape[2], CPU)(images)


def literal_normalised(pixel, channel):
    """One byte to the model's input, by the definition."""
    mean, std = (0.485, 0.456, 0.406)[channel], (0.229, 0.224, 0.225)[channel]
    return (pixel / 255 - mean) / std


@given(st.integers(1, 200), st.integers(1, 70))
def test_batches_cover_every_image_once_and_never_leave_one_alone(count, batch_size):
    """A rest of one image joins the batch before it; all other batches are full."""
    bounds = batch_bounds(count, batch_size)
    assert [i for start, stop in bounds for i in range(start, stop)] == list(range(count))
    sizes = [stop - start for start, stop in bounds]
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes[-1] <= batch_size + 1
    assert count == 1 or batch_size == 1 or 1 not in sizes


def test_normalised_equals_the_definition_pixel_by_pixel():
    """The broadcast over long rows gives each channel its own mean and deviation."""
    images = torch.randint(0, 256, (2, 3, 4, 3), dtype=torch.uint8)
    result = normalised(images)
    assert result.shape == (2, 3, 3, 4)
    assert result.is_contiguous(memory_format=torch.channels_last)
    for (i, row, column, channel), pixel in np.ndenumerate(images.numpy()):
        expected = literal_normalised(float(pixel), channel)
        assert result[i, channel, row, column].item() == pytest.approx(expected, abs=1e-5)


def test_a_normaliser_is_the_same_for_every_batch():
    """Batches of any number of images, in any order, are what they are alone, to the bit."""
    images = torch.randint(0, 256, (7, 3, 4, 3), dtype=torch.uint8)
    before = images.clone()
    normalise = Normaliser(4, CPU)
    for start, stop in ((0, 7), (3, 4), (2, 6), (0, 7)):
        assert torch.equal(normalise(images[start:stop]), normalised(images)[start:stop])
    assert torch.equal(images, before)


@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(0, 4),
    st.lists(st.integers(0, 4), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_crops_on_a_device_equal_those_in_main_memory(count, size, margin, chosen, seed):
    """Two ways to the same bytes, whatever images, corners and flips were drawn."""
    random = torch.Generator().manual_seed(seed)
    side = size + margin
    images = torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=random)
    which = torch.tensor(chosen) % count
    corners = torch.randint(0, margin + 1, (2, len(chosen)), generator=random)
    mirrored = torch.randint(0, 2, (len(chosen),), generator=random).bool()
    on_host = _augment_on_host(images, which, corners, mirrored, size)
    assert torch.equal(_augment_on_device(images, which, corners, mirrored, size), on_host)


def test_an_epoch_without_margin_is_every_image_once_and_untouched():
    """Small images are neither cropped nor mirrored, and labels stay with their images."""
    samples = numbered_samples(10, 8)
    epoch = batches(samples)
    labels = torch.cat([labels for _, labels in epoch])
    assert sorted(labels.tolist()) == list(range(10))
    assert labels.tolist() != list(range(10))
    for images, labels in epoch:
        assert torch.equal(images, normalised(samples.images[labels]))


def test_with_margin_every_image_is_one_of_its_own_crops_or_mirrored_crops():
    """Crops reach every corner, half of them are mirrored, and no pixel is invented."""
    samples = numbered_samples(60, 10)
    seen = set()
    for epoch in range(3):
        for images, labels in batches(samples, epoch=epoch):
            for image, label in zip(images, labels.tolist(), strict=True):
                found = []
                for top in range(3):
                    for left in range(3):
                        crop = samples.images[label : label + 1, top : top + 8, left : left + 8]
                        for mirrored in (False, True):
                            shown = crop.flip(2) if mirrored else crop
                            if torch.equal(normalised(shown.contiguous())[0], image):
                                found.append((top, left, mirrored))
                assert len(found) == 1
                seen.add(found[0])
    assert len(seen) == 3 * 3 * 2


def test_order_and_crops_follow_from_seed_bucket_and_epoch_alone():
    """What was drawn before changes nothing; each of the three changes everything."""
    samples = numbered_samples(20, 10)
    first = batches(samples)
    torch.rand(17)
    for (images, labels), (again, same) in zip(first, batches(samples), strict=True):
        assert torch.equal(images, again)
        assert torch.equal(labels, same)
    for other in ({"seed": 1}, {"position": 1}, {"epoch": 1}):
        assert batches(samples, **other)[0][1].tolist() != first[0][1].tolist()


def test_seeds_differ_by_purpose_and_take_any_whole_number():
    """Seeds are stable in [0, 2**63), for seeds of any size, and differ by purpose."""
    seeds = {derive_seed(0, purpose, 1) for purpose in RngPurpose}
    assert len(seeds) == len(RngPurpose)
    assert 0 <= derive_seed(10**40, RngPurpose.ORDER, 3, 2) < 2**63
    assert generator(3, RngPurpose.ORDER, 1).initial_seed() == derive_seed(3, RngPurpose.ORDER, 1)


@pytest.mark.parametrize(("side", "margin"), [(8, 0), (32, 0), (63, 0), (64, 9), (224, 32)])
def test_margin_is_that_of_the_recipe_and_none_for_small_images(side, margin):
    """224 pixels are cropped from 256; a digit is never cropped."""
    assert crop_margin(side) == margin


def test_centre_crop_is_the_middle():
    """The same number of pixels goes on both sides, where the margin is even."""
    images = torch.arange(6 * 6).reshape(1, 6, 6, 1).expand(1, 6, 6, 3)
    assert centre_crop(images, 2)[0, :, :, 0].tolist() == [[14, 15], [20, 21]]


def test_decoded_stream_has_every_file_where_its_bucket_is(tmp_path):
    """Test sets lie end to end with their bucket's position; training sets come one by one."""
    stream, pixels = random_stream(tmp_path, train=(3, 5, 4), test=(2, 1, 4), side=8)
    told = []
    decoded = DecodedStream(
        stream, image_size=8, device=CPU, on_image=lambda *counts: told.append(counts)
    )
    held_out = decoded.test()
    assert held_out.counts == (2, 1, 4)
    assert held_out.bucket.tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert told[-1] == (7, 7)
    expected = np.concatenate([pixels[path] for b in stream.buckets for path in b.test.paths])
    assert np.array_equal(held_out.images.numpy().reshape(expected.shape), expected)
    labels = np.concatenate([bucket.test.labels for bucket in stream.buckets])
    assert held_out.labels.tolist() == labels.tolist()
    for position, bucket in enumerate(stream.buckets):
        samples = decoded.train(position)
        assert samples.labels.tolist() == bucket.train.labels.tolist()
        expected = np.concatenate([pixels[path] for path in bucket.train.paths])
        assert np.array_equal(samples.images.numpy().reshape(expected.shape), expected)


def test_the_newest_bucket_and_the_test_sets_are_decoded_once(tmp_path):
    """Asking again for the same images reads no file."""
    stream, _ = random_stream(tmp_path, train=(3, 3), test=(2, 2), side=8)
    told = []
    decoded = DecodedStream(
        stream, image_size=8, device=CPU, on_image=lambda *counts: told.append(counts)
    )
    decoded.test()
    decoded.train(0)
    count = len(told)
    assert decoded.test() is decoded.test()
    assert decoded.train(0) is decoded.train(0)
    assert len(told) == count
    decoded.train(1)
    assert len(told) > count


def test_images_from_the_cache_are_the_same(tmp_path):
    """With a cache, tensors are the same to the bit; training images come from its files."""
    stream, _ = random_stream(tmp_path / "data", train=(3, 5), test=(2, 4), side=70)
    buckets = tuple(Bucket(b.key, hashed(b.train), hashed(b.test)) for b in stream.buckets)
    stream = dataclasses.replace(stream, buckets=buckets)
    plain = DecodedStream(stream, image_size=64, device=CPU)
    for _ in range(2):  # the first builds, the second finds it built
        cached = DecodedStream(
            stream, image_size=64, device=CPU, cache=DecodedCache(tmp_path / "cache")
        )
        for position in range(2):
            samples = cached.train(position)
            assert torch.equal(samples.images, plain.train(position).images)
            assert torch.equal(samples.labels, plain.train(position).labels)
            expected = batches(plain.train(position), image_size=64)
            for (images, _), (same, _) in zip(
                batches(samples, image_size=64), expected, strict=True
            ):
                assert torch.equal(images, same)
        held_out, same = cached.test(), plain.test()
        assert torch.equal(held_out.images, same.images)
        assert torch.equal(held_out.bucket, same.bucket)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 4


def hashed(images):
    """An image set with its contents, as a dataset's reader gives it."""
    contents = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in images.paths)
    return dataclasses.replace(images, contents=contents)


def test_a_damaged_image_is_named(tmp_path):
    """A file that cannot be decoded ends the training with an error that names it."""
    stream = write_stream(tmp_path, [[np.zeros((8, 8, 3), np.uint8)]], [[0]], num_classes=1)
    Path(stream.buckets[0].train.paths[0]).write_bytes(b"no image")
    with pytest.raises(DataError, match=r"0\.png"):
        DecodedStream(stream, image_size=8, device=CPU).train(0)


@pytest.mark.parametrize("size", [8, 64])
def test_picked_images_are_those_of_their_buckets(tmp_path, size):
    """In any order and with repeats; photographs in main memory are not even copied."""
    stream, _ = random_stream(tmp_path / "s", train=(4, 3, 5), test=(1, 1, 1), side=80)
    cache = DecodedCache(tmp_path / "cache")
    decoded = DecodedStream(stream, image_size=size, device=CPU, cache=cache)
    picks = joined(whole_bucket(2, 5), whole_bucket(0, 4)).take(np.array([8, 0, 3, 3, 5]))
    samples = decoded.select(picks)
    assert len(samples) == 5
    for n, (bucket, index) in enumerate(zip(picks.bucket, picks.index, strict=True)):
        whole = decoded.train(int(bucket))
        assert torch.equal(samples.images[n], whole.images[index])
        assert samples.labels[n] == whole.labels[index] == decoded.labels(bucket)[index]
    assert isinstance(samples.images, ScatteredImages) == (size == 64)
    copied = Samples(torch.stack([samples.images[n] for n in range(5)]), samples.labels)
    options = {"image_size": size, "batch_size": 2, "epoch": 3}
    pairs = zip(batches(samples, **options), batches(copied, **options), strict=True)
    for (inputs, labels), (same_inputs, same_labels) in pairs:
        assert torch.equal(inputs, same_inputs)
        assert torch.equal(labels, same_labels)
