"""Decoded photos of a stream: every file in its bucket, also from the cache."""

from pathlib import Path

import numpy as np
import torch
from learning_streams import CPU, list_batches, random_stream, read_pixels
from strategy_runs import assert_identical

from clear_mlflow.data.decode import DecodedCache
from clear_mlflow.learning.photos import join_indices, list_bucket_indices
from clear_mlflow.learning.samples import DecodedStream, Samples


def test_a_decoded_stream_has_every_file_in_its_bucket(tmp_path):
    stream, pixels = random_stream(tmp_path, train=(3, 5, 4), test=(2, 1, 4), side=8)
    decoded = DecodedStream(stream, image_size=8, device=CPU)
    held_out = decoded.test()
    assert held_out.counts == (2, 1, 4)
    assert held_out.bucket.tolist() == [0, 0, 1, 2, 2, 2, 2]
    expected = np.concatenate([pixels[path] for b in stream.test for path in b.paths])
    assert np.array_equal(held_out.cut(0, 7).numpy().reshape(expected.shape), expected)
    labels = np.concatenate([bucket.labels for bucket in stream.test])
    assert held_out.labels.tolist() == labels.tolist()
    for bucket_index, images in enumerate(stream.train):
        samples = decoded.train(bucket_index)
        assert samples.labels.tolist() == images.labels.tolist()
        expected = np.concatenate([pixels[path] for path in images.paths])
        assert np.array_equal(read_pixels(samples).numpy().reshape(expected.shape), expected)


def test_images_from_the_cache_are_the_same(tmp_path):
    stream, _ = random_stream(tmp_path / "data", train=(3, 5), test=(2, 4), side=70)
    options = {"image_size": 64, "augment": "random_crop_flip", "device": CPU}
    uncached = DecodedStream(stream, **options)
    for _ in range(2):  # the first builds, the second finds it built
        cached = DecodedStream(stream, **options, cache=DecodedCache(tmp_path / "cache"))
        for bucket_index in range(2):
            samples, literal = (of.train(bucket_index) for of in (cached, uncached))
            assert torch.equal(samples.images.parts[0], literal.images.parts[0])
            assert np.array_equal(samples.images.sizes, literal.images.sizes)
            assert torch.equal(samples.labels, literal.labels)
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


def test_picked_images_are_those_of_their_buckets(tmp_path):
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
    again = list_batches(Samples(copied, samples.labels), **options)
    assert_identical(list_batches(samples, **options), again)
