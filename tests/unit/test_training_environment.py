"""What a training's threads do while they wait for each other."""

import pytest

from clear_mlflow.process.parent import child_environment


def test_they_spin_for_a_moment_and_sleep(monkeypatch):
    """Whatever runs beside it now: that may change in an hour."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert child_environment()["GOMP_SPINCOUNT"] == "3000"


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_a_user_says_stays(monkeypatch, name):
    """By either name."""
    for other in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "ACTIVE")
    assert child_environment()[name] == "ACTIVE"
    assert len({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(child_environment())) == 1
