"""Models by name, each with a new head for the dataset's classes and nothing pretrained."""

from __future__ import annotations

import difflib
from typing import Any

import torch
import torchvision.models
from torch import Tensor, nn

from clear_mlflow.errors import ConfigError

SMALL_CNN = "small_cnn"  # the linear head on features is no model of images: linear_head

# Sizes that the message about a size that does not work tries, the smallest first.
_USUAL_SIZES = (32, 64, 96, 128, 224, 299)

# The two models that return more than logits while they train, unless told not to.
_WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")


def model_names() -> tuple[str, ...]:
    """Every name that :func:`build_model` knows, sorted."""
    return tuple(sorted([SMALL_CNN, *torchvision.models.list_models(module=torchvision.models)]))


def build_model(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    """Build a model with fresh weights, drawn from torch's process-wide generator.

    Args:
        name: ``small_cnn``, or a torchvision classification model by name.
        num_classes: width of the head.
        image_size: side of the square input, pixels; transformers are built for one size.

    Returns:
        A module from (N, 3, image_size, image_size) to logits (N, num_classes).

    Raises:
        ConfigError: there is no such model, or it cannot be built for this size.
    """
    if name not in model_names():
        raise ConfigError(_unknown_model(name))
    try:
        return _build(name, num_classes=num_classes, image_size=image_size)
    except (ValueError, AssertionError) as error:
        raise ConfigError(
            f"model {name} cannot be built for {image_size} pixels ({error}); pass another "
            "image_size"
        ) from error


def linear_head(width: int, *, num_classes: int) -> nn.Linear:
    """The model ``linear``: one layer on stored features, all of it zero before it is trained.

    A convex problem needs no random start, and without one the untrained row is the same for all
    seeds: every image is taken for the first class.

    Args:
        width: numbers per image.
        num_classes: width of the output.
    """
    head = nn.Linear(width, num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def check_model(name: str, *, image_size: int, batch_size: int) -> None:
    """Pass made-up images through a model, so that a bad choice shows before any data is read.

    Costs milliseconds: shapes are computed, numbers are not (but for the few models that torch
    cannot build so).

    Args:
        name: see :func:`build_model`.
        image_size: side of the square input, pixels.
        batch_size: images in the smallest training batch that will occur.

    Raises:
        ConfigError: there is no such model, it cannot take images of this size, or it cannot train
            on a batch this small.
    """
    if name not in model_names():
        raise ConfigError(_unknown_model(name))
    reason = _refusal(name, image_size, batch_size=1, training=False)
    if reason is not None:
        fitting = (
            s for s in _USUAL_SIZES if _refusal(name, s, batch_size=1, training=False) is None
        )
        smallest = next(fitting, None)
        advice = "another model" if smallest is None else f"image_size={smallest}, which it takes"
        raise ConfigError(
            f"model {name} cannot take images of {image_size} pixels ({reason}); pass {advice}"
        )
    reason = _refusal(name, image_size, batch_size=batch_size, training=True)
    if reason is not None:
        raise ConfigError(
            f"model {name} cannot train on a batch of {batch_size} at {image_size} pixels "
            f"({reason}); pass a larger batch_size or image_size"
        )


def _refusal(name: str, image_size: int, *, batch_size: int, training: bool) -> str | None:
    """Why a model fails on such a batch, in the words of torch; None where it does not fail."""
    num_classes = 3
    try:
        try:
            with torch.device("meta"):
                model = _build(name, num_classes=num_classes, image_size=image_size)
        except NotImplementedError:  # regnet computes its widths with tensors: it needs numbers
            model = _build(name, num_classes=num_classes, image_size=image_size).to("meta")
        with torch.inference_mode():
            images = torch.empty(batch_size, 3, image_size, image_size, device="meta")
            logits = model.train(training)(images)
    except (RuntimeError, ValueError, AssertionError) as error:
        return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    if not isinstance(logits, Tensor) or logits.shape != (batch_size, num_classes):
        return "it does not return one row of logits per image"
    return None


def _unknown_model(name: str) -> str:
    close = difflib.get_close_matches(name, model_names(), n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return (
        f"unknown model {name!r}; {hint}expected {SMALL_CNN} or a torchvision classification "
        "model; torchvision.models.list_models(module=torchvision.models) lists them"
    )


def _build(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    if name == SMALL_CNN:
        return _small_cnn(num_classes)
    options: dict[str, Any] = {}
    if name.startswith("vit_"):
        options["image_size"] = image_size
    if name.startswith("maxvit_"):
        options["input_size"] = (image_size, image_size)
    if name in _WITH_AUXILIARY_HEADS:
        options.update(aux_logits=False, init_weights=True)
    model: nn.Module = torchvision.models.get_model(
        name, weights=None, num_classes=num_classes, **options
    )
    return model


def _small_cnn(num_classes: int) -> nn.Module:
    """Three convolutions for small images, of 4 pixels and more: 34 thousand weights on digits.

    The head sees a grid of 4 x 4 places, whatever the image's size. A single place, as larger
    networks have, forgets where strokes are, and learns digits several times more slowly.
    """
    grid = 4
    return nn.Sequential(
        *_convolution(3, 16),
        nn.MaxPool2d(2),
        *_convolution(16, 32),
        nn.MaxPool2d(2),
        *_convolution(32, 64),
        nn.AdaptiveAvgPool2d(grid),
        nn.Flatten(),
        nn.Linear(64 * grid**2, num_classes),
    )


def _convolution(width_in: int, width_out: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(width_in, width_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(width_out),
        nn.ReLU(inplace=True),
    )
