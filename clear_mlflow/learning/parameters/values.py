"""Parsers of option values: text in, a value out, or a ValueError with what was expected."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias

from clear_mlflow.core.batch_record import DISTANCES
from clear_mlflow.data.sources import DATASETS, is_custom_function
from clear_mlflow.learning.parameters.recipes import AUTO, DEFAULT_WEIGHTS, FULL, NONE
from clear_mlflow.learning.parameters.strategy_names import list_strategies
from clear_mlflow.metrics import split_families

OFF = "off"

_MAX_INT = 2**63 - 1  # the largest that torch's seeds, MLflow's store and JSON readers all accept


def parse_int(text: str, *, ge: int) -> int:
    """Parse a whole number of at least *ge*, below 2**63."""
    is_decimal = re.fullmatch("-?(0|[1-9][0-9]{0,18})", text)  # as str() writes it
    value = int(text) if is_decimal else ge - 1
    if not ge <= value <= _MAX_INT:
        raise ValueError(f"expected a whole number of at least {ge}, below 2**63")
    return value


def parse_float(
    text: str, *, gt: float = -math.inf, ge: float = -math.inf, lt: float = math.inf
) -> float:
    """Parse a finite number within limits *gt*, *ge* and *lt*."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and gt < value < lt and value >= ge):
        bounds = f"above {gt}" if math.isfinite(gt) else f"of at least {ge}"
        bounds += f" and below {lt}" if math.isfinite(lt) else ""
        raise ValueError(f"expected a finite number {bounds}")
    return value


def parse_batch_size(text: str) -> int | Literal["full"]:
    """Parse a number of images, or ``full``: all images of an epoch."""
    if text == FULL:
        return FULL
    try:
        return parse_int(text, ge=1)
    except ValueError as error:
        raise ValueError(f"{error}, or full: all images of an epoch in one step") from None


def parse_memory(text: str) -> int | float:
    """Parse a number of images, or a fraction below 1."""
    try:
        return parse_int(text, ge=0) if text.isdecimal() else parse_float(text, gt=0, lt=1)
    except ValueError:
        raise ValueError(
            "expected a whole number of images, or a fraction of the stream's training images, "
            "for example 0.1"
        ) from None


def parse_budget(text: str) -> str:
    """Parse FLOPs or images per bucket, naive:NUMBER, or ``off``.

    Returns ``2e15``, ``images:500``, ``naive:0.5`` or ``off``, with the number in one form.
    """
    if text == OFF:
        return text
    unit, _, amount = text.rpartition(":")
    with suppress(ValueError):
        if unit == "images":
            return f"images:{parse_int(amount, ge=1)}"
        if unit in ("", "naive"):
            parse_float(amount, gt=0)
            return _normalise_amount(text)
    raise ValueError(
        "expected off; FLOPs a bucket, for example 2e15; a multiple of what naive learning "
        "takes, for example naive:1; or images:N"
    )


def parse_stream_rate(text: str) -> str:
    """Parse images per PFLOP, naive:NUMBER, or ``off``.

    Returns ``5e4``, ``naive:1`` or ``off``, with the number in one form.
    """
    if text == OFF:
        return text
    try:
        parse_float(text.removeprefix("naive:"), gt=0)
    except ValueError:
        raise ValueError(
            "expected off; a multiple of the pace of naive learning, for example naive:1; or "
            "images per PFLOP, for example 5e4"
        ) from None
    return _normalise_amount(text)


def _normalise_amount(text: str) -> str:
    """Return a budget or rate with its number in one form.

    >>> [_normalise_amount(text) for text in ("naive:1.0", "5000.0", "50000", "2e+15")]
    ['naive:1', '5000', '5e4', '2e15']
    """
    unit, colon, amount = text.rpartition(":")
    exact = Decimal(amount).normalize()
    number = f"{exact:f}" if abs(exact.adjusted()) < 4 else str(exact).lower().replace("+", "")
    return unit + colon + number


def parse_dataset(text: str) -> str:
    """Return the name of a dataset or custom function, not imported."""
    if text in DATASETS or is_custom_function(text):
        return text
    raise ValueError(
        f"expected one of {', '.join(DATASETS)}, or your own function: package.module:function"
    )


def parse_strategy(text: str) -> str:
    """Return the name of a strategy or custom class, not imported."""
    names = list_strategies()
    if text in names or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
        return text
    raise ValueError(f"expected one of {', '.join(names)}, or your own class: package.module:Class")


def parse_seeds(text: str) -> str:
    """Parse distinct seeds separated by commas, or ``none``. Returns them without spaces."""
    if text == NONE:
        return text
    seeds = [parse_int(part.strip(), ge=0) for part in text.split(",")]
    if len(set(seeds)) < len(seeds):
        raise ValueError("expected distinct seeds, for example 0,1,2")
    return ",".join(map(str, seeds))


def parse_families(text: str) -> str:
    """Parse names of metric families separated by commas, and return each once.

    Raises ConfigError, not ValueError, if a family does not exist.
    """
    return ",".join(split_families(text))


def parse_test_every(text: str) -> str:
    """Parse the interval of the tests within buckets: epochs, steps, or ``off``.

    >>> parse_test_every("3"), parse_test_every("200 steps"), parse_test_every("off")
    ('3', '200steps', 'off')
    """
    if text == OFF:
        return text
    match = re.fullmatch(r"([1-9][0-9]{0,8}) *(?:(steps?)|epochs?)?", text)
    if match is None:
        raise ValueError(
            "expected off, a whole number of epochs, such as 1, or of steps, such as 200steps"
        )
    return f"{match[1]}steps" if match[2] else match[1]


def parse_label_delay(text: str) -> str:
    """Parse a number of buckets, at least 1, or ``off``."""
    return text if text == OFF else str(parse_int(text, ge=1))


def parse_prequential(text: str) -> str:
    """Parse and sort distinct distances in batches, separated by commas, or ``off``.

    >>> parse_prequential("10, 0"), parse_prequential("off")
    ('0,10', 'off')
    """
    if text == OFF:
        return text
    parts = [part.strip() for part in text.split(",")]
    distances = [str(distance) for distance in DISTANCES if str(distance) in parts]
    if len(distances) < len(parts):
        names = ", ".join(map(str, DISTANCES))
        raise ValueError(f"expected off, or some of {names}, each once, separated by commas")
    return ",".join(distances)


def parse_weights(text: str) -> str:
    """Parse ``none``, ``DEFAULT``, or the path of a file like :func:`parse_path`."""
    return text if text in (NONE, DEFAULT_WEIGHTS) else parse_path(text)


def parse_feature_name(text: str) -> str:
    """Parse the name of stored features, a valid folder name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", text):
        raise ValueError(
            "expected a name of up to 64 letters, digits, and _ . - , for example resnet50"
        )
    return text


def is_mlp(model: str) -> bool:
    """Return True for a network with hidden layers on features.

    >>> is_mlp("mlp:256-128"), is_mlp("mlp"), is_mlp("mlp:0")
    (True, False, False)
    """
    return re.fullmatch("mlp:[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})*", model) is not None


def parse_path(text: str) -> str:
    """Parse a path, which becomes absolute with its ``~`` expanded, or ``auto``.

    The path need not exist.
    """
    if text == AUTO:
        return text
    if not text.strip() or "\0" in text or not text.isprintable():
        raise ValueError("expected a path of printable characters")
    try:
        return str(Path(text).expanduser().absolute())
    except RuntimeError:
        raise ValueError("expected a path; its ~ names no home folder") from None


Argument: TypeAlias = bool | int | float | str | None


def format_argument(value: Argument) -> str:
    """Return an argument as users write it.

    >>> format_argument(True), format_argument(0.5), format_argument(None)
    ('yes', '0.5', 'none')
    """
    if value is None:
        return NONE
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def split_arguments(text: str) -> dict[str, Argument]:
    """Split ``name=value,name=value`` into texts by name, which are checked later.

    Returns {} for ``none``. A name without a value gets an empty text. Raises ValueError if a name
    is repeated.
    """
    values: dict[str, Argument] = {}
    for part in [] if text == NONE else text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name in values:
            raise ValueError(f"{name} is given twice; pass it once")
        values[name] = value
    return values
