"""Features of timm's models, with its weights and transforms, and their recorded names."""

import json
import sys

import numpy as np
import pytest
import timm
import timm.data
import torch
import torchvision
from commands import run_command
from feature_files import load_test_stream
from file_server import Hub, serving
from huggingface_hub import constants
from one_line_errors import check_error
from own_streams import write_years
from PIL import Image
from released_layout import write_released
from safetensors.torch import save

from clear_mlflow.core.errors import ClearError
from clear_mlflow.data import load_stream
from clear_mlflow.data.features import load_features
from clear_mlflow.learning.inference.backbones import (
    build_torchvision_transform,
    extract_features,
    find_preset,
    load_backbone,
)
from clear_mlflow.learning.models import parse_hash_prefix
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import prepare_training, resolve_config

CPU = torch.device("cpu")
TINY = "test_vit"  # of timm's own, for tests: 160 pixels, 64 numbers


def build_weights(name: str, seed: int = 5) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return timm.create_model(name, pretrained=False).state_dict()


def extract_mine(root, tmp_path, backbone):
    stream = load_test_stream(root, tmp_path)
    return stream, extract_features(stream, backbone, name="mine", cache_dir=tmp_path, device=CPU)


def use_hub(monkeypatch, address: str, cache) -> None:
    """Use another hub than Hugging Face's. The library reads its address when it is imported."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def from_hub(tmp_path, monkeypatch):
    def load(name: str):
        tag = timm.get_pretrained_cfg(name).tag
        hub = Hub({"model.safetensors": save(build_weights(name))}, f"timm/{name}.{tag}")
        with serving(hub):
            use_hub(monkeypatch, hub.url, tmp_path / "hub")
            return load_backbone(f"timm:{name}", "DEFAULT"), hub

    return load


@pytest.mark.slow
@pytest.mark.parametrize("name", [TINY, "test_resnet", "test_convnext"])
def test_features_equal_timms(tmp_path, name, from_hub):
    small = {"buckets": ("1", "2"), "classes": ("bus", "camera"), "size": (61, 40), "train": 2}
    root = write_released(tmp_path / "data", **small)
    stream, folder = extract_mine(root, tmp_path, from_hub(name)[0])
    timm_model = timm.create_model(name, pretrained=False, num_classes=0).eval()
    timm_model.load_state_dict(build_weights(name), strict=False)
    config = timm.data.resolve_model_data_config(timm_model)
    transform = timm.data.create_transform(**config, is_training=False)
    for number, images in enumerate(stream.image_sets):
        pixels = (transform(Image.open(path).convert("RGB")) for path in images.paths)
        with torch.inference_mode():
            expected = [timm_model(each[None])[0].numpy() for each in pixels]
        # Alone or with others in a batch, sums are in another order.
        features = np.load(folder / f"{number:03d}.npy")
        np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)
    metadata = json.loads((folder / "000.json").read_text())
    assert metadata["backbone"] == f"timm:{name}.r160_in1k"
    assert metadata["weights"].startswith("sha256:")
    assert metadata["preprocessing"].startswith("timm: 160 x 160, crop 0.95 center, bi")


@pytest.mark.slow
def test_heads_with_normalisation_are_removed_completely(from_hub):
    """LeViT's heads contain a batch normalisation, which is not part of the features."""
    saved = build_weights("levit_128s")
    assert "head.bn.weight" in saved
    model = from_hub("levit_128s")[0].model
    assert torch.equal(model.stem.conv1.linear.weight, saved["stem.conv1.linear.weight"])
    with torch.inference_mode():
        assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 384)


def test_photos_are_upright_and_on_white_before_the_transform(tmp_path):
    """As for torchvision's backbones, unlike timm's own loader."""
    root = tmp_path / "data"
    write_years(root, side=40, train=2)
    turned, lying = root / "2004/bus/turned.jpg", root / "2004/bus/lying.png"
    picture = Image.effect_mandelbrot((60, 40), (-2, -1.5, 1, 1.5), 40).convert("RGBA")
    picture.putalpha(Image.linear_gradient("L").resize((60, 40)))
    picture.save(lying)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    picture.convert("RGB").rotate(180).save(turned, exif=exif, quality=100, subsampling=0)

    stream = load_stream("folder", str(root), cache_dir=tmp_path, split="0")
    backbone = load_backbone(f"timm:{TINY}", "none")
    extract_features(stream, backbone, name="mine", cache_dir=tmp_path, device=CPU)
    features_by_name = {}
    features = load_features(stream, "mine", cache_dir=tmp_path)
    sets, arrays = stream.train + stream.test, features.train + features.test
    for images, rows in zip(sets, arrays, strict=True):
        names = (path.name for path in images.paths)
        features_by_name |= dict(zip(names, rows, strict=True))
    white = Image.new("RGBA", picture.size, "white")
    for name, upright in [
        ("lying.png", Image.alpha_composite(white, picture).convert("RGB")),
        ("turned.jpg", Image.open(turned).convert("RGB").rotate(180)),
    ]:
        with torch.inference_mode():
            (row,) = backbone.model(torch.from_numpy(backbone.geometry.make(upright))[None])
        np.testing.assert_allclose(features_by_name[name], row.numpy(), rtol=1e-4, atol=1e-5)


def test_weights_come_from_the_hub_under_their_tag(tmp_path, from_hub, monkeypatch):
    _, hub = from_hub(TINY)
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "hub")  # nothing listens there
    backbone = load_backbone(f"timm:{TINY}", "DEFAULT")
    # The library asks for one more address, of its own.
    requests = [path for verb, path, *_ in hub.requests if verb == "GET" and "/resolve/" in path]
    assert requests == ["/timm/test_vit.r160_in1k/resolve/main/model.safetensors"]
    assert (backbone.name, backbone.weights_tag) == ("timm:test_vit.r160_in1k", "r160_in1k")
    blocks = build_weights(TINY)["blocks.0.attn.qkv.weight"]
    assert torch.equal(backbone.model.blocks[0].attn.qkv.weight, blocks)
    root = write_released(tmp_path / "data", buckets=("1",), classes=("bus",), train=2)
    _, folder = extract_mine(root, tmp_path, backbone)
    assert json.loads((folder / "000.json").read_text())["weights_tag"] == "r160_in1k"


def test_no_network_names_the_file_to_fetch(tmp_path, monkeypatch):
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path)  # nothing listens there
    message = check_error(ClearError, "", load_backbone, f"timm:{TINY}", "DEFAULT")
    assert "the weights of timm:test_vit.r160_in1k cannot be downloaded" in message
    url = "http://127.0.0.1:9/timm/test_vit.r160_in1k/resolve/main/model.safetensors"
    assert f"fetch {url}" in message
    assert "copy the folder HF_HOME from a machine that has them" in message


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("resnet19", "none", "unknown backbone 'timm:resnet19'"),
        ("hf-hub:someone/model", "none", "unknown backbone"),
        ("local-dir:/tmp", "none", "unknown backbone"),
        ("", "none", "unknown backbone"),
        (f"{TINY}.in22k", "none", "no weights of that tag; expected one of r160_in1k"),
        (TINY, "weights.safetensors", "use their own weights: pass --weights DEFAULT"),
    ],
)
def test_names_that_timm_lacks_are_reported(name, weights, message):
    check_error(ClearError, message, load_backbone, f"timm:{name}", weights)


def test_a_missing_timm_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    check_error(ClearError, "pip install timm", load_backbone, f"timm:{TINY}", "none")


@pytest.mark.slow
def test_heads_are_trained_on_timm_features(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "cache"))
    root, stream = tmp_path / "data", {"dataset": "folder", "dataset_args": "name=photos"}
    write_years(root, side=40, train=4, test=2)
    own = ["--dataset", "folder", "--dataset-args", "name=photos", "--device", "cpu"]
    own += ["--backbone", f"timm:{TINY}", "--weights", "none"]
    output = run_command("data", "features", root, *own)
    assert output.splitlines()[-1].startswith("features timm-test_vit of ")
    parameters = {**stream, "data_root": str(root), "features": "timm-test_vit", "device": "cpu"}
    for strategy in ("naive", "ncm", "slda"):
        config = TrainConfig.resolve({**parameters, "strategy": strategy})
        training = prepare_training(resolve_config(config), TrainingProgress())
        assert [measured.row.row for measured in training.rows()] == [0, 1, 2, 3]


IMAGENET_MEAN = [0.485, 0.456, 0.406]
IMAGENET_STD = [0.229, 0.224, 0.225]


def test_weights_come_from_a_file(tmp_path):
    torch.manual_seed(5)
    saved = torchvision.models.resnet18(num_classes=7)
    path = tmp_path / "weights.pth"
    torch.save(saved.state_dict(), path)
    loaded = load_backbone("resnet18", str(path))
    assert loaded.weights.startswith("sha256:")
    assert "crop_size=[224] resize_size=[256]" in str(loaded.geometry)
    assert not loaded.model.training
    torch.testing.assert_close(loaded.model.layer4[1].conv2.weight, saved.layer4[1].conv2.weight)
    assert loaded.model(torch.zeros(1, 3, 32, 32)).shape == (1, 512)


@pytest.mark.parametrize(
    ("name", "tag", "transform"),
    [
        ("resnet50", "IMAGENET1K_V2", "crop_size=[224] resize_size=[232]"),
        ("efficientnet_b0", "IMAGENET1K_V1", "interpolation=InterpolationMode.BICUBIC"),
        ("vit_b_16", "IMAGENET1K_SWAG_E2E_V1", "crop_size=[384] resize_size=[384]"),
    ],
)
def test_known_weights_have_their_transform(name, tag, transform):
    weights = torchvision.models.get_model_weights(name)[tag]
    digest = parse_hash_prefix(weights.url) + "0" * 56
    made_for, published = find_preset(name, digest)
    assert published == tag
    own = build_torchvision_transform(made_for)
    assert transform in str(own)
    image = Image.effect_noise((300, 450), 40).convert("RGB")
    np.testing.assert_array_equal(own.make(image), weights.transforms()(image).numpy())
    assert find_preset(name, "0" * 64)[1] == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: [1], "contains a list"),
        (lambda: {"x": torch.zeros(1)}, "is not a state dict of resnet18: Missing key"),
        (lambda: {"conv1.weight": 3}, "has type int"),
        (lambda: torchvision.models.resnet18(), "is refused"),
    ],
)
def test_weights_of_another_model_are_reported(tmp_path, content, message):
    path = tmp_path / "weights.pth"
    torch.save(content(), path)
    line = check_error(ClearError, "", load_backbone, "resnet18", str(path))
    assert message in line
    assert str(path) in line


def test_a_network_with_its_own_normalisation_equals_torchvisions(tmp_path):
    """With weights, torchvision normalises the input again, which is done by hand here."""
    made = torchvision.models.googlenet(weights=None, aux_logits=True, init_weights=False)
    path = tmp_path / "weights.pth"
    torch.save(made.state_dict(), path)
    loaded = load_backbone("googlenet", str(path)).model
    made.fc = torch.nn.Identity()
    torch.manual_seed(0)
    images = torch.randn(1, 3, 96, 96)
    half = torch.full((3, 1, 1), 0.5)
    mean, std = (torch.tensor(v)[:, None, None] for v in (IMAGENET_MEAN, IMAGENET_STD))
    # From zero mean and unit deviation to pixels in [0, 1], and to [-1, 1] of the original papers.
    turned = (images * std + mean - half) / half
    with torch.inference_mode():
        expected = made.eval()(turned)
        torch.testing.assert_close(loaded(images), expected, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(loaded(images), made(images), rtol=1e-2)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("mobilenet_v3_small", 1024),
        ("densenet121", 1024),
        ("vit_b_32", 768),
        ("squeezenet1_1", 512),
    ],
)
def test_heads_of_all_families_are_removed(name, width):
    model = load_backbone(name, "none").model
    with torch.inference_mode():
        assert model(torch.zeros(1, 3, 224, 224)).shape == (1, width)


def test_random_weights_are_always_the_same():
    torch.manual_seed(1)
    first = load_backbone("resnet18", "none").model.conv1.weight
    torch.manual_seed(2)
    assert torch.equal(first, load_backbone("resnet18", "none").model.conv1.weight)
