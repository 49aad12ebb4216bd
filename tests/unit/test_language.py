"""Vague names and dialect cannot grow: tools/check_language.py counts them."""

import json
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
main = runpy.run_path(str(ROOT / "tools" / "check_language.py"))["main"]

VIOLATIONS = {
    "function": "def rows_of(run): ...",
    "docstring": 'def load(run):\n    """What a run holds; None: nothing."""',
    "length": f'def load(run):\n    """Return {"one " * 12}row."""',
    "name": "found = 1",
    "prose": "# The file beside it.",
}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "clear_mlflow" / "store").mkdir(parents=True)
    (tmp_path / "README.md").write_text("A file.\n")
    shutil.copy(ROOT / "CONTRIBUTING.md", tmp_path)
    module = tmp_path / "clear_mlflow" / "store" / "rows.py"
    module.write_text('def load_rows(run):\n    """Return the rows of a run."""\n')
    counts = {"docs": {"prose": 1000}}  # CONTRIBUTING's own
    (tmp_path / "tools" / "language_counts.json").write_text(json.dumps(counts))
    return tmp_path


@pytest.mark.parametrize("rule", VIOLATIONS)
def test_a_rising_count_is_an_error_with_its_line(project, capsys, rule):
    assert main([], project) == 0
    assert capsys.readouterr().out == ""
    (project / "clear_mlflow" / "store" / "more.py").write_text(f"\n{VIOLATIONS[rule]}\n")
    assert main([], project) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if f" a {rule} " in line]
    assert line.startswith("store: 1 times")
    assert "clear_mlflow/store/more.py:2 " in line


def test_an_update_lowers_allowed_counts_and_never_raises_them(project):
    file = project / "tools" / "language_counts.json"
    file.write_text('{"store": {"name": 3}, "docs": {"prose": 1000}}')
    source = "found = 1\n# beside\n"
    (project / "clear_mlflow" / "store" / "more.py").write_text(source)
    assert main(["--update"], project) == 0
    assert json.loads(file.read_text())["store"] == {"name": 1, "prose": 0}
    assert main([], project) == 1
