"""MLproject's environment, the constraints and the descriptions agree with pyproject.toml."""

import re
import sys
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import clear_mlflow
from clear_mlflow.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MLPROJECT = yaml.safe_load((ROOT / "MLproject").read_text())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_installation_without_pytorch_lists_all_other_dependencies():
    page = (ROOT / "docs" / "install.md").read_text()
    line = page[page.index("constraints.txt click") :].partition("\n")[0]
    names = {Requirement(text).name for text in PYPROJECT["project"]["dependencies"]}
    assert {*line.split()[1:]} == names - {"torch", "torchvision"}


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


@pytest.mark.parametrize(
    "text",
    [
        pytest.param((ROOT / "README.md").read_text("utf-8"), id="README"),
        pytest.param((ROOT / "docs" / "index.md").read_text("utf-8"), id="index"),
        pytest.param((ROOT / "mkdocs.yml").read_text("utf-8"), id="mkdocs"),
        pytest.param((ROOT / "CITATION.cff").read_text("utf-8"), id="CITATION"),
        pytest.param((ROOT / "paper.md").read_text("utf-8"), id="paper"),
        pytest.param(clear_mlflow.__doc__, id="package"),
        pytest.param(main.help, id="command line"),
    ],
)
def test_the_package_is_described_by_the_same_sentence(text):
    sentence, _, rest = PYPROJECT["project"]["description"].partition(": ")
    text = " ".join(re.sub(r"\]\([^)]*\)|[\[*]", "", text).split())
    assert f"{sentence}: {rest}" in text or f"{sentence}. {rest.capitalize()}" in text


def test_every_citation_of_the_paper_is_in_its_bibliography():
    cited = set(
        re.findall(r"@(\w+)", (ROOT / "paper.md").read_text("utf-8").partition("# Summary")[2])
    )
    listed = re.findall(r"^@\w+\{(\w+),", (ROOT / "paper.bib").read_text("utf-8"), re.M)
    assert sorted(cited) == sorted(listed)
