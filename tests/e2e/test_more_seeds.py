"""The command that compare prints for an inconclusive verdict trains and compares more seeds."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from forked import run_forked
from mlflow import MlflowClient

from clear_mlflow.store import names

pytestmark = pytest.mark.slow

# A second each; batches in an order of the seed's, so that seeds differ.
SHORT = {
    "dataset": "digits-writers",
    "features": "pixels",
    "epochs": "2",
    "batch_size": "32",
    "lr": "0.1",
    "device": "cpu",
}


def compare_runs() -> tuple[dict, str]:
    """Return the verdict of a comparison, and what the command printed."""
    done = run_forked(
        "compare", "--runs", "test", "--group-by", "strategy", check=True, timeout=300
    )
    folder = Path(re.search(r"page +(.+)/[^/]+\.html", done.stdout)[1])
    (verdict,) = json.loads((folder / "compared_runs.json").read_text())["verdicts"]
    return verdict, done.stdout


def test_the_printed_command_trains_the_seeds_that_the_next_comparison_uses(
    store: MlflowClient, experiment_id: str, tmp_path: Path
) -> None:
    """Two seeds per method are inconclusive. Only the new seeds are compared."""
    grid = tmp_path / "grid.yaml"
    swept = {"strategy": ["naive", "cumulative"], "seed": [0, 1]}
    grid.write_text(yaml.safe_dump({"fixed": SHORT, "grid": swept}))
    run_forked("sweep", "--grid", str(grid), check=True, timeout=300)

    undecided, printed = compare_runs()
    assert undecided["outcome"] == "too few"
    suggestion = undecided["more_seeds"]
    assert 3 <= suggestion <= 5

    command = next(line for line in printed.splitlines() if line.startswith("seeds "))
    variable, program, *arguments = shlex.split(command.removeprefix("seeds "))
    name, _, value = variable.partition("=")
    assert (name, value, program) == ("MLFLOW_EXPERIMENT_ID", experiment_id, "clear-mlflow")
    run_forked(*arguments, env={**os.environ, name: value}, check=True, timeout=300)

    trained = store.search_runs([experiment_id], "tags.strategy != ''")
    seeds = {
        strategy: sorted(
            int(run.data.tags["seed"])
            for run in trained
            if run.data.tags["strategy"] == strategy and run.data.tags[names.ROWS_TAG] == "complete"
        )
        for strategy in ("naive", "cumulative")
    }
    expected = list(range(2 + suggestion))
    assert seeds == {"naive": expected, "cumulative": expected}
    # The sweep's own comparison is of the new seeds alone.
    comparisons = store.search_runs([experiment_id], f"tags.`{names.KIND_TAG}` = 'compare'")
    counts = sorted(int(run.data.tags[names.COMPARED_COUNT_TAG]) for run in comparisons)
    assert counts == [4, 4, 2 * suggestion]
