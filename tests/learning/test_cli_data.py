"""The command that extracts features names only its own options in errors."""

import dataclasses
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from released_layout import read_json, write_released

from clear_mlflow.cli import main
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data import load_stream
from clear_mlflow.data.features import check_extraction_name, load_features
from clear_mlflow.data.features.extracted import Extraction, get_array_path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*arguments):
    own = ["--backbone", "resnet18", "--weights", "none", "--device", "cpu", "--name", "mine"]
    return CliRunner().invoke(main, ["data", "features", *map(str, arguments), *own])


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--split", "0"), ("--protocol", "streaming")])
def test_a_tree_without_its_test_set_has_features_under_other_protocols(tmp_path, cache, options):
    root = write_released(tmp_path / "data", train=4, buckets=("1", "2"), classes=("bus", "camera"))
    shutil.rmtree(root / "test")
    refused = run(root)
    assert refused.exit_code == 2
    assert "pass --split 0" in refused.output
    done = run(root, *options)
    assert done.exit_code == 0, done.output
    chosen = {options[0].removeprefix("--"): options[1]}
    stream = load_stream("clear10", str(root), cache_dir=cache, **chosen)
    assert load_features(stream, "mine", cache_dir=cache).width == 512


def test_a_damaged_image_is_reported_with_a_fitting_remedy(tmp_path, cache):
    root = write_released(tmp_path / "data")
    image = root / "train/labeled_images/1/bus/235821044.jpg"
    image.write_bytes(b"no image")
    result = run(root)
    assert result.exit_code == 2
    assert str(image) in result.output
    assert "leave_out" not in result.output
    assert "unpack the dataset again" in result.output
    progress, error = result.output.splitlines()
    assert (progress, error[:7]) == ("hashing images", "error: ")


def test_a_check_of_nothing_asks_for_a_dataset():
    result = CliRunner().invoke(main, ["data", "check"])
    assert result.exit_code == 2
    assert result.output == "error: expected a dataset's folder, or --dataset\n"


def test_a_name_belongs_to_one_precision(tmp_path):
    stream = load_stream("clear10", str(write_released(tmp_path / "data")), cache_dir=tmp_path)
    extraction = Extraction("mine", "resnet18", "random:0", "made up")
    rounded = dataclasses.replace(extraction, arithmetic="tf32")
    folder = rounded.folder(stream, cache_dir=tmp_path)
    assert folder != extraction.folder(stream, cache_dir=tmp_path)
    images = stream.train[0]
    rounded.write(get_array_path(folder, 0), images, np.zeros((len(images), 3), np.float32))
    assert read_json(folder / "000.json")["arithmetic"] == "tf32"
    with pytest.raises(ConfigError, match="arithmetic 'tf32', not 'float32'; pass another --name"):
        check_extraction_name(stream, extraction, cache_dir=tmp_path)
