"""A matrix as JSON: a list of lists, or an object with its parts, such as our own matrix.json."""

from __future__ import annotations

from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.score import ACCURACY, Score, StoredScore
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import convert
from clear_mlflow.importers._base import Format, ParsedRun, ResultFile, to_floats, to_rows

MATRIX_SCHEMA = (
    "clear_mlflow/accuracy_matrix"  # equal to report.exports, which must not be imported
)
_MATRIX_NAMES = ("matrix", "values", "accuracy", "accuracies")
_METADATA_NAMES = ("strategy", "dataset", "model", "seed")


class JSONMatrix(Format):
    """A list of rows, or an object with ``matrix`` (or ``values``) and its other parts."""

    name = "json"
    title = "a JSON matrix"
    is_general = True

    def matches(self, file: ResultFile) -> bool:
        """Return True if the file begins with a JSON list or object."""
        return file.looks_like_json

    def parse(self, file: ResultFile) -> list[ParsedRun]:
        """Return a list of the file's one run. Raises RecordError if it contains no matrix."""
        document = file.json
        if isinstance(document, list):
            return [ParsedRun(rows=to_rows(document, "the matrix"))]
        if not isinstance(document, dict):
            raise RecordError(f"is {safe_repr(document)}; expected a list of rows, or an object")
        name = next((name for name in _MATRIX_NAMES if name in document), None)
        if name is None:
            raise RecordError(
                f"has the fields {safe_repr(sorted(document))}; expected one of "
                f"{', '.join(_MATRIX_NAMES)}"
            )
        initial, buckets = document.get("initial"), document.get("buckets")
        if buckets is not None and not isinstance(buckets, list):
            raise RecordError(f"buckets is {safe_repr(buckets)}; expected a list of keys")
        if buckets is not None:
            buckets = [str(key) if type(key) is int else key for key in buckets]
        schema = document.get("schema")
        is_ours = isinstance(schema, dict) and schema.get("name") == MATRIX_SCHEMA
        return [
            ParsedRun(
                rows=to_rows(document[name], "the matrix"),
                initial=None if initial is None else to_floats(initial, "initial"),
                num_instances=convert(
                    document.get("num_instances"), list[int] | None, "num_instances"
                ),
                buckets=buckets,
                metadata={
                    key: str(document[key])
                    for key in _METADATA_NAMES
                    if _is_name_or_number(document.get(key))
                },
                # In files of other programs a field "score" may be anything.
                score=_read_score(document) if is_ours else ACCURACY,
                orientation="rows" if is_ours else "auto",
            )
        ]


def _is_name_or_number(value: object) -> bool:
    return isinstance(value, str) or (type(value) is int and abs(value) < 2**64)


def _read_score(document: dict[str, Any]) -> Score:
    """Return the score of our own JSON format, which is accuracy if the field is missing."""
    if document.get("score") is None:
        return ACCURACY
    stored: StoredScore = convert(document["score"], StoredScore, "score")
    return stored.score
