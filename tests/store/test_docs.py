"""The Python on pages is run; tools/check_docs.py compares the rest with the code."""

import os
import re
import shutil
from pathlib import Path

import pytest
from forked import OTHER_COPY, run_python

ROOT = Path(__file__).parents[2]
# Pages whose Python is run below, and how many runs that leaves.
RUNS = {
    "adapters.md": 3,
    "index.md": 1,
    "json.md": 2,
    "metrics.md": 0,
    "models.md": 1,
    "own-loop.md": 4,
    "python.md": 0,  # in its own experiment
    "sweeps.md": 4,
    "tutorial-digits.md": 0,
}
# Of which tools/check_docs.py, test_sources_function.py and test_record.py run the Python.
ELSEWHERE = {"concepts.md", "own-streams.md", "record-format.md"}
MATRIX = "matrix = __import__('clear_mlflow').AccuracyMatrix([[0.8, 0.6], [0.5, 0.9]])"
# What follows a page's own code.
THEN = {
    "metrics.md": f"{MATRIX}\n"
    "assert worst_learned(matrix) == 0.5\n"
    "assert round(spread.function(matrix), 12) == 0.4\n",
    "tutorial-digits.md": f"{MATRIX}\nassert first_bucket_at_the_end(matrix) == 0.5\n",
}
TASKS = re.findall(r"^\| .* \| `(.*)` \|$", (ROOT / "docs" / "python.md").read_text("utf-8"), re.M)
TASKS = [task.replace("EXPERIMENT", "paper").replace('"OTHER_RUN"', "other") for task in TASKS]
assert len(TASKS) == 10
THEN["python.md"] = "\n".join(
    [
        "other, *_, run = clear_mlflow.runs('paper')",
        r"assert [line[-2:] for line in table.splitlines()].count(r'\\') == 3, table",
        "assert len(open('accuracy.pdf', 'rb').read()) > 1000",
        *TASKS,
    ]
)


def read_python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)


def test_all_python_blocks_are_run():
    page_names = {page.name for page in (ROOT / "docs").glob("*.md") if read_python_blocks(page)}
    assert page_names <= RUNS.keys() | ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name in RUNS if (ROOT / "docs" / name).exists()])
def test_the_code_of_a_page(store, experiment_id, tmp_path, page):
    script = tmp_path / "page.py"
    script.write_text(
        "\n".join(read_python_blocks(ROOT / "docs" / page)) + "\n" + THEN.get(page, "")
    )
    done = run_python(str(script), cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    stored = store.search_runs([experiment_id])
    assert len(stored) == RUNS[page]
    for run in stored:
        assert run.info.status == "FINISHED"
        assert run.data.tags.get("clear_mlflow.rows", "complete") == "complete"


@pytest.mark.slow
def test_the_guide_can_be_followed(store, tmp_path):
    shutil.copytree(ROOT / "clear_mlflow", tmp_path / "clear_mlflow")
    tries = []
    for code in read_python_blocks(ROOT / "CONTRIBUTING.md"):
        first = code.splitlines()[0].removeprefix("# ")
        if first == "try it":
            tries.append(code)
            continue
        path = tmp_path / first
        assert path.is_relative_to(tmp_path / "clear_mlflow")
        assert path.parent.is_dir()
        assert not path.exists()
        path.write_text(code)
    assert tries
    for code in tries:
        done = run_python(
            *("-c", OTHER_COPY + code),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
