"""Models by name, each with a head for the dataset's classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import nearest
from clear_mlflow.data.files import path_text
from clear_mlflow.learning.device import compute_dtype
from clear_mlflow.learning.inference.backbone import (
    DEFAULT_WEIGHTS,
    downloaded,
    fill,
    read_weights,
)
from clear_mlflow.learning.parameters.recipes import NONE

SMALL_CNN = "small_cnn"  # the linear head on features is no model of images: feature_model

# Sizes that the message about a size that does not work tries, the smallest first.
_USUAL_SIZES = (32, 64, 96, 128, 224, 299)

# The two models that return more than logits while they train, unless built otherwise.
_WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")


def model_names() -> tuple[str, ...]:
    """Every name that :func:`build_model` knows, sorted."""
    models = _torchvision_models()
    return tuple(sorted([SMALL_CNN, *models.list_models(module=models)]))


def build_model(
    name: str, *, num_classes: int, image_size: int, weights: str = NONE, freeze: str = NONE
) -> nn.Module:
    """A model from (N, 3, size, size) to logits; weights: none, DEFAULT, or a file, head or not."""
    _check_name(name)
    try:
        if weights == DEFAULT_WEIGHTS:
            model = _pretrained(name, num_classes=num_classes, image_size=image_size)
        else:
            model = _build(name, num_classes=num_classes, image_size=image_size)
            if weights != NONE:
                _load_weights(model, Path(weights), name=name)
        if freeze == "backbone":
            model.requires_grad_(False)
            head_of(model).requires_grad_(True)
        return model
    except (ValueError, AssertionError) as error:
        raise ConfigError(
            f"model {name} cannot be built for {image_size} pixels ({error}); pass another "
            "image_size"
        ) from error


def head_of(model: nn.Module) -> nn.Linear | nn.Conv2d:
    """The layer that gives the logits: the last linear one, or convolution of 1 x 1."""
    return named_head(model)[1]


def named_head(model: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d]:
    """:func:`head_of`, after its name."""
    *_, found = (
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Linear, nn.Conv2d))
    )
    return found


@contextmanager
def logits_in_float32(model: nn.Module) -> Iterator[None]:
    """The logits' layer in float32, where others are bfloat16: its ties go to the first class."""
    heads = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1:]
    for head in heads:

        def in_float32(
            inputs: Tensor, forward: Callable[[Tensor], Tensor] = head.forward
        ) -> Tensor:
            with torch.autocast(inputs.device.type, enabled=False):
                return forward(inputs.float())

        head.forward = in_float32  # type: ignore[assignment]
    try:
        yield
    finally:
        for head in heads:
            del head.forward


def input_dtype(model: nn.Module, precision: str) -> torch.dtype:
    """What images become at once: that of a convolution, where one sees them before all else."""
    first = next(part for part in model.modules() if not list(part.children()))
    is_seen = isinstance(first, nn.Conv2d) and not getattr(model, "transform_input", False)
    return compute_dtype(precision) if is_seen else torch.float32


def trainable(model: nn.Module, freeze: str) -> None:
    """Training mode, but evaluation for what is frozen: its statistics stay, dropout is off."""
    model.train()
    if freeze == "backbone":
        model.eval()
        head_of(model).train()


def feature_model(name: str, width: int, *, num_classes: int) -> nn.Module:
    """A model on stored features: ``linear``, or ``mlp:256-128`` with hidden layers so wide."""
    layers: list[nn.Module] = []
    for hidden in map(int, name.partition(":")[2].split("-") if ":" in name else ()):
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    if layers:
        return nn.Sequential(*layers, nn.Linear(width, num_classes))
    # Zero before it is trained: the same for all seeds.
    head = nn.Linear(width, num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


@lru_cache(maxsize=64)
def check_weights(name: str, weights: str, *, image_size: int, num_classes: int | None) -> None:
    """Raise ConfigError unless a model can start from weights, which are not downloaded.

    A head is compared with *num_classes*, or not at all if it is None.
    """
    if weights == DEFAULT_WEIGHTS:
        size = _describe_default(name).meta["min_size"][0]
        if name.startswith(("vit_", "maxvit_")) and image_size != size:
            raise ConfigError(
                f"weights is {DEFAULT_WEIGHTS} and image_size is {image_size}, but the weights of "
                f"{name} are for {size} pixels; pass image_size={size}, or weights=none"
            )
    elif weights != NONE:
        model = _build_on_meta(name, num_classes=num_classes or 3, image_size=image_size)
        _load_weights(model, Path(weights), name=name, fits_head=num_classes is not None)


@lru_cache(maxsize=64)
def check_model(name: str, *, image_size: int, batch_size: int) -> None:
    """Pass made-up images through a model, in milliseconds; *batch_size*: of the smallest batch."""
    _check_name(name)
    if reason := _refusal(name, image_size, batch_size=1, training=False):
        fitting = (s for s in _USUAL_SIZES if not _refusal(name, s, batch_size=1, training=False))
        smallest = next(fitting, None)
        advice = f"image_size={smallest}, which it takes" if smallest else "another model"
        raise ConfigError(
            f"model {name} cannot take images of {image_size} pixels ({reason}); pass {advice}"
        )
    if reason := _refusal(name, image_size, batch_size=batch_size, training=True):
        raise ConfigError(
            f"model {name} cannot train on a batch of {batch_size} at {image_size} pixels "
            f"({reason}); pass a larger batch_size or image_size"
        )


def _refusal(name: str, image_size: int, *, batch_size: int, training: bool) -> str:
    """Why a model fails on a batch of this size, in torch's words; empty where it does not."""
    num_classes = 3
    try:
        model = _build_on_meta(name, num_classes=num_classes, image_size=image_size)
        with torch.inference_mode():
            images = torch.empty(batch_size, 3, image_size, image_size, device="meta")
            logits = model.train(training)(images)
    except (RuntimeError, ValueError, AssertionError) as error:
        return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    if not isinstance(logits, Tensor) or logits.shape != (batch_size, num_classes):
        return "it does not return one row of logits per image"
    return ""


def _build_on_meta(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    try:
        with torch.device("meta"):
            return _build(name, num_classes=num_classes, image_size=image_size)
    except NotImplementedError:  # regnet computes its widths with tensors: it needs numbers
        return _build(name, num_classes=num_classes, image_size=image_size).to("meta")


def _torchvision_models() -> Any:
    """Loaded where they are used: it takes longer than loading torch, and heads need none."""
    import torchvision.models

    return torchvision.models


def _check_name(name: str) -> None:
    if name == SMALL_CNN or name in model_names():
        return
    raise ConfigError(
        f"unknown model {name!r}; {nearest(name, model_names())}expected {SMALL_CNN} or a "
        "torchvision classification model; "
        "torchvision.models.list_models(module=torchvision.models) lists them"
    )


def _build(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    if name == SMALL_CNN:
        return _small_cnn(num_classes)
    return torchvision_model(name, image_size=image_size, num_classes=num_classes)


def torchvision_model(name: str, *, image_size: int, **options: Any) -> nn.Module:
    """A model for a size, of the same layers and input whatever its weights come from."""
    if name.startswith("vit_"):
        options["image_size"] = image_size
    if name.startswith("maxvit_"):
        options["input_size"] = (image_size, image_size)
    if name in _WITH_AUXILIARY_HEADS and "weights" not in options:
        options |= {"aux_logits": False, "init_weights": True, "transform_input": True}
    model: Any = _torchvision_models().get_model(name, **options)
    if name in _WITH_AUXILIARY_HEADS:
        model.aux_logits, model.AuxLogits = False, None
    return cast("nn.Module", model)


def default_weights(name: str) -> Path:
    """The file of torchvision's best weights, from torch's own cache or from where they are."""
    url = str(_describe_default(name).url)
    return downloaded(url, hash_prefix=hash_in(url))


def _describe_default(name: str) -> Any:
    if name == SMALL_CNN:
        raise ConfigError(
            "weights is DEFAULT, but nobody has published weights of small_cnn; pass weights=none"
        )
    return _torchvision_models().get_model_weights(name)["DEFAULT"]


def hash_in(url: str) -> str | None:
    """The first characters of a file's SHA-256, which torchvision puts into its name."""
    match = re.search(r"-([0-9a-f]{8,64})\.", url)
    return match[1] if match else None


def _pretrained(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    default_weights(name)  # torchvision itself would wait for ever for a server that says nothing
    model = torchvision_model(name, image_size=image_size, weights=DEFAULT_WEIGHTS)
    place, head = named_head(model)
    fresh: nn.Module
    if isinstance(head, nn.Linear):
        fresh = nn.Linear(head.in_features, num_classes)
    else:
        fresh = nn.Conv2d(head.in_channels, num_classes, head.kernel_size)  # type: ignore[arg-type]
    model.set_submodule(place, fresh)
    return model


def _load_weights(model: nn.Module, path: Path, *, name: str, fits_head: bool = True) -> None:
    place, head = named_head(model)
    of_head = {f"{place}.{key}": tensor for key, tensor in head.state_dict().items()}
    try:
        state = read_weights(path, f"model {name}")
        state = {key: t for key, t in state.items() if fits_head or key not in of_head}
        for key in sorted(of_head.keys() & state.keys()):
            if len(state[key]) != len(of_head[key]) and state[key].dim() == of_head[key].dim():
                raise DataError(
                    f"{path_text(path)} is of {len(state[key])} classes, the dataset has "
                    f"{len(of_head[key])}; leave {' and '.join(sorted(of_head))} out of the file "
                    "for a fresh head"
                )
        fill(model, state, path=path, name=f"model {name}", may_lack=of_head)
    except DataError as error:
        raise ConfigError(
            f"cannot read the weights: {error}; weights is a .safetensors file, or a .pth that "
            "torch.load reads with weights_only=True, of model.state_dict() alone"
        ) from error


def _small_cnn(num_classes: int) -> nn.Module:
    """For images from 4 pixels on; its head sees 4 x 4 places: one learns digits slowly."""
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
