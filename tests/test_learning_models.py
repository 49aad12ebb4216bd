"""Models by name: what they return, and which choices are refused before any data is read."""

from __future__ import annotations

import pytest
import torch

from clear_mlflow.errors import ConfigError
from clear_mlflow.learning.models import build_model, check_model, model_names


@pytest.mark.parametrize("side", [8, 9, 32, 64])
def test_small_cnn_takes_any_small_image(side):
    """One row of logits per image, from 8 pixels on."""
    model = build_model("small_cnn", num_classes=7, image_size=side)
    assert model(torch.zeros(2, 3, side, side)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "side"),
    [("resnet18", 64), ("vit_b_16", 32), ("inception_v3", 96), ("googlenet", 64)],
)
def test_torchvision_models_get_a_new_head_and_return_logits(name, side):
    """Also those that are built for one size, and those that have auxiliary heads in training."""
    check_model(name, image_size=side, batch_size=2)
    with torch.device("meta"):
        model = build_model(name, num_classes=11, image_size=side).train()
    assert model(torch.zeros(2, 3, side, side, device="meta")).shape == (2, 11)


def test_fresh_weights_follow_from_the_seed():
    """Nothing pretrained, and nothing but torch's generator decides."""
    torch.manual_seed(5)
    first = build_model("small_cnn", num_classes=2, image_size=8).state_dict()
    torch.manual_seed(5)
    again = build_model("small_cnn", num_classes=2, image_size=8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_names_are_those_of_torchvision_and_our_own():
    """Detection and segmentation models are no classifiers."""
    assert {"small_cnn", "resnet18", "efficientnet_b0"} <= set(model_names())
    assert "fasterrcnn_resnet50_fpn" not in model_names()


@pytest.mark.parametrize("act", [build_model, check_model])
def test_an_unknown_model_is_answered_with_close_names(act):
    """One line that names what was probably meant, and how to list all."""
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
def test_a_size_that_a_model_cannot_take_is_refused_with_one_that_it_can(name, side, advice):
    """One line instead of a traceback from inside the model."""
    with pytest.raises(ConfigError, match=rf"{name} cannot take images of {side} .*{advice}") as e:
        check_model(name, image_size=side, batch_size=2)
    assert "\n" not in str(e.value)


def test_a_batch_too_small_for_batch_normalisation_is_refused():
    """ResNet-18 shrinks 32 pixels to one: a batch of one image has nothing to normalise."""
    with pytest.raises(ConfigError, match="batch of 1 at 32 pixels"):
        check_model("resnet18", image_size=32, batch_size=1)
    check_model("resnet18", image_size=32, batch_size=2)
    check_model("resnet18", image_size=64, batch_size=1)


def test_a_model_that_cannot_be_built_on_the_meta_device_is_checked_all_the_same():
    """RegNet's builder computes with tensors, which need numbers."""
    check_model("regnet_x_400mf", image_size=32, batch_size=2)
