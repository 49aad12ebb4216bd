"""A user's own strategy: the one in examples/."""

from __future__ import annotations

import sys

import pytest
import torch
from learning_streams import config
from strategy_runs import image_stream, rows_of

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.session import check
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


def test_what_a_name_leads_to_is_a_strategy(tmp_path, monkeypatch):
    """Anything else, or nothing, is refused in one line."""
    (tmp_path / "theirs.py").write_text("OTHER = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, problem in (("OTHER", "expected a subclass"), ("Missing", "cannot be loaded")):
        with pytest.raises(ConfigError, match=problem):
            load_strategy(f"theirs:{name}")
    sys.modules.pop("theirs")
