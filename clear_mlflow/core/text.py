"""Numbers and untrusted texts as they are displayed: on one line, printable, of bounded length."""

from __future__ import annotations

import difflib
import math
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress

NOT_MEASURED = "–"
# Characters without ink that Unicode counts as letters or symbols: fillers and the Braille blank.
_FILLERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
_NO_INK = ("C", "M", "Z")  # categories of Unicode: control characters, marks and spaces


def format_percent(accuracy: float) -> str:
    """Format a cell in percent without the sign, NaN as a dash."""
    return NOT_MEASURED if math.isnan(accuracy) else f"{100 * accuracy:.1f}"


def format_count(count: float, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, such as ``2 runs``.

    plural: the noun of other counts than 1, or None to append an s.

    >>> [format_count(n, "run") for n in (0, 1, 1200)], format_count(2, "class is", "classes are")
    (['0 runs', '1 run', '1,200 runs'], '2 classes are')
    """
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun if count == 1 else plural or noun + 's'}"


def safe_repr(value: object, limit: int = 60) -> str:
    """Return an untrusted value's repr on one line, cut to *limit*."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits, which Python does not write out
        text = f"a {type(value).__name__} too long to write out"
    if "\n" in text:  # as of arrays and data frames; the repr of a string has none
        text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def suggest_nearest(name: str, valid_names: Iterable[str]) -> str:
    """Return a hint that suggests similar names, or "".

    >>> suggest_nearest("epoch", ("epochs", "lr"))
    'did you mean epochs? '
    """
    close = difflib.get_close_matches(name, valid_names, n=3)
    return f"did you mean {' or '.join(close)}? " if close else ""


def printable(text: str) -> str:
    """Replace each unprintable character of an untrusted text by U+FFFD.

    Such characters control a terminal or a renderer.
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def show_blank(text: str) -> str:
    r"""Return a text, or its escaped repr if it is all invisible.

    >>> show_blank("naive"), show_blank(" "), show_blank("\N{HANGUL FILLER}")
    ('naive', "' '", "'\\u3164'")
    """
    is_visible = any(c not in _FILLERS and unicodedata.category(c)[0] not in _NO_INK for c in text)
    return text if is_visible or not text else ascii(text)


def one_line(text: str, limit: int = 2000) -> str:
    r"""Replace line breaks and unprintable characters, and cut the middle out.

    The middle is cut out: a message begins with what is wrong and ends with what to do.

    >>> one_line("no file \x1b[31m\nred")
    'no file �[31m red'
    """
    line = printable(" ".join(text.split()))
    if len(line) <= limit:
        return line
    end = limit // 3
    return f"{line[: limit - end - 1]}…{line[-end:]}"


def truncate(text: str, limit: int) -> str:
    """Cut an untrusted text to *limit* printable characters."""
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def truncate_start(key: str, limit: int) -> str:
    """Cut the beginning of a key off: *limit* printable characters remain.

    Keys such as bucket-01 differ at the end.
    """
    text = printable(key)
    return text if len(text) <= limit else "…" + text[1 - limit :]


def _truncate_middle(text: str, limit: int) -> str:
    text = printable(text)
    half = limit // 2
    return text if len(text) <= limit else f"{text[: limit - half - 1]}…{text[-half:]}"


def truncate_apart(texts: Sequence[str], limit: int) -> list[str]:
    """Cut texts to *limit* characters, and number equal ones.

    The end, the beginning, the common beginning or the middle is cut, whichever keeps most texts
    different.

    >>> truncate_apart(["old", "camera 1 of the north", "camera 2 of the north"], 12)
    ['old', 'camera 1 of…', 'camera 2 of…']
    >>> truncate_apart(["the north's camera 1", "the north's camera 2"], 12)
    ["…'s camera 1", "…'s camera 2"]
    >>> truncate_apart(["x, by the river, 1", "y, by the river, 1", "x, by the river, 2"], 12)
    ['x, by…ver, 1', 'y, by…ver, 1', 'x, by…ver, 2']
    >>> truncate_apart(["same", "same"], 12)
    ['same', '(2) same']
    """
    characters = enumerate(zip(*texts, strict=False))
    num_shared = next((i for i, letters in characters if len({*letters}) > 1), 0)
    middles = [truncate_start(text, len(text) - num_shared + 1) for text in texts]
    candidates = (
        [truncate(text, limit) for text in texts],
        [truncate_start(text, limit) for text in texts],
        [truncate(text, limit) for text in middles],
        [_truncate_middle(text, limit) for text in texts],
        [_truncate_middle(text, limit) for text in middles],
    )
    distinct: dict[str, None] = {}
    for label in max(candidates, key=lambda candidate: len({*candidate})):
        unique, number = label, 1
        while unique in distinct:
            number += 1
            prefix = f"({number}) "
            unique = prefix + truncate(label, max(limit - len(prefix), 1))
        distinct[unique] = None
    return list(distinct)


def warn(message: str) -> None:
    """Print a warning on standard error, in one line."""
    with suppress(OSError):  # nobody may be reading any more
        print(f"warning: {one_line(message)}", file=sys.stderr, flush=True)
