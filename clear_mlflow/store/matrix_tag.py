"""The accuracy matrix in a tag of its run, so that a listing of runs brings the matrices.

The row artifacts are the truth; the tag is a packed copy of them, with a digest that binds it to
its run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.record import RowRecord
from clear_mlflow.core.untrusted import MAX_RESULTS_BYTES, json_texts

# MLflow cuts longer tags off without a word; such a matrix is in the artifacts alone.
_LONGEST_TAG = 8_000


@dataclass(frozen=True, eq=False)
class StoredRows:
    """The rows of a run, and where they were read."""

    records: Mapping[str, RowRecord]  # file name to row, in row order; empty: the run holds none
    digest: str  # of the files that they were read from
    tag: str | None  # the rows as the run's matrix tag should have them; None: they do not fit
    from_tag: bool  # the contents of the artifacts were not read


def rows_digest(run_id: str, files: Mapping[str, bytes]) -> str:
    """What changes with any byte of any row file of a run, and from run to run."""
    hasher = hashlib.sha256(run_id.encode())
    for name, content in sorted(files.items()):
        hasher.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return hasher.hexdigest()[:32]


def matrix_tag(run_id: str, files: Mapping[str, bytes]) -> str | None:
    """Row files, by name, as the text of a tag; None: there are none, or they do not fit."""
    content = json.dumps({name: file.decode() for name, file in files.items()}).encode()
    text = rows_digest(run_id, files) + base64.b64encode(zlib.compress(content, 9)).decode()
    return text if files and len(text) <= _LONGEST_TAG else None


def read_matrix_tag(run_id: str, text: str | None) -> dict[str, bytes]:
    """The row files in a run's tag; none where it is not there, damaged, or of another run."""
    digest, packed = (text or "")[:32], (text or "")[32:]
    try:
        content = zlib.decompressobj().decompress(
            base64.b64decode(packed, validate=True), MAX_RESULTS_BYTES
        )
        found = json_texts(content, MAX_RESULTS_BYTES)
    except (ValueError, zlib.error, RecordError):
        return {}
    files = {name: file.encode() for name, file in found.items()}
    return files if digest == rows_digest(run_id, files) else {}
