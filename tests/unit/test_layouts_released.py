"""Reading CLEAR's released layout."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from layout_trees import list_buckets
from one_line_errors import check_error
from released_layout import read_any, read_json, write_image, write_json, write_released

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import MAX_METADATA_BYTES
from clear_mlflow.data import load_stream
from clear_mlflow.data.stream import BucketStream


@pytest.fixture(scope="module")
def intact_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_released(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def root(intact_tree: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact_tree, tmp_path / "clear"))


def refusal(root: Path) -> str:
    return check_error(DataError, "", load_stream, "clear10", str(root), cache_dir=root / "unused")


def literal(root: Path, train_folder: str = "train") -> dict[str, dict[str, list[tuple[str, str]]]]:
    """Read the JSON in a simple way: bucket -> split -> (class, path)."""
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
                (stream.dataset.class_names[label], str(path))
                for label, path in zip(images.labels, images.paths, strict=True)
            ]
            for split, images in (("train", bucket.train), ("test", bucket.test))
        }
        for bucket in list_buckets(stream)
    }


@pytest.mark.parametrize(
    ("train_folder", "final_newline", "extension"),
    [("train", True, "jpg"), ("train_image_only", False, "png")],
)
def test_reads_what_the_metadata_lists(tmp_path, train_folder, final_newline, extension):
    options = {"final_newline": final_newline, "extension": extension, "buckets": ("1", "2")}
    root = write_released(tmp_path, train_folder=train_folder, **options)
    stream = read_any(root, name="clear10")
    assert as_literal(stream) == literal(root, train_folder)
    assert stream.dataset.class_names == ("bus", "camera", "sweater")
    assert stream.dataset.name == "clear10"
    assert stream.dataset.warnings == ()
    assert [
        (len(train), len(test)) for train, test in zip(stream.train, stream.test, strict=True)
    ] == [(9, 6), (9, 6)]
    assert not stream.train[0].labels.flags.writeable


def test_the_root_and_files_within_it_may_be_links(root, tmp_path):
    image = root / "train/labeled_images/1/bus/235821044.jpg"
    image.rename(root / "moved.jpg")
    image.symlink_to(root / "moved.jpg")
    (tmp_path / "link").symlink_to(root)
    assert as_literal(read_any(tmp_path / "link", name="x")) == literal(root)


def test_digest_equals_its_definition(intact_tree):
    stream = read_any(intact_tree, name="x")
    lines = [
        "\0".join([split, key, class_name, hashlib.sha256(Path(path).read_bytes()).hexdigest()])
        for key, splits in literal(intact_tree).items()
        for split, listed in splits.items()
        for class_name, path in listed
    ]
    expected = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    assert stream.dataset.digest == f"sha256:{expected}"


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
def test_every_change_of_content_changes_the_digest(intact_tree, root, change):
    change(root)
    assert read_any(root, name="x").dataset.digest != read_any(intact_tree, name="x").dataset.digest


def _swap(first: Path, other: Path) -> None:
    content = first.read_bytes()
    first.write_bytes(other.read_bytes())
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


def _prefix(relative: str, entry: str) -> Callable[[Path], object]:
    return lambda root: (root / relative).write_text(
        "{" + entry + ", " + (root / relative).read_text()[1:]
    )


def _path(path: object) -> Callable[[Path], None]:
    return _edit(BUS, lambda entries: entries["235821044"].update(IMG_PATH=path))


@pytest.mark.parametrize(
    ("damage", "damaged_name", "words"),
    [
        (_prefix(METADATA, '"1": {}'), METADATA, "has the field '1' twice"),
        (_edit(METADATA, lambda m: m.update({"01": {}})), METADATA, "contains an empty object"),
        (_prefix(BUS, '"rating": {"LIKES": NaN}'), BUS, "contains NaN, which is not a JSON number"),
        (_edit(METADATA, lambda m: m["2"].pop("camera")), "", "no images of class 'camera'"),
        (_edit(METADATA, lambda m: m["2"].update(zebra=m["2"]["bus"])), "", "under class 'zebra'"),
        (_edit(METADATA, lambda m: m["1"].update(camera=m["1"]["bus"])), FOLDER, "class 'camera'"),
        (_edit(METADATA, lambda m: m.update(today=m.pop("1"))), FOLDER, "under bucket today"),
        (_edit(TESTS, lambda m: m.pop("3")), TESTS, "contains no test set of bucket '3'"),
        (_path(5), BUS, "names the path 5"),
        (_path("/etc/passwd"), BUS, "expected a relative path"),
        (_path("labeled_images/../../../secret.jpg"), BUS, "no '..'"),
        (_path("class_names.txt"), BUS, "starts with labeled_images/"),
        (_write(BUS, '{"1": {"ID": "1", "EXT": "jpg"}}'), BUS, "with IMG_PATH"),
        (_write(CLASSES, "camera\nbus\nsweater\n"), CLASSES, "expected names sorted"),
        (_write("test/class_names.txt", "bus\ncamera\nzebra\n"), "test/class_names.txt", "differ"),
        (_write(FIRST, b""), FIRST, "has 0 bytes"),
        (lambda root: shutil.rmtree(root / "test"), "test", "is missing"),
        (lambda root: shutil.rmtree(root / "train"), "", "contains no folder train"),
        (lambda r: ((r / FIRST).unlink(), os.mkfifo(r / FIRST)), FIRST, "is not a plain file"),
        (_link_out(FIRST), FIRST, "is a link that leads out of"),
        (_link_out(FOLDER), FOLDER, "is a link that leads out of"),
        (_link_out("test"), "test", "is a link that leads out of"),
    ],
)
def test_damage_is_a_one_line_error_with_path_and_reason(root, damage, damaged_name, words):
    damage(root)
    message = refusal(root)
    assert str(root / damaged_name) in message
    assert words in message


def test_a_class_file_in_another_folder_is_rejected(root):
    listed = read_json(root / "train" / "labeled_metadata.json")
    stored = listed["1"]["bus"]
    listed["1"]["bus"] = "labeled_images/1/bus/bus.json"
    shutil.copy(root / "train" / stored, root / "train" / listed["1"]["bus"])
    write_json(root / "train" / "labeled_metadata.json", listed)
    message = refusal(root)
    assert "names the path 'labeled_images/1/bus/bus.json'" in message
    assert "starts with labeled_metadata/" in message


def test_oversized_metadata_is_rejected_before_it_is_read(root):
    os.truncate(root / BUS, MAX_METADATA_BYTES + 1)
    message = refusal(root)
    assert str(root / BUS) in message
    assert "268435456 at most" in message


def test_an_unknown_layout_is_an_error_with_the_expected_ones(tmp_path):
    assert "No such file" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "found nothing" in refusal(tmp_path / "empty")
    (tmp_path / "clear10.zip").write_bytes(b"PK")
    assert "Not a directory" in refusal(tmp_path / "clear10.zip")
    (tmp_path / "other/images").mkdir(parents=True)
    message = refusal(tmp_path / "other")
    layouts = ("class_names.txt", "training_folder", "<bucket>/<class>/<id>.jpg")
    for part in (*layouts, "found 'images'", str(tmp_path / "other")):
        assert part in message


def test_a_few_shared_images_are_a_warning(root):
    folder, name = "labeled_images", "235821044.jpg"
    expected = []
    for number, copy, problem in (
        (5, f"test/{folder}/3/bus/{name}", "in both a training and a test set"),
        (4, f"train/{folder}/2/bus/{name}", "in more than one bucket of one split"),
        (6, f"train/{folder}/1/camera/{name}", "under more than one class"),
    ):
        original = root / f"train/{folder}/1/bus/23582104{number}.jpg"
        shutil.copy(original, root / copy)
        expected += [f"1 image is {problem}, for example {original} and {root / copy}"]
    assert read_any(root, name="x").dataset.warnings == tuple(expected)


def test_more_than_half_shared_images_are_an_error(root):
    train, test = root / "train/labeled_images/1", root / "test/labeled_images/1"
    for class_name in ("bus", "camera", "sweater"):
        shutil.copy(train / class_name / "235821044.jpg", test / class_name / "235821044.jpg")
    assert len(read_any(root, name="x").dataset.warnings) == 1
    shutil.copy(train / "bus/235821045.jpg", test / "bus/235821045.jpg")
    assert "share 4 of 6 images" in refusal(root)


def test_copies_within_one_bucket_split_and_class_are_ignored(root):
    folder = root / "train/labeled_images/1/bus"
    shutil.copy(folder / "235821044.jpg", folder / "235821045.jpg")
    assert read_any(root, name="x").dataset.warnings == ()
