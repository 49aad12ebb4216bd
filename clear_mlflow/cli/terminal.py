"""Where results are printed: a terminal as wide as it is, or a pipe."""

from __future__ import annotations

import sys

from rich.console import Console

# Links and verdicts are read by programs, too: they are never wrapped when piped.
_PIPED_WIDTH = 200


def console() -> Console:
    """Standard output."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPED_WIDTH)
