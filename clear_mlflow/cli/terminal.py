"""Where results are printed: a terminal as wide as it is, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

# Links and verdicts are read by programs, too: they are never wrapped when piped.
_PIPED_WIDTH = 200


def console() -> Console:
    """Standard output, for tables."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PIPED_WIDTH)


@contextmanager
def tables() -> Iterator[None]:
    """Print tables inside this context; one line replaces them where rich is not installed.

    A tracking server's machine may have only this package and MLflow, and MLflow does not bring
    rich. Nothing else that a command does needs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "rich":
            raise
        click.echo("no tables are shown: they need rich (pip install rich)", err=True)
