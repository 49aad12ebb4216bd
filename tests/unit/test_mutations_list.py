"""The list of small mistakes that tests have to see fits the code that it changes."""

import ast
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTATIONS = runpy.run_path(str(ROOT / "tools" / "mutations" / "run.py"))["read_list"]()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.why)
def test_a_mistake_can_still_be_made(mutation):
    """Its text occurs once, is Python with the mistake in it, too, and its tests are there."""
    module = mutation.file(ROOT)
    mistaken = module.read_text(encoding="utf-8").replace(mutation.old, mutation.new)
    ast.parse(mistaken)
    for test in mutation.test_ids(ROOT):
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text() or not name


def test_no_mistake_is_listed_twice():
    """Each counts once in the share that is killed."""
    assert len(MUTATIONS) >= 60
    assert len({(m.room, m.old, m.new) for m in MUTATIONS}) == len(MUTATIONS)
