"""Numbers and texts from anywhere as they are shown: on one line, printable, of bounded length."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable
from contextlib import suppress

NOT_MEASURED = "–"


def percent(accuracy: float, decimals: int = 1) -> str:
    """A cell as text: percent without its sign, or a dash where nothing was measured."""
    return NOT_MEASURED if math.isnan(accuracy) else f"{100 * accuracy:.{decimals}f}"


def safe_repr(value: object, limit: int = 60) -> str:
    """Return the repr of an untrusted value for a message, cut to *limit* characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits, which Python does not write out
        text = f"a {type(value).__name__} too long to write out"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """The names that were probably meant, for the middle of a message; empty where none is near.

    >>> nearest("epoch", ("epochs", "lr"))
    'did you mean epochs? '
    """
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}? " if close else ""


def printable(text: str) -> str:
    """A text from outside on one line, with nothing in it that steers a terminal or a renderer."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def one_line(text: str, limit: int = 2000) -> str:
    r"""A message as it may go to a terminal, whatever it quotes: one line, and of bounded length.

    What is cut out is the middle: a message begins with what is wrong and ends with what to do.

    >>> one_line("no file \x1b[31m\nred")
    'no file �[31m red'
    """
    line = printable(" ".join(text.split()))
    if len(line) <= limit:
        return line
    end = limit // 3
    return f"{line[: limit - end - 1]}…{line[-end:]}"


def truncate(text: str, limit: int) -> str:
    """Return an untrusted text, printable and cut to *limit* characters with an ellipsis."""
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def ending(key: str, limit: int) -> str:
    """A key, or its end: keys of one stream differ there, as in bucket-01 and bucket-02."""
    text = printable(key)
    return text if len(text) <= limit else "…" + text[1 - limit :]


def warn(message: str) -> None:
    """Say on standard error, in one line, what a person should know while training continues."""
    with suppress(OSError):  # nobody may be reading any more
        print(f"warning: {one_line(message)}", file=sys.stderr, flush=True)
