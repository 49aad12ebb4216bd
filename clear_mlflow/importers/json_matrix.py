"""A matrix as JSON: a list of lists, or an object with its parts, such as our own matrix.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.score import ACCURACY, StoredScore
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import convert
from clear_mlflow.importers._base import Format, ParsedRun, ResultFile, to_floats, to_rows

MATRIX_SCHEMA = (
    "clear_mlflow/accuracy_matrix"  # equal to report.exports, which must not be imported
)
_MATRIX_NAMES = ("matrix", "values", "accuracy", "accuracies")
_METADATA_NAMES = ("strategy", "dataset", "model", "seed")


class _Parts(msgspec.Struct):
    """Fields of an object next to its matrix."""

    initial: list[float | None] | None = None
    num_instances: list[int] | None = None
    buckets: list[str | int] | None = None


class JSONMatrix(Format):
    """A list of rows, or an object with ``matrix`` or ``values``."""

    name = "json"
    is_general = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the file begins with a JSON list or object."""
        return file.looks_like_json

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the file's one run.

        The matrix of an object is its field ``matrix``, ``values``, ``accuracy`` or ``accuracies``.
        Other fields that are read: ``initial``, ``num_instances``, ``buckets``, ``strategy``,
        ``dataset``, ``model``, ``seed``, and ``score`` if the file is our own. Raises RecordError
        if the matrix is missing, or if a field is invalid.
        """
        if isinstance(file.json, list):
            yield ParsedRun(rows=to_rows(file.json, "the matrix"))
            return
        document: dict[str, Any] = convert(file.json, dict[str, Any])
        name = next((name for name in _MATRIX_NAMES if name in document), None)
        if name is None:
            raise RecordError(
                f"has the fields {safe_repr(sorted(document))}; expected one of "
                f"{', '.join(_MATRIX_NAMES)}"
            )
        parts: _Parts = convert(document, _Parts)
        schema = document.get("schema")
        is_ours = isinstance(schema, dict) and schema.get("name") == MATRIX_SCHEMA
        is_named = name == "matrix" or parts.initial is not None
        score = ACCURACY
        # In files of other programs a field "score" may be anything.
        if is_ours and document.get("score") is not None:
            score = convert(document["score"], StoredScore, "score").score
        yield ParsedRun(
            rows=to_rows(document[name], "the matrix"),
            initial=None if parts.initial is None else to_floats(parts.initial, "initial"),
            num_instances=parts.num_instances,
            buckets=parts.buckets and [str(key) for key in parts.buckets],
            metadata={
                key: str(document[key])
                for key in _METADATA_NAMES
                if _is_string_or_integer(document.get(key))
            },
            score=score,
            orientation="rows" if is_ours else "named" if is_named else "auto",
        )


def _is_string_or_integer(value: object) -> bool:
    """Return True for a string or 64-bit integer, not a bool."""
    return isinstance(value, str) or (type(value) is int and abs(value) < 2**64)
