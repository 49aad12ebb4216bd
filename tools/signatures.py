"""The text of clear_mlflow/api.py, with the parameters of train and train_ensemble written anew.

``python tools/generate.py`` writes it: each parameter's type, default and description are those of
its field in ``TrainConfig``, so that an editor shows them and mypy checks a caller.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from clear_mlflow.learning.parameters.config import TrainConfig, switches
from clear_mlflow.learning.parameters.recipes import AUTO

API = Path(__file__).parent.parent / "clear_mlflow" / "api.py"
FUNCTIONS = ("train", "train_ensemble")
_WIDTH = 89


def api() -> str:
    """The whole module; what it says beside these parameters is taken as it is."""
    lines = API.read_text(encoding="utf-8").splitlines()
    tree = ast.parse("\n".join(lines))
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in FUNCTIONS]
    # From the last one up: what is below stays where it is.
    for node in reversed(functions):
        text = node.body[0]
        about = range(text.lineno - 1, text.end_lineno or text.lineno)
        start = next(i for i in about if lines[i].strip() == "Args:") + 1
        end = next(i for i in about if i >= start and not lines[i].strip())
        lines[start:end] = [line for field in fields(TrainConfig) for line in _described(field)]
        first = next(i for i in range(node.lineno - 1, about.start) if lines[i] == "    *,") + 1
        last = next(i for i in range(first, about.start) if lines[i].startswith(")"))
        lines[first:last] = [_declared(field) for field in fields(TrainConfig)]
    return "\n".join(lines) + "\n"


def _declared(field: Field[Any]) -> str:
    kind = _kind(field)
    default = field.metadata["default"]
    if field.name in switches():
        default = str(default == "on")
    elif kind not in ("int", "float"):
        default = json.dumps(default)
    line = f"    {field.name}: {kind} = {default},"
    return f"{line}  # noqa: A002" if field.name == "compile" else line


def _kind(field: Field[Any]) -> str:
    """The type as a caller in Python has it; numbers may be texts where there is an auto."""
    if field.metadata["python"]:
        return str(field.metadata["python"])
    if field.name in switches():
        return 'bool | Literal["on", "off"]'
    if field.metadata["choices"]:
        return f"Literal[{', '.join(map(json.dumps, field.metadata['choices']))}]"
    number = next((n for n in ("float", "int") if re.search(rf"\b{n}\b", str(field.type))), "str")
    may_be_text = number != "str" and field.metadata["default"] == AUTO
    return f"{number} | str" if may_be_text else number


def _described(field: Field[Any]) -> Iterator[str]:
    about = field.metadata["about"] or field.metadata["help"]
    yield from textwrap.wrap(
        f"{field.name}: {about}",
        _WIDTH,
        initial_indent=" " * 8,
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )
