"""Trainings that are killed at random moments: nothing is lost, and no bit differs."""

from killer import Trainings, kill_and_compare
from two_writers import suspend_and_take_over

TIMES = 4
SEED = 6


def test_killed_and_resumed_is_as_never_killed(empty_store, tmp_path):
    """SIGKILL to the supervisor, the training process or both; ``killer.py --times 30`` does more.

    Every row that was stored before a kill is there after it, byte for byte, and the finished run's
    rows, predictions and metrics are those of a run that nobody killed.
    """
    print(f"seed {SEED}, {TIMES} kills")
    found = kill_and_compare(Trainings(tmp_path, empty_store), times=TIMES, seed=SEED)
    assert found.kills.total() == TIMES
    assert found.lost == []
    assert found.differing == []
    assert found.rows >= 5


def test_of_two_processes_on_a_run_one_stores(empty_store, tmp_path):
    """Stopped, taken over by another machine, woken; ``two_writers.py --times 100`` does more.

    Every row that was measured is stored once and stays; every point of every metric is there once;
    who lost the run says so and ends with 2.
    """
    found = suspend_and_take_over(tmp_path, empty_store, times=TIMES, seed=SEED)
    assert found.did["suspended"] + found.did["cut off"] >= TIMES
    assert found.did["lost the run: one line, exit code 2"] >= 1
    assert (found.lost, found.doubled, found.overwritten, found.wrong) == ([], [], [], [])
