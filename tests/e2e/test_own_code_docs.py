"""What pages of docs/ show of Python runs as it stands."""

import re

import pytest
from forked import run_python


def blocks(project, page):
    text = (project / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)


@pytest.mark.parametrize(
    ("page", "shown", "runs"),
    [("own-loop.md", 4, 4), ("adapters.md", 4, 3), ("models.md", 1, 1), ("pandas.md", 4, 2)],
)
def test_the_code_of_a_page(store, experiment_id, project, tmp_path, page, shown, runs):
    """One script after another, in a process that has nothing but the package."""
    found = blocks(project, page)
    assert len(found) == shown
    script = tmp_path / "page.py"
    script.write_text("\n".join(found))
    done = run_python(str(script), cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    stored = store.search_runs([experiment_id])
    assert len(stored) == runs
    for run in stored:
        assert run.info.status == "FINISHED"
        assert run.data.tags["clear_mlflow.rows"] == "complete"
