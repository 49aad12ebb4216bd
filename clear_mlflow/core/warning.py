"""What a person should know now, while training continues."""

from __future__ import annotations

import sys
from contextlib import suppress

from clear_mlflow.core.text import one_line


def warn(message: str) -> None:
    """Say something on standard error, in one line."""
    _say("warning", message)


def note(message: str) -> None:
    """Say something that was asked for, and is no reason to worry, in the same way."""
    _say("note", message)


def _say(kind: str, message: str) -> None:
    with suppress(OSError):  # nobody may be reading any more
        print(f"{kind}: {one_line(message)}", file=sys.stderr, flush=True)
