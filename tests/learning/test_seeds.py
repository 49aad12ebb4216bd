"""Training with several seeds: each member equals the training with its seed."""

import itertools

import pytest
from feature_streams import config, training

from clear_mlflow.learning.parameters.recipes import NONE

SEEDS = (3, 0, 11)

SETTINGS = [
    {},
    {"batch_size": "full"},
    {"batch_size": 9, "optimizer": "adam", "lr": 0.01, "optimizer_state": "keep"},
    {"batch_size": 5, "strategy": "cumulative"},
    {"batch_size": 5, "strategy": "replay", "memory": 12, "strategy_args": "batches=balanced"},
    {"batch_size": 5, "strategy": "ewc"},
    {"strategy": "slda"},
    {"model": "mlp:8", "batch_size": 6},
    {"precision": "bf16", "batch_size": 6},
    {"budget": "naive:1", "batch_size": 5, "strategy": "replay", "memory": 12},
    {"stream_rate": "naive:0.5", "batch_size": 5, "epochs": 1},
    {"test_every": "3steps", "batch_size": 5},
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", SETTINGS)
def test_each_member_equals_a_training_with_its_seed(changes):
    seeds = ",".join(map(str, SEEDS))
    settings = config(**{"batch_size": 6, "log_models": "last", **changes, "seeds": seeds})
    ensemble = training(settings)
    members = ensemble.config.split_seeds()
    assert [(member.seed, member.seeds) for member in members] == [(s, NONE) for s in SEEDS]
    weights = []
    for member in members:
        member_run = measure(ensemble.for_member(member))
        assert member_run == measure(training(config(**{**settings.as_text(), **member.as_text()})))
        weights.append(member_run[-1][2])
    if changes.get("batch_size") != "full" and changes.get("strategy") != "slda":
        assert len(set(weights)) == len(SEEDS)


def measure(made):
    """All that a training measures, except times: tests within buckets, then a tuple per row."""
    messages = []
    rows = [
        (
            (m.row.correct, m.row.cost.training_flops, m.row.cost.images),
            m.predictions,
            m.model,
            [(point.step, point.loss, point.lr) for point in m.curve],
        )
        for m in made.rows(messages.append)
    ]
    assert len(rows) == 4
    tests = [message.test for message in messages if message.test is not None]
    return [[(test.bucket, test.correct) for test in tests], *rows]


def test_a_training_without_seeds_has_one_member():
    settings = config(seed=2)
    assert settings.split_seeds() == [settings]
    rows = itertools.islice(training(settings).for_member(settings).rows(), 1)
    assert [measured.row.row for measured in rows] == [0]
