"""Custom streams in folders: buckets, classes, order and errors."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from layout_trees import list_buckets
from one_line_errors import check_error
from own_streams import CLASSES, YEARS, load_source, write_years

from clear_mlflow.cli import main
from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.predictions import EvaluationSet
from clear_mlflow.data.sources import DATASETS, SOURCES
from clear_mlflow.data.stream import build_evaluation_set, describe_stream
from clear_mlflow.learning.arguments import complete_dataset_arguments
from clear_mlflow.learning.parameters.config import TrainConfig

load = partial(load_source, "folder")


@pytest.fixture(scope="module")
def split_root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("streams") / "photos"
    write_years(root, train=10, test=2)
    return root


@pytest.fixture
def root(tmp_path) -> Path:
    write_years(tmp_path / "photos", train=4)
    return tmp_path / "photos"


def names(images) -> list[str]:
    return [path.stem for path in images.paths]


def test_folders_are_buckets_and_classes_in_train_and_test(split_root):
    stream = load(split_root)
    assert (stream.dataset.name, stream.dataset.division) == ("photos", "released")
    assert stream.layout == "folder"
    assert stream.dataset.source == str(split_root)
    assert (stream.dataset.class_names, stream.dataset.warnings) == (CLASSES, ())
    assert tuple(stream.dataset.buckets) == YEARS
    for bucket in list_buckets(stream):
        assert names(bucket.test) == [f"{bucket.key}-{c}-test-{i}" for c in CLASSES for i in (0, 1)]
        expected = [f"{bucket.key}-{c}-train-{i}" for c in CLASSES for i in range(10)]
        assert names(bucket.train) == expected
        assert bucket.train.labels.tolist() == [0] * 10 + [1] * 10


@pytest.mark.parametrize(
    ("keys", "times"),
    [
        (["1", "9", "10"], []),
        (["0001", "0002"], []),  # with leading zeros, they are not years
        (["2001", "2002"], ["2001-01-01", "2002-01-01"]),
        (["2003", "2004-09", "2004-10"], ["2003-01-01", "2004-09-01", "2004-10-01"]),
        (["2003-12-31", "2004-Q1", "2004-Q3"], ["2003-12-31", "2004-01-01", "2004-07-01"]),
    ],
)
def test_buckets_are_in_the_order_of_their_numbers_or_dates(tmp_path, keys, times):
    write_years(tmp_path / "photos", buckets=keys[::-1], train=4)
    stream = load(tmp_path / "photos")
    assert list(stream.dataset.buckets) == keys
    assert [*map(str, stream.dataset.times)] == times


def test_files_of_operating_systems_are_skipped(root):
    before = load(root)
    folder = root / YEARS[0] / CLASSES[0]
    for path in (folder / "Thumbs.db", folder / ".DS_Store", folder / "._1.jpg"):
        path.write_bytes(b"x")
    (folder.parent / "desktop.ini").write_bytes(b"x")
    after = load(root)
    assert after.dataset == before.dataset
    assert after.dataset.warnings == before.dataset.warnings


def test_bucket_names_without_an_order_need_one(tmp_path):
    write_years(tmp_path / "photos", buckets=("spring", "autumn"), train=4)
    check_error(DataError, "order=FIRST:SECOND", load, tmp_path / "photos")
    stream = load(tmp_path / "photos", order="spring:autumn")
    assert list(stream.dataset.buckets) == ["spring", "autumn"]
    for order, message in (
        ("spring:autumn:autum", "bucket 'autum' is not in the data"),
        ("spring", "bucket 'autumn' is only in the data"),
        ("spring:autumn:spring", "twice"),
    ):
        check_error(DataError, message, load, tmp_path / "photos", order=order)


def test_a_class_may_be_missing_in_a_bucket(root):
    shutil.rmtree(root / "2005" / "bus")
    stream = load(root)
    assert describe_stream(stream).absent_classes["train"] == {"2005": ["bus"]}
    assert stream.dataset.warnings == ()  # a training begins with it: there are scenarios


def test_a_photo_in_two_years_is_a_leak(root):
    copied = sorted((root / "2004" / "bus").iterdir())
    shutil.copy(copied[0], root / "2006" / "bus" / "again.png")
    assert "1 image is in" in " ".join(load(root, protocol="streaming").dataset.warnings)
    for name in CLASSES:
        for path in (root / "2004" / name).iterdir():
            shutil.copy(path, root / "2005" / name)
            (root / "2005" / name / path.name.replace("2004", "2005")).unlink()
    check_error(DataError, "share 8 of 8 images", load, root, protocol="streaming")


def break_one(split):
    def change(root):
        (root / split).parent.mkdir(parents=True, exist_ok=True)
        (root / split).write_text("x")

    return change


def link_out(path):
    def change(root):
        shutil.move(root / path, root.parent / "elsewhere")
        (root / path).symlink_to(root.parent / "elsewhere")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (break_one("photo.png"), "BUCKET/CLASS/photo.png"),
        (break_one("2004/photo.png"), "is in no class"),
        (break_one("2004/bus/notes.txt"), ""),  # found when it is decoded
        (lambda root: (root / "2004" / "cat").mkdir(), ""),  # no images, and so no class
        (lambda root: (root / "2007").mkdir(), "2007 contains no folders"),
        (break_one("2004.0/bus/a.png"), "'2004.0'"),
        (break_one("test/2004/bus/a.png"), "is next to it"),
        (break_one("2004-01/bus/a.png"), "begin on one day"),
        (lambda root: [shutil.rmtree(root / y / "bus") for y in YEARS], "has 1 class;"),
        (link_out("2005/bus"), "leads out of"),
        (link_out("2005/bus/2005-bus-train-0.png"), "leads out of"),
    ],
)
def test_an_invalid_folder_is_a_one_line_error(root, change, message):
    change(root)
    if message:
        assert str(root) in check_error(DataError, message, load, root)
    else:
        load(root)


def test_arguments_are_checked_and_the_name_is_the_folders():
    for dataset, folder, arguments, expected in (
        ("folder", "/data/yearbook", {"licence": "CC BY 4.0"}, ("yearbook", "CC BY 4.0", "none")),
        ("folder", "/data/yearbook", {"name": "faces"}, ("faces", "none", "none")),
        ("folder", "/data/a,b", {"name": "ab"}, ("ab", "none", "none")),
        ("digits", "auto", {}, ()),
    ):
        read_arguments = complete_dataset_arguments(dataset, folder, arguments)
        assert read_arguments == dict(zip(("name", "licence", "order"), expected, strict=False))
    for dataset, folder, arguments, message in (
        ("folder", "/data", {"buckets": "year"}, "expected name, licence, order"),
        ("digits", "auto", {"name": "mine"}, "dataset digits; expected none"),
        ("folder", "/data", {"name": "a\tb"}, "printable"),
        ("folder", "/data/a,b", {}, "without commas"),
    ):
        check_error(ConfigError, message, complete_dataset_arguments, dataset, folder, arguments)


def test_a_stream_has_the_recipe_of_photographs_and_a_name():
    config = TrainConfig.resolve({"dataset": "folder", "data_root": "/data/yearbook"})
    assert (config.model, config.image_size, config.memory) == ("resnet18", 224, 0.1)
    assert config.stream_name == "yearbook"
    assert set(SOURCES) <= set(DATASETS)
    with pytest.raises(ConfigError, match=r"one of digits, .* package\.module:function"):
        TrainConfig.resolve({"dataset": "foldr"})


def check(*arguments):
    return CliRunner().invoke(main, ["data", "check", *map(str, arguments)])


def test_data_check_checks_a_folder(root):
    done = check(root, "--dataset", "folder", "--json")
    report = json.loads(done.stdout)
    assert (done.exit_code, report["problems"], report["layout"]) == (0, [], "folder")
    assert report["digest"] == load(root).dataset.digest
    assert (report["images"], report["buckets"]) == (24, list(YEARS))

    (root / "2004" / "bus" / "2004-bus-train-0.png").write_bytes(b"no image")
    shutil.rmtree(root / "2005" / "camera")
    shutil.copy(root / "2006" / "bus" / "2006-bus-train-1.png", root / "2005" / "bus" / "x.png")
    done = check(root, "--dataset", "folder", "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 1
    kinds = [problem["kind"] for problem in report["problems"]]
    assert kinds == ["unreadable", "empty-class", "duplicate"]
    assert report["problems"][0]["path"].endswith("2004-bus-train-0.png")


def test_data_check_lists_all_files_other_than_images(root):
    for year in ("2004", "2006"):
        (root / year / "bus" / "notes.txt").write_text("x")
    problems = json.loads(check(root, "--dataset", "folder", "--json").stdout)["problems"]
    assert [(p["kind"], str(Path(p["path"]).relative_to(root))) for p in problems] == [
        ("unreadable", "2004/bus/notes.txt"),
        ("unreadable", "2006/bus/notes.txt"),
    ]


def test_data_check_rejects_anything_but_a_custom_stream(root):
    for arguments, message in (
        ([root, "--dataset", "digits"], "a custom stream"),
        (["--dataset", "folder"], "expected DIR"),
        ([root, "--dataset", "folder", "--dataset-args", "nope=1"], "not an argument of dataset"),
        ([root.parent / "no", "--dataset", "folder"], "cannot be read"),
    ):
        done = check(*arguments)
        assert done.exit_code == 2
        assert message in done.output


def test_names_with_control_characters_are_escaped(root):
    bus = root / "2004" / "bus"
    (bus / "2004-bus-train-0.png").rename(bus / "a\nb.png")
    (bus / "2004-bus-train-1.png").rename(Path(os.fsdecode(bytes(bus) + b"/a\xffb.png")))
    assert check(root, "--dataset", "folder").exit_code == 0
    for options in ({"protocol": "streaming"}, {"split": "validation"}):
        images = build_evaluation_set(load(root, **options))
        path = root.parent / "evaluation_set.safetensors"
        path.write_bytes(images.to_bytes())
        assert EvaluationSet.load(path).names == images.names
        if "protocol" in options:
            assert {r"a\nb", r"a\udcffb"} <= set(images.names)


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path):
    for extra_names, expected in (
        ((), ("0", "2", "10", "11")),
        (("x",), ("0", "10", "11", "2", "x")),
    ):
        folder = tmp_path / f"stream{len(extra_names)}"
        write_years(folder, classes=["10", "2", "11", "0", *extra_names], train=4)
        assert load(folder).dataset.class_names == expected


def test_stored_predictions_name_numbered_classes_in_the_order_of_their_labels(tmp_path):
    write_years(tmp_path / "photos", classes=("2", "10"), train=2, test=1)
    stream = load(tmp_path / "photos")
    images = build_evaluation_set(stream)
    assert images.class_names == stream.dataset.class_names == ("2", "10")
    tested = [path.parent.name for bucket in stream.test for path in bucket.paths]
    assert [images.class_names[label] for label in images.label] == tested
