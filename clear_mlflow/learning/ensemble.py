"""Runs that differ in nothing but their seed, trained together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from torch import nn

from clear_mlflow.config import NONE, TrainConfig
from clear_mlflow.errors import ConfigError, DivergedError
from clear_mlflow.learning.features import TrainingStream
from clear_mlflow.learning.heads import HeadsDescent, Stack, is_plain
from clear_mlflow.learning.images import HeldOutImages, batch_bounds
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.strategies import strategy_names
from clear_mlflow.learning.strategies._base import Strategy, check_strategy, load_strategy
from clear_mlflow.learning.train import Tested, Trained, fresh_model
from clear_mlflow.matrix import AccuracyRow

_TEST_BATCH = 8192  # images; see train._TEST_BATCH_OF_FEATURES


def member_configs(config: TrainConfig) -> tuple[TrainConfig, ...]:
    """What each member would be trained with alone, in the order of ``seeds``."""
    return tuple(
        dataclasses.replace(config, seed=int(seed), seeds=NONE) for seed in config.seeds.split(",")
    )


def check_ensemble(config: TrainConfig) -> None:
    """Check that members can be trained together.

    Raises:
        ConfigError: they train on images, in lower precision or compiled; or their strategy does
            more than choose what is trained on.
    """
    if config.features == NONE:
        raise ConfigError(
            f"seeds is {config.seeds} and features is none; an ensemble trains linear heads on "
            "stored features: pass features=NAME, as features=pixels, or train with one seed at a "
            "time"
        )
    if config.precision != "off" or config.compile != "off":
        raise ConfigError(
            f"seeds is {config.seeds}, precision is {config.precision} and compile is "
            f"{config.compile}; an ensemble computes in 32 bits and compiles nothing: pass "
            "precision=off and compile=off"
        )
    if not _can_join(load_strategy(config.strategy)):
        able = [name for name in strategy_names() if _can_join(load_strategy(name))]
        raise ConfigError(
            f"seeds is {config.seeds}, but with strategy {config.strategy} runs cannot train "
            f"together; expected one of {', '.join(able)}, or train with one seed at a time"
        )


def _can_join(strategy: type[Strategy]) -> bool:
    own_learn = strategy.learn is not Strategy.learn
    own_model = strategy.build_model.__func__ is not Strategy.build_model.__func__  # type: ignore[attr-defined]
    return is_plain(strategy) and not own_learn and not own_model


def train_ensemble(
    stream: TrainingStream, config: TrainConfig, *, progress: TrainingProgress
) -> Iterator[tuple[int, Trained]]:
    """Train all members through the stream; see :func:`~clear_mlflow.learning.train.train`.

    Each member has its own strategy and buffer, draws its own order, and has the matrix of the run
    that it would have been alone, but for rounding: products are summed in another order, so two
    logits that agree in their first six digits may change places.

    Args:
        stream: the dataset, as features.
        config: as :func:`check_ensemble` accepts it.
        progress: who is told; of rows, the first member's.

    Yields:
        (seed, row) of every member, then of every member the next row. The next bucket begins only
        when the first of its rows is asked for.

    Raises:
        ConfigError: the strategy's training sets differ in size from member to member.
        DivergedError: the loss or the output of a member is no longer a finite number.
    """
    configs = member_configs(config)
    seeds = [member.seed for member in configs]
    heads = [cast("nn.Linear", fresh_model(stream, member)) for member in configs]
    descent = HeadsDescent(heads, seeds, config, keys=stream.keys, progress=progress)
    arguments = check_strategy(config)
    kind = load_strategy(config.strategy)
    strategies = [
        kind(member, stream, head, arguments) for member, head in zip(configs, heads, strict=True)
    ]

    def rows(trained: int) -> Iterator[tuple[int, Trained]]:
        held_out = stream.test()
        tested = measure_heads(
            descent.stack,
            held_out,
            device=stream.device,
            probabilities=config.predictions == "probs",
        )
        for seed, head, found in zip(seeds, heads, tested, strict=True):
            if found is None:
                raise DivergedError(
                    f"after training on {trained} buckets the output of seed {seed} is not a "
                    "finite number; pass a lower lr",
                    seed,
                )
            row = AccuracyRow(trained, stream.keys, found.correct, held_out.counts)
            if seed == seeds[0]:
                progress.row_measured(row)
            yield seed, Trained(row, found, head)

    yield from rows(0)
    for position, key in enumerate(stream.keys):
        progress.bucket_started(key, position=position, num_buckets=len(stream.keys))
        samples = [strategy.training_set(position) for strategy in strategies]
        sizes = sorted({len(of_member) for of_member in samples})
        if len(sizes) > 1:
            raise ConfigError(
                f"with strategy {config.strategy} ({config.strategy_args}) members train on "
                f"{sizes[0]} to {sizes[-1]} images of one bucket; runs that train together need "
                "equally many: train with one seed at a time"
            )
        descent.run(samples, position=position)
        for strategy in strategies:
            strategy.after_bucket(position)
        yield from rows(position + 1)


def measure_heads(
    stack: Stack, held_out: HeldOutImages, *, device: torch.device, probabilities: bool = False
) -> list[Tested | None]:
    """Test many heads on all buckets in one pass; see :func:`~clear_mlflow.learning.train.measure`.

    Args:
        stack: E heads.
        held_out: the test sets of all buckets.
        device: where to compute.
        probabilities: whether to keep them, too.

    Returns:
        For each head what it answered, or None where an output is no finite number.
    """
    num_heads, num_classes, width = stack.weight.shape
    features = held_out.images
    answers, likelihoods = [], []
    wrong = torch.zeros(num_heads, dtype=torch.int64, device=device)
    with torch.inference_mode():
        # Heads side by side are one wide layer: the features are read once for all of them.
        weight, bias = stack.weight.view(-1, width), stack.bias.view(-1, 1)
        for start, stop in batch_bounds(len(held_out.labels), _TEST_BATCH):
            rows = features[start:stop].to(device)
            logits = torch.mm(weight, rows.mT).add_(bias).view(num_heads, num_classes, -1)
            answers.append(logits.argmax(dim=1))
            wrong += (~torch.isfinite(logits)).sum(dim=(1, 2))
            if probabilities:
                likelihoods.append(logits.softmax(dim=1).transpose(1, 2).half())
        labels = torch.cat(answers, dim=1)
        right = (labels == held_out.labels.to(device)).long()
        correct = torch.zeros(
            num_heads, len(held_out.counts), dtype=torch.int64, device=device
        ).index_add_(1, held_out.bucket.to(device), right)
    kind = np.uint8 if num_classes <= 256 else np.uint16
    predicted = labels.cpu().numpy().astype(kind)
    kept = torch.cat(likelihoods, dim=1).cpu().numpy() if probabilities else None
    return [
        None if bad else Tested(tuple(counts), predicted[e], None if kept is None else kept[e])
        for e, (bad, counts) in enumerate(zip(wrong.tolist(), correct.tolist(), strict=True))
    ]
