"""A user's own strategy: the one in examples/, by its class and by an entry point."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from learning_streams import config
from strategy_runs import image_stream, rows_of

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.registry import known_strategies
from clear_mlflow.learning.session import check
from clear_mlflow.learning.strategies import Strategy
from clear_mlflow.learning.strategies._base import load_strategy
from clear_mlflow.process.parent import TrainingProcess

NAME = "examples.own_strategy:PullTowardsPast"


@pytest.fixture
def importable(project, monkeypatch):
    """The checkout is on the path, as it is for the training process of a run in it."""
    monkeypatch.syspath_prepend(project)
    yield
    for name in ("examples.own_strategy", "examples"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("importable")
def test_the_example_trains_through_the_loop(tmp_path):
    """Its arguments are read, defaults are told, and it does something."""
    settings = check(config(strategy=NAME, strategy_args="strength=2"))
    assert settings.strategy_args == {"strength": 2.0}
    assert check(config(strategy=NAME)).strategy_args == {"strength": 1.0}
    rows, model = rows_of(image_stream(tmp_path), settings)
    assert len(rows) == 4
    _, naive = rows_of(image_stream(tmp_path / "again"), config(strategy="naive"))
    pairs = list(zip(model.parameters(), naive.parameters(), strict=True))
    assert not any(torch.equal(weight, other) for weight, other in pairs)


def test_the_training_process_finds_it_below_the_folder_that_the_command_ran_in(
    project, monkeypatch
):
    """As ``clear-mlflow train`` and ``mlflow run`` start it."""
    monkeypatch.chdir(project)
    with TrainingProcess(config(strategy=NAME, strategy_args="strength=0.5")) as process:
        assert process.config.strategy == NAME
        assert process.config.strategy_args == {"strength": 0.5}


def test_a_package_can_name_its_strategy_by_an_entry_point(tmp_path, monkeypatch):
    """Then it is listed beside ours, and found by that name, in a running process, too."""
    with pytest.raises(ConfigError, match="strategy is 'own_one'"):
        TrainConfig.resolve({"strategy": "own_one"})
    (tmp_path / "theirs.py").write_text(
        "from clear_mlflow.learning.strategies import Strategy\n"
        "class Own(Strategy):\n    'Theirs.'\nOTHER = 3\n"
    )
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[clear_mlflow.strategies]\nown_one = theirs:Own\nno_class = theirs:OTHER\n"
        "not_there = theirs:Missing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert "own_one" in known_strategies()
    found = load_strategy(TrainConfig.resolve({"strategy": "own_one"}).strategy)
    assert issubclass(found, Strategy)
    assert found.__doc__ == "Theirs."
    for name, problem in (("no_class", "expected a subclass"), ("not_there", "cannot be loaded")):
        with pytest.raises(ConfigError, match=problem):
            load_strategy(name)
    sys.modules.pop("theirs")
