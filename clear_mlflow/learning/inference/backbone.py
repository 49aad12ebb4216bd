"""A frozen network without its head, and the files of weights that one is made of."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.core.untrusted import MAX_WEIGHTS_BYTES, hash_file, size_text
from clear_mlflow.data.decoding.decode import OwnTransform
from clear_mlflow.data.features.shipped import holds_all, is_plain, load_torch_file
from clear_mlflow.data.files import path_text, reason

DEFAULT_WEIGHTS = "DEFAULT"
RANDOM_WEIGHTS = "none"
RANDOM_SEED = 0

_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")  # of GoogLeNet and Inception
_OF_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)")

_DOWNLOAD_TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network without its head, and what is known of where it comes from."""

    model: nn.Module  # from (N, 3, H, W) to (N, width)
    name: str
    weights: str  # sha256: and the hash of the weights file, or random:SEED
    geometry: OwnTransform  # how an image becomes its input
    weights_tag: str = ""  # as the library calls these weights, where they are its own


def read_weights(path: Path, name: str) -> dict[str, Tensor]:
    """The state dict in a file, safetensors or torch's, of the model *name*; it runs no code."""
    if path.suffix == ".safetensors":
        try:
            if (size := path.stat().st_size) > MAX_WEIGHTS_BYTES:
                raise DataError(
                    f"{path_text(path)} has {size} bytes; expected {size_text(MAX_WEIGHTS_BYTES)} "
                    "at most, so it is not what its name says"
                )
            found: Any = load_file(path)
        except DataError:
            raise
        except Exception as error:  # safetensors has no closed set of exceptions for damaged files
            raise DataError(
                f"{path_text(path)} cannot be read: {reason(error)}; expected a state dict of "
                f"{name} in safetensors' form"
            ) from None
    else:
        found = load_torch_file(path, max_bytes=MAX_WEIGHTS_BYTES)
    if not isinstance(found, Mapping):
        raise DataError(
            f"{path_text(path)} holds a {type(found).__name__}; expected a state dict of {name}: "
            "names and tensors"
        )
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise DataError(
                f"{path_text(path)} is no state dict of {name}: {safe_repr(key)} is "
                f"{type(value).__name__}; expected names and tensors"
            )
        if not is_plain(value) or not holds_all(value):
            raise DataError(
                f"{path_text(path)} cannot be loaded: {safe_repr(key)} is no plain tensor that "
                "holds all its numbers"
            )
    return dict(found)


def fill(
    model: nn.Module,
    found: Mapping[str, Tensor],
    *,
    path: Path,
    name: str,
    may_lack: Mapping[str, Tensor] | None = None,
) -> None:
    """Load a state dict of finite numbers; of *may_lack*, own values stay; auxiliary heads go."""
    state = {
        _OF_OLD_DENSENET.sub(r"\1\2", key): value
        for key, value in found.items()
        if not key.startswith(_AUXILIARY)
    }
    for key, value in state.items():
        odd = value.is_complex() or value.dtype is torch.bool  # which a model would take
        if odd or not torch.isfinite(value).all():
            raise DataError(
                f"{path_text(path)} cannot be loaded: {safe_repr(key)} is no plain tensor of "
                "finite numbers; save the state_dict() of a model that was trained"
            )
    try:
        model.load_state_dict({**(may_lack or {}), **state})
    except RuntimeError as error:
        problem = one_line(str(error).partition(":")[2], 300)
        raise DataError(
            f"{path_text(path)} is no state dict of {name}: {problem} Pass the model that it is of"
        ) from None


def hash_of(path: Path) -> str:
    """SHA-256 of a file of weights."""
    try:
        return hash_file(path)
    except OSError as error:
        raise DataError(
            f"weights {path_text(path)} cannot be read: {reason(error)}; pass --weights PATH, "
            f"{DEFAULT_WEIGHTS} or {RANDOM_WEIGHTS}"
        ) from None


def downloaded(url: str, *, hash_prefix: str | None) -> Path:
    """A file of weights, from torch's own cache or from where it was published."""
    file_name = url.rsplit("/", 1)[-1]
    path = Path(torch.hub.get_dir(), "checkpoints", file_name)
    if path.is_file():
        return path
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT)  # torch's download has none: it would wait forever
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), hash_prefix=hash_prefix, progress=True)
    except (OSError, RuntimeError) as error:  # URLError is an OSError; a wrong hash is no OSError
        raise not_downloaded(file_name, url, error) from None
    finally:
        socket.setdefaulttimeout(timeout)
    return path


def not_downloaded(
    what: str, url: str, error: Exception, elsewhere: str = "pass the file by --weights PATH"
) -> ConfigError:
    """The error of weights that cannot be had from here, with the file to fetch elsewhere."""
    cause = getattr(error, "reason", None)  # a URLError holds what really happened
    why = reason(cause if isinstance(cause, BaseException) else error)
    return ConfigError(
        f"the weights {what} cannot be downloaded ({why}); fetch {url} on a machine with network "
        f"and {elsewhere}"
    )
