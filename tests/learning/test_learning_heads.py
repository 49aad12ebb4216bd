"""Linear heads that step together: each against the run that it is alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from feature_streams import CLASSES, config, made_up, rows_of, trained, training

from clear_mlflow.core.errors import ConfigError, DivergedError
from clear_mlflow.learning.ensemble import member_configs, train_ensemble
from clear_mlflow.learning.loop import measure
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples.decoded import FeatureStream
from clear_mlflow.learning.session import check
from clear_mlflow.learning.strategies._base import load_strategy
from clear_mlflow.learning.strategies.replay import Replay

SEEDS = (3, 0, 11)

# Every way in which a parameter can reach a step.
SETTINGS = [
    {},
    {"batch_size": "full"},
    {"batch_size": 7, "label_smoothing": 0.2},
    {"batch_size": 7, "clip_norm": 0.05, "optimizer_state": "keep"},
    {"batch_size": 9, "optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    {"batch_size": 9, "optimizer": "adamw", "lr": 0.02, "schedule": "cosine", "warmup_epochs": 2},
    {"batch_size": 8, "momentum": 0, "weight_decay": 0.3, "schedule": "constant"},
    {"batch_size": 5, "strategy": "cumulative"},
    {"batch_size": 5, "strategy": "replay", "memory": 12},
]


def stream():
    placed, features = made_up()
    return FeatureStream(placed, features, device=torch.device("cpu"))


@pytest.mark.parametrize("changes", SETTINGS)
def test_each_member_is_the_run_that_it_would_have_been_alone(changes):
    """Counts to the last image, and weights to 1e-5, on a problem without near-ties."""
    settings = config(**{"batch_size": 6, **changes, "seeds": ",".join(map(str, SEEDS))})
    found = {seed: [] for seed in SEEDS}
    for seed, member in train_ensemble(stream(), check(settings), progress=TrainingProgress()):
        numbers = [p.detach().double().numpy() for p in member.model.parameters()]
        found[seed].append((member.row, member.tested.labels, *numbers))
    for alone in member_configs(settings):
        for (row, labels, *ours), (correct, *theirs) in zip(
            found[alone.seed], trained(alone), strict=True
        ):
            assert row.correct == correct
            assert len(labels) == sum(row.num_instances)
            for mine, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(mine, other, rtol=0, atol=1e-5)
    if settings.batch_size != "full":
        of_seeds = [found[seed][-1][2] for seed in SEEDS]
        for one, other in itertools.combinations(of_seeds, 2):
            assert np.abs(one - other).max() > 1e-3, "each has an order of its own"


def test_rows_of_all_members_come_before_the_next_bucket():
    """Row by row, in the order of the seeds; what they answered is what a test of each says."""
    settings = check(config(seeds="3,0,11", batch_size=6, predictions="probs"))
    placed = stream()
    order = []
    for seed, member in train_ensemble(placed, settings, progress=TrainingProgress()):
        order.append((member.row.row, seed))
        alone = measure(member.model, placed.test(), device=torch.device("cpu"), probabilities=True)
        assert member.tested.correct == alone.correct
        np.testing.assert_array_equal(member.tested.labels, alone.labels)
        np.testing.assert_allclose(
            member.tested.probabilities.astype(float),
            alone.probabilities.astype(float),
            atol=1e-3,
        )
        assert member.tested.probabilities.shape == (42, CLASSES)
    assert order == [(row, seed) for row in range(4) for seed in SEEDS]


def test_members_share_what_is_the_same_for_all():
    """Sixteen copies of a cumulative training set would fill the memory."""
    placed = stream()
    kind = load_strategy("cumulative")
    strategies = [kind(config(seed=seed), placed, None, kind.Arguments()) for seed in range(3)]
    first, *others = (strategy.training_set(2) for strategy in strategies)
    assert all(other is first for other in others)
    assert strategies[0].training_set(1) is not first


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "replay", "memory": 6, "strategy_args": "batches=balanced"},
        {"strategy": "ewc"},
        {"strategy": "from_scratch"},
        {"strategy": f"{__name__}:OwnReplay", "memory": 6},
        {"precision": "bf16"},
        {"precision": "fp16"},
    ],
)
def test_what_cannot_step_together_is_refused(changes):
    """Own hooks, batches from a buffer, half precision: before data is read, with the way to go."""
    with pytest.raises(ConfigError, match=r"seeds is 1,2, .*one seed at a time, as a sweep does"):
        check(config(seeds="1,2", **changes))


class OwnReplay(Replay):
    """Does something in a step."""

    def after_step(self):
        """It."""


def test_members_with_training_sets_of_two_sizes_are_refused():
    """A buffer may hold an image more or less, as its seed has it: then no step is common."""
    settings = config(
        strategy="replay",
        strategy_args="buffer=greedy_balanced",
        memory=26,
        seeds="0,1,2,3,4,5",
        epochs=1,
    )
    members = train_ensemble(stream(), check(settings), progress=TrainingProgress())
    with pytest.raises(ConfigError, match="members train on 41 to 42 images of one bucket"):
        list(members)


def test_the_member_that_diverges_is_named():
    """The other members' rows so far were given before."""
    settings = check(config(seeds="5,1", lr=1e30, weight_decay=1, batch_size=4))
    members = train_ensemble(stream(), settings, progress=TrainingProgress())
    assert [(seed, member.row.row) for seed, member in itertools.islice(members, 2)] == [
        (5, 0),
        (1, 0),
    ]
    with pytest.raises(DivergedError, match="of seed 5"):
        next(members)


def test_the_rows_of_a_training_carry_their_seeds():
    """With predictions and weights of each member, as a run alone has them."""
    measured = list(training(config(seeds="4,2", log_models="last")).rows())
    assert [(row.seed, row.row.row) for row in measured] == [
        (seed, row) for row in range(4) for seed in (4, 2)
    ]
    assert all(row.predictions is not None for row in measured)
    assert [row.model is not None for row in measured] == [False] * 6 + [True] * 2
    alone = [row.row for row in training(config(seed=2)).rows()]
    assert [row.row for row in measured if row.seed == 2] == alone
    assert all(row.seed is None for row in training(config()).rows())
    assert rows_of(config(seed=2)) == [row.correct for row in alone]
