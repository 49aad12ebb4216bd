"""The text of MLproject: an entry point for each command that tracks.

``python tools/generate.py`` writes it.
"""

from __future__ import annotations

from clear_mlflow.cli import main

# import opens a run for each file, so that the one of mlflow run would be empty; sync sends what
# lies on this machine into runs that are there; data works on local folders; show and export store
# nothing.
NO_ENTRY_POINTS = {"data", "export", "identify", "import", "open", "show", "sync"}
# What mlflow run starts when no entry point is named.
_MAIN = "train"

_HEAD = """# Written by `python tools/generate.py` from the commands. Every option of a command is a
# parameter, with underscores: -P batch_size=64. docs/reference.md lists them.
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
    return "".join(_entry_point(name) for name in main.commands if name not in NO_ENTRY_POINTS)


def _entry_point(name: str) -> str:
    # No parameters are declared: MLflow hands what the user passes on as --name value, and logs it.
    # It would log the default of each declared one, too, whether or not that is in force.
    entry_point = "main" if name == _MAIN else name.replace("-", "_")
    return f"  {entry_point}:\n    command: python -m clear_mlflow {name}\n"
