"""safetensors files of predictions: numbers behind a JSON header, nothing that could run."""

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
    """A safetensors file; equal contents give equal bytes, which the package's metadata do not."""
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header[_METADATA] = {"format": _FORMAT, "version": _VERSION, **metadata}
    text = json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned, as the format asks for
    return len(text).to_bytes(8, "little") + text + content[start:]


def read_tensors(
    path: Path, expected: Set[str], optional: Set[str] = frozenset()
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays of a file and its metadata."""
    content = untrusted.read_bytes(path, untrusted.MAX_PREDICTIONS_BYTES)
    try:
        arrays = load(content)
    # Types and shapes that numpy does not have; the reader's own error is of no other base.
    except (SafetensorError, LookupError, ValueError, TypeError) as error:
        raise RecordError(
            f"is no safetensors file of numbers: {safe_repr(str(error), 100)}"
        ) from error
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    metadata = untrusted.json_object(header, untrusted.MAX_METADATA_BYTES).get(_METADATA) or {}
    if metadata.get("format") != _FORMAT or not expected <= arrays.keys() <= expected | optional:
        raise RecordError(f"is no file of {_FORMAT}")
    if metadata.get("version", "").partition(".")[0] != _VERSION.partition(".")[0]:
        raise RecordError(
            f"is of version {safe_repr(metadata.get('version'))} of the format; this clear_mlflow "
            f"reads {_VERSION.partition('.')[0]}.x: upgrade it"
        )
    return arrays, metadata
