"""Reading CLEAR's released layout: what is right is read right, what is wrong is named."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from released_layout import read_any, read_json, write_image, write_json, write_released

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import MAX_METADATA_BYTES
from clear_mlflow.data import load_stream
from clear_mlflow.data.stream import BucketStream


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_released(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "clear"))


def refusal(root: Path) -> str:
    """The one line with which the whole way from a data root to a stream refuses it."""
    with pytest.raises(DataError) as caught:
        load_stream("clear10", str(root), cache_dir=root / "unused")
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def literal(root: Path, train_folder: str = "train") -> dict[str, dict[str, list[tuple[str, str]]]]:
    """A slow twin of the reader: bucket -> split -> (class, path), straight from the JSON."""
    content: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for key in sorted(read_json(root / train_folder / "labeled_metadata.json"), key=int):
        content[key] = {}
        for split, folder in (("train", root / train_folder), ("test", root / "test")):
            content[key][split] = []
            class_files = read_json(folder / "labeled_metadata.json")[key]
            for class_name in (folder / "class_names.txt").read_text().split("\n"):
                if class_name:
                    entries = read_json(folder / class_files[class_name])
                    for image_id in sorted(entries):
                        path = folder / entries[image_id]["IMG_PATH"]
                        content[key][split].append((class_name, str(path)))
    return content


def as_literal(stream: BucketStream) -> dict[str, dict[str, list[tuple[str, str]]]]:
    return {
        bucket.key: {
            split: [
                (stream.class_names[label], str(path))
                for label, path in zip(images.labels, images.paths, strict=True)
            ]
            for split, images in (("train", bucket.train), ("test", bucket.test))
        }
        for bucket in stream.buckets
    }


@pytest.mark.parametrize("extension", ["jpg", "png"])
@pytest.mark.parametrize("train_folder", ["train", "train_image_only"])
@pytest.mark.parametrize("final_newline", [True, False])
def test_reads_what_the_metadata_lists(tmp_path, train_folder, final_newline, extension):
    """Every listed image lands in its bucket, split and class, in a fixed order."""
    root = write_released(
        tmp_path,
        train_folder=train_folder,
        final_newline=final_newline,
        extension=extension,
        buckets=("1", "2"),
    )
    stream = read_any(root, name="clear10")
    assert as_literal(stream) == literal(root, train_folder)
    assert stream.class_names == ("bus", "camera", "sweater")
    assert stream.name == "clear10"
    assert stream.warnings == ()
    assert [(len(b.train), len(b.test)) for b in stream.buckets] == [(9, 6), (9, 6)]
    assert not stream.buckets[0].train.labels.flags.writeable


def test_buckets_are_matched_by_key_and_ordered_as_numbers(tmp_path):
    """An extra test bucket 0 shifts nothing, and bucket 10 comes after bucket 9."""
    root = write_released(
        tmp_path,
        buckets=("10", "2", "9", "1"),
        test_buckets=("0", "1", "10", "2", "9"),
        classes=("bus",),
        train=1,
        test=1,
    )
    stream = read_any(root, name="clear10")
    assert [bucket.key for bucket in stream.buckets] == ["1", "2", "9", "10"]
    for bucket in stream.buckets:
        for images in (bucket.train, bucket.test):
            assert [path.parent.parent.name for path in images.paths] == [bucket.key]


def test_an_ignored_test_bucket_is_not_even_read(tmp_path):
    """Damage in a test bucket that the stream does not have stops nothing."""
    root = write_released(tmp_path, buckets=("1",), test_buckets=("0", "1"))
    shutil.rmtree(root / "test/labeled_metadata/0")
    assert [bucket.key for bucket in read_any(root, name="clear10").buckets] == ["1"]


def test_root_may_be_a_link_and_links_may_stay_inside(root, tmp_path):
    """Links are followed as long as they stay below the data root."""
    image = root / "train/labeled_images/1/bus/235821044.jpg"
    image.rename(root / "moved.jpg")
    image.symlink_to(root / "moved.jpg")
    (tmp_path / "link").symlink_to(root)
    assert as_literal(read_any(tmp_path / "link", name="x")) == literal(root)


def test_digest_is_of_the_content_alone(whole, tmp_path):
    """Other file names, folders and JSON orders give the same digest."""
    other = tmp_path / "other"
    for folder, new_folder in (("train", "train_image_only"), ("test", "test")):
        for key, class_files in read_json(whole / folder / "labeled_metadata.json").items():
            for class_name, file in class_files.items():
                entries = {}
                for number, entry in enumerate(read_json(whole / folder / file).values()):
                    path = f"labeled_images/{key} of mine/{class_name[::-1]}/{9 - number}.jpeg"
                    (other / new_folder / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(whole / folder / entry["IMG_PATH"], other / new_folder / path)
                    entries[str(9 - number)] = {"IMG_PATH": path}
                write_json(other / new_folder / file, entries)
        metadata = read_json(whole / folder / "labeled_metadata.json")
        write_json(other / new_folder / "labeled_metadata.json", dict(reversed(metadata.items())))
        shutil.copy(whole / folder / "class_names.txt", other / new_folder / "class_names.txt")
    one, two = read_any(whole, name="a"), read_any(other, name="b")
    assert one.digest == two.digest
    assert one.digest.startswith("sha256:")
    assert len(one.digest) == 7 + 64


def test_digest_equals_its_definition(whole):
    """The digest is the hash of the sorted (split, bucket, class, content) lines."""
    stream = read_any(whole, name="x")
    lines = [
        "\0".join([split, key, class_name, hashlib.sha256(Path(path).read_bytes()).hexdigest()])
        for key, splits in literal(whole).items()
        for split, listed in splits.items()
        for class_name, path in listed
    ]
    expected = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    assert stream.digest == f"sha256:{expected}"


@pytest.mark.parametrize(
    "change",
    [
        lambda root: write_image(root / "train/labeled_images/2/bus/235821044.jpg", seed="new"),
        lambda root: _swap(root / FIRST, root / "train/labeled_images/2/bus/235821044.jpg"),
        lambda root: _swap(root / FIRST, root / "train/labeled_images/1/camera/235821044.jpg"),
        lambda root: _swap(root / FIRST, root / "test/labeled_images/1/bus/235821044.jpg"),
        lambda root: _drop_image(root / "train/labeled_metadata/1/bus.json"),
    ],
    ids=["pixels", "bucket", "class", "split", "one image less"],
)
def test_digest_sees_every_change_of_content(whole, root, change):
    """An image changed, moved to another bucket, class or split, or left out: another digest."""
    change(root)
    assert read_any(root, name="x").digest != read_any(whole, name="x").digest


def _swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _drop_image(path: Path) -> None:
    entries = read_json(path)
    entries.pop(next(iter(entries)))
    write_json(path, entries)


BUS = "train/labeled_metadata/1/bus.json"
FIRST = "train/labeled_images/1/bus/235821044.jpg"
FOLDER = "train/labeled_images/1/bus"
METADATA = "train/labeled_metadata.json"
TESTS = "test/labeled_metadata.json"
CLASSES = "train/class_names.txt"


def _edit(relative: str, edit: Callable[[dict], object]) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        value = read_json(root / relative)
        edit(value)
        write_json(root / relative, value)

    return damage


def _write(relative: str, content: str | bytes) -> Callable[[Path], object]:
    raw = content.encode() if isinstance(content, str) else content
    return lambda root: (root / relative).write_bytes(raw)


def _link_out(relative: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        (root / relative).rename(root.parent / "outside")
        (root / relative).symlink_to(root.parent / "outside")

    return damage


# What is done to the training metadata, to the path of its first image, or written to a file.
EDITS: dict[str, Callable[[dict], object]] = {
    "class without images": lambda m: m["2"].pop("camera"),
    "class that nobody names": lambda m: m["2"].update(zebra=BUS),
    "two classes, one file": lambda m: m["1"].update(camera="labeled_metadata/1/bus.json"),
    "empty bucket": lambda m: m.update({"2": {}}),
    "bucket is a list": lambda m: m.update({"2": ["bus"]}),
    "class file climbs": lambda m: m["1"].update(bus="labeled_metadata/../../x.json"),
    "bucket key is a word": lambda m: m.update(today=m.pop("1")),
    "bucket key is absurd": lambda m: m.update({"9" * 5000: m.pop("1")}),
    "one bucket key, two spellings": lambda m: m.update({"01": m["1"]}),
}
PATHS: dict[str, object] = {
    "path is a number": 5,
    "path is absolute": "/etc/passwd",
    "path climbs": "labeled_images/../../../secret.jpg",
    "path in another folder": "class_names.txt",
    "path with NUL": "labeled_images/1/bus/\0.jpg",
}
WRITTEN: dict[str, tuple[str, str | bytes]] = {
    "empty class list": (CLASSES, ""),
    "class list not sorted": (CLASSES, "camera\nbus\nsweater\n"),
    "empty class name": (CLASSES, "bus\n\ncamera\nsweater\n"),
    "class list not text": (CLASSES, b"\xff\xfe"),
    "class lists differ": ("test/class_names.txt", "bus\ncamera\nzebra\n"),
    "class with an empty file": (BUS, "{}"),
    "empty metadata": (METADATA, "{}"),
    "metadata is a list": (METADATA, "[1]"),
    "image is a number": (BUS, '{"1": 1e999}'),
    "image without path": (BUS, '{"1": {"ID": "1", "EXT": "jpg"}}'),
    "image empty": (FIRST, b""),
}
DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    **{kind: (METADATA, _edit(METADATA, edit)) for kind, edit in EDITS.items()},
    **{
        kind: (BUS, _edit(BUS, lambda m, path=path: m["235821044"].update(IMG_PATH=path)))
        for kind, path in PATHS.items()
    },
    **{kind: (file, _write(file, content)) for kind, (file, content) in WRITTEN.items()},
    "no test folder": ("test is missing", lambda root: shutil.rmtree(root / "test")),
    "no train folder": ("train", lambda root: shutil.rmtree(root / "train")),
    "no class list": (CLASSES, lambda root: (root / CLASSES).unlink()),
    "no metadata": (METADATA, lambda root: (root / METADATA).unlink()),
    "metadata is a folder": (
        METADATA,
        lambda root: ((root / METADATA).unlink(), (root / METADATA).mkdir()),
    ),
    "class file missing": (BUS, lambda root: (root / BUS).unlink()),
    "train bucket without test bucket": (TESTS, _edit(TESTS, lambda m: m.pop("3"))),
    "truncated JSON": (BUS, lambda root: os.truncate(root / BUS, (root / BUS).stat().st_size - 9)),
    "path too long": (
        "labeled_images",
        _edit(BUS, lambda m: m["235821044"].update(IMG_PATH="labeled_images/" + "x" * 5000)),
    ),
    "path to a folder": (
        "labeled_images/1/bus",
        _edit(BUS, lambda m: m["235821044"].update(IMG_PATH="labeled_images/1/bus")),
    ),
    "image missing": (FIRST, lambda root: (root / FIRST).unlink()),
    "image is a pipe": (FIRST, lambda root: ((root / FIRST).unlink(), os.mkfifo(root / FIRST))),
    "image folder missing": (FOLDER, lambda root: shutil.rmtree(root / FOLDER)),
    "image links to itself": (
        FIRST,
        lambda root: ((root / FIRST).unlink(), (root / FIRST).symlink_to(root / FIRST)),
    ),
    **{f"{file} links out": (file, _link_out(file)) for file in (FIRST, FOLDER, METADATA, "test")},
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_in_one_line_that_names_the_file(root, kind):
    """Whatever is wrong, the message is one line and leads to the place."""
    named, damage = DAMAGE[kind]
    damage(root)
    message = refusal(root)
    assert str(root) in message
    assert named in message


def _prefix(relative: str, entry: str) -> Callable[[Path], None]:
    """Put one more entry at the start of a JSON object, as text."""

    def damage(root: Path) -> None:
        text = (root / relative).read_text()
        (root / relative).write_text("{" + entry + ", " + text[1:])

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_prefix(METADATA, '"1": {}'), "has the field '1' twice"),
        (_prefix(METADATA, '"01": {}'), "which are one number"),
        (_prefix(BUS, '"rating": {"LIKES": NaN}'), "holds NaN, which is no JSON number"),
        (DAMAGE["image is a pipe"][1], "is not a plain file"),
        (DAMAGE[f"{FIRST} links out"][1], "is a link that leads out of"),
        (DAMAGE["class without images"][1], "names class 'camera'"),
        (DAMAGE["train bucket without test bucket"][1], "has no bucket '3'"),
    ],
)
def test_the_message_says_what_is_wrong(root, damage, words):
    """What would pass if it were not looked for is named for what it is."""
    damage(root)
    assert words in refusal(root)


def test_order_of_images_does_not_follow_the_order_of_the_json(root, whole):
    """Images come in the order of their ids, whatever the order in the file."""
    write_json(root / BUS, dict(reversed(read_json(root / BUS).items())))
    paths = read_any(root, name="x").buckets[0].train.paths
    expected = read_any(whole, name="x").buckets[0].train.paths
    assert [p.relative_to(root) for p in paths] == [p.relative_to(whole) for p in expected]


def test_oversized_metadata_is_refused_before_it_is_read(root):
    """A metadata file of absurd size (sparse here) costs no memory."""
    os.truncate(root / BUS, MAX_METADATA_BYTES + 1)
    message = refusal(root)
    assert str(root / BUS) in message
    assert "268435456 at most" in message


def test_a_root_that_is_no_dataset_says_what_was_expected_and_what_found(tmp_path):
    """Missing, empty, a file, or of another layout: each has its own words."""
    assert "No such file" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "found nothing" in refusal(tmp_path / "empty")
    (tmp_path / "clear10.zip").write_bytes(b"PK")
    assert "Not a directory" in refusal(tmp_path / "clear10.zip")
    (tmp_path / "other/images").mkdir(parents=True)
    message = refusal(tmp_path / "other")
    assert "class_names.txt" in message
    assert "training_folder" in message
    assert "<bucket>/<class>/<id>.jpg" in message
    assert "found 'images'" in message
    assert str(tmp_path / "other") in message


def test_a_root_that_no_path_can_be_is_refused(tmp_path):
    """A NUL in the data root ends in a message, not in a traceback."""
    assert "cannot be read" in refusal(tmp_path / "a\0b")


def test_a_test_set_that_is_a_copy_of_training_images_is_refused(root):
    """Renamed copies are found too, for content is compared and not names."""
    for class_name in ("bus", "camera", "sweater"):
        for number in range(2):
            shutil.copy(
                root / f"train/labeled_images/2/{class_name}/{235821044 + number}.jpg",
                root / f"test/labeled_images/3/{class_name}/{235821044 + number}.jpg",
            )
    assert "bucket 2's train images and bucket 3's test images share 6 of 6" in refusal(root)


def test_a_few_shared_images_are_told_and_not_refused(root):
    """Real collections have a few photos twice; their number and the first two are told."""
    first, second = "train/labeled_images/1/bus", "train/labeled_images/2/bus"
    shutil.copy(root / first / "235821044.jpg", root / second / "235821044.jpg")
    shutil.copy(root / first / "235821045.jpg", root / "test/labeled_images/3/bus/235821044.jpg")
    shutil.copy(
        root / first / "235821046.jpg", root / "train/labeled_images/1/camera/235821044.jpg"
    )
    warnings = read_any(root, name="x").warnings
    assert warnings == (
        f"1 image is in both a training and a test set; the first is "
        f"{root / first / '235821045.jpg'} and {root / 'test/labeled_images/3/bus/235821044.jpg'}",
        f"1 image is in more than one bucket of one split; the first is "
        f"{root / first / '235821044.jpg'} and {root / second / '235821044.jpg'}",
        f"1 image is under more than one class; the first is "
        f"{root / first / '235821046.jpg'} and "
        f"{root / 'train/labeled_images/1/camera/235821044.jpg'}",
    )


def test_half_is_still_told_and_one_more_is_refused(root):
    """The boundary between a warning and an error is half of the smaller set."""
    train, test = root / "train/labeled_images/1", root / "test/labeled_images/1"
    for class_name in ("bus", "camera", "sweater"):
        shutil.copy(train / class_name / "235821044.jpg", test / class_name / "235821044.jpg")
    assert len(read_any(root, name="x").warnings) == 1
    shutil.copy(train / "bus/235821045.jpg", test / "bus/235821045.jpg")
    assert "share 4 of 6 images" in refusal(root)


def test_copies_within_one_bucket_split_and_class_are_let_be(root):
    """The same photo twice under one class of one bucket leaks nothing."""
    folder = root / "train/labeled_images/1/bus"
    shutil.copy(folder / "235821044.jpg", folder / "235821045.jpg")
    assert read_any(root, name="x").warnings == ()


def test_a_message_stays_one_line_whatever_the_root_is_called(tmp_path):
    """A line break in a folder's name is escaped."""
    root = write_released(tmp_path / "two\nlines", buckets=("1",))
    (root / FIRST).unlink()
    assert "two\\nlines" in refusal(root)
