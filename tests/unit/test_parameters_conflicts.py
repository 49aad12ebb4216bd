"""Parameters that contradict each other are rejected before data is read."""

import pytest

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.conflicts import CONFLICTS
from clear_mlflow.sweeps.grid import read_grid

PAST = "standardise=past"

CONFLICTING = [  # one example for each row of the table, in its order
    {"dataset": "folder"},
    {"data_root": "/somewhere"},
    {"scenario": "class", "protocol": "streaming"},
    {"protocol": "streaming", "split": "1"},
    {"dataset": "weather", "features": "pixels"},
    {"features": "vectors"},
    {"model": "linear"},
    {"features": "pixels", "weights": "DEFAULT"},
    {"features": "pixels", "freeze": "backbone"},
    {"features": "pixels", "augment": "random_crop"},
    {"features": "pixels", "damaged": "leave_out"},
    {"weights": "DEFAULT"},
    {"features": "pixels", "strategy": "ncm", "model": "mlp:8"},
    {"memory": "5"},
    {"budget": "naive:1", "test_every": "1"},
    {"stream_rate": "naive:1", "test_every": "1"},
    {"stream_rate": "naive:1", "budget": "naive:1"},
    {"dataset": "weather", "stream_rate": "naive:1", "dataset_args": PAST},
    {"budget": "naive:1", "prequential": "0"},
    {"stream_rate": "naive:1", "prequential": "0"},
    {"prequential": "0"},
    {"prequential": "0", "time_order": "on", "scenario": "class"},
    {"prequential": "0", "time_order": "on", "label_delay": "1"},
    {"label_delay": "1", "test_every": "1"},
    {"label_delay": "1", "stream_rate": "naive:1"},
]


def test_every_conflict_has_an_example():
    assert len(CONFLICTING) == len(CONFLICTS)


@pytest.mark.parametrize(
    ("requested", "conflict"),
    list(zip(CONFLICTING, CONFLICTS, strict=False)),
    ids=lambda value: str(value)[:40],
)
def test_every_conflict_is_found_before_data_is_read(requested, conflict):
    with pytest.raises(ConfigError) as error:
        TrainConfig.resolve(requested, passed=requested)
    assert str(error.value).endswith(conflict.sentence.rpartition("}")[2])
    assert "{" not in str(error.value)


def test_memory_without_effect_is_rejected_only_if_it_was_passed():
    """Sweeps over strategies and config.json set it for every strategy."""
    assert TrainConfig.resolve({"memory": "5"}).memory == 5
    assert TrainConfig.resolve({"memory": "auto"}, passed=["memory"]).strategy == "naive"
    grid = {"fixed": {"memory": 100}, "grid": {"strategy": ["ewc", "replay"]}}
    assert [run.config.strategy for run in read_grid(grid).runs] == ["ewc", "replay"]
