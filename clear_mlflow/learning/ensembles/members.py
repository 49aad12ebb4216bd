"""Runs that differ in nothing but their seed, trained together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from torch import nn

from clear_mlflow.core.errors import ConfigError, DivergedError
from clear_mlflow.learning.ensembles.heads import HeadsDescent
from clear_mlflow.learning.loop import Trained, fresh_model, measure_row, train
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.progress import MemberProgress, TrainingProgress
from clear_mlflow.learning.samples.decoded import TrainingStream
from clear_mlflow.learning.strategies._base import check_strategy, load_strategy


def member_configs(config: TrainConfig) -> tuple[TrainConfig, ...]:
    """What each member would be trained with alone, in the order of ``seeds``."""
    return tuple(
        dataclasses.replace(config, seed=int(seed), seeds=NONE) for seed in config.seeds.split(",")
    )


def steps_together(config: TrainConfig) -> bool:
    """Whether members take each step together: linear heads in float32, of plain strategies."""
    strategy = load_strategy(config.strategy)
    return (
        config.features != NONE
        and config.precision == "off"
        and config.compile == "off"
        and strategy.has_plain_steps(check_strategy(config))
    )


def train_ensemble(
    stream: TrainingStream, config: TrainConfig, *, progress: TrainingProgress
) -> Iterator[tuple[int, Trained]]:
    """Train all members: gives (seed, row) of every member, then of every member the next row.

    Linear heads take each step together (:func:`steps_together`); all else takes turns, a bucket
    at a time. Each member has its own strategy and buffer and draws its own order.
    """
    way = _in_step if steps_together(config) else _in_turn
    return way(stream, config, progress)


def _in_turn(
    stream: TrainingStream, config: TrainConfig, progress: TrainingProgress
) -> Iterator[tuple[int, Trained]]:
    """Each member by the loop that would train it alone, up to its next row.

    On a CPU its matrix is that of the run alone to the bit: all that is random is drawn anew from
    the member's seed wherever it is drawn.
    """
    trainings = [
        (member.seed, train(stream, member, progress=shown))
        for member, shown in _shown(config, progress)
    ]
    for _ in range(len(stream.keys) + 1):
        for seed, training in trainings:
            with _named(seed):
                trained = next(training)
            yield seed, dataclasses.replace(trained, snapshot=None)


def _in_step(
    stream: TrainingStream, config: TrainConfig, progress: TrainingProgress
) -> Iterator[tuple[int, Trained]]:
    """All members a step at a time.

    Each has the matrix of the run that it would have been alone, but for rounding: products are
    summed in another order, so two logits that agree in their first six digits may change places.
    """
    members = _shown(config, progress)
    seeds = [member.seed for member, _ in members]
    heads = [cast("nn.Linear", fresh_model(stream, member)) for member, _ in members]
    descent = HeadsDescent(heads, seeds, config, keys=stream.keys, progress=progress)
    arguments, kind = check_strategy(config), load_strategy(config.strategy)
    strategies = [
        kind(member, stream, head, arguments)
        for (member, _), head in zip(members, heads, strict=True)
    ]

    def rows(trained: int) -> Iterator[tuple[int, Trained]]:
        for (member, shown), head in zip(members, heads, strict=True):
            with _named(member.seed):
                row = measure_row(head, stream, member, trained=trained, progress=shown)
            yield member.seed, row

    yield from rows(0)
    for position, key in enumerate(stream.keys):
        progress.bucket_started(key, position=position, num_buckets=len(stream.keys))
        samples = [strategy.training_set(position) for strategy in strategies]
        sizes = sorted({len(of_member) for of_member in samples})
        if len(sizes) > 1:
            text_of_arguments = config.as_text()["strategy_args"]
            raise ConfigError(
                f"with strategy {config.strategy} ({text_of_arguments}) members train on "
                f"{sizes[0]} to {sizes[-1]} images of one bucket; runs that train together need "
                "equally many: train with one seed at a time"
            )
        descent.run_all(samples, position=position)
        for strategy in strategies:
            strategy.after_bucket(position)
        yield from rows(position + 1)


def _shown(
    config: TrainConfig, progress: TrainingProgress
) -> list[tuple[TrainConfig, TrainingProgress]]:
    """Each member's configuration, and what it reports to; the first member's rows are shown."""
    return [
        (member, MemberProgress(progress, member.seed, with_rows=number == 0))
        for number, member in enumerate(member_configs(config))
    ]


@contextmanager
def _named(seed: int) -> Iterator[None]:
    """Say whose divergence it is."""
    try:
        yield
    except DivergedError as error:
        raise DivergedError(f"seed {seed}: {error}", seed) from error
