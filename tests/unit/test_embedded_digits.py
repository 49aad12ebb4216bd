"""The embedded dataset digits: equal on every machine, and safe to write."""

import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from one_line_errors import check_error
from sklearn.datasets import load_digits

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.embedded import EMBEDDED, digits, write_embedded
from clear_mlflow.data.stream import BucketStream


@pytest.fixture(scope="module")
def stream(digits_cache: Path) -> BucketStream:
    return load_stream("digits", "auto", cache_dir=digits_cache)


@pytest.mark.slow
def test_digest_is_the_same_everywhere(stream):
    """A change of one pixel needs a new folder name and digest."""
    assert digits.FOLDER == "digits-v3"
    digest = "sha256:f2e515223b626620892565102d684e8bf9cebab3267eec37345ad320527a5319"
    assert stream.dataset.digest == digits.DIGEST == digest


def test_ten_balanced_buckets(stream):
    assert list(stream.dataset.buckets) == [str(n) for n in range(1, 11)]
    assert stream.dataset.class_names == tuple("0123456789")
    assert {tuple(np.bincount(images.labels).tolist()) for images in stream.train} == {(12,) * 10}
    assert {tuple(np.bincount(images.labels).tolist()) for images in stream.test} == {(5,) * 10}


def test_every_image_shows_a_different_scan(stream):
    images = stream.image_sets
    scans = [int(path.stem) for of_part in images for path in of_part.paths]
    labels = np.concatenate([of_part.labels for of_part in images])
    assert len(set(scans)) == len(scans) == 1700
    assert (load_digits().target[scans] == labels).all()


def test_the_second_use_reads_the_cache(stream, digits_cache):
    image = digits_cache / digits.FOLDER / "train/1/0"
    before = image.stat().st_mtime_ns
    assert write_embedded("digits", digits_cache) == digits_cache / digits.FOLDER
    assert image.stat().st_mtime_ns == before
    assert [entry.name for entry in digits_cache.iterdir()] == [digits.FOLDER]


@pytest.mark.slow
def test_killed_or_concurrent_writers_leave_one_complete_dataset(tmp_path):
    """A killed writer's files are not read. The second of two uses the first one's."""
    code = """
import os, sys, pathlib
from clear_mlflow.data.embedded import digits, write_embedded
write, calls = digits.write_images, []
def dying(*arguments):
    calls.append(0)
    return os._exit(9) if len(calls) == 20 else write(*arguments)
digits.write_images = dying
write_embedded("digits", pathlib.Path(sys.argv[1]))
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == 9
    (only_folder,) = tmp_path.iterdir()
    assert only_folder.name != digits.FOLDER
    start = threading.Barrier(2)

    def write(_) -> Path:
        start.wait()
        return write_embedded("digits", tmp_path)

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(write, range(2))) == {tmp_path / digits.FOLDER}
    assert load_stream("digits", "auto", cache_dir=tmp_path).dataset.digest == digits.DIGEST
    assert set(tmp_path.iterdir()) - {only_folder} == {tmp_path / digits.FOLDER}


@pytest.mark.slow
def test_a_damaged_cache_is_noticed(digits_cache, tmp_path):
    root = tmp_path / digits.FOLDER
    shutil.copytree(digits_cache / digits.FOLDER, root)
    path = root / "test/4/7"
    image = sorted(path.iterdir())[0]
    content = bytearray(image.read_bytes())
    content[100] ^= 1
    image.write_bytes(content)
    for damage in (lambda: None, image.unlink):
        damage()
        message = "delete that folder and run again"
        message = check_error(DataError, message, load_stream, "digits", "auto", cache_dir=tmp_path)
        assert str(root) in message


@pytest.mark.slow
@pytest.mark.parametrize("in_the_way", ["cache", f"cache/{digits.FOLDER}"])
def test_an_unwritable_cache_is_an_error_with_a_remedy(tmp_path, in_the_way):
    (tmp_path / in_the_way).parent.mkdir(exist_ok=True)
    (tmp_path / in_the_way).write_text("in the way")
    arguments = (write_embedded, "digits", tmp_path / "cache")
    message = check_error(DataError, "CLEAR_MLFLOW_CACHE", *arguments)
    assert str(tmp_path / "cache" / digits.FOLDER) in message
    assert (tmp_path / in_the_way).read_text() == "in the way"


@pytest.mark.parametrize("dataset", EMBEDDED)
def test_an_embedded_dataset_reads_no_folder(tmp_path, dataset):
    """So that no message recommends to delete a user's folder."""
    (tmp_path / "photos").mkdir()
    arguments = (load_stream, dataset, str(tmp_path / "photos"))
    message = "is embedded and reads no folder"
    assert "delete" not in check_error(ConfigError, message, *arguments, cache_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
