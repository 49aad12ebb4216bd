"""The list of mutations that tests must detect fits the code."""

import ast
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER = runpy.run_path(str(ROOT / "tools" / "mutations" / "run.py"))


@pytest.mark.fast_cases(10)
@pytest.mark.parametrize("mutation", RUNNER["read_list"]([]), ids=lambda mutation: mutation["why"])
def test_every_listed_mutation_still_applies(mutation):
    """Its text occurs once, the result is valid Python, and its tests exist."""
    module = RUNNER["find_module"](mutation, ROOT)
    ast.parse(module.read_text(encoding="utf-8").replace(mutation["old"], mutation["new"]))
    for test in RUNNER["list_tests"](mutation, ROOT):
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text() or not name
