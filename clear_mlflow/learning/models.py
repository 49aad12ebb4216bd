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
from clear_mlflow.core.text import format_count, safe_repr, suggest_nearest
from clear_mlflow.core.version import convert_custom_errors, import_custom
from clear_mlflow.data.files import path_text
from clear_mlflow.data.sources import is_custom_function
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
    """Build an image classifier, and download missing ``DEFAULT`` weights.

    It maps (N, 3, size, size) to logits. weights: ``none`` for random ones, ``DEFAULT`` for
    torchvision's with a new head, or path of a file, with or without a head.
    freeze: ``none``, or ``backbone`` to train only the head.

    Raises ConfigError if the model does not exist, does not fit the size or the weights, or if
    weights cannot be read or downloaded.
    """
    _check_model_exists(name)
    try:
        if weights == DEFAULT_WEIGHTS:
            model = _download_pretrained(name, num_classes=num_classes, image_size=image_size)
        else:
            model = _build_with_random_weights(name, num_classes=num_classes, image_size=image_size)
            if weights != NONE:
                _load_weights_file(model, Path(weights), name=name)
        if freeze == "backbone":
            freeze_backbone(model, num_classes)
        if is_custom_function(name):
            return model
        return model.to(memory_format=torch.channels_last)
    except (ValueError, AssertionError) as error:
        raise ConfigError(
            f"model {name} cannot be built for {image_size} pixels ({error}); pass another "
            "image_size"
        ) from error


def prepare_custom_model(model: Any, name: str, inputs: Tensor, num_classes: int) -> nn.Module:
    """Check a user's model, and set a hook and evaluation mode.

    name: for messages. inputs: two of them. Raises ConfigError if it is not a module with weights,
    or does not return one row of logits for each input.
    """
    if not isinstance(model, nn.Module) or not any(True for _ in model.parameters()):
        got = safe_repr(model, 200)
        raise ConfigError(f"{name} is {got}; expected a torch.nn.Module with weights")
    # Inputs are channels-last, which a model that calls Tensor.view does not accept.
    model.register_forward_pre_hook(_make_contiguous)
    with torch.no_grad(), convert_custom_errors(f"{name} fails on inputs of {(*inputs.shape,)}"):
        logits = model.eval()(inputs.to(next(model.parameters()).device))
    if not isinstance(logits, Tensor) or logits.shape != (len(inputs), num_classes):
        shape = (*logits.shape,) if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(
            f"{name} returns {shape} for inputs of {(*inputs.shape,)}; expected logits of "
            f"{(len(inputs), num_classes)}, one for each class"
        )
    return model


def _make_contiguous(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(part.contiguous() for part in inputs)


def freeze_backbone(model: nn.Module, num_classes: int) -> None:
    """Freeze all weights of a model except its head's."""
    model.requires_grad_(False)
    get_head(model, num_classes).requires_grad_(True)


def get_head(model: nn.Module, num_classes: int | None = None) -> nn.Linear | nn.Conv2d:
    """Return the last linear or convolutional layer, or raise ConfigError."""
    return find_head(model, num_classes)[1]


def find_head(
    model: nn.Module, num_classes: int | None = None
) -> tuple[str, nn.Linear | nn.Conv2d]:
    """Return name and module of the head, or raise ConfigError.

    Raises ConfigError if there is none, or none with *num_classes* outputs.
    """
    layers = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Linear, nn.Conv2d))
    ]
    if not layers or num_classes not in (None, len(layers[-1][1].weight)):
        raise ConfigError(
            "the model's last linear or convolutional layer is not a head for the dataset's "
            "classes; define the head last, or pass another strategy, weights=none and freeze=none"
        )
    return layers[-1]


@contextmanager
def logits_in_float32(model: nn.Module) -> Iterator[None]:
    """Let a model's head compute in float32 within the block.

    Fewer logits are equal than in lower precision.
    """
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
    """Return the dtype for input images.

    It is the dtype of the convolutions if the first layer is one, else float32, also for a model
    that transforms its input.
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
    """Build a model on features: ``linear``, or ``mlp:256-128``, hidden layers.

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
                f"{name} are for {size} pixels; pass image_size={size}, or weights=none",
                parameter="weights",
            )
    elif weights != NONE and not (num_classes is None and is_custom_function(name)):
        model = _build_meta_model(name, num_classes=num_classes or 3, image_size=image_size)
        _load_weights_file(model, Path(weights), name=name, with_head=num_classes is not None)


@lru_cache(maxsize=64)
def check_model(
    name: str, *, image_size: int, batch_size: int, num_classes: int | None = None
) -> None:
    """Raise ConfigError unless a model accepts a test image and a batch.

    The batch is a training batch of *batch_size* images. Tries them without data, on the meta
    device. Remembers models that accept them.

    num_classes: of the dataset, or None if it is not known yet; a user's function is then imported
    and not called.
    """
    _check_model_exists(name)
    if is_custom_function(name):
        if num_classes is None:
            return
        # Its own errors name what it should return.
        _build_meta_model(name, num_classes=num_classes, image_size=image_size)
    elif reason := _try_forward(name, image_size, 1, training=False):
        sizes = (s for s in _SUGGESTED_SIZES if not _try_forward(name, s, 1, training=False))
        size = next(sizes, None)
        advice = f"image_size={size}, which it accepts" if size else "another model"
        raise ConfigError(
            f"model {name} cannot take images of {image_size} pixels ({reason}); pass {advice}"
        )
    if reason := _try_forward(name, image_size, batch_size, num_classes or 3, training=True):
        raise ConfigError(
            f"model {name} cannot train on a batch of {batch_size} at {image_size} pixels "
            f"({reason}); pass a larger batch_size or image_size"
        )


def _try_forward(
    name: str, image_size: int, batch_size: int, num_classes: int = 3, *, training: bool
) -> str:
    """Return why a model fails or returns no logits, or ""."""
    try:
        model = _build_meta_model(name, num_classes=num_classes, image_size=image_size)
        device = next(model.parameters()).device
        with torch.inference_mode():
            images = torch.zeros(batch_size, 3, image_size, image_size, device=device)
            logits = model.train(training)(images)
    except ConfigError:
        raise
    except Exception as error:  # a user's model may raise anything
        return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    if not isinstance(logits, Tensor) or logits.shape != (batch_size, num_classes):
        return "it does not return one row of logits per image"
    return ""


def _build_meta_model(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    """Build a model on the meta device, a user's on the CPU."""
    if is_custom_function(name):
        return _build_with_random_weights(name, num_classes=num_classes, image_size=image_size)
    try:
        with torch.device("meta"):
            return _build_with_random_weights(name, num_classes=num_classes, image_size=image_size)
    except NotImplementedError:  # regnet computes its widths with tensors, which need data
        return _build_with_random_weights(name, num_classes=num_classes, image_size=image_size).to(
            "meta"
        )


def _import_torchvision_models() -> Any:
    # Slower to import than torch, and not needed for heads on features.
    with require_package("torchvision", "a torchvision model"):
        import torchvision.models

    return torchvision.models


def _check_model_exists(name: str) -> None:
    """Raise ConfigError unless :func:`build_model` accepts the name. Imports a user's function."""
    if is_custom_function(name):
        import_custom("model", name, "function")
        return
    if name == SMALL_CNN or name in list_model_names():
        return
    raise ConfigError(
        f"unknown model {name!r}; {suggest_nearest(name, list_model_names())}expected {SMALL_CNN}, "
        "a torchvision classification model, or your own function (package.module:function); "
        "torchvision.models.list_models(module=torchvision.models) lists them"
    )


def _build_with_random_weights(name: str, *, num_classes: int, image_size: int) -> nn.Module:
    if is_custom_function(name):
        build = import_custom("model", name, "function")
        with convert_custom_errors(
            f"model {name} fails for {num_classes} classes, {image_size} pixels"
        ):
            model = build(num_classes, image_size)
        inputs = torch.zeros(2, 3, image_size, image_size)
        return prepare_custom_model(model, f"model {name}", inputs, num_classes)
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
    """Download torchvision's best weights once, and return their path.

    Raises ConfigError if the download fails.
    """
    url = str(_get_default_weights(name).url)
    return download_weights(url, hash_prefix=parse_hash_prefix(url))


def _get_default_weights(name: str) -> Any:
    """Return torchvision's description of a model's best weights. Downloads nothing."""
    return _import_torchvision_models().get_model_weights(name)["DEFAULT"]


def parse_hash_prefix(url: str) -> str | None:
    """Return the SHA-256 characters in a file's URL, or None."""
    match = re.search(r"-([0-9a-f]{8,64})\.", url)
    return match[1] if match else None


def _download_pretrained(name: str, *, num_classes: int, image_size: int) -> nn.Module:
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
    """Load a file of weights, keeping the model's head if missing."""
    head_name, head = find_head(model)
    head_state = {f"{head_name}.{key}": tensor for key, tensor in head.state_dict().items()}
    try:
        state = read_weights(path, f"model {name}")
        state = {key: t for key, t in state.items() if with_head or key not in head_state}
        for key in sorted(head_state.keys() & state.keys()):
            tensor, expected = state[key], head_state[key]
            if len(tensor) != len(expected) and tensor.dim() == expected.dim():
                raise DataError(
                    f"{path_text(path)} has a head for "
                    f"{format_count(len(tensor), 'class', 'classes')}, but the dataset has "
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
    return (
        nn.Conv2d(width_in, width_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(width_out),
        nn.ReLU(inplace=True),
    )
