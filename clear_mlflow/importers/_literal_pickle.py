"""Lists, dictionaries, texts and numbers out of a pickle's bytes, without unpickling it.

``pickle`` runs any function that a file names. This module only lists the file's opcodes, with
``pickletools.genops``, and follows the few that build plain values; it refuses an opcode that names
a class or a function, or calls anything.
"""

from __future__ import annotations

import pickletools
from typing import Any, Final

from clear_mlflow.core.errors import RecordError

_ADVICE: Final = (
    "save it as JSON with the program that wrote it (json.dump in place of pickle.dump)"
)
_VALUES: Final = frozenset(
    {
        *("INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    }
)
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PUTS: Final = ("PUT", "BINPUT", "LONG_BINPUT")
_GETS: Final = ("GET", "BINGET", "LONG_BINGET")
_MARK: Final = object()


def looks_like_pickle(content: bytes) -> bool:
    """Whether a file begins as pickles of protocol 2 to 5 do."""
    return content[:1] == b"\x80" and content[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def read_literals(content: bytes) -> Any:
    """The plain value that a pickle contains.

    Raises:
        RecordError: it is damaged, or holds anything but lists, dictionaries, texts and numbers.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name == "STOP":
                return _only(stack)
            _follow(name, argument, stack, memo)
    except RecordError:
        raise
    # Damaged files: genops and the stack's ends have no common error.
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        raise RecordError("is a damaged pickle") from error
    raise RecordError("is a pickle that was cut off")


def _follow(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in ("PROTO", "FRAME"):
        return
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name == "MARK":
        stack.append(_MARK)
    elif name == "APPEND":
        value = stack.pop()
        _of(stack, list).append(value)
    elif name == "APPENDS":
        values = _to_mark(stack)
        _of(stack, list).extend(values)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        _of(stack, dict)[_text(key)] = value
    elif name == "SETITEMS":
        items = _to_mark(stack)
        if len(items) % 2:
            raise ValueError("a key without a value")
        found = _of(stack, dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            found[_text(key)] = value
    elif name in _PUTS:
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in _GETS:
        value = memo[argument]
        if isinstance(value, (list, dict)):
            # One list in two places: what is short here could be endless to walk.
            raise RecordError(f"is a pickle that refers to one list twice; {_ADVICE}")
        stack.append(value)
    else:
        raise RecordError(
            f"is a pickle that holds more than lists and numbers ({name}), which is never "
            f"executed; {_ADVICE}"
        )


def _of(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise TypeError("an item for what holds none")
    return stack[-1]


def _to_mark(stack: list[Any]) -> list[Any]:
    values = []
    while (value := stack.pop()) is not _MARK:
        values.append(value)
    return values[::-1]


def _text(key: object) -> str:
    if not isinstance(key, str):
        raise RecordError(f"is a pickle whose dictionary has a key that is no text; {_ADVICE}")
    return key


def _only(stack: list[Any]) -> Any:
    if len(stack) != 1 or stack[0] is _MARK:
        raise RecordError("is a damaged pickle")
    return stack[0]
