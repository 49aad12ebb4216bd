"""Extracted features equal the backbone's outputs, are stored once, and are found by content."""

import json
import re
import shutil
import urllib.request

import numpy as np
import pytest
import torch
import torchvision
from feature_files import KIND, load_test_stream, write_released_features
from one_line_errors import check_error
from PIL import Image
from released_layout import write_released
from torchvision.transforms import functional
from torchvision.transforms._presets import ImageClassification

from clear_mlflow.core.errors import ClearError, ConfigError
from clear_mlflow.data import decode
from clear_mlflow.data.features import load_features
from clear_mlflow.learning.inference.backbones import (
    Backbone,
    build_torchvision_transform,
    compute_features,
    extract_features,
    load_backbone,
)

CPU = torch.device("cpu")
TINY = build_torchvision_transform(ImageClassification(crop_size=32, resize_size=36))
IMAGENET_MEAN = [0.485, 0.456, 0.406]
IMAGENET_STD = [0.229, 0.224, 0.225]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_released(tmp_path_factory.mktemp("data"), size=(40, 36), extension="png")


@pytest.fixture(scope="module")
def backbone():
    """A small network with random weights, for small images."""
    torch.manual_seed(0)
    model = load_backbone("resnet18", "none").model
    return Backbone(model, "resnet18", "random:0", TINY)


def load_extracted(root, tmp_path):
    return load_features(load_test_stream(root, tmp_path), "mine", cache_dir=tmp_path)


def extract_from_folder(root, tmp_path, backbone, *, name="mine", **options):
    stream = load_test_stream(root, tmp_path)
    return extract_features(stream, backbone, name=name, cache_dir=tmp_path, device=CPU, **options)


@pytest.fixture(scope="module")
def full_folder(root, backbone, tmp_path_factory):
    cache = tmp_path_factory.mktemp("extracted")
    extract_from_folder(root, cache, backbone)
    return cache


@pytest.fixture
def folder(full_folder, tmp_path):
    shutil.copytree(full_folder, tmp_path, dirs_exist_ok=True)
    (features,) = (tmp_path / "features" / "mine").iterdir()
    return features


def test_features_equal_the_backbones_outputs(root, full_folder, backbone):
    stream, features = load_test_stream(root, full_folder), load_extracted(root, full_folder)
    assert features.width == 512
    body = torch.nn.Sequential(*list(backbone.model.children())[:-1], torch.nn.Flatten())
    for images, rows in zip(stream.test, features.test, strict=True):
        for path, row in zip(images.paths, rows, strict=True):
            pixels = functional.center_crop(functional.to_tensor(Image.open(path)), [32, 32])
            with torch.inference_mode():
                expected = body(functional.normalize(pixels, IMAGENET_MEAN, IMAGENET_STD)[None])[0]
            np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)


def test_an_interrupted_extraction_continues(root, full_folder, tmp_path, backbone):
    def stop(done, total):
        if done > 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_from_folder(root, tmp_path, backbone, on_image=stop)
    stored = list((tmp_path / "features" / "mine").glob("*/*.npy"))
    assert [path.name for path in stored] == ["000.npy"]
    check_error(ClearError, "not of all images", load_extracted, root, tmp_path)
    before = stored[0].stat().st_mtime_ns
    (stored[0].parent / "001.0123456789abcdef.part").write_bytes(b"a writer that was killed")
    folder = extract_from_folder(root, tmp_path, backbone)
    assert stored[0].stat().st_mtime_ns == before
    (complete_folder,) = (full_folder / "features" / "mine").iterdir()
    assert _read_files(folder) == _read_files(complete_folder)
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("chosen", [{}, {"protocol": "streaming"}, {"split": "2"}])
def test_one_extraction_serves_all_protocols(root, full_folder, backbone, chosen):
    stream = load_test_stream(root, full_folder, **chosen)
    features = load_features(stream, "mine", cache_dir=full_folder)
    sets, arrays = stream.train + stream.test, features.train + features.test
    for images, rows in zip(sets, arrays, strict=True):
        expected = compute_features(backbone.model, images, geometry=TINY, device=CPU)
        np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-5)


def test_features_of_another_decoder_are_not_used(root, folder, tmp_path, backbone, monkeypatch):
    """After an upgrade of Pillow, old features are of other pixels.

    New ones are stored next to them.
    """
    (folder / "000.npy").unlink()  # whoever reads it fails
    monkeypatch.setattr(decode, "_DECODER", 99)
    message = check_error(ClearError, "", load_extracted, root, tmp_path)
    assert "with this version of Pillow; run 'clear-mlflow data features'" in message
    extract_from_folder(root, tmp_path, backbone)
    assert load_extracted(root, tmp_path).width == 512


@pytest.mark.usefixtures("folder")
def test_features_of_changed_data_are_not_used(root, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(root, changed)
    path = load_test_stream(changed, tmp_path).image_sets[0].paths[0]
    Image.new("RGB", (40, 36), "red").save(path)
    check_error(ClearError, "not of all images", load_extracted, changed, tmp_path)


@pytest.mark.usefixtures("folder")
def test_a_name_belongs_to_one_backbone(root, tmp_path, backbone):
    other = Backbone(backbone.model, "resnet18", "sha256:1", TINY)
    taken = "used by features with weights"
    check_error(ClearError, taken, extract_from_folder, root, tmp_path, other)
    own = write_released(tmp_path / "own")
    write_released_features(own / "train")
    taken = "part of the dataset"
    check_error(ClearError, taken, extract_from_folder, own, tmp_path, backbone, name=KIND)


def _zeros(path):
    content = path.read_bytes()
    path.write_bytes(content[:128] + bytes(len(content) - 128))


def _swap_two_images(path):
    document = json.loads(path.read_text())
    contents = document["contents"]
    contents[0], contents[1] = contents[1], contents[0]
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("000.npy", lambda path: path.write_bytes(path.read_bytes()[:-100])),
        ("000.npy", lambda path: path.unlink()),
        ("000.npy", lambda path: np.save(path, np.array([{}]), allow_pickle=True)),
        ("000.npy", _zeros),
        ("000.json", _swap_two_images),
        ("000.json", lambda path: path.write_text("{")),
        ("000.json", lambda path: path.chmod(0o666)),
    ],
)
def test_damaged_stored_features_are_reported(root, folder, tmp_path, file, damage):
    damage(folder / file)
    message = check_error(ClearError, "", load_extracted, root, tmp_path)
    assert str(folder) in message
    assert "again" in message


def _read_files(folder):
    """Return the bytes of all files in a folder, without the times of arrays in their JSON."""
    return {
        path.name: re.sub(rb'"mtime_ns": [0-9]+', b"", path.read_bytes())
        for path in folder.iterdir()
    }


def test_damaged_features_are_extracted_again(root, folder, tmp_path, backbone):
    before = _read_files(folder)
    inode = (folder / "001.npy").stat().st_ino
    _zeros(folder / "000.npy")
    _swap_two_images(folder / "002.json")
    extract_from_folder(root, tmp_path, backbone)
    assert _read_files(folder) == before
    assert (folder / "001.npy").stat().st_ino == inode


def test_an_unreadable_image_stops_the_extraction(tmp_path, backbone):
    root = write_released(tmp_path / "data")
    images = load_test_stream(root, tmp_path).image_sets[0]
    images.paths[4].write_bytes(b"no image")
    check_error(ClearError, str(images.paths[4]), extract_from_folder, root, tmp_path, backbone)


def test_nonfinite_features_are_reported(root, tmp_path, backbone):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 4))
    torch.nn.init.constant_(model[1].bias, torch.nan)
    bad = Backbone(model, "resnet18", "sha256:2", TINY)
    check_error(ClearError, "not finite", extract_from_folder, root, tmp_path, bad, name="bad")


def test_no_network_names_the_file_to_fetch(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    # urllib makes its opener once, with the proxies of that moment: it must not outlive this test.
    monkeypatch.setattr(urllib.request, "_opener", None)
    for scheme in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(scheme, "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.delenv("no_proxy", raising=False)
    url = torchvision.models.ResNet18_Weights.DEFAULT.url
    with pytest.raises(ConfigError) as caught:
        load_backbone("resnet18", "DEFAULT")
    message = str(caught.value)
    assert "\n" not in message
    assert url.rsplit("/", 1)[-1] in message
    assert f"fetch {url} " in message
    assert "--weights PATH" in message
