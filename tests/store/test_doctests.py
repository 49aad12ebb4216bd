"""The examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# By name, not by import: of the rooms that hold none, some need torch or MLflow.
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "clear_mlflow").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.fast_cases(18)
@pytest.mark.parametrize("module", MODULES)
def test_examples(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted > 0
    assert results.failed == 0
