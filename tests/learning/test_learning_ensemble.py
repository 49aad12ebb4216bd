"""Members of any model and strategy that train in turn: each is the run that it is alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from feature_streams import config as of_features
from feature_streams import made_up
from learning_streams import CPU, config, random_stream

from clear_mlflow.core.errors import DivergedError
from clear_mlflow.learning.ensembles.members import member_configs, steps_together, train_ensemble
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples.decoded import DecodedStream, FeatureStream
from clear_mlflow.learning.session import check

SEEDS = (4, 0, 9)

# A network with batch normalisation, one with dropout too, random crops, and strategies with a
# buffer, with logits, with a teacher, with a penalty, with frozen layers, with weights anew.
ON_IMAGES = [
    {},
    {"strategy": "replay", "optimizer_state": "keep"},
    {"strategy": "derpp"},
    {"strategy": "lwf", "epochs": 1},
    {"strategy": "ewc", "strategy_args": "images=20", "epochs": 1},
    {"strategy": "cwr"},
    {"strategy": "from_scratch", "epochs": 1},
    {"model": "mobilenet_v3_small", "epochs": 1, "lr": 0.001},
    {"image_size": 64, "augment": "random_crop_flip", "epochs": 1},
    {"precision": "bf16", "epochs": 1},
]
ON_FEATURES = [
    {"strategy": "er_ace", "memory": 12},
    {"strategy": "slda"},
    {"strategy": "gdumb", "memory": 12, "strategy_args": "buffer=class_balanced"},
    {"precision": "bf16", "batch_size": 6},
]


def images(folder, settings):
    stream, _ = random_stream(folder, train=(9, 6), test=(5, 4), side=settings.image_size)
    return DecodedStream(
        stream, image_size=settings.image_size, augment=settings.augment, device=CPU
    )


def features(folder, settings):
    return FeatureStream(*made_up(), device=CPU)


def taken_down(trained):
    """All that a row is made of, as it was then."""
    state = {name: t.clone() for name, t in trained.model.state_dict().items()}
    return trained.row, trained.tested.labels, state


@pytest.mark.parametrize(
    ("make", "of", "changes"),
    [
        *((images, config, changes) for changes in ON_IMAGES),
        *((features, of_features, changes) for changes in ON_FEATURES),
    ],
)
def test_each_member_is_the_run_alone_to_the_bit(tmp_path, make, of, changes):
    """Rows, answers, weights and running statistics, of every row; and members differ."""
    settings = check(of(**changes, seeds=",".join(map(str, SEEDS))))
    assert not steps_together(settings)
    together = {seed: [] for seed in SEEDS}
    for seed, trained in train_ensemble(
        make(tmp_path / "of all", settings), settings, progress=TrainingProgress()
    ):
        together[seed].append(taken_down(trained))
        assert trained.snapshot is None, "no member is resumed"
    for alone in member_configs(settings):
        stream = make(tmp_path / str(alone.seed), alone)
        rows = [
            taken_down(trained) for trained in train(stream, alone, progress=TrainingProgress())
        ]
        for found, expected in zip(together[alone.seed], rows, strict=True):
            assert found[0] == expected[0]
            np.testing.assert_array_equal(found[1], expected[1])
            assert found[2].keys() == expected[2].keys()
            for name in expected[2]:
                assert torch.equal(found[2][name], expected[2][name]), name
    if settings.strategy != "slda":  # which draws nothing
        first, second = (together[seed][-1][2] for seed in SEEDS[:2])
        assert any(not torch.equal(first[name], second[name]) for name in first)


def test_rows_of_all_members_come_before_the_next_bucket(tmp_path):
    """Row by row, in the order of the seeds; one member's rows are shown, and all steps counted."""

    class Told(TrainingProgress):
        def __init__(self):
            self.rows, self.planned, self.done = [], 0, 0

        def steps_planned(self, num_steps):
            self.planned += num_steps

        def step_done(self):
            self.done += 1

        def row_measured(self, row):
            self.rows.append(row)

    settings = check(config(seeds="4,0,9"))
    told, first = Told(), []
    order = []
    for seed, trained in train_ensemble(images(tmp_path, settings), settings, progress=told):
        order.append((trained.row.row, seed))
        if seed == 4:
            first.append(trained.row)
    assert order == [(row, seed) for row in range(3) for seed in SEEDS]
    assert told.rows == first
    assert told.done == told.planned == 3 * 2 * (2 + 2), "of 9 images one joins the batch before it"


def test_the_member_that_diverges_in_its_turn_is_named(tmp_path):
    """By its seed, in the message and for the record."""
    settings = check(config(seeds="4,0", lr=1e30))
    members = train_ensemble(images(tmp_path, settings), settings, progress=TrainingProgress())
    assert [next(members)[0] for _ in range(2)] == [4, 0]
    with pytest.raises(DivergedError, match="seed 4: ") as caught:
        list(members)
    assert caught.value.seed == 4
