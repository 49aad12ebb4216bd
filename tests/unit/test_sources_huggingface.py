"""Custom streams as Hugging Face datasets, saved to a folder."""

import json
import sys
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pytest
from one_line_errors import check_error
from own_streams import CLASSES, load_source, write_years

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.data import load_stream
from clear_mlflow.learning.arguments import complete_dataset_arguments

FEATURES = datasets.Features(
    {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=[*CLASSES, "nobody has it"]),
        "time": datasets.Value("timestamp[s]"),
        "bucket": datasets.Value("int32"),
    }
)


load = partial(load_source, "huggingface")


def as_dataset(root, rows, features=FEATURES, **columns):
    table = {
        "image": [str(root / row.path) for row in rows],
        "label": [CLASSES.index(row.label) for row in rows],
        "time": [f"{row.time}T12:00:00" for row in rows],
        "bucket": [int(row.bucket) for row in rows],
        **columns,
    }
    return datasets.Dataset.from_dict(table).cast(features)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("streams")
    rows = write_years(folder / "photos", train=6, test=2)
    rows_by_part = {part: [r for r in rows if r.split == part][::-1] for part in ("train", "test")}
    parts = {part: as_dataset(folder / "photos", rows) for part, rows in rows_by_part.items()}
    dataset = datasets.DatasetDict(parts)
    dataset.save_to_disk(str(folder / "saved"))
    return folder / "photos", folder / "saved"


@pytest.mark.parametrize(
    ("protocol", "split"),
    [("iid", "auto"), ("iid", "1"), ("iid", "validation"), ("streaming", "auto")],
)
@pytest.mark.parametrize("buckets", ["none", "year"])
def test_a_saved_dataset_is_the_stream_of_its_folder(saved, protocol, split, buckets):
    photos, root = saved
    options = {"protocol": protocol, "split": split}
    folder = load_stream("folder", str(photos), cache_dir=root.parent / "cache", **options)
    dataset = load(root, borders=buckets, **options)
    assert dataset.dataset.digest == folder.dataset.digest
    assert (dataset.layout, dataset.dataset.name) == ("huggingface", "saved")
    assert dataset.dataset.class_names == CLASSES
    assert dataset.dataset.source == str(root)
    assert dataset.dataset.buckets == folder.dataset.buckets
    for images, expected in zip(dataset.image_sets, folder.image_sets, strict=True):
        assert images.contents == expected.contents
        assert [p.name for p in images.paths] == [p.name for p in expected.paths]
        assert images.labels.tolist() == expected.labels.tolist()


def test_images_are_written_once_and_again_if_they_are_missing(saved, tmp_path):
    _, root = saved
    first = load(root, cache=tmp_path)
    paths = [path for bucket in first.train for path in bucket.paths]
    assert all(path.is_relative_to(tmp_path / "huggingface-v1") for path in paths)
    before = [path.stat().st_mtime_ns for path in paths]
    paths[0].unlink()
    paths[1].write_bytes(b"cut")
    again = load(root, cache=tmp_path)
    assert again.dataset.digest == first.dataset.digest
    assert [path.stat().st_mtime_ns for path in paths][2:] == before[2:]


def test_a_split_column_and_copies_of_one_image(tmp_path):
    rows = write_years(tmp_path / "photos", train=4)
    rows += rows[:1]
    dataset = as_dataset(tmp_path / "photos", rows)
    dataset.save_to_disk(str(tmp_path / "plain"))
    stream = load(tmp_path / "plain", protocol="streaming")
    assert [len(bucket) for bucket in stream.train] == [9, 8, 8]
    assert load(tmp_path / "plain").dataset.division == "0"
    parts = ["train", "test"] * (len(rows) // 2) + ["train"]
    dataset.add_column("part", parts).save_to_disk(str(tmp_path / "parted"))
    stream = load(tmp_path / "parted", split="auto")
    assert (
        stream.dataset.division == "0"
    )  # a column that is not called split is not one until it is named
    options = {"cache_dir": tmp_path / "cache", "arguments": {"split": "part"}}
    stream = load_stream("huggingface", str(tmp_path / "parted"), **options)
    assert [
        (len(train), len(test)) for train, test in zip(stream.train, stream.test, strict=True)
    ] == [(5, 4), (4, 4), (4, 4)]


def test_names_of_images_may_be_longer_than_file_names(tmp_path):
    rows = write_years(tmp_path / "photos", train=4)
    images = [
        {"bytes": (tmp_path / "photos" / row.path).read_bytes(), "path": f"{'ü' * 150}{number}.png"}
        for number, row in enumerate(rows)
    ]
    dataset = as_dataset(tmp_path / "photos", rows, image=images)
    dataset.save_to_disk(str(tmp_path / "saved"))
    stream = load(tmp_path / "saved", protocol="streaming")
    names = {path.name for bucket in stream.train for path in bucket.paths}
    assert names == {f"{row:08d}" for row in range(len(rows))}


def test_other_splits_are_left_out_with_a_warning(tmp_path):
    rows = write_years(tmp_path / "photos", train=4)
    full_dataset = as_dataset(tmp_path / "photos", rows)
    splits = {"train": full_dataset, "validation": full_dataset}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "a"))
    assert "left out: split 'validation', 24 images" in load(tmp_path / "a").dataset.warnings
    datasets.DatasetDict({"all": full_dataset}).save_to_disk(str(tmp_path / "b"))
    check_error(DataError, "has the splits 'all'; expected train", load, tmp_path / "b")


def test_labels_without_classes_are_a_one_line_error(tmp_path):
    rows = write_years(tmp_path / "photos", train=1)
    unlabelled = as_dataset(tmp_path / "photos", rows, label=[-1] * len(rows))
    unlabelled.save_to_disk(str(tmp_path / "odd"))
    check_error(DataError, "row 0 has no label", load, tmp_path / "odd")


@pytest.mark.parametrize(("name", "value"), [("hub", "three/parts/here")])
def test_arguments_are_checked_before_a_dataset_is_opened(tmp_path, name, value):
    with pytest.raises(ConfigError, match=f"dataset_args has {name}={value!r}; expected"):
        load(tmp_path / "nowhere", **{name: value})


def test_an_invalid_saved_dataset_is_a_one_line_error(saved, tmp_path):
    photos, root = saved
    check_error(DataError, "no state.json; expected a folder that datasets'", load, photos)
    check_error(DataError, "no column 'when'", load, root, borders="year", time="when")
    check_error(DataError, "as column 'time'; expected images", load, root, image="time")
    rows = write_years(tmp_path / "photos", train=1)
    as_dataset(tmp_path / "photos", rows).save_to_disk(str(tmp_path / "damaged"))
    (arrow,) = (tmp_path / "damaged").glob("*.arrow")
    content = arrow.read_bytes()
    arrow.write_bytes(content[: len(content) // 2])
    check_error(DataError, "", load, tmp_path / "damaged")
    state = tmp_path / "damaged" / "state.json"
    state_content = json.loads(state.read_text())
    state_content["_data_files"] = [{"filename": "../photos/x.arrow"}]
    state.write_text(json.dumps(state_content))
    check_error(DataError, "expected a name in its own folder", load, tmp_path / "damaged")


def test_an_unreachable_hub_is_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    check_error(
        DataError,
        "nobody/nothing cannot be loaded",
        load,
        "auto",
        hub="nobody/nothing",
        cache=tmp_path,
    )
    for root, hub in (("auto", "none"), (tmp_path, "nobody/nothing")):
        check_error(ConfigError, "expected one of them", load, root, hub=hub, cache=tmp_path)
    with pytest.raises(ConfigError, match="expected a name: user/name"):
        complete_dataset_arguments("huggingface", "auto", {"hub": "https://host/x"})


def test_an_error_names_the_package_to_install(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    check_error(ConfigError, "pip install datasets", load, saved[1])


def test_a_column_of_vectors(tmp_path):
    vectors = [[float(i), i / 7, -i] for i in range(8)]
    columns = {"taken": vectors, "label": list("abababab"), "bucket": [1] * 4 + [2] * 4}
    datasets.Dataset.from_dict(columns).save_to_disk(str(tmp_path / "saved"))
    stream = load(tmp_path / "saved", protocol="streaming", vector="taken", standardise="none")
    read_vectors = [row for bucket in stream.train for row in bucket.vectors[:].tolist()]
    assert sorted(read_vectors) == np.array(vectors, np.float32).tolist()
    assert stream.standardise == "none"
    check_error(DataError, "contains no column 'other'", load, tmp_path / "saved", vector="other")
