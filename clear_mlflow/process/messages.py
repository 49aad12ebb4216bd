"""What the supervisor and its training process say to each other.

Down, lines: a cue to hear of the data, and one for every row; the first row's names the file with
the state to resume from, if any. The end of that stream means that the supervisor is gone. Up:
eight bytes of length, so much MessagePack, then files (predictions, a model, a state) as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from clear_mlflow.core import errors
from clear_mlflow.core.anytime.anytime_row import AnytimeRow
from clear_mlflow.learning.measured import (
    CurvePoint,
    MeasuredRow,
    StreamMetadata,
    TrainingState,
)


def cue(state: Path | None = None) -> bytes:
    """A line that asks the child for what comes next, resumed from a file's state."""
    return json.dumps(None if state is None else str(state)).encode() + b"\n"


def state_of(line: bytes) -> Path | None:
    """What :func:`cue` was given."""
    state = json.loads(line)
    return None if state is None else Path(state)


@dataclass(frozen=True)
class Refusal:
    """The training ended in an error that a user can mend."""

    error: str  # a class of core.errors
    message: str

    @classmethod
    def of(cls, error: errors.ClearError) -> Refusal:
        """What is said of an error."""
        return cls(type(error).__name__, str(error))

    def as_error(self) -> errors.ClearError:
        """The error again."""
        kind: type[errors.ClearError] = getattr(errors, self.error, errors.ClearError)
        return kind(self.message)


# Kinds of messages, and what each says.
KINDS: dict[str, Any] = {
    "checked": dict[str, Any],  # the parameters: all that can be known without data is right
    "facts": StreamMetadata,
    "curve": tuple[CurvePoint, ...],
    "test": AnytimeRow,
    "row": MeasuredRow,
    "state": TrainingState,  # after the row before, while the next bucket is trained on
    "refused": Refusal,
    "done": None,  # the last row was sent
}


def encode(kind: str, content: Any = None) -> list[bytes]:
    """A message, and the files in it."""
    fields = vars(content) if is_dataclass(content) else {}
    files = {name: value for name, value in fields.items() if isinstance(value, bytes)}
    lengths = {name: len(value) for name, value in files.items()}
    rest = replace(content, **dict.fromkeys(files)) if files else content
    said = msgspec.msgpack.encode((kind, rest, lengths))
    return [len(said).to_bytes(8, "big"), said, *files.values()]


def decode(read: Callable[[int], bytes]) -> tuple[str, Any] | None:
    """The kind and content of the message that ``read(n)`` gives; None where it is cut off."""

    def whole(length: int) -> bytes:
        if len(found := read(length)) < length:
            raise EOFError
        return found

    try:
        said = whole(int.from_bytes(whole(8), "big"))
        kind, rest, lengths = msgspec.msgpack.decode(
            said, type=tuple[str, msgspec.Raw, dict[str, int]]
        )
        content = msgspec.msgpack.decode(rest, type=KINDS[kind])
        files = {name: whole(length) for name, length in lengths.items()}
    except EOFError:
        return None
    return kind, replace(content, **files) if files else content
