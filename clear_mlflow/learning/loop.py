"""The training loop: one bucket after another, and a row of the accuracy matrix after each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor, nn

from clear_mlflow.core.errors import DivergedError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.learning.anytime.inside_tests import InsideTests
from clear_mlflow.learning.anytime.schedule import OFF
from clear_mlflow.learning.checkpoint import SavedTraining, Snapshot, capture, restore
from clear_mlflow.learning.descent import GradientDescent
from clear_mlflow.learning.device import RngPurpose, autocast, is_memory_error, seed_everything
from clear_mlflow.learning.models import (
    build_feature_model,
    build_model,
    input_dtype,
    logits_in_float32,
)
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples.decoded import (
    FeatureStream,
    HeldOutImages,
    TrainingStream,
    batch_bounds,
    normalise,
)
from clear_mlflow.learning.spending.budget import build_budget, check_memory
from clear_mlflow.learning.spending.meter import stored_bytes
from clear_mlflow.learning.spending.passing import passing_of
from clear_mlflow.learning.strategies._base import check_strategy, load_strategy

# Images in one testing step, if there is room for them. On a CPU the activations of more no longer
# fit its cache.
_TEST_BATCH = {"cpu": 64, "cuda": 512}
# Features have no activations: on a CPU a step fits its cache, elsewhere its fixed cost counts.
_TEST_BATCH_OF_FEATURES = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True, eq=False)
class Tested:
    """One test of all buckets, in one pass."""

    correct: tuple[int, ...]  # per bucket
    labels: NDArray[np.uint8] | NDArray[np.uint16]  # (N,), predicted classes
    probabilities: NDArray[np.float16] | None  # (N, classes); None where they were not asked for


@dataclass(frozen=True, eq=False)
class Trained:
    """A row, with what it was counted from and the model that gave it."""

    row: AccuracyRow
    tested: Tested
    model: nn.Module  # training continues with it: read it before the next row is asked for
    # Copies what training is resumed from; call it before the next row is asked for.
    snapshot: Callable[[], Snapshot] | None = None
    standardised: Mapping[str, Tensor] = field(default_factory=dict)  # see TrainingStream


def train(
    stream: TrainingStream,
    config: TrainConfig,
    *,
    progress: TrainingProgress,
    group: ProcessGroup = ALONE,
    saved: SavedTraining | None = None,
) -> Iterator[Trained]:
    """Rows from 0 on, or those after a saved one; the next bucket waits until it is asked for."""
    kind = load_strategy(config.strategy)
    model = fresh_model(stream, config)
    # Before its layers wait for other processes.
    of_naive = config.budget != OFF or config.stream_rate != OFF
    twin = copy.deepcopy(model).to("meta") if of_naive else None
    model = group.synchronize(model)
    arguments = check_strategy(config)
    strategy = kind(config, stream, model, arguments)
    strategy.group = group
    check_memory(config, stored_bytes(strategy, len(stream.keys) - 1))
    descent = GradientDescent(model, config, keys=stream.keys, progress=progress, group=group)
    costs = descent.costs
    descent.budget = budget = build_budget(config, twin, stream, costs)
    descent.passing = passing = passing_of(config, twin, stream, costs)

    def right_now() -> tuple[int, ...] | None:
        held_out, precision = stream.test(), config.precision
        with costs.test():
            found = measure(model, held_out, device=stream.device, precision=precision, group=group)
        return None if found is None else found.correct

    if (interval := config.test_interval) is not None:
        descent.tests = InsideTests(
            model,
            interval,
            keys=stream.keys,
            num_instances=stream.test().counts,
            test=right_now,
            done=progress.test_done,
        )

    def tested(trained: int) -> Trained:
        costs.trained()
        with costs.test():
            found = measure_row(model, stream, config, trained=trained, group=group)
        cost = costs.row(model, strategy, trained=trained)
        check_memory(config, cost.stored_bytes)
        found = replace(found, row=structs.replace(found.row, cost=cost))
        progress.row_measured(found.row)
        return replace(found, snapshot=lambda: capture(model, strategy, descent))

    if saved is None:
        yield tested(0)
    else:
        restore(saved.snapshot, model, strategy, descent)
    first = 0 if saved is None else saved.row.row
    for position, key in list(enumerate(stream.keys))[first:]:
        stream.begin_bucket(position)
        progress.bucket_started(key, position=position, num_buckets=len(stream.keys))
        costs.begin()
        if budget is not None:
            budget.begin(position)
        strategy.learn(position, descent)
        with costs.counted():
            strategy.after_bucket(position)
        if budget is not None:
            budget.end(position, key)
        if passing is not None:
            passing.end()
        yield tested(position + 1)


def fresh_model(stream: TrainingStream, config: TrainConfig, *where: int) -> nn.Module:
    """The untrained model on its device; *where*: the bucket at which a strategy starts anew."""
    seed_everything(config.seed, RngPurpose.WEIGHTS, *where)
    model = load_strategy(config.strategy).build_model(config, stream)
    if model is None and isinstance(stream, FeatureStream):
        model = build_feature_model(config.model, stream.width, num_classes=stream.num_classes)
    if model is None:
        model = build_model(
            config.model,
            num_classes=stream.num_classes,
            image_size=config.image_size,
            weights=config.weights,
            freeze=config.freeze,
        )
    return model.to(stream.device).to(memory_format=torch.channels_last)


def measure_row(
    model: nn.Module,
    stream: TrainingStream,
    config: TrainConfig,
    *,
    trained: int,
    group: ProcessGroup = ALONE,
) -> Trained:
    """Test a model on all buckets, as a row; DivergedError where an output is not finite."""
    held_out = stream.test()
    tested = measure(
        model,
        held_out,
        device=stream.device,
        precision=config.precision,
        probabilities=config.predictions == "probs",
        group=group,
    )
    if tested is None:
        raise DivergedError(
            f"after training on {trained} buckets the model's output is not a finite number; "
            "pass a lower lr"
        )
    row = AccuracyRow(
        row=trained, buckets=stream.keys, correct=tested.correct, num_instances=held_out.counts
    )
    return Trained(row, tested, model, standardised=stream.standardised)


def measure(
    model: nn.Module,
    held_out: HeldOutImages,
    *,
    device: torch.device,
    precision: str = "off",
    probabilities: bool = False,
    group: ProcessGroup = ALONE,
) -> Tested | None:
    """Test a model on all buckets in one pass; None where an output is no finite number."""
    truth, side = held_out.labels, held_out.side
    start, stop = group.share(0, len(truth))
    dtype = input_dtype(model, precision)
    step = (_TEST_BATCH_OF_FEATURES if side is None else _TEST_BATCH)[device.type]
    answers, likelihoods = [], []
    possible = None if held_out.class_masks is None else held_out.class_masks.to(device)
    not_finite = torch.zeros((), dtype=torch.int64, device=device)
    model.eval()
    with torch.no_grad(), logits_in_float32(model):  # as costs count it
        bounds = batch_bounds(stop - start, step) if stop > start else [(0, 0)]
        while bounds:
            begin, end = bounds[0]
            chosen = held_out.cut(start + begin, start + end)
            try:
                inputs = chosen.to(device)
                if side is not None:
                    inputs = normalise(inputs, dtype)
                with autocast(device, precision):
                    logits: Tensor = model(inputs)
            except RuntimeError as error:
                if end - begin <= 1 or not is_memory_error(error):
                    raise
                rest = batch_bounds(stop - start - begin, (end - begin) // 2)
                bounds = [(begin + first, begin + last) for first, last in rest]
                continue
            del bounds[0]
            not_finite += (~torch.isfinite(logits)).sum()
            if possible is not None:
                tested = held_out.bucket[start + begin : start + end].to(device)
                logits = logits.masked_fill(~possible[tested], -torch.inf)
            answers.append(logits.argmax(dim=1))
            if probabilities:
                likelihoods.append(logits.float().softmax(dim=1).half())
        labels = torch.cat(answers)
        correct = torch.zeros(len(held_out.counts) + 1, dtype=torch.int64, device=device)
        right = labels == truth[start:stop].to(device)
        correct[:-1].index_add_(0, held_out.bucket[start:stop].to(device), right.long())
        correct[-1] = not_finite
        group.add_up(correct)
        labels = group.put_together(labels, start, len(truth))
        if probabilities:
            likelihood = group.put_together(torch.cat(likelihoods), start, len(truth))
    *counts, wrong = correct.tolist()
    if wrong:
        return None
    num_classes = logits.shape[1]
    kind = np.uint8 if num_classes <= 256 else np.uint16
    return Tested(
        tuple(counts),
        labels.cpu().numpy().astype(kind),
        likelihood.cpu().numpy() if probabilities else None,
    )
