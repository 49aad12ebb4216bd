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
from clear_mlflow.importers._base import Format, ParsedRun, ResultFile

_MATRIX_NAMES = ("matrix", "accuracy", "accuracies", "acc", "values", "R", "arr_0")


class NumpyFile(Format):
    """A ``.npy`` file, or a ``.npz`` file with the matrix and its other parts."""

    name = "numpy"
    title = "a .npy or .npz file"
    is_general = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the content is a .npy file, or a zip archive whose name ends in .npz."""
        is_archive = file.content[:4] == b"PK\x03\x04" and file.name.lower().endswith(".npz")
        return is_npy(file.content) or is_archive

    def parse(self, file: ResultFile) -> list[ParsedRun]:
        """Return a list of the file's one run. Raises RecordError if it contains no matrix."""
        if is_npy(file.content):
            return [ParsedRun(rows=read_npy_rows(file.content))]
        arrays = _read_npz(file.content)
        preferred = [name for name in _MATRIX_NAMES if name in arrays]
        matrices = [name for name, array in arrays.items() if array.ndim == 2]
        if not preferred and len(matrices) != 1:
            raise RecordError(
                f"contains the arrays {safe_repr(sorted(arrays))}; expected one matrix, or one "
                f"called {', '.join(_MATRIX_NAMES)}"
            )
        initial, counts, buckets = map(arrays.get, ("initial", "num_instances", "buckets"))
        return [
            ParsedRun(
                rows=_to_rows(arrays[preferred[0] if preferred else matrices[0]]),
                initial=None if initial is None else _to_rows(initial[np.newaxis])[0],
                num_instances=None if counts is None else counts.tolist(),
                buckets=None if buckets is None else buckets.tolist(),
            )
        ]


def is_npy(content: bytes) -> bool:
    """Return True if bytes begin with the signature of a .npy file."""
    return content[:6] == npy.MAGIC_PREFIX


def read_npy_rows(content: bytes) -> list[list[float]]:
    """Return the rows of a .npy file. Raises RecordError if it has more than two dimensions."""
    return _to_rows(_read_npy(content))


def _read_npz(content: bytes) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a .npz file. Raises RecordError if they are too many or too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS or sum(m.file_size for m in members) > MAX_RESULTS_BYTES:
                raise RecordError(
                    f"unpacks to more than {MAX_RESULTS_BYTES} bytes or {MAX_ARRAYS} arrays"
                )
            return {m.filename.removesuffix(".npy"): _read_npy(archive.read(m)) for m in members}
    # RuntimeError: an encrypted member, or (NotImplementedError) an unsupported compression.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise RecordError(f"is not a .npz file: {safe_repr(str(error), 100)}") from error


def _read_npy(content: bytes) -> NDArray[np.generic]:
    """Return the array of a .npy file. Nothing is unpickled.

    Raises RecordError unless it contains numbers or text in at most two dimensions. The size is
    checked before memory is allocated.
    """
    file = io.BytesIO(content)
    try:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise RecordError(f"has version {version} of numpy's format; 1.0 to 3.0 are read")
        # Version 3 differs from 2 only in the header's encoding, which numpy's reader handles.
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject or dtype.kind not in "fiubU":
            raise RecordError(f"contains entries of type {dtype}; expected numbers")
        if len(shape) > 2 or any(n > MAX_BUCKETS + 1 for n in shape) or dtype.itemsize > 4096:
            raise RecordError(
                f"contains an array of shape {shape}; expected at most {MAX_BUCKETS} buckets"
            )
        # numpy allocates the size in the header before it looks at the content.
        if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
            raise RecordError(f"is cut off: {shape} entries of {dtype} do not fit its size")
        array: NDArray[np.generic] = np.load(io.BytesIO(content), allow_pickle=False)
    except RecordError:
        raise
    # numpy's errors for damaged headers have no common base: syntax, tokens, keys, overflow.
    except Exception as error:
        raise RecordError(f"is not an array of numpy: {safe_repr(str(error), 100)}") from error
    return array


def _to_rows(array: NDArray[np.generic]) -> list[list[float]]:
    """Convert a matrix, or one row, to lists. Raises RecordError if it does not contain numbers."""
    array = np.atleast_2d(array)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise RecordError(
            f"contains an array of shape {array.shape} and type {array.dtype}; expected a matrix "
            "of numbers"
        )
    with np.errstate(over="ignore"):
        rows: list[list[float]] = array.astype(np.float64).tolist()
    return rows
