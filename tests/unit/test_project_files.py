"""MLproject's environment and the constraints agree with pyproject.toml."""

import sys
from itertools import chain
from pathlib import Path

import yaml
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MLPROJECT = yaml.safe_load((ROOT / "MLproject").read_text())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_conda_environment_is_pyprojects_dependencies():
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
