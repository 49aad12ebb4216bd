"""Storing a comparison is a step of its own; tests/store/test_compared.py has what is stored."""

import subprocess
import sys

import pytest
from comparisons import counts, log_run

from clear_mlflow.api.comparison_run import join_run_ids

PROGRAM = """
import sys
import clear_mlflow

compared = clear_mlflow.compare("test", log=False)
assert compared.run_id is None and len(compared.verdicts()) == 1
unneeded = ("comparison_run", "learning", "data", "sweeps", "tracking")
modules = [name.split(".") for name in sys.modules]
print([name for name in modules if name[0] == "clear_mlflow" and {*name} & {*unneeded}])
assert "scipy.stats" not in sys.modules, "it takes a fifth of the time of a comparison"
"""


@pytest.mark.slow
def test_a_comparison_that_is_not_stored_loads_nothing_to_store_or_train(store, experiment_id):
    for strategy, level in (("naive", 100), ("replay", 150)):
        for seed in range(3):
            correct = counts(level, seed)
            log_run(store, experiment_id, strategy, correct, strategy=strategy, seed=seed)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_the_tag_of_very_many_runs_is_as_long_as_mlflow_keeps_one():
    ids = [f"{number:032x}" for number in range(200_000)]
    assert join_run_ids(ids[:200]) == ",".join(ids[:200])
    assert len(join_run_ids(ids)) <= 8_000
    assert join_run_ids(ids).endswith(f"{ids[199]},...")
