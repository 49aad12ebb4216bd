"""Training with validation images equals training on a dataset without them."""

import shutil

import pytest
from layout_trees import list_buckets
from released_layout import read_json, write_json, write_released

from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import prepare_training, resolve_config


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    full_tree = write_released(tmp_path_factory.mktemp("whole"), train=12, buckets=("1", "2"))
    shutil.rmtree(full_tree / "test")
    stream = training(full_tree, split="validation").stream
    divided = tmp_path_factory.mktemp("divided")
    for part in ("train", "test"):
        shutil.copytree(full_tree / "train", divided / part)
    for bucket in list_buckets(stream):
        held_out = {(path.parent.name, path.stem) for path in bucket.test.paths}
        assert len(held_out) == 3
        for part in ("train", "test"):
            for file in (divided / part / "labeled_metadata" / bucket.key).iterdir():
                entries = read_json(file)
                for image_id in list(entries):
                    if ((file.stem, image_id) in held_out) != (part == "test"):
                        del entries[image_id]
                write_json(file, entries)
    return full_tree, divided


def training(root, **options):
    small = {"dataset": "clear10", "data_root": str(root), "epochs": "2", "batch_size": "4"}
    small |= {"device": "cpu", "precision": "off", "memory": "6"}
    if "features" not in options:
        small |= {"model": "small_cnn", "image_size": "16", "lr": "0.05"}
    return prepare_training(
        resolve_config(TrainConfig.resolve({**small, **options})), TrainingProgress()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        *(
            {"strategy": name}
            for name in ("naive", "joint", "cumulative", "replay", "derpp", "ewc")
        ),
        *({"strategy": name, "features": "pixels"} for name in ("linear", "slda")),
    ],
    ids=lambda options: " ".join(options.values()),
)
def test_validation_rows_equal_those_of_a_manual_split(trees, options):
    full_tree, divided = trees
    measured = training(full_tree, split="validation", **options)
    expected = training(divided, **options)
    assert [m.row for m in measured.rows()] == [m.row for m in expected.rows()]
    assert measured.dataset.num_train == expected.dataset.num_train == (33, 33)
    assert measured.dataset.num_test == expected.dataset.num_test == (3, 3)
    assert (measured.dataset.division, expected.dataset.division) == ("validation", "released")
    assert measured.dataset.digest != expected.dataset.digest


def test_all_seeds_are_measured_on_the_same_images(trees):
    first, other = (training(trees[0], split="validation", seed=seed) for seed in ("0", "7"))
    images, other_images = (t.dataset.evaluation_set.to_bytes() for t in (first, other))
    assert images == other_images
