"""Write every file that follows from code: ``python tools/generate.py``.

``--check`` writes nothing; it reports the files that differ, with exit code 1.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import Any

import anybadge
from hosting import PYPROJECT, update_citation, update_notebook, update_readme
from pages import update_page, update_python_page
from program_output import update_outputs

from clear_mlflow.cli import main as command_line
from clear_mlflow.cli.train import PROJECT_PARAMETERS
from clear_mlflow.learning.parameters.config import PARAMETERS, TrainConfig
from clear_mlflow.learning.parameters.recipes import AUTO, FULL, NONE

ROOT = Path(__file__).parent.parent
# The command of each entry point, and the parameters that it declares. The other commands have
# none: import opens a run for each file, so mlflow run's would be empty; sync sends files to
# existing runs; data works on local folders; the others store nothing.
ENTRY_POINTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "main": ("train", PROJECT_PARAMETERS),
    "train_distributed": ("train-distributed", PROJECT_PARAMETERS),
    "resume": ("train", ("resume",)),
    "repeat": ("train", ("config",)),
    "sweep": ("sweep", ("grid",)),
    "evaluate": ("evaluate", ("runs",)),
    "compare": ("compare", ("runs",)),
}
REQUIRED = {"resume", "config", "grid"}

_MLPROJECT = """# Written by `python tools/generate.py` from the commands. Every option of a
# command is a parameter, also if it is not declared here: -P epochs=12,
# -P batch_size=64 (docs/parameters.md, docs/reference.md). Declared are those
# whose defaults are in force whatever else is passed, since MLflow logs them.
name: clear_mlflow

conda_env: conda.yaml

entry_points:
"""
# Kubernetes allows no underscore in a job's name, which MLflow makes of the project's.
_DOCKER_MLPROJECT = """# Written by `python tools/generate.py`: the project's MLproject, in the
# container of its Dockerfile. It is in a separate folder because MLflow
# ignores --env-manager if MLproject names a docker_env.
name: clear-mlflow

docker_env:
  image: clear_mlflow

entry_points:
"""
_OPTIONS = '''"""Options of ``train`` in Python; written by ``python tools/generate.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict


class TrainOptions(TypedDict, total=False):
    """Options of ``clear_mlflow.train``, all of which have a default (docs/parameters.md)."""

'''


def write_mlproject(head: str) -> str:
    """Return an MLproject with an entry point for each command that tracks."""
    return head + "".join(
        f"  {entry_point}:\n"
        + "    parameters:\n"
        + "".join(f"      {_declare(command, name)}\n" for name in declared)
        + f"    command: python -m clear_mlflow {command}"
        + "".join(f" --{name.replace('_', '-')} {{{name}}}" for name in declared)
        + "\n"
        for entry_point, (command, declared) in ENTRY_POINTS.items()
    )


def _declare(command: str, name: str) -> str:
    """Return the declaration of a parameter: its default, or only its type if it is required."""
    default = next(o.default for o in command_line.commands[command].params if o.name == name)
    if name in REQUIRED:
        return f"{name}: string"
    return f"{name}: {{default: {'none' if default is None else default}}}"


def write_options() -> str:
    """Return the module of TrainOptions, from the fields of TrainConfig."""
    return _OPTIONS + "".join(
        f"    {field.name}: {_annotate(field)}\n" for field in fields(TrainConfig) if field.metadata
    )


def _annotate(field: Field[Any]) -> str:
    """Return the type of an option in Python. None stands for the words none and off."""
    option = PARAMETERS[field.name]
    if option.is_switch:
        return "bool"
    words = [*option.choices]
    number = next((n for n in ("float", "int") if re.search(rf"\b{n}\b", str(field.type))), None)
    if number is not None:
        valid_words = (option.default, *re.split("['\"]", str(field.type)))
        words = [word for word in (AUTO, FULL) if word in valid_words]
    types = [option.python_type or number or ("" if words else "str")]
    types.append(f"Literal[{', '.join(map(json.dumps, words))}]" if words else "")
    types.append("None" if option.python_default is None or NONE in words else "")
    return " | ".join(filter(None, types))


def draw_badge(label: str, pattern: str) -> str:
    """Return an SVG badge of all values in pyproject.toml that match a pattern."""
    values = re.findall(pattern, PYPROJECT, re.M)
    badge = anybadge.Badge(label, " | ".join(values), default_color="#0b6fa4")
    badge.mask_str = label  # by default a number that depends on the badges before it
    return badge.badge_svg_text


def update_page_outputs(name: str) -> str:
    """Return the text of a page below docs/ with the outputs of its commands as they are now."""
    return update_outputs((ROOT / "docs" / name).read_text(encoding="utf-8"))


GENERATED: dict[str, Callable[[], str]] = {
    "README.md": lambda: update_outputs(update_readme()),
    "CITATION.cff": update_citation,
    "MLproject": partial(write_mlproject, _MLPROJECT),
    "examples/docker/MLproject": partial(write_mlproject, _DOCKER_MLPROJECT),
    "clear_mlflow/learning/parameters/options.py": write_options,
    "examples/notebook.ipynb": update_notebook,
    "docs/images/python.svg": partial(
        draw_badge, "Python", r'"Programming Language :: Python :: (3\.\d+)"'
    ),
    "docs/images/licence.svg": partial(draw_badge, "licence", r'^license = "(.+)"$'),
    "docs/reference.md": partial(update_page, "reference.md"),
    "docs/metrics.md": partial(update_page, "metrics.md"),
    "docs/parameters.md": partial(update_page, "parameters.md"),
    "docs/python.md": update_python_page,
    **{
        f"docs/{name}.md": partial(update_page_outputs, f"{name}.md")
        for name in ("compare", "statistics")
    },
}


def main(arguments: list[str]) -> int:
    """Write the files that differ, or report them."""
    if arguments not in ([], ["--check"]):
        print("expected no argument, or --check", file=sys.stderr)
        return 2
    exit_code = 0
    for path, write in GENERATED.items():
        file, text = ROOT / path, write()
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        if arguments:
            exit_code = 1
            print(f"{path} does not match the code; run python tools/generate.py")
        else:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
