"""What the supervisor and its training process say to each other: one JSON object a line.

Down, into the child's standard input: ``next``, once to read the data and once for every row. The
end of that stream means that the supervisor is gone. Up, through a pipe of its own: what was found
and measured. Nothing is pickled, and nothing but these few forms is understood.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from clear_mlflow import errors
from clear_mlflow.matrix import AccuracyRow
from clear_mlflow.training import StreamFacts

NEXT = b"next\n"


def checked(config_json: str) -> dict[str, Any]:
    """All that can be known without data is in order; the configuration is resolved."""
    return {"kind": "checked", "config": json.loads(config_json)}


def facts(found: StreamFacts) -> dict[str, Any]:
    """The data is read."""
    return {"kind": "facts", **asdict(found)}


def row(measured: AccuracyRow) -> dict[str, Any]:
    """A row is measured."""
    return {"kind": "row", **asdict(measured)}


def refused(error: errors.ClearError) -> dict[str, Any]:
    """The input is at fault."""
    return {"kind": "refused", "error": type(error).__name__, "message": str(error)}


def done() -> dict[str, Any]:
    """The last row was sent."""
    return {"kind": "done"}


def encode(message: dict[str, Any]) -> bytes:
    """A message as its line."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """A line as its message."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise RuntimeError(f"the training process said {line!r}, which is no message")
    return message


def to_facts(message: dict[str, Any]) -> StreamFacts:
    """What :func:`facts` said."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in message.items()
        if key != "kind"
    }
    return StreamFacts(**fields)


def to_row(message: dict[str, Any]) -> AccuracyRow:
    """What :func:`row` said."""
    return AccuracyRow(
        row=message["row"],
        buckets=tuple(message["buckets"]),
        correct=tuple(message["correct"]),
        num_instances=tuple(message["num_instances"]),
    )


def to_error(message: dict[str, Any]) -> errors.ClearError:
    """What :func:`refused` said."""
    known = {
        kind.__name__: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.ClearError)
    }
    return known.get(message["error"], errors.ClearError)(message["message"])
