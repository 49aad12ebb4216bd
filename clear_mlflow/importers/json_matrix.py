"""A matrix as JSON: a list of lists, or an object with its parts; our own matrix.json, too."""

from __future__ import annotations

from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import shown
from clear_mlflow.importers._base import Format, Parsed, Source, numbers

MATRIX_SCHEMA = "clear_mlflow/accuracy_matrix"  # of report.exports, which is not imported here
_MATRIX_NAMES = ("matrix", "values", "accuracy", "accuracies")
_FACTS = ("strategy", "dataset", "model", "seed")


def _recognises(source: Source) -> bool:
    return source.looks_like_json


def _parse(source: Source) -> list[Parsed]:
    document = source.json
    if isinstance(document, list):
        return [Parsed(rows=_rows(document))]
    if not isinstance(document, dict):
        raise RecordError(f"is {shown(document)}; expected a list of rows, or an object")
    name = next((name for name in _MATRIX_NAMES if name in document), None)
    if name is None:
        raise RecordError(
            f"has the fields {shown(sorted(document))}; expected one of {', '.join(_MATRIX_NAMES)}"
        )
    return [
        Parsed(
            rows=_rows(document[name]),
            initial=_optional(document, "initial"),
            num_instances=_counts(document.get("num_instances")),
            buckets=_keys(document.get("buckets")),
            facts={
                fact: str(document[fact])
                for fact in _FACTS
                if isinstance(document.get(fact), (str, int))
                and not isinstance(document.get(fact), bool)
                and (isinstance(document[fact], str) or abs(document[fact]) < 2**64)
            },
            score=_score(document),
        )
    ]


def _score(document: dict[str, Any]) -> Score:
    """What our own matrix.json says that it is of; in any other file a score may be anything."""
    schema, score = document.get("schema"), document.get("score")
    if not isinstance(schema, dict) or schema.get("name") != MATRIX_SCHEMA or score is None:
        return ACCURACY
    if not isinstance(score, dict) or set(score) != {"name", "lower_is_better"}:
        raise RecordError(f"score is {shown(score)}; expected its name and lower_is_better")
    lower = score["lower_is_better"]
    if not isinstance(lower, bool):
        raise RecordError(f"score.lower_is_better is {shown(lower)}; expected true or false")
    return Score(score["name"], higher_is_better=not lower)


def _rows(value: Any) -> list[list[float]]:
    if not isinstance(value, list):
        raise RecordError(f"the matrix is {shown(value)}; expected a list of rows")
    return [numbers(row, "a row of the matrix") for row in value]


def _optional(document: dict[str, Any], name: str) -> list[float] | None:
    return None if document.get(name) is None else numbers(document[name], name)


def _counts(value: Any) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        isinstance(n, int) and not isinstance(n, bool) for n in value
    ):
        raise RecordError(f"num_instances is {shown(value)}; expected one integer per bucket")
    return value


def _keys(value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(key, (str, int)) for key in value):
        raise RecordError(f"buckets is {shown(value)}; expected one text per bucket")
    if any(isinstance(key, int) and abs(key) >= 2**64 for key in value):
        raise RecordError("buckets holds a number too large for a key")
    return [str(key) for key in value]


FORMATS = [
    Format(
        name="json",
        title="a JSON matrix",
        recognises=_recognises,
        parse=_parse,
        is_general=True,
    )
]
