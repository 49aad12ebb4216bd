"""What a training's threads do while they wait for each other."""

from pathlib import Path

import pytest

from clear_mlflow.process import spinning
from clear_mlflow.process.spinning import Contention, child_environment

CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    """As on most machines."""
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)


def test_they_spin_for_a_moment_where_nothing_says_what_else_runs(monkeypatch):
    """As where a container hides it; elsewhere the training itself decides, again and again."""
    monkeypatch.setattr(spinning, "_DELAYS", "no such file")
    assert child_environment()["GOMP_SPINCOUNT"] == "3000"


def test_elsewhere_nothing_is_chosen_once_and_for_all():
    """A variable could not be taken back while it trains."""
    known = Path("/proc/self/schedstat").exists()
    assert set(CHOICES) & set(child_environment()) == (set() if known else {"GOMP_SPINCOUNT"})


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("delays", ["schedstat", "no such file"])
def test_what_a_user_says_stays(monkeypatch, name, delays):
    """By either name."""
    monkeypatch.setattr(spinning, "_DELAYS", delays)
    monkeypatch.setenv(name, "ACTIVE")
    assert child_environment()[name] == "ACTIVE"
    assert len(set(CHOICES) & set(child_environment())) == 1


def test_one_busy_second_is_enough_and_thirty_calm_ones_end_it():
    """What a moment decides wrongly lasts for half a minute, not for the run."""
    contention = Contention()
    assert [contention.look(delay) for delay in (0.0, 0.05, 0.19)] == [False] * 3
    assert contention.look(0.9)
    assert [contention.look(0.01) for _ in range(20)] == [True] * 20
    assert contention.look(0.4)  # from here on again
    assert [contention.look(0.01) for _ in range(30)] == [True] * 29 + [False]
    assert not contention.look(0.01)


@pytest.mark.parametrize(
    ("threads", "cores", "number"),
    [(2, 2, 1), (8, 8, 1), (8, 16, 2), (4, 16, 5), (2, 64, 63), (4, 2, 0), (3, 2, 0)],
)
def test_idle_threads_are_more_than_cores_and_no_more_than_it_takes(threads, cores, number):
    """Each team adds its threads but for its owner, whom libgomp does not count."""
    assert spinning.IdleTeams(threads, cores).number == number
    assert threads + number * (threads - 1) > cores
    assert number == 0 or threads + (number - 1) * (threads - 1) <= cores
