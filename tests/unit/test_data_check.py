"""Checking datasets: valid ones have no problems, and each problem is reported once."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from layout_trees import LAYOUTS, Photos, list_buckets
from one_line_errors import check_error
from PIL import Image
from released_layout import read_json, write_image, write_json, write_released

from clear_mlflow.cli import main
from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import MAX_IMAGE_BYTES
from clear_mlflow.data import check, load_stream
from clear_mlflow.data.check import PROBLEM_TYPES, Findings, check_dataset
from clear_mlflow.data.decode import DecodedCache, Resize, decode_file, drop_undecodable
from clear_mlflow.learning.parameters.recipes import RECIPES

IMAGES = "train/labeled_images"
PHOTOS = Photos(buckets=("1", "2"), train=10)


@pytest.fixture(scope="session")
def intact_tree(tmp_path_factory) -> Path:
    return write_released(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def root(intact_tree, tmp_path) -> Path:
    return Path(shutil.copytree(intact_tree, tmp_path / "root"))


def list_problems(findings: Findings) -> list[tuple[str, str]]:
    return [(p.type, str(p.path.relative_to(findings.root))) for p in findings.problems]


def test_a_valid_dataset_has_no_problems(root, tmp_path):
    findings = check_dataset(str(root))
    assert findings.problems == ()
    assert findings.layout == "released"
    assert findings.digest == load_stream("x", str(root), cache_dir=tmp_path).dataset.digest
    assert findings.buckets == ("1", "2", "3")
    assert findings.class_names == ("bus", "camera", "sweater")
    numbers = {(split, number) for (split, _, _), number in findings.counts.items()}
    assert numbers == {("train", 3), ("test", 2)}
    assert len(findings.counts) == 2 * 3 * 3


@pytest.mark.parametrize("layout", ["older", "challenge"])
def test_the_layouts_of_one_tree(tmp_path, layout):
    LAYOUTS[layout](tmp_path / "clear10_neurips2021", PHOTOS)
    findings = check_dataset(str(tmp_path))
    assert list_problems(findings) == []
    assert findings.layout == layout
    assert findings.digest is not None
    counts = [(split, bucket, n) for (split, bucket, _), n in findings.counts.items()]
    assert counts == [("all", bucket, 10) for bucket in "1122"]


def copy(root: Path, source: str, target: str) -> None:
    shutil.copyfile(root / source, root / target)


def edit(path: Path, change) -> None:
    value = read_json(path)
    change(value)
    write_json(path, value)


def empty_class(root: Path) -> None:
    edit(root / "train/labeled_metadata.json", lambda buckets: buckets["2"].pop("bus"))
    shutil.rmtree(root / IMAGES / "2/bus")


FIRST = f"{IMAGES}/1/bus/235821044.jpg"
COPY = [("duplicate", FIRST)]
UNREADABLE = [("unreadable", FIRST)]
DAMAGES = [
    # What is done, what is found, and whether the loader can still read it.
    (lambda r: (r / FIRST).unlink(), [("missing", FIRST)], False),
    (lambda r: (r / FIRST).write_bytes(b""), UNREADABLE, False),
    (lambda r: (r / FIRST).write_bytes(b"GIF89a"), UNREADABLE, True),
    (lambda r: os.truncate(r / FIRST, (r / FIRST).stat().st_size - 20), UNREADABLE, True),
    (lambda r: copy(r, f"{IMAGES}/1/bus/235821045.jpg", FIRST), COPY, True),
    (lambda r: copy(r, f"{IMAGES}/1/camera/235821045.jpg", FIRST), COPY, True),
    (lambda r: copy(r, f"{IMAGES}/3/bus/235821045.jpg", FIRST), COPY, True),
    (lambda r: copy(r, "test/labeled_images/2/bus/235821045.jpg", FIRST), COPY, True),
    (empty_class, [("empty-class", ".")], False),
    (lambda r: shutil.rmtree(r / "test"), [("structure", ".")], False),
]


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize(("damage", "problems", "loads"), DAMAGES)
def test_each_problem_is_reported_once(root, damage, problems, loads):
    damage(root)
    findings = check_dataset(str(root))
    assert list_problems(findings) == problems
    assert (findings.digest is not None) == loads


@pytest.mark.parametrize("mode", ["grey", "colour"])
def test_twelve_bits_stored_in_sixteen_are_reported_by_bucket(tmp_path, mode):
    """As near black, since the pixels cannot prove it; other buckets are not reported."""
    draws = np.random.default_rng(0)
    for bucket, most in (("2004", 4096), ("2005", 65536)):
        for class_name in ("bus", "cab"):
            folder = tmp_path / bucket / class_name
            folder.mkdir(parents=True)
            for number in range(4):
                pixels = draws.integers(most // 2, most, (12, 12))
                if mode == "grey":
                    Image.fromarray(pixels.astype(np.uint16)).save(folder / f"{number}.png")
                else:  # Pillow keeps the upper half of 16-bit colours
                    colour = np.repeat(pixels[:, :, None] >> 8, 3, axis=2).astype(np.uint8)
                    Image.fromarray(colour).save(folder / f"{number}.png")
    (problem,) = check_dataset(str(tmp_path), "folder", cache_dir=tmp_path).problems
    assert problem.type == "dark"
    assert re.fullmatch(r"all images of bucket 2004 are dark \(1\d of 255\); .*", problem.detail)


@pytest.mark.parametrize(
    ("file", "content"),
    [("class_names.txt", "camera\nbus\nsweater\n"), ("labeled_metadata/3/bus.json", '{"1": ')],
)
def test_lists_that_cannot_be_read_are_an_error(root, file, content):
    (root / "train" / file).write_text(content)
    check_error(DataError, str(root / "train" / file), check_dataset, str(root))


def test_the_check_continues_after_the_first_problem(root):
    for number in (4, 5):
        (root / IMAGES / f"1/bus/23582104{number}.jpg").unlink()
    (root / IMAGES / "2/bus/235821044.jpg").write_bytes(b"no image")
    tested = "test/labeled_images/1/bus/235821044.jpg"
    for bucket in "23":
        copy(root, tested, f"{IMAGES}/{bucket}/bus/235821045.jpg")
    (root / "test/labeled_metadata/3/camera.json").write_text("[]")
    findings = check_dataset(str(root))
    assert list_problems(findings) == [
        ("structure", "."),
        ("missing", f"{IMAGES}/1/bus/235821044.jpg"),
        ("missing", f"{IMAGES}/1/bus/235821045.jpg"),
        ("unreadable", f"{IMAGES}/2/bus/235821044.jpg"),
        ("duplicate", f"{IMAGES}/2/bus/235821045.jpg"),
    ]
    (double,) = (p for p in findings.problems if p.type == "duplicate")
    (other,) = double.others
    assert str(other.relative_to(findings.root)) == f"{IMAGES}/3/bus/235821045.jpg"


def test_a_link_out_of_the_dataset_is_not_followed(root, tmp_path):
    write_image(tmp_path / "elsewhere/1.jpg", seed="elsewhere")
    (root / FIRST).unlink()
    (root / FIRST).symlink_to(tmp_path / "elsewhere/1.jpg")
    findings = check_dataset(str(root))
    assert list_problems(findings) == [("unreadable", FIRST)]
    assert "leads out of" in findings.problems[0].detail
    shutil.rmtree(root / IMAGES / "2/bus")
    (root / IMAGES / "2/bus").symlink_to(tmp_path / "elsewhere")
    check_error(DataError, "leads out of", check_dataset, str(root))


def test_older_lists_are_compared_with_the_images(tmp_path):
    root = LAYOUTS["older"](tmp_path / "root", PHOTOS)
    missing = PHOTOS.of("train", "1")[3].path
    (root / missing).unlink()
    assert list_problems(check_dataset(str(root))) == [("missing", missing)]
    with (root / "training_folder/filelists/2/all.txt").open("a") as lines:
        lines.write("labeled_images/2/bus/11.jpg seven\n")
    with pytest.raises(DataError, match=r"all\.txt line 21 is"):
        check_dataset(str(root))


@pytest.mark.parametrize("layout", ["older", "challenge"])
def test_hidden_entries_are_ignored(tmp_path, layout):
    root = LAYOUTS[layout](tmp_path / "root", PHOTOS)
    result = check_dataset(str(root))
    for folder in ("labeled_images", "labeled_images/1", "labeled_images/1/bus"):
        (root / folder / ".DS_Store").write_text("x")
        (root / folder / ".ipynb_checkpoints").mkdir()
    if layout == "older":
        (root / "training_folder/filelists/.ipynb_checkpoints").mkdir()
    assert check_dataset(str(root)) == result


@pytest.mark.parametrize("size", [0, MAX_IMAGE_BYTES + 1, 2**40])
def test_a_file_of_no_images_size_is_not_read(root, tmp_path, size):
    """A sparse file would take long to hash. The check and the loader print the same."""
    os.truncate(root / FIRST, size)
    (problem,) = check_dataset(str(root)).problems
    assert (problem.type, problem.path) == ("unreadable", root / FIRST)
    assert f"has {size} bytes" in problem.detail
    error = check_error(DataError, FIRST, load_stream, "x", str(root), cache_dir=tmp_path)
    assert error == f"{root / FIRST} {problem.detail}"


@pytest.mark.parametrize("size", [(1, 2000), (2000, 1), (3, 5500)])
def test_a_shape_that_training_refuses_is_reported(root, tmp_path, size):
    """Scaled to image_size=224, it would have more pixels than are allowed."""
    Image.new("RGB", size).save(root / FIRST)
    (problem,) = check_dataset(str(root)).problems
    assert (problem.type, problem.path) == ("unreadable", root / FIRST)
    width, height = (224 * side // min(size) for side in size)
    detail = f"it has {size[0]} x {size[1]} pixels; scaled to a shorter side of 224, it would have"
    assert f"{detail} {width} x {height}, over 89,000,000 in all" in problem.detail
    stream = load_stream("x", str(root), cache_dir=tmp_path)
    resize = Resize(int(RECIPES["clear10"]["image_size"]))
    with pytest.raises(DataError, match=re.escape(problem.detail)):
        drop_undecodable(stream, cache=DecodedCache(None), resize=resize, damaged="stop")


@pytest.mark.parametrize("content", [b"<html>", None])
def test_hash_and_pixels_are_those_of_one_reading(root, tmp_path, monkeypatch, content):
    """A file is changed after it was decoded, into something else or a copy of another image."""
    digest = load_stream("x", str(root), cache_dir=tmp_path).dataset.digest

    def decode_then_change(file, *arguments):
        decoded = decode_file(file, *arguments)
        if Path(file) == root / FIRST:
            copied = (root / IMAGES / "1/bus/235821045.jpg").read_bytes()
            Path(file).write_bytes(copied if content is None else content)
        return decoded

    monkeypatch.setattr(check, "decode_file", decode_then_change)
    findings = check_dataset(str(root))
    assert (findings.digest, findings.problems) == (digest, ())


@pytest.mark.parametrize("make", [None, "folder", "file"])
def test_a_folder_without_a_dataset_is_an_error(tmp_path, make):
    root = tmp_path / "root"
    if make == "folder":
        root.mkdir()
    if make == "file":
        root.write_text("")
    done = CliRunner().invoke(main, ["data", "check", str(root)])
    assert done.exit_code == 2
    assert re.fullmatch(rf"error: [^\n]*{root}[^\n]+\n", done.stderr)


def test_json_follows_its_documentation(root, project):
    done = CliRunner().invoke(main, ["data", "check", str(root), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["problems"] == []
    (root / FIRST).unlink()
    done = CliRunner().invoke(main, ["data", "check", str(root), "--json"])
    assert done.exit_code == 1
    value = json.loads(done.stdout)
    assert value == check_dataset(str(root)).as_json()
    detail = "is missing; expected every listed image"
    problem = {"kind": "missing", "path": str(root / FIRST), "detail": detail, "others": []}
    assert value["problems"] == [problem]
    assert (value["loads"], value["digest"], value["images"]) == (False, None, 44)
    text = (project / "docs" / "data-commands.md").read_text(encoding="utf-8")
    assert {*value, *PROBLEM_TYPES} <= set(re.findall("`([a-z_-]+)`", text))


@pytest.mark.parametrize(("seconds", "lines"), [(0, ["40%", "80%", "100%"]), (1000, [])])
def test_a_log_file_gets_lines_of_progress(tmp_path, monkeypatch, seconds, lines):
    """One a minute: a check of CLEAR takes several."""
    monkeypatch.setattr("clear_mlflow.learning.progress._SECONDS_BETWEEN_LINES", seconds)
    root = LAYOUTS["challenge"](tmp_path / "root", PHOTOS)
    done = CliRunner().invoke(main, ["data", "check", str(root)])
    expected = ["decoding images", *(f"decoding images: {line}" for line in lines)]
    assert done.stderr.splitlines() == expected


def test_names_are_shown_escaped(tmp_path):
    root = LAYOUTS["challenge"](tmp_path / "root", PHOTOS)
    (root / "labeled_images/1/bus/\x1b[2J\nnothing is wrong [bold].txt").write_text("")
    done = CliRunner().invoke(main, ["data", "check", str(root)])
    assert done.exit_code == 1
    assert "\x1b" not in done.stdout
    assert r"\x1b[2J\nnothing is wrong [bold].txt: " in done.stdout
    assert "\n1 problem\n" in done.stdout


def test_a_leak_is_reported_if_only_the_loader_knows_the_test_set(tmp_path):
    """The split decides whether a copy within a class is a leak."""
    root = LAYOUTS["challenge"](tmp_path / "root", PHOTOS)
    bucket = list_buckets(load_stream("x", str(root), cache_dir=tmp_path))[0]
    source = next(p for p in bucket.test.paths if p.parent.name == "bus")
    target = next(p for p in bucket.train.paths if p.parent.name == "bus")
    shutil.copyfile(source, target)
    (problem,) = check_dataset(str(root)).problems
    assert problem.type == "duplicate"
    assert problem.detail == "2 copies of one image, in both a training and a test set"
