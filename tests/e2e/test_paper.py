"""A paper's table and figures by the three commands of docs/compare.md."""

import re
from pathlib import Path

import pytest
import yaml
from forked import run_shell

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "clear-mlflow sweep examples/sweep.yaml --experiment paper",
    "clear-mlflow compare paper --baseline naive",
    "mlflow artifacts download -r COMPARISON -d paper",
)


def test_the_commands_of_a_paper(store, tmp_path):
    grid = yaml.safe_load((ROOT / "examples" / "sweep.yaml").read_text())
    grid["fixed"]["epochs"] = 1
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "sweep.yaml").write_text(yaml.safe_dump(grid))
    comparison = ""
    for command in COMMANDS:
        done = run_shell(command.replace("COMPARISON", comparison), cwd=tmp_path, timeout=300)
        if match := re.search(r"^open .*clear-mlflow open (\w+)$", done.stdout, re.M):
            comparison = match[1]
    table = (tmp_path / "paper" / "leaderboard.tex").read_text()
    assert r"\caption{Mean $\pm$ standard deviation over seeds." in table
    assert all(re.search(rf"^{group} & 3 & .*\\\\$", table, re.M) for group in ("naive", "replay"))
    assert list((tmp_path / "paper" / "figures").glob("*.svg"))
