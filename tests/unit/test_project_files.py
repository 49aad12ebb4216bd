"""MLproject, conda.yaml, pyproject.toml and the command line agree."""

import sys
from itertools import chain
from pathlib import Path

import click
import pytest
import yaml
from packaging.requirements import Requirement

from clear_mlflow.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MLPROJECT = yaml.safe_load((ROOT / "MLproject").read_text())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRY_POINTS = MLPROJECT["entry_points"]


def get_command_name(entry_point: str) -> click.Command:
    """Return the sub-command of an entry point's shell command."""
    words = ENTRY_POINTS[entry_point]["command"].split()
    assert words[:3] == ["python", "-m", "clear_mlflow"]
    return main.commands[words[3]]


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_no_entry_point_declares_parameters(entry_point):
    """MLflow would log each default as a parameter of the run."""
    assert ENTRY_POINTS[entry_point].keys() == {"command"}


def test_every_command_that_tracks_is_an_entry_point():
    """Except groups on local folders, and commands without one run."""
    groups = {name for name, command in main.commands.items() if isinstance(command, click.Group)}
    assert groups == {"data"}
    none = {"export", "identify", "import", "open", "show", "sync"}
    assert {get_command_name(e).name for e in ENTRY_POINTS} == set(main.commands) - groups - none


def test_conda_environment_is_pyprojects_dependencies():
    """MLproject's environment installs what the package declares."""
    conda = yaml.safe_load((ROOT / MLPROJECT["conda_env"]).read_text())
    python, pip, packages = conda["dependencies"]
    assert python.startswith("python=3.")
    assert pip == "pip"
    assert packages["pip"] == PYPROJECT["project"]["dependencies"]


def test_constraints_name_a_version_of_every_dependency():
    pinned = {
        line.split("==")[0].lower().replace("-", "_")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    for dependency in map(Requirement, chain(PYPROJECT["project"]["dependencies"], *extras)):
        if dependency.marker is None:
            assert dependency.name.lower().replace("-", "_") in pinned
