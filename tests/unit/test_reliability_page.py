"""docs/reliability.md promises nothing that no test shows."""

import ast
import re

import pytest


def named_tests(page: str) -> list[tuple[str, str]]:
    """Each file and function that a page names."""
    return re.findall(r"`(tests/\w+/\w+\.py)::(\w+)`", page)


def test_every_test_that_is_named_is_there(project):
    """A promise whose test was renamed or removed is noticed."""
    page = (project / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = named_tests(page)
    assert len(named) > 40
    defined = {}
    for file in {file for file, _ in named}:
        tree = ast.parse((project / file).read_text(encoding="utf-8"))
        defined[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for file, function in named:
        assert function in defined[file], f"{file}::{function}"


def test_every_promise_names_a_test(project):
    """A line of a table without a test would be a mere claim."""
    page = (project / "docs" / "reliability.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    promises = [line for line in lines if not line.startswith(("| promise", "| where", "| what |"))]
    for line in promises:
        assert named_tests(line), line


@pytest.mark.parametrize("number", ["4,000", "8,000", "400"])
def test_the_numbers_of_cases_are_those_of_the_tests(project, number):
    """What the page counts is what a test's own sentence counts."""
    page = (project / "docs" / "reliability.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.endswith(f"| {number} |")]
    ((file, function),) = named_tests(line)
    tree = ast.parse((project / file).read_text(encoding="utf-8"))
    (test,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function]
    assert number in (ast.get_docstring(test) or "")
