"""The module of TrainOptions, from the fields of ``TrainConfig``: ``python tools/generate.py``."""

from __future__ import annotations

import json
import re
from dataclasses import Field, fields
from typing import Any

from clear_mlflow.learning.parameters.config import TrainConfig, switches
from clear_mlflow.learning.parameters.recipes import AUTO

_HEAD = '''"""Options of ``train`` as Python gives them; written by ``python tools/generate.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict


class TrainOptions(TypedDict, total=False):
    """Options of ``clear_mlflow.train``, all of which have a default (docs/parameters.md)."""
'''


def train_options() -> str:
    """The whole module."""
    lines = (f"    {field.name}: {_kind(field)}" for field in fields(TrainConfig))
    return "\n".join((_HEAD, *lines)) + "\n"


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
