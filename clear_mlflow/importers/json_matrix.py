"""A matrix as JSON: a list of lists, or an object with its parts; our own matrix.json, too."""

from __future__ import annotations

from typing import Any

from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.score import ACCURACY, Score, StoredScore
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import convert
from clear_mlflow.importers._base import Format, Parsed, Source, numbers, rows_of

MATRIX_SCHEMA = "clear_mlflow/accuracy_matrix"  # of report.exports, which is not imported here
_MATRIX_NAMES = ("matrix", "values", "accuracy", "accuracies")
_FACTS = ("strategy", "dataset", "model", "seed")


def _parse(source: Source) -> list[Parsed]:
    document = source.json
    if isinstance(document, list):
        return [Parsed(rows=rows_of(document, "the matrix"))]
    if not isinstance(document, dict):
        raise RecordError(f"is {safe_repr(document)}; expected a list of rows, or an object")
    name = next((name for name in _MATRIX_NAMES if name in document), None)
    if name is None:
        raise RecordError(
            f"has the fields {safe_repr(sorted(document))}; expected one of "
            f"{', '.join(_MATRIX_NAMES)}"
        )
    initial, keys = document.get("initial"), document.get("buckets")
    if keys is not None and not isinstance(keys, list):
        raise RecordError(f"buckets is {safe_repr(keys)}; expected a list of keys")
    if keys is not None:
        keys = [str(key) if type(key) is int else key for key in keys]
    return [
        Parsed(
            rows=rows_of(document[name], "the matrix"),
            initial=None if initial is None else numbers(initial, "initial"),
            num_instances=convert(document.get("num_instances"), list[int] | None, "num_instances"),
            buckets=keys,
            facts={fact: str(document[fact]) for fact in _FACTS if _is_fact(document.get(fact))},
            score=_score(document),
            orientation="rows" if _is_our_own(document) else "auto",
        )
    ]


def _is_fact(value: object) -> bool:
    return isinstance(value, str) or (type(value) is int and abs(value) < 2**64)


def _score(document: dict[str, Any]) -> Score:
    """What our own matrix.json says that it is of; in any other file a score may be anything."""
    score = document.get("score")
    if not _is_our_own(document) or score is None:
        return ACCURACY
    found: StoredScore = convert(score, StoredScore, "score")
    return found.score


def _is_our_own(document: dict[str, Any]) -> bool:
    schema = document.get("schema")
    return isinstance(schema, dict) and schema.get("name") == MATRIX_SCHEMA


FORMATS = [
    Format(
        name="json",
        title="a JSON matrix",
        recognises=lambda source: source.looks_like_json,
        parse=_parse,
        is_general=True,
    )
]
