"""Lines that a sweep prints about its runs."""

import dataclasses

import pytest

from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.session import check_parameters
from clear_mlflow.learning.strategies import list_strategies
from clear_mlflow.sweeps.grid import DONE, FAILED, NOT_DONE, TRAINING, SweepRun
from clear_mlflow.sweeps.run import _print_state


@pytest.mark.parametrize(
    ("state", "fields", "line"),
    [
        (TRAINING, {"num_tries": 1}, "[1/2] started: naive (run a)"),
        (TRAINING, {"num_tries": 2}, "[1/2] started again, try 2: naive (run a)"),
        (TRAINING, {"num_tries": 1, "note": "resumes"}, "[1/2] started (resumes): naive (run a)"),
        (DONE, {"seconds": 3.6}, "[2/2] done in 4 s: naive (run a)"),
        (FAILED, {"seconds": 1, "error": "x"}, "[2/2] failed in 1 s: naive: x (run a)"),
        (NOT_DONE, {}, "[1/2] ended early: naive (run a)"),
    ],
)
def test_each_change_of_a_run_is_a_line(state, fields, line, capfd):
    done = SweepRun({}, TrainConfig.resolve({}), "hash", name="ewc", run_id="b", state=DONE)
    run = dataclasses.replace(done, name="naive", run_id="a", state=state, **fields)
    _print_state(run, [run, done])
    assert capfd.readouterr().err == line + "\n"


def test_each_strategy_can_be_trained_by_a_sweep():
    """In one process, also if several cannot train it."""
    for strategy in list_strategies():
        check_parameters(TrainConfig.resolve({"strategy": strategy, "features": "pixels"}))
