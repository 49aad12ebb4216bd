"""What each parameter's text means: a value, or a ValueError that says what was expected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias

from clear_mlflow.core.matrix import VALIDATION
from clear_mlflow.data.sources import DATASETS, is_own_function
from clear_mlflow.learning.anytime.schedule import OFF, parse_interval
from clear_mlflow.learning.parameters.recipes import AUTO, FULL, NONE
from clear_mlflow.learning.registry import known_strategies
from clear_mlflow.metrics import split_families

_LARGEST_WHOLE = 2**63 - 1  # what torch's seeds, MLflow's store and JSON's readers all hold


def whole(*, least: int) -> Callable[[str], int]:
    """A parser of whole numbers of at least ``least``, below 2**63."""

    def parse(text: str) -> int:
        plain = re.fullmatch("-?(0|[1-9][0-9]{0,18})", text)  # as int() gives it back
        value = int(text) if plain else least - 1
        if not least <= value <= _LARGEST_WHOLE:
            raise ValueError(f"expected a whole number of at least {least}, below 2**63")
        return value

    return parse


def number(
    *, above: float | None = None, least: float | None = None, below: float | None = None
) -> Callable[[str], float]:
    """A parser of finite numbers within the bounds."""
    bound = f"above {above}" if above is not None else f"of at least {least}"
    if below is not None:
        bound += f" and below {below}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if (
            not math.isfinite(value)
            or (above is not None and value <= above)
            or (least is not None and value < least)
            or (below is not None and value >= below)
        ):
            raise ValueError(f"expected a finite number {bound}")
        return value

    return parse


def parse_batch_size(text: str) -> int | Literal["full"]:
    """A number of images, or ``full``: all of an epoch."""
    if text == FULL:
        return FULL
    try:
        return whole(least=1)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or full: all images of an epoch in one step") from None


def parse_memory(text: str) -> int | float:
    """A number of images, or below 1 a fraction of the stream's training images."""
    try:
        return whole(least=0)(text) if text.isdecimal() else number(above=0, below=1)(text)
    except ValueError:
        raise ValueError(
            "expected a whole number of images, or a fraction of the stream's training images, "
            "for example 0.1"
        ) from None


def parse_budget(text: str) -> str:
    """So many FLOPs or images a bucket, or a multiple of what naive learning takes; or ``off``."""
    kind, _, amount = text.rpartition(":")
    try:
        if text != OFF:
            {"": number(above=0), "naive": number(above=0), "images": whole(least=1)}[kind](amount)
            return text if kind == "images" else _with_one_text(text)
    except (KeyError, ValueError):
        raise ValueError(
            "expected off; FLOPs a bucket, for example 2e15; a multiple of what naive learning "
            "takes, for example naive:1; or images:N"
        ) from None
    return text


def parse_stream_rate(text: str) -> str:
    """Images per PFLOP, or a multiple of the pace of naive learning; or ``off``."""
    try:
        if text != OFF:
            number(above=0)(text.removeprefix("naive:"))
            return _with_one_text(text)
    except ValueError:
        raise ValueError(
            "expected off; a multiple of the pace of naive learning, for example naive:1; or "
            "images per PFLOP, for example 5e4"
        ) from None
    return text


def _with_one_text(text: str) -> str:
    """A budget or a rate, its number as any way to write it gives it.

    >>> _with_one_text("naive:1.0"), _with_one_text("50000000.0"), _with_one_text("2e+15")
    ('naive:1', '5e7', '2e15')
    """
    kind, colon, amount = text.rpartition(":")
    exact = Decimal(amount).normalize()
    plain = f"{exact:f}" if abs(exact.adjusted()) < 4 else str(exact).lower().replace("+", "")
    return kind + colon + plain


def parse_dataset(text: str) -> str:
    """A dataset's name, or a function that gives a stream."""
    if text in DATASETS or is_own_function(text):
        return text
    raise ValueError(
        f"expected one of {', '.join(DATASETS)}, or a function of your own: package.module:function"
    )


def parse_strategy(text: str) -> str:
    """A strategy's name, or a class of one's own."""
    known = known_strategies()
    if text in known or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
        return text
    raise ValueError(
        f"expected one of {', '.join(known)}, or a class of your own: package.module:Class"
    )


def parse_seeds(text: str) -> str:
    """Distinct seeds with commas between, or ``none``."""
    if text == NONE:
        return text
    seeds = [whole(least=0)(part.strip()) for part in text.split(",")]
    if len(set(seeds)) < len(seeds):
        raise ValueError("expected distinct seeds, for example 0,1,2")
    return ",".join(str(seed) for seed in seeds)


def parse_families(text: str) -> str:
    """Names of metric families with commas between."""
    return ",".join(split_families(text))


def parse_test_every(text: str) -> str:
    """An interval of tests inside buckets, or ``off``."""
    interval = parse_interval(text)
    return OFF if interval is None else str(interval)


def parse_split(text: str) -> str:
    """``auto``, a number, or ``validation`` of either."""
    if text in (AUTO, VALIDATION):
        return text
    of = f"{VALIDATION}:" if text.startswith(f"{VALIDATION}:") else ""
    try:
        return of + str(whole(least=0)(text.removeprefix(of)))
    except ValueError as error:
        raise ValueError(f"{error}, or {AUTO}, {VALIDATION} or {VALIDATION}:N") from None


def parse_weights(text: str) -> str:
    """``none``, ``DEFAULT``, or the absolute path of a file."""
    return text if text in (NONE, "DEFAULT") else parse_path(text)


def feature_name(text: str) -> str:
    """A name of stored features, which is the name of a folder and of nothing above it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", text):
        raise ValueError(
            "expected a name of up to 64 letters, digits, and _ . - , for example resnet50"
        )
    return text


def is_mlp(model: str) -> bool:
    """Whether a model is a network with hidden layers on features.

    >>> is_mlp("mlp:256-128"), is_mlp("mlp"), is_mlp("mlp:0")
    (True, False, False)
    """
    return re.fullmatch("mlp:[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})*", model) is not None


def parse_path(text: str) -> str:
    """An absolute path, its ``~`` expanded, or ``auto``."""
    if text == AUTO:
        return text
    if "\0" in text or not text.isprintable():
        raise ValueError("expected a path of printable characters")
    try:
        return str(Path(text).expanduser().absolute())
    except RuntimeError:
        raise ValueError("expected a path; its ~ names no home folder") from None


Argument: TypeAlias = bool | int | float | str | None


def argument_text(value: Argument) -> str:
    """One of a strategy's or a dataset's own arguments, as a user writes it.

    >>> argument_text(True), argument_text(0.5), argument_text(None)
    ('yes', '0.5', 'none')
    """
    if value is None:
        return NONE
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def parse_arguments(text: str) -> dict[str, Argument]:
    """Name to the text of its value; which there are, the strategy or the dataset knows."""
    found: dict[str, Argument] = {}
    for part in [] if text == NONE else text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name in found:
            raise ValueError(f"{name} is given twice; pass it once")
        found[name] = value
    return found
