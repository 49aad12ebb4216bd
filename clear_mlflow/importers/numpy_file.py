"""A matrix that numpy.save or numpy.savez wrote; nothing in it is unpickled."""

from __future__ import annotations

import io
import math
import zipfile
import zlib

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_ARRAYS, MAX_BUCKETS, MAX_RESULTS_BYTES
from clear_mlflow.importers._base import Format, Parsed, Source

_MATRIX_NAMES = ("matrix", "accuracy", "accuracies", "acc", "values", "R", "arr_0")


def is_array(content: bytes) -> bool:
    """Whether bytes begin as a .npy file does."""
    return content[:6] == npy.MAGIC_PREFIX


def read_row(content: bytes) -> list[float]:
    """The numbers of a .npy file that holds one row of a matrix."""
    array = _read(content)
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise RecordError(f"holds an array of shape {array.shape}; expected one row")
    return _rows(array[np.newaxis])[0]


def _recognises(source: Source) -> bool:
    is_archive = source.content[:4] == b"PK\x03\x04" and source.name.lower().endswith(".npz")
    return is_array(source.content) or is_archive


def _parse(source: Source) -> list[Parsed]:
    source.bounded(MAX_RESULTS_BYTES)
    if is_array(source.content):
        return [Parsed(rows=_rows(_read(source.content)))]
    arrays = _members(source.content)
    named = [name for name in _MATRIX_NAMES if name in arrays]
    flat = [name for name, array in arrays.items() if array.ndim == 2]
    if not named and len(flat) != 1:
        raise RecordError(
            f"holds the arrays {safe_repr(sorted(arrays))}; expected one matrix, or one that is "
            f"named {', '.join(_MATRIX_NAMES)}"
        )
    initial, counts, keys = map(arrays.get, ("initial", "num_instances", "buckets"))
    return [
        Parsed(
            rows=_rows(arrays[named[0] if named else flat[0]]),
            initial=None if initial is None else _rows(initial[np.newaxis])[0],
            num_instances=None if counts is None else counts.tolist(),
            buckets=None if keys is None else keys.tolist(),
        )
    ]


def _members(content: bytes) -> dict[str, NDArray[np.generic]]:
    """The arrays of a .npz file; none larger than it says and a matrix can be."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS or sum(m.file_size for m in members) > MAX_RESULTS_BYTES:
                raise RecordError(
                    f"unpacks to more than {MAX_RESULTS_BYTES} bytes or {MAX_ARRAYS} arrays"
                )
            return {m.filename.removesuffix(".npy"): _read(archive.read(m)) for m in members}
    # RuntimeError: an encrypted member, or, as NotImplementedError, one packed in another way.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise RecordError(f"is no .npz file: {safe_repr(str(error), 100)}") from error


def _read(content: bytes) -> NDArray[np.generic]:
    """One array, after a check that its header describes one that may be read."""
    file = io.BytesIO(content)
    try:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise RecordError(f"is of version {version} of numpy's format; 1.0 to 3.0 are read")
        # Version 3 differs from 2 in the header's encoding alone, which numpy's reader minds.
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject or dtype.kind not in "fiubU":
            raise RecordError(f"holds entries of type {dtype}; expected numbers")
        if len(shape) > 2 or any(n > MAX_BUCKETS + 1 for n in shape) or dtype.itemsize > 4096:
            raise RecordError(
                f"holds an array of shape {shape}; expected at most {MAX_BUCKETS} buckets"
            )
        # numpy makes room for what a header says before it looks at what is there.
        if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
            raise RecordError(f"is cut off: {shape} entries of {dtype} do not fit its size")
        array: NDArray[np.generic] = np.load(io.BytesIO(content), allow_pickle=False)
    except RecordError:
        raise
    # What numpy raises for damaged headers has no common base: syntax, tokens, keys, overflow.
    except Exception as error:
        raise RecordError(f"is no array of numpy's: {safe_repr(str(error), 100)}") from error
    return array


def _rows(array: NDArray[np.generic]) -> list[list[float]]:
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise RecordError(
            f"holds an array of shape {array.shape} and type {array.dtype}; expected a matrix of "
            "numbers"
        )
    with np.errstate(over="ignore"):
        rows: list[list[float]] = array.astype(np.float64).tolist()
    return rows


FORMATS = [
    Format(
        name="numpy",
        title="a .npy or .npz file",
        recognises=_recognises,
        parse=_parse,
        is_general=True,
    )
]
