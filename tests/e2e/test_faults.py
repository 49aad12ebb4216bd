"""Trainings that are killed, suspended or disconnected at random moments lose nothing."""

import os

import pytest
from faults import strike_and_take_over

pytestmark = pytest.mark.slow

TIMES = int(os.environ.get("FAULTS", "4"))
SEED = int(os.environ.get("FAULTS_SEED", "6"))


def test_only_one_of_several_processes_stores_rows_of_a_run(empty_store, tmp_path):
    outcome = strike_and_take_over(tmp_path, empty_store, times=TIMES, seed=SEED)
    struck = [outcome.did[fault] for fault in ("suspend", "cut_off", "fill", "kill")]
    assert sum(struck) >= TIMES, outcome.did
    assert outcome.did["lost the run: one line, exit code 2"] >= 1, outcome.did
    print(f"{outcome.rows} rows, seed {SEED}: {dict(outcome.did)}")
    assert outcome.problems == []
