"""The embedded dataset digits-writers: every scan once, ordered by writer."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from clear_mlflow.data import load_stream
from clear_mlflow.data.embedded import digits_writers
from clear_mlflow.data.stream import BucketStream


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> BucketStream:
    cache_dir = tmp_path_factory.mktemp("cache")
    return load_stream("digits-writers", "auto", cache_dir=cache_dir)


def read_scans(paths: tuple[Path, ...]) -> NDArray[np.int64]:
    return np.array([int(path.stem) for path in paths])


@pytest.mark.slow
def test_digest_is_the_same_everywhere(stream):
    """A change of one pixel needs a new folder name and digest."""
    assert digits_writers.FOLDER == "digits-writers-v2"
    digest = "sha256:c17e1cc0ac3a533eec9cae8e7460fe1a83dca537eb39492d2faca16d80c5d707"
    assert stream.dataset.digest == digits_writers.DIGEST == digest


def test_every_scan_is_in_one_bucket_and_on_one_side(stream):
    by_bucket = [
        (read_scans(train.paths), read_scans(test.paths))
        for train, test in zip(stream.train, stream.test, strict=True)
    ]
    assert sorted(np.concatenate([scans for pair in by_bucket for scans in pair])) == [*range(1797)]
    ends = [(np.concatenate(pair).min(), np.concatenate(pair).max()) for pair in by_bucket]
    assert ends[0][0] == 0
    assert all(end + 1 == start for (_, end), (start, _) in pairwise(ends))
    assert stream.dataset.warnings == ()


def test_each_bucket_has_enough_of_every_digit(stream):
    assert [len(bucket) for bucket in stream.train] == [176, 180, 180, 175, 179, 178, 174]
    assert [len(bucket) for bucket in stream.test] == [80, 80, 80, 78, 79, 80, 78]
    for train, test in zip(stream.train, stream.test, strict=True):
        assert np.bincount(train.labels, minlength=10).min() >= 15
        assert np.bincount(test.labels, minlength=10).min() >= 7


def test_images_are_the_scans_themselves(stream):
    scans = load_digits()
    for images in stream.image_sets:
        assert images.labels.tolist() == scans.target[read_scans(images.paths)].tolist()
    for path in stream.test[3].paths:
        with Image.open(path) as image:
            pixels = np.asarray(image)
        expected = scans.images[int(path.stem)] * 255 // 16
        assert (pixels == expected[..., np.newaxis]).all()


def gap(parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> tuple[float, float]:
    """Return a logistic regression's mean accuracy on its own and on other buckets' test images."""
    scans = load_digits()
    pixels, target = scans.data / 16, scans.target
    accuracy = np.empty((len(parts), len(parts)))
    for i, (train, _) in enumerate(parts):
        model = LogisticRegression(max_iter=1000).fit(pixels[train], target[train])
        accuracy[i] = [model.score(pixels[test], target[test]) for _, test in parts]
    own = np.eye(len(parts), dtype=bool)
    return float(accuracy[own].mean()), float(accuracy[~own].mean())


def test_another_writer_is_harder_and_a_shuffled_order_is_not(stream):
    """About 14 points between own and other buckets. A random order of scans has no difference."""
    parts = [
        (read_scans(train.paths), read_scans(test.paths))
        for train, test in zip(stream.train, stream.test, strict=True)
    ]
    own, others = gap(parts)
    assert 0.96 < own < 1
    assert 0.12 < own - others < 0.17

    order = np.random.default_rng(0).permutation(1797)
    shuffled = [(order[train], order[test]) for train, test in parts]
    own, others = gap(shuffled)
    assert abs(own - others) < 0.03
