"""A stream of four buckets of few small images, for commands."""

import os
from pathlib import Path

import pytest
from released_layout import write_released

BUCKETS = 4
# A short training. Its third bucket waits as long as a test that uses ``hold`` keeps the file.
HELD = {"strategy": "held:Naive", "features": "pixels", "epochs": "1"}


@pytest.fixture(scope="session")
def short_stream(tmp_path_factory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("short_stream")
    keys = [str(j + 1) for j in range(BUCKETS)]
    write_released(folder, buckets=keys, size=(32, 32), train=8, test=6)
    return {"dataset": "clear10", "data_root": str(folder)}


@pytest.fixture
def hold(tmp_path, monkeypatch) -> Path:
    """Return a file that makes trainings wait before their third bucket, while it exists.

    Their strategy must be one of tests/support/strategies/held.py.
    """
    file = tmp_path / "hold"
    file.touch()
    monkeypatch.setenv("CLEAR_TESTS_HOLD", str(file))
    strategies = str(Path(__file__).parent / "strategies")
    monkeypatch.setenv("PYTHONPATH", strategies, prepend=os.pathsep)
    monkeypatch.syspath_prepend(strategies)
    return file


def options(parameters: dict[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]
