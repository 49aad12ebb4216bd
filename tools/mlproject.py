"""The text of MLproject: an entry point for each command that tracks, a parameter for each option.

``python tools/generate.py`` writes it; the options of ``train`` are the fields of ``TrainConfig``.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

import click

from clear_mlflow.cli import main, run_options

# import opens a run for each file, so that the one of mlflow run would be empty; sync sends what
# lies on this machine into runs that are there; data works on local folders; show and export store
# nothing.
NO_ENTRY_POINTS = {"data", "export", "import", "open", "show", "sync"}
# What mlflow run starts when no entry point is named.
_MAIN = "train"

_HEAD = """# Written by `python tools/generate.py` from the options of the commands.
name: clear_mlflow

conda_env: conda.yaml

entry_points:
"""
# Kubernetes takes no underscore in a job's name, and MLflow makes that of the project's.
_HEAD_IN_A_CONTAINER = """# Written by `python tools/generate.py`: the project's MLproject, in
# the container of its Dockerfile. It has a folder of its own because MLflow ignores --env-manager
# where MLproject names a docker_env.
name: clear-mlflow

docker_env:
  image: clear_mlflow

entry_points:
"""


def mlproject() -> str:
    """The project's own MLproject."""
    return _HEAD + _entry_points()


def mlproject_in_a_container() -> str:
    """The MLproject of examples/docker."""
    return _HEAD_IN_A_CONTAINER + _entry_points()


def _entry_points() -> str:
    commands = {n: c for n, c in main.commands.items() if n not in NO_ENTRY_POINTS}
    return "\n".join("\n".join(_entry_point(n, c)) + "\n" for n, c in commands.items())


def _entry_point(name: str, command: click.Command) -> Iterator[str]:
    # Where a run goes and what it is called are options of mlflow run itself.
    options = [
        part
        for part in command.params
        if isinstance(part, click.Option)
        and part.name != "as_json"  # for programs that read standard output
        and not (part.name in run_options.NAMES and getattr(part, "group", "") == run_options.RUN)
    ]
    parameters = {option.opts[0]: option.opts[0][2:].replace("-", "_") for option in options}
    yield f"  {'main' if name == _MAIN else name.replace('-', '_')}:"
    yield "    parameters:"
    for option in options:
        default = json.dumps(option.default)
        yield f"      {parameters[option.opts[0]]}: {{type: string, default: {default}}}"
    yield "    command: >-"
    yield f"      python -m clear_mlflow {name}"
    # An option and its value stay on one line.
    pairs = " ".join(f"{option}\0{{{name}}}" for option, name in parameters.items())
    for line in textwrap.wrap(pairs, 90, break_long_words=False, break_on_hyphens=False):
        yield f"      {line}".replace("\0", " ")
