"""What the supervisor and its training process say to each other: one JSON object a line.

Down: ``next``, once to hear of the data and once for every row; the first row of a training that is
resumed is asked for with the state's file instead. The end of that stream means that the supervisor
is gone. Up: what was found and measured, a message followed by as many bytes (predictions, a model,
a state) as its ``attached`` says. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

from clear_mlflow.core import errors
from clear_mlflow.core.anytime.anytime_row import AnytimeRow
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.learning.measured import CurvePoint, MeasuredRow, StreamMetadata

NEXT = b"next\n"
_OF_ROW = ("row", "buckets", "correct", "num_instances")
_ATTACHED_TO_ROW = ("predictions", "model", "state")


def resume(state: Path) -> bytes:
    """The line that asks for the first row of a training that resumes from a file's state."""
    return json.dumps({"resume": str(state)}).encode() + b"\n"


def is_cue(line: bytes) -> bool:
    """Whether a line asks the child for something."""
    return line == NEXT or (line.startswith(b'{"resume"') and line.endswith(b"\n"))


def state_of(cue: bytes) -> Path | None:
    """What :func:`resume` said; None of a plain ``next``."""
    return None if cue == NEXT else Path(json.loads(cue)["resume"])


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """All that can be known without data is in order; these are the parameters in force."""
    return {"kind": "checked", "config": config}


def facts(found: StreamMetadata) -> dict[str, Any]:
    """The data is read."""
    attached = {"evaluation_set": found.evaluation_set}
    fields = asdict(replace(found, evaluation_set=None))
    return {"kind": "facts", "facts": fields, "attached": attached}


def curve(points: Sequence[CurvePoint]) -> dict[str, Any]:
    """So far has the training of a bucket come."""
    return {"kind": "curve", "points": [astuple(point) for point in points]}


def test(measured: AnytimeRow) -> dict[str, Any]:
    """The model was tested inside a bucket."""
    return {"kind": "test", "test": asdict(measured)}


def row(measured: MeasuredRow) -> dict[str, Any]:
    """A row is measured."""
    return {
        **curve(measured.curve),
        "kind": "row",
        "row": {name: getattr(measured.row, name) for name in _OF_ROW},
        "seed": measured.seed,
        "no_state": measured.no_state,
        "attached": {name: getattr(measured, name) for name in _ATTACHED_TO_ROW},
    }


def refused(error: errors.ClearError) -> dict[str, Any]:
    """The training ended in an error that a user can mend."""
    seed = error.seed if isinstance(error, errors.DivergedError) else None
    return {"kind": "refused", "error": type(error).__name__, "message": str(error), "seed": seed}


def done() -> dict[str, Any]:
    """The last row was sent."""
    return {"kind": "done"}


def encode(message: Mapping[str, Any]) -> list[bytes]:
    """A message as its line, and what is attached to it."""
    attached = {k: v for k, v in message.get("attached", {}).items() if v is not None}
    lengths = {name: len(content) for name, content in attached.items()}
    line = json.dumps({**message, "attached": lengths}).encode() + b"\n"
    return [line, *attached.values()]


def decode(line: bytes, read: Callable[[int], bytes]) -> dict[str, Any] | None:
    """A line as its message; ``read(n)`` gives n bytes that follow. None where they are cut off."""
    message: dict[str, Any] = json.loads(line)
    attached = {}
    for name, length in message.get("attached", {}).items():
        attached[name] = read(length)
        if len(attached[name]) < length:
            return None
    return {**message, "attached": attached}


def to_facts(message: dict[str, Any]) -> StreamMetadata:
    """What :func:`facts` said."""
    return StreamMetadata(**{**_with_tuples(message["facts"]), **message["attached"]})


def to_curve(message: dict[str, Any]) -> tuple[CurvePoint, ...]:
    """What :func:`curve` said, or :func:`row` said of it."""
    return tuple(CurvePoint(*point) for point in message["points"])


def to_test(message: dict[str, Any]) -> AnytimeRow:
    """What :func:`test` said."""
    return AnytimeRow(**_with_tuples(message["test"]))


def to_row(message: dict[str, Any]) -> MeasuredRow:
    """What :func:`row` said."""
    return MeasuredRow(
        AccuracyRow(**_with_tuples(message["row"])),
        seed=message["seed"],
        no_state=message["no_state"],
        curve=to_curve(message),
        **message["attached"],
    )


def to_error(message: dict[str, Any]) -> errors.ClearError:
    """What :func:`refused` said."""
    if message["error"] == errors.DivergedError.__name__:
        return errors.DivergedError(message["message"], message["seed"])
    kind: type[errors.ClearError] = getattr(errors, message["error"], errors.ClearError)
    return kind(message["message"])


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists in the place of tuples."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
