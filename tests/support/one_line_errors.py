"""Errors that a user sees: one printable line, which contains what was expected."""

from collections.abc import Callable
from typing import Any

import pytest

Errors = type[Exception] | tuple[type[Exception], ...]


def check_error(
    errors: Errors, part: str, call: Callable[..., object], *arguments: Any, **options: Any
) -> str:
    """Check that a call raises an error of one line that contains a text, and return the line."""
    with pytest.raises(errors) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert part in message
    assert message.isprintable()
    return message
