"""What a shell offers for a training parameter; docs/reference.md says how to switch it on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from clear_mlflow.learning.parameters.config import (
    parameter_choices,
    parameter_defaults,
    parameters_with,
)
from clear_mlflow.learning.parameters.recipes import AUTO, LINEAR, NONE
from clear_mlflow.learning.registry import known_strategies
from clear_mlflow.metrics import FAMILIES

_Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completion(name: str) -> _Completion:
    """What completes the value of a training parameter."""

    def complete(
        context: click.Context, parameter: click.Parameter, typed: str
    ) -> list[CompletionItem]:
        if kind := parameters_with("path").get(name):
            return [CompletionItem(typed, type=kind)]
        before = ""
        if name == "metrics":  # of several with commas between, the last is completed
            before, comma, typed = typed.rpartition(",")
            before += comma
        return [CompletionItem(before + v) for v in _values(name) if v.startswith(typed)]

    return complete


def _values(name: str) -> Iterable[str]:
    if name == "metrics":
        return FAMILIES
    if name == "strategy":
        return known_strategies()
    if name == "model":
        # Loaded here: it takes seconds, which one press of a key may for eighty names.
        from clear_mlflow.learning.models import model_names

        return (LINEAR, *model_names())
    default = parameter_defaults()[name]
    return parameter_choices(name) or ((default,) if default in (AUTO, NONE) else ())
