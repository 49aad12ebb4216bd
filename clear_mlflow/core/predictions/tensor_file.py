"""safetensors files of predictions: numbers behind a JSON header."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr

_FORMAT = "clear_mlflow/predictions"
_VERSION = "1.0"
_METADATA = "__metadata__"


def tensors_to_bytes(arrays: Mapping[str, NDArray[Any]], **metadata: str) -> bytes:
    """Return the bytes of a safetensors file. Equal contents have equal bytes."""
    # The package itself writes metadata in arbitrary order.
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header[_METADATA] = {"format": _FORMAT, "version": _VERSION, **metadata}
    text = json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the numbers, as the format requires
    return len(text).to_bytes(8, "little") + text + content[start:]


def read_tensors(
    path: Path, expected: Set[str], optional: Set[str] = frozenset()
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read the arrays of a file and its metadata. Raises RecordError."""
    content = untrusted.read_bytes(path, untrusted.MAX_PREDICTIONS_BYTES)
    try:
        arrays = load(content)
    # The last three for types and shapes that NumPy does not have.
    except (SafetensorError, LookupError, ValueError, TypeError) as error:
        raise RecordError(
            f"is not a safetensors file of numbers: {safe_repr(str(error), 100)}"
        ) from error
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    metadata = untrusted.json_object(header, untrusted.MAX_METADATA_BYTES).get(_METADATA) or {}
    if metadata.get("format") != _FORMAT or not expected <= arrays.keys() <= expected | optional:
        raise RecordError(f"is not a file of {_FORMAT}")
    if metadata.get("version", "").partition(".")[0] != _VERSION.partition(".")[0]:
        raise RecordError(
            f"has version {safe_repr(metadata.get('version'))} of the format; this clear_mlflow "
            f"reads {_VERSION.partition('.')[0]}.x: upgrade it"
        )
    return arrays, metadata
