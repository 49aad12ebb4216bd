"""Every layout of CLEAR under every protocol: the same images, splits and digests."""

import itertools
import random
import shutil
from datetime import date
from pathlib import Path

import pytest
from layout_trees import (
    LAYOUTS,
    Photo,
    Photos,
    as_photos,
    find_contents,
    write_challenge,
    write_older,
    write_released,
)
from one_line_errors import check_error

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.check import check_dataset
from clear_mlflow.data.stream import BucketStream
from clear_mlflow.data.times import CLEAR10_TIMES
from clear_mlflow.learning.parameters.config import TrainConfig

PHOTOS = Photos()
PROTOCOLS = [("iid", "0"), ("iid", "3"), ("iid", "77"), ("streaming", "auto")]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write(tmp_path_factory.mktemp(name), PHOTOS) for name, write in LAYOUTS.items()}


def load(root: Path, protocol: str = "iid", split: str = "auto") -> BucketStream:
    return load_stream("clear10", str(root), cache_dir=root / "no", protocol=protocol, split=split)


def refusal(root: Path) -> str:
    return check_error(DataError, str(root), load, root)


def name_photos(photos: list[Photo]) -> list[tuple[str, Photo]]:
    return [(photo.class_name, photo) for photo in photos]


def literal_split(photos: list[Photo], seed: int) -> tuple[list[Photo], list[Photo]]:
    """Return a bucket's split by the authors' method: shuffle, test on the last 30 %."""
    random.seed(seed)
    indices = list(range(len(photos)))
    random.shuffle(indices)
    held_out = set(indices[len(indices) - int(0.3 * len(indices)) :])
    train = [photo for i, photo in enumerate(photos) if i not in held_out]
    return train, [photo for i, photo in enumerate(photos) if i in held_out]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [0, 3, 77])
def test_each_layout_has_the_same_seeded_split(trees, layout, seed):
    stream = load(trees[layout], split=str(seed))
    expected = {}
    for key in PHOTOS.buckets:
        train, test = literal_split(PHOTOS.of("train", key), seed)
        expected[key] = {"train": name_photos(train), "test": name_photos(test)}
        assert (len(train), len(test)) == (7, 3)
    assert as_photos(stream, find_contents(trees[layout], PHOTOS)) == expected
    assert stream.dataset.division == str(seed)
    assert stream.dataset.warnings == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_auto_uses_the_released_test_set_or_else_split_0(trees, layout):
    stream = load(trees[layout])
    if layout in ("released", "unpacked"):
        assert stream.dataset.division == "released"
        photos_by_key = as_photos(stream, find_contents(trees[layout], PHOTOS))
        for key, part in itertools.product(PHOTOS.buckets, ("train", "test")):
            assert photos_by_key[key][part] == name_photos(PHOTOS.of(part, key))
    else:
        assert stream.dataset.division == "0"
        assert stream.dataset.digest == load(trees[layout], split="0").dataset.digest


@pytest.mark.parametrize(("protocol", "split"), PROTOCOLS)
def test_the_digest_is_the_same_in_every_layout(trees, protocol, split):
    streams = [load(root, protocol, split) for root in trees.values()]
    assert len({stream.dataset.digest for stream in streams}) == 1
    one_set = {stream.test is stream.train for stream in streams}
    assert one_set == {protocol == "streaming"}


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("zero", "final_newline"), [(True, False), (False, True)])
def test_eleven_buckets_and_classes_with_spaces_and_final_newlines(
    tmp_path, layout, zero, final_newline
):
    buckets = tuple(str(n) for n in (10, *range(0 if zero else 1, 10)))
    classes = ("BACKGROUND", "air hockey 2", "café au lait")
    test_buckets = tuple(str(n) for n in range(11))
    photos = Photos(buckets, test_buckets=test_buckets, classes=classes, train=2, test=1)
    root = LAYOUTS[layout](tmp_path, photos, final_newline=final_newline)
    stream = load(root, split="0")
    assert list(stream.dataset.buckets) == photos.in_order
    assert stream.dataset.class_names == photos.classes
    photos_by_key = as_photos(stream, find_contents(root, photos))
    for key in buckets:
        train, test = literal_split(photos.of("train", key), 0)
        assert photos_by_key[key] == {"train": name_photos(train), "test": name_photos(test)}
    if layout in ("released", "unpacked"):
        photos_by_key = as_photos(load(root), find_contents(root, photos))
        tested = {key: parts["test"] for key, parts in photos_by_key.items()}
        assert tested == {key: name_photos(photos.of("test", key)) for key in buckets}


def test_the_older_layouts_stored_splits_are_used(tmp_path):
    root = write_older(tmp_path, PHOTOS, order=lambda listed: sorted(listed, key=repr)[::-1])
    truth = find_contents(root, PHOTOS)
    photos_by_key = as_photos(load(root, split="2"), truth)
    differs = False
    for key in PHOTOS.buckets:
        folder = root / "training_folder/testset_ratio_0.3/split_2" / key
        for part in ("train", "test"):
            lines = (folder / f"{part}.txt").read_text().splitlines()
            stored = {Path(line.rpartition(" ")[0]).stem for line in lines}
            assert {photo.image_id for _, photo in photos_by_key[key][part]} == stored
            photos = [p for p in PHOTOS.of("train", key) if p.image_id in stored]
            assert photos_by_key[key][part] == name_photos(photos)
        drawn_test = name_photos(literal_split(PHOTOS.of("train", key), 2)[1])
        differs |= photos_by_key[key]["test"] != drawn_test
    assert differs


def test_a_split_that_is_not_stored_is_drawn_with_a_warning(tmp_path, trees):
    root = write_older(tmp_path, PHOTOS, seeds=[0])
    assert load(root, split="0").dataset.warnings == ()
    (warning,) = load(root, split="4").dataset.warnings
    assert warning.startswith(f"split 4 is not stored in {root}")
    assert load(root, split="5").dataset.warnings == ()
    assert (
        load(root, split="4").dataset.digest == load(trees["challenge"], split="4").dataset.digest
    )


def cut_test_list(folder: Path) -> None:
    (folder / "test.txt").write_text((folder / "test.txt").read_text().split("\n")[0])


def swap_lists(folder: Path) -> None:
    for old, new in (("test.txt", "x"), ("train.txt", "test.txt"), ("x", "train.txt")):
        (folder / old).rename(folder / new)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda f: (f / "test.txt").write_text((f / "train.txt").read_text()), "in both"),
        (cut_test_list, "expected each image once"),
        (shutil.rmtree, "is missing"),
        (swap_lists, "fewer to test on"),
        (lambda f: (f / "test.txt").write_text("labeled_images/2/bus/7.jpg 0"), "which"),
    ],
    ids=["overlap", "image left out", "bucket left out", "swapped", "foreign image"],
)
def test_an_invalid_stored_split_is_rejected(tmp_path, edit, words):
    root = write_older(tmp_path, PHOTOS)
    edit(root / "training_folder/testset_ratio_0.3/split_0/2")
    assert words in refusal(root)


def test_too_few_images_for_a_test_set_are_an_error(tmp_path):
    root = write_challenge(tmp_path, Photos(classes=("a", "b", "c"), train=1))
    assert "has 3 images, of which 0 would be held out" in refusal(root)
    assert len(load(root, "streaming").test[0]) == 3


def test_a_missing_test_set_is_an_error(tmp_path):
    root = write_released(tmp_path, PHOTOS)
    shutil.rmtree(root / "test")
    assert "pass split=0" in refusal(root)
    assert load(root, split="0").dataset.division == "0"
    assert load(root, "streaming").dataset.division == "none"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("offline", "auto"), "protocol is 'offline'"),
        (("iid", "first"), "split is 'first'"),
        (("iid", "-1"), "split is '-1'"),
        (("iid", "9" * 5000), "split is '999"),
        (("iid", "9" * 19), "split is '999"),
        (("iid", "007"), "split is '007'"),
    ],
)
def test_meaningless_options_are_rejected(options, words):
    parameters = dict(zip(("protocol", "split"), options, strict=True))
    check_error(ConfigError, words, TrainConfig.resolve, parameters)


def test_streaming_has_no_split(trees):
    check_error(ConfigError, "nothing is held out", load, trees["challenge"], "streaming", "0")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_buckets_of_clear10_have_the_dates_that_its_authors_published(trees, layout, tmp_path):
    stream = load(trees[layout], split="0")
    days = date(2007, 4, 9), date(2008, 3, 21), date(2008, 12, 23)
    assert stream.dataset.times == days
    other = load_stream("clear100", str(trees["challenge"]), cache_dir=tmp_path, split="0")
    assert (other.dataset.times, other.dataset.digest) == ((), stream.dataset.digest)
    LAYOUTS[layout](tmp_path / "more", Photos(buckets=("9", "10", "11")))
    assert load(tmp_path / "more", split="0").dataset.times == ()
    LAYOUTS[layout](tmp_path / "last", Photos(buckets=("0", "10")))
    assert load(tmp_path / "last", split="0").dataset.times == (
        date(2004, 1, 1),
        date(2013, 9, 8),
    )


def test_each_part_of_clear10_but_the_first_lasts_less_than_a_year():
    starts = [*CLEAR10_TIMES.values(), date(2014, 4, 28)]
    days = [(after - before).days for before, after in itertools.pairwise(starts)]
    assert (days[0], min(days[1:]), max(days[1:])) == (1194, 217, 347)


@pytest.mark.parametrize("folder", ["clear10", "clear10_neurips2021", "clear10-train", "CLEAR10_x"])
def test_the_folder_named_like_the_dataset_is_found(tmp_path, folder):
    write_challenge(tmp_path / "clear100", Photos(classes=("other",)))
    write_older(tmp_path / folder, PHOTOS)
    assert load(tmp_path).dataset.class_names == PHOTOS.classes


def test_several_datasets_below_the_root_are_an_error(tmp_path):
    write_older(tmp_path / "clear10_neurips2021", PHOTOS)
    write_challenge(tmp_path / "clear10_challenge", PHOTOS)
    assert "'clear10_challenge', 'clear10_neurips2021'" in refusal(tmp_path)


@pytest.mark.parametrize("below", ["", "clear10"])
@pytest.mark.parametrize(
    ("first", "second"), [("released", "challenge"), ("released", "older"), ("older", "released")]
)
def test_two_layouts_in_one_folder_are_an_error(tmp_path, below, first, second):
    LAYOUTS[first](tmp_path / below, PHOTOS)
    LAYOUTS[second](tmp_path / below, Photos(buckets=("1", "2")))
    message = refusal(tmp_path)
    assert all(f"{layout} (" in message for layout in (first, second))
    assert check_error(DataError, "", check_dataset, str(tmp_path)) == message


def test_a_challenge_folder_with_files_of_operating_systems_is_read(tmp_path):
    root = write_challenge(tmp_path, PHOTOS)
    digest, bucket = load(root).dataset.digest, next((root / "labeled_images").iterdir())
    for folder in (bucket, *bucket.iterdir()):
        (folder / "Thumbs.db").write_bytes(b"x")
    stream = load(root)
    assert stream.dataset.digest == digest


def copy_bucket(root: Path, key: str) -> None:
    shutil.copytree(root / "labeled_images/2", root / "labeled_images" / key)


def add_class(root: Path) -> None:
    shutil.copytree(root / "labeled_images/2/bus", root / "labeled_images/2/new")


def test_unexpected_challenge_folders_are_an_error(tmp_path):
    """They have no lists to check against."""
    for number, (make, words) in enumerate(
        [
            (lambda r: shutil.rmtree(r / "labeled_images/2/bus"), "no images of class 'bus'"),
            (add_class, "no images of class 'new'"),
            (lambda r: (r / "labeled_images/2018").write_text("x"), "2018 is not a folder"),
            (lambda r: copy_bucket(r, "02"), "which are one number"),
            (lambda r: copy_bucket(r, "notes"), "bucket 'notes'"),
            (lambda r: (r / "labeled_images/1/bus/a.jpg").mkdir(), "a.jpg is not a plain file"),
            (lambda r: (r / "labeled_images/4").symlink_to("/usr"), "leads out of"),
        ]
    ):
        root = write_challenge(tmp_path / str(number), PHOTOS)
        make(root)
        assert words in refusal(root)
    root = write_challenge(tmp_path / "hidden", PHOTOS)
    (root / "labeled_images/.DS_Store").write_text("x")
    (root / "labeled_images/1/bus/._1.jpg").write_text("x")
    assert len(load(root).train) == 3


def test_the_embedded_dataset_supports_protocols(digits_cache):
    without_protocol = load_stream("digits", "auto", cache_dir=digits_cache)
    streaming = load_stream("digits", "auto", cache_dir=digits_cache, protocol="streaming")
    split = load_stream("digits", "auto", cache_dir=digits_cache, split="1")
    contents = [[b.contents for b in s.train] for s in (streaming, without_protocol)]
    assert contents[0] == contents[1]
    assert streaming.test is streaming.train
    assert [
        (len(train), len(test)) for train, test in zip(split.train, split.test, strict=True)
    ] == [(84, 36)] * 10
