"""Runs that differ in nothing but their seed, trained together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from torch import nn

from clear_mlflow.core.errors import ConfigError, DivergedError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.learning.ensembles.heads import HeadsDescent, Stack
from clear_mlflow.learning.loop import Tested, Trained, fresh_model, train
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.progress import MemberProgress, TrainingProgress
from clear_mlflow.learning.samples.decoded import HeldOutImages, batch_bounds
from clear_mlflow.learning.samples.feature_stream import TrainingStream
from clear_mlflow.learning.strategies._base import Strategy, check_strategy, load_strategy

_TEST_BATCH = {"cpu": 512, "cuda": 8192}  # images; on a CPU, whose rows fit its cache


def member_configs(config: TrainConfig) -> tuple[TrainConfig, ...]:
    """What each member would be trained with alone, in the order of ``seeds``."""
    return tuple(
        dataclasses.replace(config, seed=int(seed), seeds=NONE) for seed in config.seeds.split(",")
    )


def steps_together(config: TrainConfig) -> bool:
    """Whether members take each step together: where the step of one is written out by hand.

    These are linear heads, in float32, whose strategy only chooses what is trained on.
    """
    strategy = load_strategy(config.strategy)
    own_learn = strategy.learn is not Strategy.learn
    own_model = strategy.build_model.__func__ is not Strategy.build_model.__func__  # type: ignore[attr-defined]
    return (
        config.features != NONE
        and config.precision == "off"
        and config.compile == "off"
        and strategy.has_plain_steps(check_strategy(config))
        and not own_learn
        and not own_model
    )


def train_ensemble(
    stream: TrainingStream, config: TrainConfig, *, progress: TrainingProgress
) -> Iterator[tuple[int, Trained]]:
    """Train all members through the stream; see :func:`~clear_mlflow.learning.loop.train`.

    Linear heads take each step together (:func:`steps_together`); all else takes turns, a bucket
    at a time. Each member has its own strategy and buffer and draws its own order.

    Args:
        stream: the dataset.
        config: the parameters, ``seeds`` among them; ``device`` and ``precision`` are resolved.
        progress: what shows the training; of rows, the first member's.

    Yields:
        (seed, row) of every member, then of every member the next row. A member's next bucket
        begins only when its row is asked for, or that of a member before it.

    Raises:
        ConfigError: the strategy's training sets differ in size from member to member.
        DivergedError: the loss or the output of a member is no longer a finite number.
    """
    way = _in_step if steps_together(config) else _in_turn
    return way(stream, config, progress)


def _in_turn(
    stream: TrainingStream, config: TrainConfig, progress: TrainingProgress
) -> Iterator[tuple[int, Trained]]:
    """Each member by the loop that would train it alone, up to its next row.

    On a CPU its matrix is that of the run alone to the bit: all that is random is drawn anew from
    the member's seed wherever it is drawn. One step of many networks would take longer there: with
    weights of each member's own, a convolution is one of many groups, for which there is no fast
    code (docs/ensembles.md has what was measured).
    """
    trainings = [
        (
            member.seed,
            train(
                stream,
                member,
                progress=MemberProgress(progress, member.seed, with_rows=number == 0),
            ),
        )
        for number, member in enumerate(member_configs(config))
    ]
    for _ in range(len(stream.keys) + 1):
        for seed, training in trainings:
            try:
                trained = next(training)
            except DivergedError as error:
                raise DivergedError(f"seed {seed}: {error}", seed) from error
            yield seed, dataclasses.replace(trained, snapshot=None)


def _in_step(
    stream: TrainingStream, config: TrainConfig, progress: TrainingProgress
) -> Iterator[tuple[int, Trained]]:
    """All members a step at a time.

    Each has the matrix of the run that it would have been alone, but for rounding: products are
    summed in another order, so two logits that agree in their first six digits may change places.
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
            text_of_arguments = config.as_text()["strategy_args"]
            raise ConfigError(
                f"with strategy {config.strategy} ({text_of_arguments}) members train on "
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
    """Test many heads on all buckets in one pass; see :func:`~clear_mlflow.learning.loop.measure`.

    Args:
        stack: E heads.
        held_out: the test sets of all buckets.
        device: where to compute.
        probabilities: whether to keep them, too.

    Returns:
        For each head what it answered, or None where an output is no finite number.
    """
    num_heads, num_classes, width = stack.weight.shape
    answers, likelihoods = [], []
    wrong = torch.zeros(num_heads, dtype=torch.int64, device=device)
    with torch.inference_mode():
        # Heads side by side are one wide layer: the features are read once for all of them.
        weight, bias = stack.weight.view(-1, width), stack.bias.view(-1)
        for start, stop in batch_bounds(len(held_out.labels), _TEST_BATCH[device.type]):
            rows = held_out.some(start, stop).to(device)
            # Classes last: a search along any other dimension takes ten times as long.
            logits = torch.addmm(bias, rows, weight.mT).view(-1, num_heads, num_classes)
            answers.append(logits.argmax(dim=2))
            wrong += (~torch.isfinite(logits)).sum(dim=(0, 2))
            if probabilities:
                likelihoods.append(logits.softmax(dim=2).half())
        labels = torch.cat(answers).T.contiguous()
        right = (labels == held_out.labels.to(device)).long()
        correct = torch.zeros(
            num_heads, len(held_out.counts), dtype=torch.int64, device=device
        ).index_add_(1, held_out.bucket.to(device), right)
    kind = np.uint8 if num_classes <= 256 else np.uint16
    predicted = labels.cpu().numpy().astype(kind)
    kept = torch.cat(likelihoods).cpu().numpy() if probabilities else None
    return [
        None
        if bad
        else Tested(
            tuple(counts), predicted[e], None if kept is None else np.ascontiguousarray(kept[:, e])
        )
        for e, (bad, counts) in enumerate(zip(wrong.tolist(), correct.tolist(), strict=True))
    ]
