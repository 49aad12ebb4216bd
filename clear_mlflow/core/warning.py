"""What a person should know now, while training continues."""

from __future__ import annotations

import sys
from contextlib import suppress

from clear_mlflow.core.text import one_line


def warn(message: str) -> None:
    """Say something on standard error, in one line."""
    with suppress(OSError):  # nobody may be reading any more
        print(f"warning: {one_line(message)}", file=sys.stderr, flush=True)
