"""Each line that docs/troubleshooting.md quotes is printed by the package, or by MLflow."""

import ast
import re

import pytest

# Of programs that we do not import here: what a test of ours cannot look up.
OF_MLFLOW = {"Could not find Conda executable at ..."}


def messages(project):
    """Every text of the package, with a zero byte where a value is filled in."""
    found = set()
    for path in (project / "clear_mlflow").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.JoinedStr, ast.Constant, ast.BinOp)):
                found.add(text_of(node))
    return found


def text_of(node):
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else "\0"
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    return "\0"


def quoted(project):
    page = (project / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^```text\n(.*?)\n```$", page, re.S | re.M)


def is_of(line, message):
    """Whether a line's parts stand in a message, in their order, and enough of them."""
    parts = [part.strip(" ,;:().'") for part in line.split("...")]
    at = 0
    for part in filter(None, parts):
        at = message.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


@pytest.fixture(scope="module")
def known(project):
    return messages(project)


def test_enough_is_quoted(project):
    assert len(quoted(project)) > 25


def test_each_line_is_printed_by_the_code(project, known):
    for line in quoted(project):
        said = re.sub(r"^(error|warning): ", "", line)
        assert line in OF_MLFLOW or any(is_of(said, message) for message in known), line


def test_a_line_that_nobody_prints_is_noticed(known):
    """The test itself: a word that was changed in the code is not found."""
    assert not any(is_of("dataset ... wants its folder; pass data_root=DIR", m) for m in known)
