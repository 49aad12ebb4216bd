"""The dataset's own feature files are matched by image, and damage is a one-line error."""

import json
import pickle
import random
import shutil
import zipfile
from pathlib import Path

import layout_trees
import numpy as np
import pytest
import torch
from feature_files import KIND, tail, vector, write_older_features, write_released_features
from layout_trees import Photos
from one_line_errors import check_error
from released_layout import write_released

from clear_mlflow.core.errors import DataError
from clear_mlflow.data import load_stream
from clear_mlflow.data.features import load_features
from clear_mlflow.data.features.shipped import list_shipped_names, load_torch_file
from clear_mlflow.data.scenarios import apply_scenario


@pytest.fixture(scope="module")
def released_root(tmp_path_factory):
    root = write_released(tmp_path_factory.mktemp("released"), train=4)
    write_released_features(root / "train")
    return root


@pytest.fixture
def root(tmp_path):
    root = write_released(tmp_path / "data", buckets=("1", "2"), classes=("bus", "camera"))
    write_released_features(root / "train")
    return root


@pytest.fixture
def older_root(tmp_path):
    """A dataset in the older layout with features, its file lists unsorted."""
    root, photos = tmp_path / "older", Photos(buckets=("1", "2"), train=4)
    order = lambda photos: random.Random(0).sample(photos, len(photos))  # noqa: E731
    layout_trees.write_older(root, photos, order=order, seeds=())
    write_older_features(root)
    return root


def load_test_stream(root, tmp_path, **chosen):
    return load_stream("clear10", str(root), cache_dir=tmp_path, **chosen)


def load_stored_features(root, tmp_path, protocol="streaming"):
    stream = load_test_stream(root, tmp_path, protocol=protocol)
    return load_features(stream, KIND, cache_dir=tmp_path)


def problem(root, tmp_path, **chosen):
    return check_error(DataError, "", load_stored_features, root, tmp_path, **chosen)


def bus(root):
    return root / "train/features" / KIND / "1/bus.pth"


def list_all_images(root):
    return root / "training_folder/features" / KIND / "1/all.pth"


def assert_features_belong_to_images(features, stream, width=5):
    sets, arrays = stream.train + stream.test, features.train + features.test
    for images, rows in zip(sets, arrays, strict=True):
        assert rows.dtype == np.float32
        expected = np.stack([vector(tail(path), width) for path in images.paths])
        np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("chosen", [{"protocol": "streaming"}, {"split": "0"}, {"split": "3"}])
def test_released_features_are_matched_to_their_images(released_root, tmp_path, chosen):
    stream = load_test_stream(released_root, tmp_path, **chosen)
    features = load_features(stream, KIND, cache_dir=tmp_path)
    assert features.width == 5
    assert_features_belong_to_images(features, stream)


@pytest.mark.parametrize("chosen", [{}, {"protocol": "streaming"}, {"split": "3"}])
def test_older_features_are_matched_to_their_images(older_root, tmp_path, chosen):
    stream = load_test_stream(older_root, tmp_path, **chosen)
    assert_features_belong_to_images(load_features(stream, KIND, cache_dir=tmp_path), stream)


@pytest.mark.parametrize("times", ["own", "all"])
@pytest.mark.parametrize(
    ("layout", "split", "per_bucket"), [("released_root", "0", 2), ("older_root", "1", 1)]
)
def test_features_are_matched_in_buckets_of_new_classes(
    request, tmp_path, layout, split, per_bucket, times
):
    """Bucket names differ from those of the files."""
    stream = load_test_stream(request.getfixturevalue(layout), tmp_path, split=split)
    dealt = apply_scenario(stream, "class", {"classes_per_bucket": per_bucket, "times": times})
    assert_features_belong_to_images(load_features(dealt, KIND, cache_dir=tmp_path), dealt)


def test_the_digest_is_computed_from_the_features(released_root, tmp_path):
    first = load_stored_features(released_root, tmp_path)
    root = shutil.copytree(released_root, tmp_path / "again")
    assert load_stored_features(root, tmp_path).digest == first.digest
    by_id = torch.load(bus(root), weights_only=True)
    next(iter(by_id.values()))[2] += 1
    torch.save(by_id, bus(root))
    assert load_stored_features(root, tmp_path).digest != first.digest


def test_types_are_the_folders_of_features_in_alphabetical_order(root, tmp_path):
    assert list_shipped_names(load_test_stream(root, tmp_path)) == (KIND,)
    names = ["zebra", "alpha", "mike", "delta", "kilo", "echo"]
    for name in names:
        (root / "train/features" / name).mkdir()
    assert list_shipped_names(load_test_stream(root, tmp_path)) == tuple(sorted([KIND, *names]))


def test_a_test_set_without_features_is_reported(released_root, tmp_path):
    message = problem(released_root, tmp_path, protocol="iid")
    assert f"{released_root / 'test'} contains no features {KIND}" in message
    assert "split=0, split=validation or protocol=streaming" in message


def test_features_of_training_and_test_images_have_one_width(root, tmp_path):
    write_released_features(root / "test", width=6)
    assert "5 numbers for some images and 6 for others" in problem(root, tmp_path, protocol="iid")


class Malice:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_a_pickle_that_runs_code_is_rejected(root, tmp_path, form):
    trap = tmp_path / "trap"
    if form == "torch":
        torch.save({"235821044": Malice(trap)}, bus(root))
    else:
        bus(root).write_bytes(pickle.dumps(Malice(trap)))
    message = problem(root, tmp_path)
    assert str(bus(root)) in message
    assert "is refused" in message
    assert ("wants to run code" in message) == (form == "torch")  # torch reads no such plain pickle
    assert not trap.exists()
    torch.load(bus(root), weights_only=False) if form == "torch" else pickle.loads(
        bus(root).read_bytes()
    )
    assert trap.exists(), "the trap itself works: without the refusal it would have sprung"


def change_ids(change):
    def damage(path):
        by_id = torch.load(path, weights_only=True)
        replaced = change(by_id)
        torch.save(by_id if replaced is None else replaced, path)

    return damage


def replace_features(rows):
    return change_ids(lambda by_id: by_id.update({"235821045": rows}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:300]), "is refused"),
        (change_ids(lambda by_id: by_id.__delitem__("235821045")), "features of image '235821045'"),
        (replace_features(torch.zeros(2, 5)), "tensor of 1 dim"),
        (replace_features(torch.zeros(4)), "one width for all"),
        (replace_features(torch.zeros(5).long()), "contains torch.int64"),
        (replace_features(torch.full((5,), torch.nan)), "finite"),
        (replace_features(torch.zeros(5).to_sparse()), "expected a plain tensor"),
        (replace_features(torch.zeros(1).expand(5)), "all in the file"),
        (replace_features(torch.full((5,), 1e300, dtype=torch.float64)), "32-bit"),
        (change_ids(lambda by_id: list(by_id)), "no features of image"),
    ],
)
def test_damaged_released_features_are_reported(root, tmp_path, damage, message):
    damage(bus(root))
    assert message in problem(root, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.pop("1"), "expected a JSON object"),
        (lambda index: index["1"].pop("bus"), "no class 'bus'"),
        (lambda index: index["1"].update(bus="../../../x.pth"), "no '..'"),
    ],
)
def test_a_damaged_index_is_reported(root, tmp_path, change, message):
    path = root / "train/features" / KIND / "features.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    assert message in problem(root, tmp_path)


def test_a_link_out_of_the_dataset_is_not_followed(root, tmp_path):
    bus(root).symlink_to(bus(root).rename(tmp_path / "elsewhere.pth"))
    assert "leads out of" in problem(root, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows, labels: rows, "the same labels"),
        (lambda rows, labels: (rows, labels, labels), "contains tuple; expected a plain"),
        (lambda rows, labels: (rows, labels[:-1]), "the same labels"),
        (lambda rows, labels: (rows, [1 - label for label in labels]), "the same labels"),
        (lambda rows, labels: (rows, torch.tensor(labels).to_sparse()), "the same labels"),
        (lambda rows, labels: (rows, torch.tensor(labels, device="meta")), "the same labels"),
        (lambda rows, labels: (rows, [torch.tensor([n, n]) for n in labels]), "the same labels"),
        (lambda rows, labels: (rows, [bool(n) for n in labels]), "the same labels"),
        (lambda rows, labels: (rows[:-1], labels[:-1]), "lists 8"),
        (lambda rows, labels: (rows[0], labels), "tensor of 2 dim"),
        (lambda rows, labels: (rows / 0, labels), "finite"),
        (lambda rows, labels: (torch.zeros(1, 1).expand(8, 5), labels), "all in the file"),
    ],
)
def test_damaged_older_features_are_reported(older_root, tmp_path, change, message):
    """A file that contradicts its file list is rejected, since features have only positions."""
    path = list_all_images(older_root)
    torch.save(change(*torch.load(path, weights_only=True)), path)
    assert message in problem(older_root, tmp_path)


@pytest.mark.parametrize(
    "stored", [torch.tensor, tuple, lambda labels: [torch.tensor(n) for n in labels]]
)
def test_labels_may_be_tensors(older_root, tmp_path, stored):
    before = load_stored_features(older_root, tmp_path)
    rows, labels = torch.load(list_all_images(older_root), weights_only=True)
    torch.save((rows, stored(labels)), list_all_images(older_root))
    assert load_stored_features(older_root, tmp_path).digest == before.digest


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.pth"
    torch.save({"1": torch.zeros(3)}, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data/9", b"\0" * 2**21)
    assert path.stat().st_size < 2**14
    with pytest.raises(DataError, match="unpacks to 209"):
        load_torch_file(path, max_bytes=2**20)
