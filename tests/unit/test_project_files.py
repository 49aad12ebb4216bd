"""MLproject, conda.yaml, pyproject.toml and the command line say the same."""

import sys
from itertools import chain
from pathlib import Path

import click
import pytest
import yaml
from packaging.requirements import Requirement

from clear_mlflow.cli import main, run_options

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MLPROJECT = yaml.safe_load((ROOT / "MLproject").read_text())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRY_POINTS = MLPROJECT["entry_points"]


def command_of(entry_point: str) -> click.Command:
    """The sub-command that an entry point's shell command calls."""
    words = ENTRY_POINTS[entry_point]["command"].split()
    assert words[:3] == ["python", "-m", "clear_mlflow"]
    return main.commands[words[3]]


def says_where_a_run_goes(option: click.Option) -> bool:
    return option.name in run_options.NAMES and getattr(option, "group", "") == run_options.RUN


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_parameters_are_the_options_of_the_command(entry_point):
    """Each is a text, handed to its option, with the same default, which is never empty.

    MLflow quotes an empty text as two apostrophes, and mends numbers: 0.10 to 0.1. Where a run goes
    and what it is called are no parameters: mlflow run opens the run itself.
    """
    options = [
        option
        for option in command_of(entry_point).params
        if isinstance(option, click.Option) and not says_where_a_run_goes(option)
    ]
    parameters = {option.opts[0].removeprefix("--").replace("-", "_"): option for option in options}
    assert ENTRY_POINTS[entry_point]["parameters"] == {
        name: {"type": "string", "default": option.default} for name, option in parameters.items()
    }
    assert all(option.default and isinstance(option.default, str) for option in options)
    words = ENTRY_POINTS[entry_point]["command"].split()[4:]
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        option.opts[0]: f"{{{name}}}" for name, option in parameters.items()
    }


def test_an_option_means_the_same_in_every_command_that_asks_for_runs():
    """Evaluate, compare and sweep: one help text, one kind of value for each name."""
    declared = {}
    for command in map(main.commands.get, ("evaluate", "compare", "sweep")):
        for option in command.params:
            if isinstance(option, click.Option) and not says_where_a_run_goes(option):
                kind = getattr(option.type, "choices", None)
                said = (option.help, option.metavar, kind and tuple(kind), option.flag_value)
                declared.setdefault(option.name, set()).add(said)
    assert {name for name, said in declared.items() if len(said) > 1} == set()


def test_every_command_that_tracks_is_an_entry_point():
    """A group of commands on local folders is none, nor what opens no run or one for each file."""
    groups = {name for name, command in main.commands.items() if isinstance(command, click.Group)}
    assert groups == {"data"}
    none = {"import", "open", "sync"}
    assert {command_of(e).name for e in ENTRY_POINTS} == set(main.commands) - groups - none


def test_conda_environment_is_pyprojects_dependencies():
    """The environment that MLproject names installs just what the package declares."""
    conda = yaml.safe_load((ROOT / MLPROJECT["conda_env"]).read_text())
    python, pip, packages = conda["dependencies"]
    assert python.startswith("python=3.")
    assert pip == "pip"
    assert packages["pip"] == PYPROJECT["project"]["dependencies"]


def test_constraints_name_a_version_of_every_dependency():
    """The tested set is told whole."""
    pinned = {
        line.split("==")[0].lower().replace("-", "_")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    for dependency in map(Requirement, chain(PYPROJECT["project"]["dependencies"], *extras)):
        if dependency.marker is None:
            assert dependency.name.lower().replace("-", "_") in pinned
