"""Build models by name, each with a head for the dataset's classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from clear_mlflow.core.errors import ConfigError, DataError, require_package
from clear_mlflow.core.text import suggest_nearest
from clear_mlflow.data.files import path_text
from clear_mlflow.learning.device import get_convolution_dtype
from clear_mlflow.learning.inference.weights import download_weights, load_weights, read_weights
from clear_mlflow.learning.parameters.recipes import DEFAULT_WEIGHTS, NONE, SMALL_CNN

# Sizes that an error message suggests, if the model accepts them, from the smallest.
_SUGGESTED_SIZES = (32, 64, 96, 128, 224, 299)

# The two models that return more than logits while they train, unless built otherwise.
_WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")


def list_model_names() -> tuple[str, ...]:
    """Return all names that :func:`build_model` accepts, sorted."""
    models = _import_torchvision_models()
    return tuple(sorted([SMALL_CNN, *models.list_models(module=models)]))


def build_model(
    name: str, *, num_classes: int, image_size: int, weights: str = NONE, freeze: str = NONE
) -> nn.Module:
    """Build a model from (N, 3, size, size) to logits.

    weights: ``none`` for random ones, ``DEFAULT`` for torchvision's with a new head (downloaded if
    they are missing), or path of a file, with or without a head.
    freeze: ``none``, or ``backbone`` to train only the head.

    Raises ConfigError if the model does not exist, does not fit the size or the weights, or if
    weights cannot be read or downloaded.
    """
    _check_model_exists(name)
    try:
        if weights == DEFAULT_WEIGHTS:
            model = _build_pretrained(name, num_classes=num_classes, image_size=image_size)
        else:
            model = _build_with_random_weights(name, num_classes=num_classes, image_size=image_size)
            if weights != NONE:
                _load_weights_file(model, Path(weights), name=name)
        if freeze == "backbone":
            model.requires_grad_(False)
            get_head(model).requires_grad_(True)
        return model
    except (ValueError, AssertionError) as error:
        raise ConfigError(
            f"model {name} cannot be built for {image_size} pixels ({error}); pass another "
            "image_size"
        ) from error


def get_head(model: nn.Module) -> nn.Linear | nn.Conv2d:
    """Return the layer that computes the logits: the last linear or convolutional one."""
    return find_head(model)[1]


def find_head(model: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d]:
    """Return the name of the layer that computes the logits, and the layer."""
    *_, head = (
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Linear, nn.Conv2d))
    )
    return head


@contextmanager
def logits_in_float32(model: nn.Module) -> Iterator[None]:
    """Let a model's head compute in float32 within the block, so that fewer logits are equal."""
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


def get_input_dtype(model: nn.Module, precision: str) -> torch.dtype:
    """Return the dtype for input images: the convolutions' if the first layer is one, else float32.

    Returns float32 for a model that transforms its input, too.
    """
    first = next(part for part in model.modules() if not list(part.children()))
    is_input = isinstance(first, nn.Conv2d) and not getattr(model, "transform_input", False)
    return get_convolution_dtype(precision) if is_input else torch.float32


def set_training_mode(model: nn.Module, freeze: str) -> None:
    """Set a model to training mode, or with ``freeze=backbone`` only its head.

    Other layers then have fixed statistics, and no dropout.
    """
    model.train()
    if freeze == "backbone":
        model.eval()
        get_head(model).train()


def build_feature_model(name: str, width: int, *, num_classes: int) -> nn.Module:
    """Build a model on stored features: ``linear``, or ``mlp:256-128`` with two hidden layers.

    The weights of ``linear`` are zeros, others are random. width: numbers per image.
    """
    layers: list[nn.Module] = []
    for hidden in map(int, name.partition(":")[2].split("-") if ":" in name else ()):
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    if layers:
        return nn.Sequential(*layers, nn.Linear(width, num_classes))
    # Initialised with zeros, the same for all seeds.
    head = nn.Linear(width, num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


@lru_cache(maxsize=64)
def check_weights(name: str, weights: str, *, image_size: int, num_classes: int | None) -> None:
    """Raise ConfigError unless a model can start from weights. Downloads nothing.

    Reads a file, but of ``DEFAULT`` checks only the image size. num_classes: of the dataset, or
    None to skip the head. Remembers weights that fit: a file that changes later is not read again.
    """
    if weights == DEFAULT_WEIGHTS:
        size = _get_default_weights(name).meta["min_size"][0]
        if name.startswith(("vit_", "maxvit_")) and image_size != size:
            raise ConfigError(
                f"weights is {DEFAULT_WEIGHTS} and image_size is {image_size}, but the weights of "
                f"{name} are for {size} pixels; pass image_size={size}, or weights=none"
            )
    elif weights != NONE:
        model = _build_on_meta(name, num_classes=num_classes or 3, image_size=image_size)
        _load_weights_file(model, Path(weights), name=name, with_head=num_classes is not None)


@lru_cache(maxsize=64)
def check_model(name: str, *, image_size: int, batch_size: int) -> None:
    """Raise ConfigError unless a model accepts one test image and a training batch of this size.

    Tries them without data, on the meta device. Remembers models that accept them.
    """
    _check_model_exists(name)
    if reason := _try_forward(name, image_size, 1, training=False):
        sizes = (s for s in _SUGGESTED_SIZES if not _try_forward(name, s, 1, training=False))
        size = next(sizes, None)
        advice = f"image_size={size}, which it accepts" if size else "another model"
        raise ConfigError(
            f"model {name} cannot take images of {image_size} pixels ({reason}); pass {advice}"
        )
    if reason := _try_forward(name, image_size, batch_size, training=True):
        raise ConfigError(
            f"model {name} cannot train on a batch of {batch_size} at {image_size} pixels "
            f"({reason}); pass a larger batch_size or image_size"
        )


def _try_forward(name: str, image_size: int, batch_size: int, *, training: bool) -> str:
    """Return the reason why a model fails on a batch on the meta device, or "" if it does not.

    It also fails if it does not return one row of logits per image.
    """
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
    """Build a model on the meta device: with shapes, but without numbers."""
    try:
        with torch.device("meta"):
            return _build_with_random_weights(name, num_classes=num_classes, image_size=image_size)
    except NotImplementedError:  # regnet computes its widths with tensors, which need data
        return _build_with_random_weights(name, num_classes=num_classes, image_size=image_size).to(
            "meta"
        )


def _import_torchvision_models() -> Any:
    """Return the module torchvision.models."""
    # Slower to import than torch, and not needed for heads on features.
    with require_package("torchvision", "a torchvision model"):
        import torchvision.models

    return torchvision.models


def _check_model_exists(name: str) -> None:
    """Raise ConfigError unless :func:`build_model` accepts the name."""
    if name == SMALL_CNN or name in list_model_names():
        return
    raise ConfigError(
        f"unknown model {name!r}; {suggest_nearest(name, list_model_names())}expected {SMALL_CNN} "
        "or a torchvision classification model; "
        "torchvision.models.list_models(module=torchvision.models) lists them"
    )


def _build_with_random_weights(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    """Build the small network of this package or a torchvision model, with random weights."""
    if name == SMALL_CNN:
        return _build_small_cnn(num_classes)
    return build_torchvision_model(name, image_size=image_size, num_classes=num_classes)


def build_torchvision_model(name: str, *, image_size: int, **options: Any) -> nn.Module:
    """Build a torchvision model for a size, without auxiliary heads.

    options: further arguments of torchvision's get_model, such as num_classes or weights, which it
    downloads if they are missing.
    """
    if name.startswith("vit_"):
        options["image_size"] = image_size
    if name.startswith("maxvit_"):
        options["input_size"] = (image_size, image_size)
    if name in _WITH_AUXILIARY_HEADS and "weights" not in options:
        options |= {"aux_logits": False, "init_weights": True, "transform_input": True}
    model: Any = _import_torchvision_models().get_model(name, **options)
    if name in _WITH_AUXILIARY_HEADS:
        model.aux_logits, model.AuxLogits = False, None
    return cast("nn.Module", model)


def download_default_weights(name: str) -> Path:
    """Return the path of torchvision's best weights, downloaded unless torch has cached them.

    Raises ConfigError if the download fails.
    """
    url = str(_get_default_weights(name).url)
    return download_weights(url, hash_prefix=parse_hash_prefix(url))


def _get_default_weights(name: str) -> Any:
    """Return torchvision's description of a model's best weights. Downloads nothing."""
    return _import_torchvision_models().get_model_weights(name)["DEFAULT"]


def parse_hash_prefix(url: str) -> str | None:
    """Return the first characters of a file's SHA-256 from its URL, or None if there are none."""
    match = re.search(r"-([0-9a-f]{8,64})\.", url)
    return match[1] if match else None


def _build_pretrained(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    """Build a model with torchvision's best weights and a new head. Downloads missing weights."""
    download_default_weights(name)  # torchvision would download without a timeout
    model = build_torchvision_model(name, image_size=image_size, weights=DEFAULT_WEIGHTS)
    head_name, head = find_head(model)
    new_head: nn.Module
    if isinstance(head, nn.Linear):
        new_head = nn.Linear(head.in_features, num_classes)
    else:
        size: Any = head.kernel_size
        new_head = nn.Conv2d(head.in_channels, num_classes, size)
    model.set_submodule(head_name, new_head)
    return model


def _load_weights_file(model: nn.Module, path: Path, *, name: str, with_head: bool = True) -> None:
    """Load a file of weights into a model, except for a head that the file lacks.

    with_head: False to ignore the file's head. Raises ConfigError if the file cannot be read or
    does not fit the model.
    """
    head_name, head = find_head(model)
    head_state = {f"{head_name}.{key}": tensor for key, tensor in head.state_dict().items()}
    try:
        state = read_weights(path, f"model {name}")
        state = {key: t for key, t in state.items() if with_head or key not in head_state}
        for key in sorted(head_state.keys() & state.keys()):
            tensor, expected = state[key], head_state[key]
            if len(tensor) != len(expected) and tensor.dim() == expected.dim():
                raise DataError(
                    f"{path_text(path)} has a head for {len(tensor)} classes, but the dataset has "
                    f"{len(expected)}; leave {' and '.join(sorted(head_state))} out of the file to "
                    "start with a new head"
                )
        load_weights(model, state, path=path, name=f"model {name}", defaults=head_state)
    except DataError as error:
        raise ConfigError(
            f"cannot read the weights: {error}; weights must be a .safetensors file or a .pth that "
            "torch.load reads with weights_only=True, with only the model.state_dict()"
        ) from error


def _build_small_cnn(num_classes: int) -> nn.Module:
    """Build three convolutions of 16, 32 and 64 channels, and a linear head."""
    grid = 4  # pooling to one pixel would learn digits slowly; images need at least 4 pixels
    return nn.Sequential(
        *_build_convolution(3, 16),
        nn.MaxPool2d(2),
        *_build_convolution(16, 32),
        nn.MaxPool2d(2),
        *_build_convolution(32, 64),
        nn.AdaptiveAvgPool2d(grid),
        nn.Flatten(),
        nn.Linear(64 * grid**2, num_classes),
    )


def _build_convolution(width_in: int, width_out: int) -> tuple[nn.Module, ...]:
    """Return a 3 x 3 convolution that keeps the size, its batch normalisation and a ReLU."""
    return (
        nn.Conv2d(width_in, width_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(width_out),
        nn.ReLU(inplace=True),
    )
