"""The training loop: one bucket after another, and a row of the accuracy matrix after each."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clear_mlflow.config import TrainConfig
from clear_mlflow.errors import TrainingError
from clear_mlflow.learning.device import Draw, seed_everything
from clear_mlflow.learning.features import (
    FeatureStream,
    TrainingStream,
    feature_batches,
    is_features,
)
from clear_mlflow.learning.images import (
    HeldOutImages,
    Normaliser,
    Samples,
    batch_bounds,
    training_batches,
)
from clear_mlflow.learning.models import build_model, linear_head
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.strategies._base import load_strategy
from clear_mlflow.matrix import AccuracyRow

# Images in one testing step. On a CPU the activations of more no longer fit its cache.
_TEST_BATCH = {"cpu": 64, "cuda": 512}


def train(
    stream: TrainingStream, config: TrainConfig, *, progress: TrainingProgress
) -> Iterator[AccuracyRow]:
    """Train through the stream and test on all buckets before the first and after each.

    On a CPU, the same configuration on the same machine gives the same rows, to the bit.

    Args:
        stream: the dataset.
        config: the parameters; ``device`` is resolved.
        progress: who is told.

    Yields:
        Row 0, of the untrained model, then one row per bucket. The next bucket begins only when
        the next row is asked for.

    Raises:
        DataError: an image cannot be decoded.
        TrainingError: the loss or the model's output is no longer a finite number.
    """
    seed_everything(config.seed, Draw.WEIGHTS)
    model = _model(stream, config)
    model = model.to(stream.device).to(memory_format=torch.channels_last)
    strategy = load_strategy(config.strategy)(config, stream)

    yield _row(model, stream, trained=0, progress=progress)
    for position, key in enumerate(stream.keys):
        samples = strategy.training_set(position)
        steps = config.epochs * len(batch_bounds(len(samples), config.batch_size))
        progress.bucket_started(
            key, position=position, num_buckets=len(stream.keys), num_steps=steps
        )
        _train_on_bucket(model, samples, config, key=key, position=position, progress=progress)
        # Two buckets may not fit: let go of this one before the strategy or the next needs room.
        del samples
        strategy.after_bucket(position)
        yield _row(model, stream, trained=position + 1, progress=progress)


def _model(stream: TrainingStream, config: TrainConfig) -> nn.Module:
    if isinstance(stream, FeatureStream):
        return linear_head(stream.width, num_classes=stream.num_classes)
    return build_model(config.model, num_classes=stream.num_classes, image_size=config.image_size)


def _train_on_bucket(
    model: nn.Module,
    samples: Samples,
    config: TrainConfig,
    *,
    key: str,
    position: int,
    progress: TrainingProgress,
) -> None:
    device = next(model.parameters()).device
    # A new optimiser for every bucket, as in the CLEAR authors' example: the schedule starts again
    # at lr, and no momentum is carried over from the bucket before.
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, config.lr_step, config.lr_gamma)
    model.train()
    for epoch in range(config.epochs):
        seed_everything(config.seed, Draw.MODEL, position, epoch)
        # Summed on the device and read once per epoch: reading it at every step would make the
        # host wait for the device at every step.
        total_loss = torch.zeros((), device=device)
        batches = _batches(samples, config, device=device, position=position, epoch=epoch)
        for images, labels in batches:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimizer.step()
            total_loss += loss.detach()
            progress.step_done()
        schedule.step()
        if not math.isfinite(total_loss.item()):
            raise TrainingError(
                f"the loss is no longer a finite number in epoch {epoch + 1} of "
                f"{config.epochs} on bucket {key}; pass a lr below {config.lr}"
            )


def _batches(
    samples: Samples, config: TrainConfig, *, device: torch.device, position: int, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    if is_features(samples.images):
        return feature_batches(
            samples,
            batch_size=config.batch_size,
            device=device,
            seed=config.seed,
            position=position,
            epoch=epoch,
        )
    return training_batches(
        samples,
        image_size=config.image_size,
        batch_size=config.batch_size,
        device=device,
        seed=config.seed,
        position=position,
        epoch=epoch,
    )


def _row(
    model: nn.Module, stream: TrainingStream, *, trained: int, progress: TrainingProgress
) -> AccuracyRow:
    held_out = stream.test()
    correct = count_correct(model, held_out, device=stream.device)
    if correct is None:
        raise TrainingError(
            f"after training on {trained} buckets the model's output is not a finite number; "
            "pass a lower lr"
        )
    row = AccuracyRow(
        row=trained, buckets=stream.keys, correct=correct, num_instances=held_out.counts
    )
    progress.row_measured(row)
    return row


def count_correct(
    model: nn.Module, held_out: HeldOutImages, *, device: torch.device
) -> tuple[int, ...] | None:
    """Test a model on all buckets in one pass.

    Returns:
        Rightly classified images per bucket; None where an output is infinite or no number, since
        the class that it would be counted for means nothing.
    """
    images, labels = held_out.samples.images, held_out.samples.labels
    correct = torch.zeros(len(held_out.counts) + 1, dtype=torch.int64, device=device)
    normalise = None if is_features(images) else Normaliser(images.shape[2], device)
    model.eval()
    with torch.inference_mode():
        for start, stop in batch_bounds(len(labels), _TEST_BATCH[device.type]):
            chosen = images[start:stop]
            logits: Tensor = model(chosen.to(device) if normalise is None else normalise(chosen))
            hits = logits.argmax(dim=1) == labels[start:stop].to(device, non_blocking=True)
            bucket = held_out.bucket[start:stop].to(device, non_blocking=True)
            correct.index_add_(0, bucket, hits.long())
            # The last cell counts what is wrong with the numbers themselves.
            correct[-1] += (~torch.isfinite(logits)).sum()
    *counts, not_finite = correct.tolist()  # the only transfer of a row
    return None if not_finite else tuple(counts)
