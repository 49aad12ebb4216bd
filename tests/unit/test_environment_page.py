"""docs/environment.md lists the variables that the package reads or sets, and no others of ours."""

import ast
import re

import pytest

# Set by torchrun, all six: the page has them in one line.
OF_TORCHRUN = {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
PREFIXES = "CLEAR_MLFLOW|MLFLOW|XDG|OMP|GOMP|CUDA|HF|TORCH|RAY|NCCL|GLOO|RANK|WORLD|LOCAL|MASTER"


@pytest.fixture
def page(project):
    return (project / "docs" / "environment.md").read_text(encoding="utf-8")


def variables_of_the_code(project):
    """Every text of the package that is the name of a variable, and what MLflow's module gives."""
    found = set()
    for path in (project / "clear_mlflow").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(f"({PREFIXES})(_[A-Z]+)*", node.value):
                    found.add(node.value)
            elif isinstance(node, ast.ImportFrom) and "environment_variables" in str(node.module):
                found |= {a.name for a in node.names if not a.name.startswith("_")}
    return found - {"CLEAR"}  # the stylised name of the dataset


def test_each_variable_of_the_code_is_on_the_page(project, page):
    assert len(variables_of_the_code(project)) > 20
    for name in variables_of_the_code(project):
        assert f"`{name}`" in page, name


def test_each_variable_of_ours_on_the_page_is_in_the_code(project, page):
    of_ours = set(re.findall(r"^\| `(CLEAR_MLFLOW_\w+)` \|", page, re.M))
    assert of_ours == {n for n in variables_of_the_code(project) if n.startswith("CLEAR_MLFLOW_")}
