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


def test_two_busy_looks_begin_it_and_five_calm_ones_end_it():
    """What a moment's noise says is not heard, in either direction."""
    contention = Contention()
    assert [contention.look(d) for d in (0.0, 0.9, 0.4, 0.9, 0.1)] == [False] * 5
    assert [contention.look(d) for d in (0.9, 0.6, 1.3)] == [False, True, True]
    assert [contention.look(d) for d in (0.1, 0.1, 0.1, 0.1, 0.9)] == [True] * 5
    assert [contention.look(d) for d in (0.1, 0.5, 0.1, 0.1, 0.1)] == [True] * 4 + [False]
    assert [contention.look(d) for d in (0.9, 0.1)] == [False] * 2


@pytest.mark.parametrize(
    ("threads", "cores", "number"),
    [(2, 2, 1), (8, 8, 1), (8, 16, 2), (4, 16, 5), (2, 64, 63), (4, 2, 0), (3, 2, 0)],
)
def test_idle_threads_are_more_than_cores_and_no_more_than_it_takes(threads, cores, number):
    """Each team adds its threads but for its owner, whom libgomp does not count."""
    assert spinning.IdleTeams(threads, cores).number == number
    assert threads + number * (threads - 1) > cores
    assert number == 0 or threads + (number - 1) * (threads - 1) <= cores
