"""Images that cannot be decoded: found before training, and left out only on request."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from layout_trees import list_buckets
from one_line_errors import check_error
from released_layout import write_released

from clear_mlflow.core.errors import DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.decode import DecodedCache, Resize, drop_undecodable
from clear_mlflow.data.stream import BucketStream

HTML = b"<html>404 Not Found</html>"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_released(tmp_path / "data")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def read(root: Path, cache: Path) -> BucketStream:
    return load_stream("clear10", str(root), cache_dir=cache)


def sound(stream: BucketStream, cache: Path, damaged: str, **options) -> tuple[BucketStream, int]:
    options |= {"cache": DecodedCache(cache), "resize": Resize(10), "damaged": damaged}
    return drop_undecodable(stream, **options)


def break_images(stream: BucketStream) -> list[Path]:
    first, last = list_buckets(stream)[0], list_buckets(stream)[-1]
    broken = [first.train.paths[1], last.train.paths[-1], last.test.paths[0]]
    for number, path in enumerate(broken):
        path.write_bytes(HTML + bytes([number]))  # no two of them are copies of one another
    return broken


@pytest.mark.parametrize("damaged", ["stop", "leave_out"])
def test_an_undamaged_stream_is_unchanged(root, cache, damaged):
    stream, reported = read(root, cache), []
    options = {"on_image": lambda *counts: reported.append(counts)}
    checked, left_out = sound(stream, cache, damaged, **options)
    assert checked is stream
    assert left_out == 0
    total = sum(map(len, stream.image_sets))
    assert reported[-1] == (total, total)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert len(list(cache.glob("*.npy"))) == len(stream.image_sets)


def test_damaged_images_stop_the_run_unless_they_may_be_left_out(root, cache):
    broken = break_images(read(root, cache))
    stream = read(root, cache)
    start = f"3 images cannot be decoded; the first: {broken[0]} "
    messages = [check_error(DataError, start, sound, stream, cache, "stop") for _ in range(2)]
    assert messages[0] == messages[1]
    assert "damaged=leave_out" in messages[0]


def test_left_out_images_are_not_in_sets_digest_or_counts_and_are_reported(root, cache):
    broken = break_images(read(root, cache))
    stream = read(root, cache)
    checked, left_out = sound(stream, cache, "leave_out")
    assert left_out == 3
    left_warnings = checked.dataset.warnings[len(stream.dataset.warnings) :]
    for path, warning in zip(broken, left_warnings, strict=True):
        assert warning.startswith(f"{path} is not used: it cannot be decoded: ")
        assert len(warning.splitlines()) == 1
    assert checked.dataset.digest not in (stream.dataset.digest, "")
    for before, after in zip(list_buckets(stream), list_buckets(checked), strict=True):
        for images, remaining in ((before.train, after.train), (before.test, after.test)):
            remaining_indices = [i for i, path in enumerate(images.paths) if path not in broken]
            assert remaining.paths == tuple(images.paths[i] for i in remaining_indices)
            assert remaining.contents == tuple(images.contents[i] for i in remaining_indices)
            assert np.array_equal(remaining.labels, images.labels[remaining_indices])
    # What is left can be decoded, and a second start gives the same stream.
    assert sound(checked, cache, "stop") == (checked, 0)
    assert sound(stream, cache, "leave_out")[0].dataset.digest == checked.dataset.digest


def test_remaining_images_are_cached_before_training(root, cache):
    break_images(read(root, cache))
    stream, reported = read(root, cache), []
    checked, _ = sound(stream, cache, "leave_out", on_image=lambda *counts: reported.append(counts))
    num_remaining = sum(map(len, checked.image_sets))
    assert reported[-1] == (num_remaining, num_remaining)
    before = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    again, _ = sound(stream, cache, "leave_out")
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    shutil.rmtree(root)
    for bucket in list_buckets(again):
        for images in (bucket.train, bucket.test):
            pixels = DecodedCache(cache).load(images, Resize(10))
            assert len(pixels.sizes) == len(images)


def test_a_set_for_training_and_tests_stays_one_set(root, cache):
    """Under streaming, an image is decoded and reported once."""
    break_images(read(root, cache))
    streaming = load_stream("clear10", str(root), cache_dir=cache, protocol="streaming")
    reported = []
    options = {"on_image": lambda *counts: reported.append(counts)}
    checked, left_out = sound(streaming, cache, "leave_out", **options)
    assert left_out == 2
    assert (27, 27) in reported
    assert reported[-1] == (25, 25)
    numbers = [done for done, total in reported if total == 27]
    assert numbers == sorted(numbers)
    assert checked.test is checked.train


def test_more_damaged_images_than_anyone_reads_are_counted(tmp_path, cache):
    root = write_released(tmp_path / "many", train=50)
    train = [p for b in read(root, cache).train for p in b.paths]
    for n, path in enumerate(train[::3]):
        path.write_bytes(HTML + bytes(str(n), "ascii"))
    stream = read(root, cache)
    checked, left_out = sound(stream, cache, "leave_out")
    assert left_out == 150
    assert len(checked.dataset.warnings) == len(stream.dataset.warnings) + 101
    assert checked.dataset.warnings[-1].startswith("50 more images")


def test_a_bucket_without_remaining_images_is_an_error(root, cache):
    for n, path in enumerate(read(root, cache).test[1].paths):
        path.write_bytes(HTML + bytes([n]))
    with pytest.raises(DataError, match="none of bucket 2's test images can be decoded"):
        sound(read(root, cache), cache, "leave_out")


def test_a_missing_file_is_not_a_damaged_one(root, cache):
    stream = read(root, cache)
    gone = stream.train[0].paths[0]
    gone.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        sound(stream, cache, "leave_out")
