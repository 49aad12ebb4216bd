"""safetensors files of NumPy arrays: numbers behind a JSON header, nothing that could be executed.

Read and written here, and not by the package of that name, because a machine that only reads runs
has NumPy and need not have that. The format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core import untrusted
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import shown

# The types that predictions are of, in the order in which the format's own writer puts arrays.
_TYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("<u1"),
    "U16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "U32": np.dtype("<u4"),
}
_ORDER = {kind: position for position, kind in enumerate(_TYPES.values())}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_METADATA = "__metadata__"
_ENTRY = {"dtype", "shape", "data_offsets"}
_LENGTH = struct.Struct("<Q")  # bytes of the header


def tensors_to_bytes(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """The file of these arrays; equal contents give equal bytes.

    Args:
        arrays: by name; uint8, uint16, uint32 or float16, of one axis or two.
        metadata: texts that go into the header.
    """
    header: dict[str, Any] = {_METADATA: dict(metadata)}
    parts = []
    end = 0
    little = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    for name, array in sorted(little.items(), key=lambda item: (-_ORDER[item[1].dtype], item[0])):
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        parts.append(array.tobytes())
    text = json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH.size)  # so that the numbers are aligned, as is asked for
    return b"".join((_LENGTH.pack(len(text)), text, *parts))


def read_tensors(path: Path, largest: int) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays of a file, which cannot be written to, and its metadata; nothing is trusted.

    Args:
        path: of the file.
        largest: bytes that it may have.

    Raises:
        RecordError: it is larger, or no such file; the message continues the file's name.
        OSError: it cannot be read.
    """
    content = untrusted.read_bytes(path, largest)
    if len(content) < _LENGTH.size:
        raise RecordError(f"is {len(content)} bytes; a safetensors file has more")
    (length,) = _LENGTH.unpack_from(content)
    start = _LENGTH.size + length
    if start > len(content):
        raise RecordError(f"ends within its header of {length} bytes; it is damaged or cut off")
    header = untrusted.json_object(content[_LENGTH.size : start], untrusted.MAX_METADATA_BYTES)
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise RecordError(f"has the metadata {shown(metadata)}; expected texts")
    arrays = {name: _array(name, entry, content, start) for name, entry in header.items()}
    # No byte is of two arrays or of none: what is not shown is not there.
    end = 0
    for begin, until in sorted(entry["data_offsets"] for entry in header.values()):
        if begin != end:
            raise RecordError(f"has arrays that overlap or leave a gap at byte {end}")
        end = until
    if start + end != len(content):
        raise RecordError(
            f"has {len(content) - start} bytes of numbers, and its header describes {end}"
        )
    return arrays, metadata


def _array(name: str, entry: object, content: bytes, start: int) -> NDArray[Any]:
    """One array, as its entry in the header describes it; *start* is where the numbers begin."""
    if not isinstance(entry, dict) or entry.keys() != _ENTRY:
        raise RecordError(f"describes {shown(name)} as {shown(entry)}; expected {sorted(_ENTRY)}")
    kind = _TYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if kind is None:
        raise RecordError(
            f"holds {shown(name)} as {shown(entry['dtype'])}; expected one of {', '.join(_TYPES)}"
        )
    shape, place = entry["shape"], entry["data_offsets"]
    if not _are_counts(shape, content) or not _are_counts(place, content) or len(place) != 2:
        raise RecordError(f"says no shape and place of {shown(name)} that an array can have")
    begin, end = place
    if math.prod(shape) * kind.itemsize != end - begin or start + end > len(content):
        raise RecordError(
            f"gives {shown(name)} of shape {shown(shape)} the bytes {begin} to {end}, which it "
            "does not have"
        )
    found: NDArray[Any] = np.frombuffer(content, kind, math.prod(shape), start + begin)
    native: np.dtype[Any] = kind.newbyteorder("=")
    return found.reshape(tuple(shape)).astype(native, copy=False)


def _are_counts(values: object, content: bytes) -> bool:
    """Whether these can be the shape of a vector or table in *content*, or a place in it."""
    return (
        isinstance(values, list)
        and len(values) <= 2
        and all(type(value) is int and 0 <= value <= len(content) for value in values)
    )
