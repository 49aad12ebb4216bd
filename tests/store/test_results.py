"""The page of results is what the bundles in the repository say."""

import runpy
from pathlib import Path

import pytest

import clear_mlflow
from clear_mlflow.core.errors import RecordError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_page_and_its_figures_follow_from_the_bundles(store):
    """Re-scored from the rows, the same bytes again."""
    for path, content in runpy.run_path(str(BENCHMARKS / "results.py"))["files"]().items():
        assert path.read_bytes() == content, f"{path.name}: run python benchmarks/results.py"


def test_a_bundle_that_was_changed_is_refused(store, tmp_path):
    """Wherever in its compressed files the byte lies."""
    content = (BENCHMARKS / "results" / "digits" / "naive-0.zip").read_bytes()
    (tmp_path / "same.zip").write_bytes(content)
    assert clear_mlflow.load(tmp_path / "same.zip").record.is_complete
    for place in range(200, len(content) // 2, len(content) // 20):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        (tmp_path / "changed.zip").write_bytes(changed)
        with pytest.raises(RecordError, match=r"changed\.zip"):
            clear_mlflow.load(tmp_path / "changed.zip")
