"""Trainings that are killed at random moments: nothing is lost, and no bit differs."""

from killer import Trainings, kill_and_compare

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
