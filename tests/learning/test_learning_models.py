"""Models by name: their outputs, and choices that are rejected before any data is read."""

import re
import sys

import pytest
import torch
import torchvision.models
from learning_streams import config
from one_line_errors import check_error
from safetensors.torch import save_file
from strategy_runs import assert_identical, image_stream, train_all
from torch import nn

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.models import build_model, check_model, check_weights, list_model_names


@pytest.mark.parametrize(
    ("name", "side"),
    [
        *(("small_cnn", side) for side in (8, 9, 32, 64)),
        *(("resnet18", 64), ("vit_b_16", 32), ("inception_v3", 96), ("googlenet", 64)),
    ],
)
def test_models_have_a_head_for_the_classes_and_return_logits(name, side):
    check_model(name, image_size=side, batch_size=2)
    with torch.device("meta"):
        model = build_model(name, num_classes=11, image_size=side).train()
    assert model(torch.zeros(2, 3, side, side, device="meta")).shape == (2, 11)


def test_model_names_are_those_of_torchvision_and_our_own():
    assert {"small_cnn", "resnet18", "efficientnet_b0"} <= set(list_model_names())
    assert "fasterrcnn_resnet50_fpn" not in list_model_names()


@pytest.mark.parametrize("act", [build_model, check_model])
def test_an_unknown_model_is_an_error_with_similar_names(act):
    options = {"num_classes": 2} if act is build_model else {"batch_size": 2}
    with pytest.raises(ConfigError, match=r"'resnet81'; did you mean .*resnet18.*list_models"):
        act("resnet81", image_size=32, **options)


@pytest.mark.parametrize(
    ("name", "side", "advice"),
    [
        ("alexnet", 32, "image_size=64"),
        ("inception_v3", 32, "image_size=96"),
        ("vit_b_16", 33, "image_size=32"),
        ("maxvit_t", 64, "image_size=224"),
    ],
)
def test_an_unsupported_image_size_is_an_error_with_a_supported_one(name, side, advice):
    line = check_error(ConfigError, "", check_model, name, image_size=side, batch_size=2)
    assert re.search(rf"{name} cannot take images of {side} .*{advice}", line)


def test_only_transformers_need_the_size_of_their_default_weights():
    line = check_error(
        ConfigError, "", check_weights, "vit_b_16", "DEFAULT", image_size=64, num_classes=3
    )
    assert "weights of vit_b_16 are for 224 pixels; pass image_size=224" in line
    for name, side in (("vit_b_16", 224), ("resnet18", 64), ("resnet18", 224)):
        check_weights(name, "DEFAULT", image_size=side, num_classes=3)


def test_a_batch_too_small_for_batch_normalisation_is_rejected():
    """ResNet-18 reduces 32 pixels to one, which cannot be normalised for one image."""
    with pytest.raises(ConfigError, match="batch of 1 at 32 pixels"):
        check_model("resnet18", image_size=32, batch_size=1)
    check_model("resnet18", image_size=32, batch_size=2)
    check_model("resnet18", image_size=64, batch_size=1)


def test_a_model_that_cannot_be_built_on_the_meta_device_is_checked():
    """RegNet's builder reads values of tensors."""
    check_model("regnet_x_400mf", image_size=32, batch_size=2)


def save_weights(tmp_path, state, suffix):
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file({k: v.contiguous() for k, v in state.items()}, path)
    else:
        torch.save(state, path)
    return str(path)


def build(**changes):
    options = {"num_classes": 3, "image_size": 32, **changes}
    return build_model(options.pop("name", "resnet18"), **options)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_from_a_file_without_a_head_get_a_new_head(tmp_path, suffix):
    donor = build()
    donor.fc.weight.data.fill_(7)
    path = save_weights(tmp_path, donor.state_dict(), suffix)
    assert_identical(build(weights=path), donor)
    backbone = {k: v for k, v in donor.state_dict().items() if not k.startswith("fc.")}
    fresh = build(weights=save_weights(tmp_path, backbone, suffix), num_classes=5)
    assert torch.equal(fresh.conv1.weight, donor.conv1.weight)
    assert fresh.fc.weight.shape == (5, 512)
    assert not (fresh.fc.weight == 7).any()


@pytest.mark.slow
def test_weights_that_do_not_fit_are_a_one_line_error(tmp_path):
    state = build().state_dict()
    cases = [
        ({**state}, {"num_classes": 4}, "a head for 3 classes, but the dataset has 4"),
        ({**state}, {"name": "small_cnn"}, "is not a state dict of model small_cnn"),
        ({**state, "conv1.weight": torch.zeros(1)}, {}, "size mismatch for conv1.weight"),
        ({**state, "extra": torch.zeros(1)}, {}, 'Unexpected key.* "extra"'),
        ({k: v for k, v in state.items() if k != "bn1.bias"}, {}, 'Missing key.* "bn1.bias"'),
    ]
    for tensors, changes, message in cases:
        path = save_weights(tmp_path, tensors, ".safetensors")
        assert re.search(message, check_error(ConfigError, "", build, weights=path, **changes))
    for content in (b"", b"no tensors", b"PK\x03\x04 cut"):
        for suffix in (".safetensors", ".pth"):
            path = tmp_path / f"damaged{suffix}"
            path.write_bytes(content)
            with pytest.raises(ConfigError, match="cannot read the weights") as caught:
                build(weights=str(path))
            assert "run code" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"missing\.pth cannot be read: No such file"):
        build(weights=str(tmp_path / "missing.pth"))


class Intruder:
    def __reduce__(self):
        return (print, ("code ran",))


@pytest.mark.parametrize("content", [Intruder(), {"conv1.weight": Intruder()}])
def test_a_file_of_weights_runs_no_code(tmp_path, content, capsys):
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    with pytest.raises(ConfigError, match="a pickle that wants to run code"):
        build(weights=str(path))
    assert "code ran" not in capsys.readouterr().out


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Put weights where torchvision's download would store them."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def made_up(name, **options):
        url = torchvision.models.get_model_weights(name)["DEFAULT"].url
        path = tmp_path / "hub" / "checkpoints" / url.rsplit("/", 1)[-1]
        path.parent.mkdir(parents=True)
        torch.save(torchvision.models.get_model(name, weights=None, **options).state_dict(), path)
        return path

    return made_up


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "squeezenet1_1", "densenet121"])
def test_pretrained_weights_get_a_new_head_for_the_datasets_classes(name, published):
    published(name)
    model = build(name=name, weights="DEFAULT", image_size=224, num_classes=11)
    with torch.inference_mode():
        assert model.eval()(torch.zeros(1, 3, 224, 224)).shape == (1, 11)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_a_stored_model_predicts_like_the_trained_one(name, published):
    path = published(name, aux_logits=True, init_weights=False)
    trained = build(name=name, weights="DEFAULT", image_size=96).eval()
    stored = build(name=name, image_size=96).eval()
    stored.load_state_dict(trained.state_dict())
    from_file = build(name=name, weights=str(path), image_size=96, num_classes=1000)
    images = torch.randn(2, 3, 96, 96)
    with torch.inference_mode():
        assert torch.equal(stored(images), trained(images))
        assert trained.train()(images).shape == (2, 3)  # logits alone
    assert torch.equal(next(from_file.parameters()), next(trained.parameters()))


def test_old_names_of_densenet_weights_are_recognised(tmp_path):
    """Torchvision publishes files whose layers have dots in their names."""
    state = build(name="densenet121").state_dict()
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", k): v for k, v in state.items()}
    assert old.keys() != state.keys()
    loaded = build(name="densenet121", weights=save_weights(tmp_path, old, ".pth"))
    assert_identical(loaded.state_dict(), state)


class Headless(nn.Module):
    """A user's model with weights and without layers."""

    def __init__(self, num_classes, image_size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3 * image_size**2, num_classes))

    def forward(self, inputs):
        return inputs.view(len(inputs), -1) @ self.weight


class HeadFirst(nn.Module):
    """A user's model whose head is defined before its other layer."""

    def __init__(self, num_classes, image_size):
        super().__init__()
        self.head = nn.Linear(16, num_classes)
        self.body = nn.LazyLinear(16)

    def forward(self, inputs):
        return self.head(self.body(inputs.flatten(1)))


class Pair(HeadFirst):
    """A user's model that returns more than logits, only in training."""

    def forward(self, inputs):
        logits = super().forward(inputs)
        return (logits, logits) if self.training else logits


def raise_two_lines(num_classes, image_size):
    raise KeyError("no\nfile")


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (lambda classes, side: classes, "is 5; expected a torch.nn.Module"),
        (lambda *_: nn.Flatten(), "is Flatten.*; expected a torch.nn.Module with weights"),
        (lambda: nn.Linear(1, 1), "fails for 5 classes, 8 pixels .TypeError"),
        (
            lambda classes, side: nn.Sequential(nn.Flatten(), nn.LazyLinear(classes + 1)),
            r"returns \(2, 6\) for inputs of \(2, 3, 8, 8\); expected logits of \(2, 5\)",
        ),
        (lambda classes, side: nn.Conv2d(3, classes, 1), r"returns \(2, 5, 8, 8\)"),
        (
            lambda classes, side: nn.Sequential(nn.Flatten(), nn.Linear(7, classes)),
            r"fails on inputs of \(2, 3, 8, 8\) .RuntimeError",
        ),
        (raise_two_lines, "fails for 5 classes, 8 pixels .KeyError"),
        (lambda *_: sys.exit(0), "fails for 5 classes, 8 pixels .SystemExit: 0"),
        (None, "cannot be loaded .AttributeError"),
        (Pair, "cannot train on a batch of 2 .* does not return one row of logits"),
    ],
)
def test_a_custom_model_that_does_not_fit_is_one_line(monkeypatch, model, problem):
    if model is not None:
        monkeypatch.setitem(globals(), "custom", model)
    options = {"image_size": 8, "batch_size": 2, "num_classes": 5}
    line = check_error(ConfigError, "", check_model, f"{__name__}:custom", **options)
    assert re.search(f"model {__name__}:custom {problem}", line)


@pytest.mark.parametrize("name", ["Headless", "HeadFirst"])
def test_the_head_of_a_custom_model_must_be_known_to_be_trained_alone(name):
    """Without it, the model trains; freeze=backbone would train another layer."""
    options = {"num_classes": 5, "image_size": 8}
    model = build_model(f"{__name__}:{name}", **options)
    channels_last = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last)
    assert model(channels_last).shape == (4, 5)
    with pytest.raises(ConfigError, match="not a head for the dataset's classes; define the head"):
        build_model(f"{__name__}:{name}", **options, freeze="backbone")


def test_a_custom_model_starts_from_a_file_of_weights(tmp_path):
    name, options = f"{__name__}:HeadFirst", {"num_classes": 5, "image_size": 8}
    path = tmp_path / "weights.pth"
    model = build_model(name, **options)
    torch.save(model.state_dict(), path)
    check_weights(name, str(path), **options)
    assert_identical(build_model(name, **options, weights=str(path)), model)
    path.write_text("hello")
    with pytest.raises(ConfigError, match="not a torch file") as error:
        build_model(name, **options, weights=str(path))
    assert "download" not in str(error.value)


class Reading(HeadFirst):
    """A user's model whose computation depends on numbers."""

    def forward(self, inputs):
        return super().forward(inputs * 2 if inputs.mean() > 1 else inputs)


def test_a_model_that_reads_numbers_has_no_naive_budget(tmp_path):
    """Its FLOPs cannot be counted on the meta device. It trains without that budget."""
    parameters = {"strategy": "naive", "model": f"{__name__}:Reading", "epochs": 1}
    with pytest.raises(ConfigError, match="Reading cannot be counted without data"):
        train_all(image_stream(tmp_path), config(**parameters, budget="naive:1"))
    assert len(train_all(image_stream(tmp_path), config(**parameters, budget="images:8"))) == 4
