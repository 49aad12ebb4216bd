"""What a person should know now, while training goes on."""

from __future__ import annotations

import sys
from contextlib import suppress


def warn(message: str) -> None:
    """Say something on standard error, in one line."""
    line = " ".join(message.split())
    with suppress(OSError):  # nobody may be reading any more
        print(f"warning: {line}", file=sys.stderr, flush=True)
