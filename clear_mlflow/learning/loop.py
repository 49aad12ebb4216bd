"""The training loop: one bucket after another, and a row of the accuracy matrix after each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clear_mlflow.core.batch_record import PrequentialRecord
from clear_mlflow.core.errors import DivergedError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.text import format_count
from clear_mlflow.learning.checkpoint import (
    SavedTraining,
    Snapshot,
    check_state,
    restore_snapshot,
    take_snapshot,
)
from clear_mlflow.learning.device import autocast, is_memory_error
from clear_mlflow.learning.models import get_input_dtype, logits_in_float32
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.values import OFF
from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import (
    HeldOutImages,
    TrainingStream,
    normalise,
)
from clear_mlflow.learning.strategies import load_strategy, parse_strategy_arguments
from clear_mlflow.learning.strategies._base import build_untrained_model
from clear_mlflow.learning.training.costs import CountBatch, count_stored_bytes
from clear_mlflow.learning.training.limits import build_limiter, check_memory
from clear_mlflow.learning.training.observers import PrequentialTests, WithinBucketTests
from clear_mlflow.learning.training.trainer import Trainer

# Images in one step of a test, if they fit into memory. On a CPU, the activations of more images
# do not fit into its cache.
_TEST_BATCH = {"cpu": 64, "cuda": 512}
# The same for features, which lack activations.
_FEATURE_TEST_BATCH = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of one test of all buckets."""

    correct: tuple[int, ...]  # per bucket
    labels: NDArray[np.uint8] | NDArray[np.uint16]  # (N,), predicted classes
    probabilities: NDArray[np.float16] | None  # (N, classes), or None if not requested


@dataclass(frozen=True, eq=False)
class TrainedBucket:
    """A row, with its evaluation and the trained model."""

    row: AccuracyRow
    evaluation: Evaluation
    model: nn.Module  # training continues with it: read it before the next row is requested
    snapshot: Callable[[], Snapshot]  # copies the training state, before the next row is requested
    standardised: Mapping[str, Tensor]  # see TrainingStream
    prequential: PrequentialRecord | None = None  # of the buckets so far, if that is requested


def train(
    stream: TrainingStream,
    config: TrainConfig,
    *,
    progress: TrainingProgress,
    group: ProcessGroup = SINGLE_PROCESS,
    saved: SavedTraining | None = None,
) -> Iterator[TrainedBucket]:
    """Train bucket by bucket, and yield each measured row.

    Row 0 is the untrained model's. The next bucket is trained when its row is requested. Raises
    DivergedError if the loss or an output is not finite, and ConfigError if the strategy keeps more
    than memory_budget allows.

    saved: state to continue from, or None for a new training.
    """
    strategy_class = load_strategy(config.strategy)
    model = build_untrained_model(strategy_class, stream, config)
    needs_naive_flops = config.budget != OFF or config.stream_rate != OFF
    # Copied before synchronize_batch_norm replaces layers by ones that wait for other processes.
    meta_model = copy.deepcopy(model).to("meta") if needs_naive_flops else None
    model = group.synchronize_batch_norm(model)
    strategy = strategy_class(config, stream, model, parse_strategy_arguments(config))
    strategy.group = group
    if config.resumable == "on":
        check_state(strategy)
    check_memory(config, count_stored_bytes(strategy, len(stream.keys) - 1))
    trainer = Trainer(model, config, bucket_keys=stream.keys, progress=progress, group=group)
    costs, label_delay = trainer.costs, 0 if config.label_delay == OFF else int(config.label_delay)
    trainer.limiter = limiter = build_limiter(config, meta_model, stream, costs)

    def measure_all(*, probabilities: bool = False) -> Evaluation | None:
        """Test the model on all buckets, counting costs, or return None."""
        with costs.count_test() as count_batch:
            return measure(
                model,
                stream.test(),
                device=stream.device,
                precision=config.precision,
                probabilities=probabilities,
                group=group,
                count_batch=count_batch,
            )

    if config.test_every != OFF:
        test_every, on_test = config.test_every, progress.test_done
        trainer.tests = WithinBucketTests(model, test_every, stream, measure_all, on_test)
    if config.time_order == "on":
        trainer.sort_by_time = stream.sort_by_time
    if config.prequential != OFF:
        trainer.prequential = PrequentialTests(model, config, stream)

    def test(num_trained: int) -> TrainedBucket:
        """Test the model, and return row and costs, or raise DivergedError."""
        costs.end_training()
        evaluation = measure_all(probabilities=config.predictions == "probs")
        if evaluation is None:
            raise DivergedError(
                f"after training on {format_count(num_trained, 'bucket')} the model's output is "
                "not a finite number; pass a lower lr"
            )
        cost = costs.build_row_cost(model, strategy, trained=max(0, num_trained - label_delay))
        check_memory(config, cost.stored_bytes)
        row = AccuracyRow(
            row=num_trained,
            buckets=stream.keys,
            correct=evaluation.correct,
            num_instances=stream.test().counts,
            cost=cost,
        )
        progress.row_measured(row)
        prequential = None
        if trainer.prequential is not None and num_trained:
            prequential = trainer.prequential.build_record(num_trained)
        snapshot = partial(take_snapshot, model, strategy, trainer)
        return TrainedBucket(row, evaluation, model, snapshot, stream.standardised, prequential)

    if saved is None:
        yield test(0)
    else:
        restore_snapshot(saved.snapshot, model, strategy, trainer)
    first = 0 if saved is None else saved.row.row
    for bucket_index, key in list(enumerate(stream.keys))[first:]:
        stream.begin_bucket(bucket_index)
        progress.bucket_started(key, bucket_index=bucket_index, num_buckets=len(stream.keys))
        costs.begin_bucket()
        labelled = bucket_index - label_delay  # the bucket whose labels have arrived
        if labelled >= 0:
            limiter.begin_bucket(labelled, stream.keys[labelled], strategy)
            strategy.learn(labelled, trainer)
            with costs.count():
                strategy.after_bucket(labelled)
            limiter.end_bucket()
        yield test(bucket_index + 1)


def measure(
    model: nn.Module,
    held_out: HeldOutImages,
    *,
    device: torch.device,
    precision: str = "off",
    probabilities: bool = False,
    group: ProcessGroup = SINGLE_PROCESS,
    count_batch: CountBatch = lambda _: nullcontext(),
) -> Evaluation | None:
    """Set a model to evaluation mode, and test it on all buckets.

    Returns None for non-finite logits. Takes smaller batches if memory runs out. Each process tests
    its share of the images, and all get the complete result.

    probabilities: also return the probabilities of all classes. count_batch: entered around each
    batch's forward pass, with the shape of its inputs.
    """
    true_labels, side = held_out.labels, held_out.side
    start, stop = group.split_range(0, len(true_labels))
    dtype = get_input_dtype(model, precision)
    step = (_FEATURE_TEST_BATCH if side is None else _TEST_BATCH)[device.type]
    predictions, likelihoods = [], []
    masks = None if held_out.class_masks is None else held_out.class_masks.to(device)
    buckets = held_out.bucket[start:stop].to(device)
    num_invalid = torch.zeros((), dtype=torch.int64, device=device)
    model.eval()
    with torch.no_grad(), logits_in_float32(model):
        done = start
        batches = held_out.iter_batches(start, stop, step, device)
        while True:
            try:
                if (inputs := next(batches, None)) is None:
                    break
                if side is not None:
                    inputs = normalise(inputs, dtype)
                with autocast(device, precision), count_batch(inputs.shape):
                    logits: Tensor = model(inputs)
            except RuntimeError as error:
                step = min(step, stop - done) // 2
                if step < 1 or not is_memory_error(error):
                    raise
                batches = held_out.iter_batches(done, stop, step, device)
                continue
            num_invalid += (~torch.isfinite(logits)).sum()
            if masks is not None:
                tested = slice(done - start, done - start + len(logits))
                logits = logits.masked_fill(~masks[buckets[tested]], -torch.inf)
            predictions.append(logits.argmax(dim=1))
            if probabilities:
                likelihoods.append(logits.float().softmax(dim=1).half())
            done += len(logits)
        labels = torch.cat(predictions)
        correct = torch.zeros(len(held_out.counts) + 1, dtype=torch.int64, device=device)
        is_correct = labels == true_labels[start:stop].to(device)
        correct[:-1].index_add_(0, buckets, is_correct.long())
        correct[-1] = num_invalid
        group.all_reduce(correct)
        labels = group.all_gather(labels, start, len(true_labels))
        if probabilities:
            likelihood = group.all_gather(torch.cat(likelihoods), start, len(true_labels))
    *counts, num_invalid_anywhere = correct.tolist()
    if num_invalid_anywhere:
        return None
    num_classes = logits.shape[1]
    label_type = np.uint8 if num_classes <= 256 else np.uint16
    return Evaluation(
        tuple(counts),
        labels.cpu().numpy().astype(label_type),
        likelihood.cpu().numpy() if probabilities else None,
    )
