"""Files of model weights: downloading, reading and loading them."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.core.untrusted import MAX_WEIGHTS_BYTES, format_size
from clear_mlflow.data.features.shipped import has_all_values, is_dense_on_cpu, load_torch_file
from clear_mlflow.data.files import path_text, reason

_AUXILIARY_HEADS = ("aux1.", "aux2.", "AuxLogits.")  # of GoogLeNet and Inception
_OLD_DENSENET_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)")

_DOWNLOAD_TIMEOUT = 30.0  # seconds without a byte


def read_weights(path: Path, name: str) -> dict[str, Tensor]:
    """Read a state dict without running code in its file.

    It is a .safetensors or torch file.

    name: of the model, for messages. Raises DataError if the file is too large, cannot be read, or
    contains anything else.
    """
    content: Any
    if path.suffix == ".safetensors":
        try:
            if (size := path.stat().st_size) > MAX_WEIGHTS_BYTES:
                raise DataError(
                    f"{path_text(path)} has {size} bytes; expected at most "
                    f"{format_size(MAX_WEIGHTS_BYTES)} for a file of weights"
                )
            content = load_file(path)
        except DataError:
            raise
        except Exception as error:  # safetensors raises many types of exceptions for damaged files
            raise DataError(
                f"{path_text(path)} cannot be read: {reason(error)}; expected a state dict of "
                f"{name} in safetensors format"
            ) from None
    else:
        content = load_torch_file(path, max_bytes=MAX_WEIGHTS_BYTES)
    if not isinstance(content, Mapping):
        raise DataError(
            f"{path_text(path)} contains a {type(content).__name__}; expected a state dict of "
            f"{name}: names and tensors"
        )
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise DataError(
                f"{path_text(path)} is not a state dict of {name}: {safe_repr(key)} has type "
                f"{type(value).__name__}; expected names and tensors"
            )
        if not is_dense_on_cpu(value) or not has_all_values(value):
            raise DataError(
                f"{path_text(path)} cannot be loaded: {safe_repr(key)} is not a plain tensor with "
                "all its numbers in the file"
            )
    return dict(content)


def load_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    *,
    path: Path,
    name: str,
    defaults: Mapping[str, Tensor] | None = None,
) -> None:
    """Load a state dict into a model, without auxiliary heads.

    path, name: file of the weights and name of the model, for messages. defaults: tensors for keys
    that may be missing. Raises DataError if a number is not finite, or if the weights do not fit
    the model.
    """
    state = {
        _OLD_DENSENET_NAME.sub(r"\1\2", key): value
        for key, value in weights.items()
        if not key.startswith(_AUXILIARY_HEADS)
    }
    for key, value in state.items():
        # A model would accept complex numbers and booleans.
        is_real = not value.is_complex() and value.dtype is not torch.bool
        if not is_real or not torch.isfinite(value).all():
            raise DataError(
                f"{path_text(path)} cannot be loaded: {safe_repr(key)} is not a plain tensor of "
                "finite real numbers; save the state_dict() of a trained model"
            )
    try:
        model.load_state_dict({**(defaults or {}), **state})
    except RuntimeError as error:
        problem = one_line(str(error).partition(":")[2], 300)
        raise DataError(
            f"{path_text(path)} is not a state dict of {name}: {problem} Pass the model that the "
            "weights belong to"
        ) from None


def download_weights(url: str, *, hash_prefix: str | None) -> Path:
    """Download a published file to torch's cache once, and return its path.

    Shows a progress bar. Raises ConfigError if the download fails or has another hash.

    hash_prefix: first characters of the file's SHA-256, or None to check nothing.
    """
    file_name = url.rsplit("/", 1)[-1]
    path = Path(torch.hub.get_dir(), "checkpoints", file_name)
    if path.is_file():
        return path
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT)  # torch's download would wait forever
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), hash_prefix=hash_prefix, progress=True)
    except (OSError, RuntimeError) as error:  # a URLError, or a wrong hash
        raise build_download_error(file_name, url, error) from None
    finally:
        socket.setdefaulttimeout(timeout)
    return path


def build_download_error(
    name: str, url: str, error: Exception, advice: str = "pass the file by --weights PATH"
) -> ConfigError:
    """Build the error for weights that cannot be downloaded.

    It names the URL and the cause.

    advice: what to do with the file after it was fetched on another machine.
    """
    cause = getattr(error, "reason", None)  # of a URLError: the original exception
    details = reason(cause if isinstance(cause, BaseException) else error)
    return ConfigError(
        f"the weights {name} cannot be downloaded ({details}); fetch {url} on a machine with "
        f"network and {advice}"
    )
