"""A matrix that numpy.save or numpy.savez wrote; nothing in it is unpickled."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_ARRAYS, MAX_BUCKETS, MAX_RESULTS_BYTES
from clear_mlflow.importers._base import Format, ParsedRun, ResultFile

_MATRIX_NAMES = ("matrix", "accuracy", "accuracies", "acc", "values", "R", "arr_0")


class NumpyFile(Format):
    """A ``.npy`` file, or a ``.npz`` file with matrix and other parts."""

    name = "numpy"
    is_general = True

    def matches(self, file: ResultFile) -> bool:
        """Return True for a .npy file, or a zip archive named .npz."""
        is_archive = file.content[:4] == b"PK\x03\x04" and file.name.lower().endswith(".npz")
        return is_npy(file.content) or is_archive

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run.

        A .npz file has its matrix under one of ``_MATRIX_NAMES``, or as its only 2-D array, and
        may have the arrays ``initial``, ``num_instances`` and ``buckets``. Raises RecordError if it
        contains no such matrix.
        """
        if is_npy(file.content):
            yield ParsedRun(rows=parse_npy_rows(file.content))
            return
        arrays = _parse_npz(file.content)
        preferred = [name for name in _MATRIX_NAMES if name in arrays]
        matrices = [name for name, array in arrays.items() if array.ndim == 2]
        if not preferred and len(matrices) != 1:
            raise RecordError(
                f"contains the arrays {safe_repr(sorted(arrays))}; expected one matrix, or one "
                f"called {', '.join(_MATRIX_NAMES)}"
            )
        initial, counts, buckets = map(arrays.get, ("initial", "num_instances", "buckets"))
        yield ParsedRun(
            rows=_to_rows(arrays[(preferred or matrices)[0]]),
            # Under this name, docs/import.md asks for a row per test.
            orientation="named" if "matrix" in preferred or initial is not None else "auto",
            initial=None if initial is None else _to_rows(initial.ravel())[0],
            num_instances=None if counts is None else counts.tolist(),
            buckets=None if buckets is None else buckets.tolist(),
        )


def is_npy(content: bytes) -> bool:
    """Return True if bytes begin with the signature of a .npy file."""
    return content[:6] == npy.MAGIC_PREFIX


def parse_npy_rows(content: bytes) -> list[list[float]]:
    """Return the rows of a .npy file, or raise RecordError.

    A 1-D array is one row. Raises RecordError if it has more than two dimensions, or does not
    contain numbers.
    """
    return _to_rows(_parse_npy(content))


def _parse_npz(content: bytes) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a .npz file by name, or raise RecordError."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS or sum(m.file_size for m in members) > MAX_RESULTS_BYTES:
                raise RecordError(
                    f"unpacks to more than {MAX_RESULTS_BYTES} bytes or {MAX_ARRAYS} arrays"
                )
            return {m.filename.removesuffix(".npy"): _parse_npy(archive.read(m)) for m in members}
    # RuntimeError: an encrypted member, or (NotImplementedError) an unsupported compression.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise RecordError(f"is not a .npz file: {safe_repr(str(error), 100)}") from error


def _parse_npy(content: bytes) -> NDArray[np.generic]:
    """Return the array of a .npy file, without copying or unpickling."""
    file = io.BytesIO(content)
    try:
        version = npy.read_magic(file)
        # Version 3 differs from 2 only in the header's encoding, which numpy's reader handles.
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
        if dtype.kind not in "fiubU":
            raise RecordError(f"contains entries of type {dtype}; expected numbers")
        if len(shape) > 2 or any(n > MAX_BUCKETS + 1 for n in shape):
            raise RecordError(
                f"contains an array of shape {shape}; expected at most {MAX_BUCKETS} buckets"
            )
        entries = np.frombuffer(content, dtype, offset=file.tell())
        return entries.reshape(shape, order="F" if is_fortran else "C")
    except RecordError:
        raise
    # numpy's errors for damaged headers have no common base: syntax, tokens, keys, overflow.
    except Exception as error:
        raise RecordError(
            f"is cut off, or is not an array of numpy: {safe_repr(str(error), 100)}"
        ) from error


def _to_rows(array: NDArray[np.generic]) -> list[list[float]]:
    """Convert a matrix or row to lists. Raises RecordError without numbers."""
    if array.dtype.kind not in "fiu":
        raise RecordError(f"contains entries of type {array.dtype}; expected numbers")
    with np.errstate(over="ignore"):
        rows: list[list[float]] = np.atleast_2d(array).astype(np.float64).tolist()
    return rows
