"""The command that compare prints for an inconclusive verdict trains and compares more seeds."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from forked import run_forked

from clear_mlflow.store import names

pytestmark = pytest.mark.slow

# A second each; batches in an order of the seed's, so that seeds differ.
SHORT = {"dataset": "digits-writers", "features": "pixels", "epochs": "2", "batch_size": "32"}
SHORT |= {"lr": "0.1", "device": "cpu"}
STRATEGIES = ("cumulative", "naive")


def test_the_printed_command_trains_the_seeds_that_the_next_comparison_uses(
    store, experiment_id, tmp_path
):
    grid = tmp_path / "grid.yaml"
    swept = {"strategy": [*STRATEGIES], "seed": [0, 1]}
    grid.write_text(yaml.safe_dump({"fixed": SHORT, "grid": swept}))
    run_forked("sweep", "--grid", str(grid), check=True)
    done = run_forked("compare", "--runs", "test", "--group-by", "strategy", check=True)
    folder = Path(re.search(r"page +(.+)/[^/]+\.html", done.stdout)[1])
    (undecided,) = json.loads((folder / "compared_runs.json").read_text())["verdicts"]
    assert undecided["outcome"] == "too few"
    suggestion = undecided["more_seeds"]
    assert 3 <= suggestion <= 5

    command = next(line for line in done.stdout.splitlines() if line.startswith("seeds "))
    variable, program, *arguments = shlex.split(command.removeprefix("seeds "))
    name, _, value = variable.partition("=")
    assert (name, value, program) == ("MLFLOW_EXPERIMENT_ID", experiment_id, "clear-mlflow")
    run_forked(*arguments, env={**os.environ, name: value}, check=True)

    is_complete = f"tags.strategy != '' AND tags.`{names.ROWS_TAG}` = 'complete'"
    tags = [run.data.tags for run in store.search_runs([experiment_id], is_complete)]
    trained = sorted((run["strategy"], int(run["seed"])) for run in tags)
    seeds = range(2 + suggestion)
    assert trained == [(strategy, seed) for strategy in STRATEGIES for seed in seeds]
    # The sweep's own comparison is of the new seeds alone.
    comparisons = store.search_runs([experiment_id], f"tags.`{names.KIND_TAG}` = 'compare'")
    counts = sorted(int(run.data.tags[names.COMPARED_COUNT_TAG]) for run in comparisons)
    assert counts == [4, 4, 2 * suggestion]
