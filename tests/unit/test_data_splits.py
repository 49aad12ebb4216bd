"""The validation split: a tenth of the training images of each class."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_trees import LAYOUTS, Photo, Photos, list_buckets, write_released
from one_line_errors import check_error

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.data import Entry, build_index, load_stream
from clear_mlflow.data.images import ImageTable
from clear_mlflow.data.stream import (
    BucketStream,
    check_split,
    draw_split,
    draw_validation_split,
    parse_split,
)
from clear_mlflow.learning.parameters.config import TrainConfig

PHOTOS = Photos(train=26)
CLASSES = len(PHOTOS.classes)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write(tmp_path_factory.mktemp(name), PHOTOS) for name, write in LAYOUTS.items()}


def load(root: Path, split: str = "validation") -> BucketStream:
    return load_stream("clear10", str(root), cache_dir=root / "no", split=split)


def ids(images: ImageTable) -> set[str]:
    return {path.stem for path in images.paths}


def literal_tenth(photos: list[Photo]) -> set[str]:
    """Return a tenth of each class, rounded half up, by the hash of label and id."""
    chosen_rows = set()
    for label, class_name in enumerate(PHOTOS.classes):
        own = [photo.image_id for photo in photos if photo.class_name == class_name]

        def hash_content(image_id: str, label: int = label) -> str:
            return hashlib.sha256(f"validation\0{label}\0{image_id}".encode()).hexdigest()

        chosen_rows.update(sorted(own, key=hash_content)[: int(len(own) / 10 + 0.5)])
    return chosen_rows


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tenth_of_each_class_is_held_out_in_every_layout(trees, layout):
    stream = load(trees[layout])
    released = layout in ("released", "unpacked")
    for bucket in list_buckets(stream):
        photos = PHOTOS.of("train", bucket.key)
        if not released:
            held_out = draw_split(len(photos), 0)
            photos = [photo for i, photo in enumerate(photos) if i not in held_out]
        expected = literal_tenth(photos)
        assert ids(bucket.test) == expected
        assert ids(bucket.train) == {photo.image_id for photo in photos} - expected
        assert len(bucket.test.contents) == len(bucket.test)
        if released:
            assert np.bincount(bucket.test.labels).tolist() == [3] * CLASSES
    assert stream.dataset.division == ("validation" if released else "validation:0")
    assert (stream.dataset.split, stream.dataset.warnings) == ("validation", ())


def test_a_numbered_split_has_its_own_validation(trees):
    for root in trees.values():
        tested, chosen = load(root, "3"), load(root, "validation:3")
        for bucket, validated in zip(list_buckets(tested), list_buckets(chosen), strict=True):
            assert ids(validated.train) | ids(validated.test) == ids(bucket.train)
            assert not ids(validated.train) & ids(validated.test)
        assert chosen.dataset.division == "validation:3"


@given(st.lists(st.integers(1, 120), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_the_validation_set_does_not_change_with_other_images(sizes, random):
    entries = [
        Entry(Path(f"{n}/{n * 1000 + i}.jpg"), "bus", str(n))
        for n, size in enumerate(sizes)
        for i in range(size)
    ]
    chosen = {}
    for shuffled in (False, True):
        if shuffled:
            random.shuffle(entries)
        images = build_index(entries, root=Path(), class_names=("bus", "cab")).images
        held_out = images.take(np.flatnonzero(draw_validation_split(images)))
        chosen[shuffled] = {
            str(n): {path.stem for path in held_out.paths if path.parts[-2] == str(n)}
            for n in range(len(sizes))
        }
    assert chosen[True] == chosen[False]
    expected = [0 if size == 1 else max(1, int(size / 10 + 0.5)) for size in sizes]
    assert [len(chosen[False][str(n)]) for n in range(len(sizes))] == expected


def test_the_released_test_set_is_not_read(trees, tmp_path):
    expected = load(trees["released"])
    without = write_released(tmp_path / "without", PHOTOS)
    shutil.rmtree(without / "test")
    assert load(without).dataset.digest == expected.dataset.digest
    spoilt = write_released(tmp_path / "spoilt", PHOTOS)
    for path in (spoilt / "test").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    assert load(spoilt).dataset.digest == expected.dataset.digest
    with pytest.raises(DataError):
        load(spoilt, "auto")


def test_too_few_images_are_a_one_line_error(tmp_path):
    pair = write_released(tmp_path / "two", Photos(classes=("bus",), train=2))
    assert [len(bucket) for bucket in load(pair).test] == [1, 1, 1]
    single = write_released(tmp_path / "one", Photos(classes=("bus",), train=1))
    check_error(DataError, "has 1 image, of which 0 would be held out for val", load, single)


@pytest.mark.parametrize("split", ["validation", "validation:3"])
def test_streaming_has_no_validation_set(split):
    with pytest.raises(ConfigError, match="pass protocol=iid, or leave split at auto"):
        check_split("streaming", split)
    with pytest.raises(ConfigError, match=r"leave split at auto, or pass protocol=iid"):
        TrainConfig.resolve({"protocol": "streaming", "split": split})


@pytest.mark.parametrize(
    "split", ["validation:", "validation:x", "Validation", "test", ":3", "3:4"]
)
def test_an_invalid_split_is_a_one_line_error(split):
    with pytest.raises(ConfigError, match=r"split is .*validation:N"):
        TrainConfig.resolve({"split": split})
    with pytest.raises(ValueError, match="validation:N for the validation split of split N"):
        parse_split(split)
