"""Torch files from elsewhere, which are pickles: read without running what they hold.

Torch's loader for weights only refuses every pickle that wants to run code; what it gives may still
be a tensor that claims more than it holds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.untrusted import MAX_FEATURES_BYTES
from clear_mlflow.data.files import expect_file, expect_unpacked, path_text, reason

if TYPE_CHECKING:
    from torch import Tensor

# How torch words its refusal of a pickle that names a function or a class.
_RUNS_CODE = "(?s)WeightsUnpickler error: .*(GLOBAL|allowlisted|unrecognized function)"


def load_torch_file(path: Path, *, max_bytes: int = MAX_FEATURES_BYTES) -> Any:
    """Read a torch file that may hold tensors, numbers, texts, lists, tuples and dicts only."""
    import torch

    try:
        expect_unpacked(path, max_bytes)
        return torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path_text(path)} cannot be read: {reason(error)}") from None
    except Exception as error:  # torch has no closed set of exceptions for damaged files
        runs_code = re.search(_RUNS_CODE, str(error))
        problem = f"it is {'a pickle that wants to run code' if runs_code else 'damaged'}"
        first = (reason(error).split(". ") or [""])[0][:200]
        raise DataError(
            f"{path_text(path)} is refused: {problem} ({first}); expected a torch file that "
            "contains only tensors: fetch the file again from where it was published"
        ) from None


def load_torch_file_below(path: Path, *, root: Path) -> Any:
    """As :func:`load_torch_file`, of a file that lies below a folder, with no link out of it."""
    expect_file(path, root=root, limit=MAX_FEATURES_BYTES)
    return load_torch_file(path)


def is_plain(value: Tensor) -> bool:
    """Whether a tensor is plain numbers in this memory: not sparse, nested or quantised."""
    import torch

    return value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized


def holds_all(value: Tensor) -> bool:
    """Whether a tensor's memory holds as many numbers as its shape claims."""
    # A tensor may repeat one number a billion times without any memory, until it is copied.
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()
