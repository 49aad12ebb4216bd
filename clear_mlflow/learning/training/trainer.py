"""The training steps of one bucket after another."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clear_mlflow.core.errors import DivergedError
from clear_mlflow.core.text import warn
from clear_mlflow.learning.device import (
    RngPurpose,
    autocast,
    build_generator,
    is_other_device,
    load_optimizer_state,
    seed_everything,
)
from clear_mlflow.learning.models import get_input_dtype, set_training_mode
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.photos import SampleIndices
from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import (
    Batch,
    Samples,
    compute_batch_bounds,
    draw_order,
    iter_batches,
)
from clear_mlflow.learning.training.costs import CostMeter
from clear_mlflow.learning.training.limits import Limiter
from clear_mlflow.learning.training.observers import (
    FetchedTensor,
    LossCurve,
    PrequentialTests,
    WithinBucketTests,
)

_FUSED_DEVICE = "cuda"  # type of the devices on which one kernel updates all weights
# Smallest scale of the loss in float16: only gradients above 2e9 would overflow at it.
_LEAST_SCALE = 2.0**-15


class Trainer:
    """Trains one model through the stream, in each process of a group.

    Each takes its share of a batch. ``limiter`` may end a bucket or skip batches. ``curve``,
    ``costs``, ``tests`` and ``prequential`` observe steps. Wraps the model for the group at once,
    but builds the optimiser when the first bucket begins.

    Args:
        model: model to train, on its device.
        config: configuration of the run.
        bucket_keys: keys of all buckets, in stream order.
        progress: receives the events of the training.
        group: processes that train together.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        bucket_keys: tuple[str, ...],
        progress: TrainingProgress,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self._model = model
        self._group = group
        self._config = config
        self._bucket_keys = bucket_keys
        self._progress = progress
        self._device = next(model.parameters()).device
        self._dtype = get_input_dtype(model, config.precision)
        # Gradients below 6e-8 are zero in float16: the loss is scaled, and they are scaled back.
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=config.precision == "fp16")
        self.curve = LossCurve(progress, self._device, group=group)
        self.costs = CostMeter(self._device, group)
        self.limiter = Limiter()
        self.tests: WithinBucketTests | None = None
        self.prequential: PrequentialTests | None = None
        # Sorts the order of samples in the first epoch of a bucket.
        self.sort_by_time: Callable[[Tensor, SampleIndices, int], Tensor] | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._has_warned = group.rank > 0  # that images do not fit; one process warns
        self._wrap_model()

    def restart(self, new_model: nn.Module) -> None:
        """Copy the weights of another model, and discard the optimiser."""
        self._model.load_state_dict(new_model.state_dict())
        self._optimizer = None

    def train_bucket(self, samples: Samples, *, bucket_index: int, strategy: Any) -> None:
        """Train on *samples* until epochs or budget are used up.

        Calls the strategy's hooks for epochs, batches and steps. Raises DivergedError if the loss
        is not finite, or if float16 gradients overflow even at the smallest loss scale.
        """
        epochs = strategy.count_epochs(self._config, strategy.arguments)
        config = replace(self._config, epochs=epochs)
        bounds = compute_batch_bounds(len(samples), config.batch_size)
        optimizer = self._begin_bucket(samples, bucket_index, config, bounds)
        costs, curve, limiter, tests = self.costs, self.curve, self.limiter, self.tests
        epoch_losses: deque[tuple[int, FetchedTensor]] = deque()
        for epoch in limiter.iter_epochs():
            # Processes have different images, so each has its own dropout mask.
            ranks = (self._group.rank,) if self._group.size > 1 else ()
            seed_everything(config.seed, RngPurpose.MODEL, bucket_index, epoch, *ranks)
            order = draw_order(len(samples), config.seed, bucket_index, epoch)
            if epoch == 0 and self.sort_by_time is not None:
                indices = samples.list_indices(bucket_index)
                order = self.sort_by_time(order, indices, bucket_index)
                if self.prequential is not None:
                    ordered = indices.take(order.numpy())
                    self.prequential.begin_bucket(bucket_index, ordered, bounds)
            limiter.begin_epoch(order)
            strategy.begin_epoch(bucket_index, epoch, len(bounds))
            batches = iter_batches(
                samples,
                order,
                bounds,
                device=self._device,
                generator=build_generator(
                    config.seed, RngPurpose.AUGMENTATION, bucket_index, epoch
                ),
                group=self._group,
                dtype=self._dtype,
            )
            rehearsal = strategy.load_rehearsal_batches(bucket_index, epoch, len(bounds))
            num_images = 0
            for batch, rehearsed in zip(batches, rehearsal, strict=True):
                if limiter.is_over:
                    break
                if not limiter.take_batch():
                    continue
                self._set_learning_rate(
                    optimizer, compute_learning_rate(config, limiter.schedule_epoch)
                )
                if rehearsed:
                    batch = replace(batch, rehearsed=rehearsed)
                replayed = [part.total for part in rehearsed]
                if epoch == 0 and self.prequential is not None:
                    self.prequential.predict_before_step()
                # The FLOPs of a step depend on these values only.
                shape = (bucket_index > 0, len(self._trained), batch.total, *replayed)
                with costs.count_step(shape) as is_new_shape:
                    forward: Callable[[Tensor], Tensor] = self._wrapped_model
                    if batch.total == bounds[0][1] and not is_new_shape:
                        forward = self._compiled_models[batch.total != config.batch_size]
                    loss = self._take_step(batch, forward, optimizer, strategy)
                num_images += batch.total
                costs.images_in_steps += batch.total + sum(replayed)
                limiter.step_done()
                curve.step_done(loss, batch.total, limiter.done)
                if tests is not None:
                    tests.step_done()
            costs.images += limiter.end_epoch(num_images)
            epoch_losses.append((epoch, curve.end_epoch()))
            # On a GPU, an epoch is checked after the next one: the host need not wait for it.
            if self._device.type == "cpu" or len(epoch_losses) > 1:
                self._check_finite(bucket_index, config, *epoch_losses.popleft())
        for epoch_loss in epoch_losses:
            self._check_finite(bucket_index, config, *epoch_loss)
        if self._scaler.is_enabled() and self._scaler.get_scale() < _LEAST_SCALE:
            raise DivergedError(
                f"gradients on bucket {self._bucket_keys[bucket_index]} are not finite in float16, "
                f"at any scale of the loss; pass a lr below {config.lr}, or precision=bf16"
            )
        curve.end_bucket()

    def _begin_bucket(
        self,
        samples: Samples,
        bucket_index: int,
        config: TrainConfig,
        bounds: list[tuple[int, int]],
    ) -> torch.optim.Optimizer:
        """Prepare model, limiter and observers, and return the optimizer, kept or new."""
        num_steps = self.limiter.begin_steps(samples, bucket_index, bounds, config.epochs)
        if num_steps is not None:
            self._progress.steps_planned(num_steps)
        self.curve.begin_bucket(config.epochs * len(bounds), self.limiter.total)
        if is_other_device(samples.images.device, self._device):
            self._warn_once_about_main_memory(samples, bucket_index)
        if self.tests is not None:
            self.tests.begin_bucket(bucket_index, epochs=config.epochs, epoch_steps=len(bounds))
        if self._optimizer is None or config.optimizer_state == "reset":
            self._optimizer = build_optimizer(self._model, config)
        create_momentum(self._optimizer)
        set_training_mode(self._model, config.freeze)
        if [id(p) for p in self._trained] != [id(p) for p in _list_trained_weights(self._model)]:
            self._wrap_model()
        return self._optimizer

    def _take_step(
        self,
        batch: Batch,
        forward: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        strategy: Any,
    ) -> Tensor:
        """Take one step, and return this process's share of its loss, detached."""
        with autocast(self._device, self._config.precision):
            loss: Tensor = strategy.compute_loss_share(forward, batch)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self._scaler.scale(loss))
        if self._scaler.is_enabled():
            self._unscale_gradients(optimizer)
        strategy.before_step()
        if self._config.clip_norm:
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(weights, self._config.clip_norm)
        # If a gradient overflows, weights and optimiser stay as they are and the scale is halved.
        # For everything else it was a step: the schedule, counts, hooks and the curve.
        self._scaler.step(optimizer)
        self._scaler.update()
        strategy.after_step()
        return loss.detach()

    def _unscale_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients, and set those that are not finite to 0."""
        self._scaler.unscale_(optimizer)
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    # The step is skipped, but strategies sum up gradients: these must be finite.
                    weight.grad.nan_to_num_(0.0, 0.0, 0.0)

    def _set_learning_rate(self, optimizer: torch.optim.Optimizer, lr: float) -> None:
        self.curve.lr = lr
        for group in optimizer.param_groups:
            group["lr"] = lr

    def _check_finite(
        self, bucket_index: int, config: TrainConfig, epoch: int, epoch_loss: FetchedTensor
    ) -> None:
        """Wait for an epoch's loss. Raises DivergedError unless it is finite."""
        if not math.isfinite(epoch_loss.read().item()):
            raise DivergedError(
                f"the loss is no longer a finite number in epoch {epoch + 1} of {config.epochs} on "
                f"bucket {self._bucket_keys[bucket_index]}; pass a lr below {config.lr}"
            )

    def _warn_once_about_main_memory(self, samples: Samples, bucket_index: int) -> None:
        if not self._has_warned:
            warn(
                f"the training images of bucket {self._bucket_keys[bucket_index]} take "
                f"{samples.images.nbytes / 2**30:.2f} GiB, but the device has less than twice as "
                "much free memory; they stay in main memory, and each batch is copied from there"
            )
        self._has_warned = True

    def _wrap_model(self) -> None:
        self._trained = _list_trained_weights(self._model)  # DDP waits for their gradients
        self._wrapped_model = self._group.wrap_ddp(self._model)
        # For full batches, and for those of all images of a bucket, whose sizes differ.
        self._compiled_models: list[Callable[[Tensor], Tensor]] = [self._wrapped_model] * 2
        if self._config.compile != "off":
            self._compiled_models = [
                torch.compile(self._wrapped_model, dynamic=dynamic) for dynamic in (False, None)
            ]

    def state_dict(self) -> dict[str, Any]:
        """Return steps, costs, counts, and states of limiter and kept optimiser."""
        optimizer = self._optimizer if self._config.optimizer_state == "keep" else None
        state: dict[str, Any] = {
            "steps": self.curve.steps,
            "costs": self.costs.state_dict(),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
        }
        if self._scaler.is_enabled():
            state["scaler"] = self._scaler.state_dict()
        if self.prequential is not None:
            state["prequential"] = self.prequential.correct
        return {**state, **self.limiter.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.curve.steps = int(state["steps"])
        self.costs.load_state_dict(state["costs"])
        self.limiter.load_state_dict(state)
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        if self.prequential is not None:
            self.prequential.correct.copy_(state["prequential"])
        if state["optimizer"] is not None:
            self._optimizer = build_optimizer(self._model, self._config)
            load_optimizer_state(self._optimizer, state["optimizer"])


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Build a configuration's optimiser of all weights, frozen ones included."""
    weights = list(model.parameters())
    # One kernel for many weights; on a CPU it would change the last digits.
    fused = {weight.device.type for weight in weights} == {_FUSED_DEVICE} or None
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(weights, lr=lr, weight_decay=decay, fused=fused)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=lr, weight_decay=decay, fused=fused)
    momentum = config.momentum
    return torch.optim.SGD(weights, lr=lr, momentum=momentum, weight_decay=decay, fused=fused)


def create_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Set missing momentum of a fused SGD to zero.

    Torch allocates it uninitialised, and skips the step that fills it if a float16 gradient
    overflows. It also fails if some weights have momentum and others do not.
    """
    for group in optimizer.param_groups:
        if group["fused"] and group.get("momentum"):
            for weight in group["params"]:
                if weight.requires_grad and "momentum_buffer" not in optimizer.state[weight]:
                    optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def _list_trained_weights(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def compute_learning_rate(config: TrainConfig, epoch: int) -> float:
    """Return the learning rate of an epoch by warm-up and schedule.

    epoch: index within the bucket, from 0.
    """
    warmup_epochs = config.warmup_epochs
    if epoch < warmup_epochs:
        return config.lr * (epoch + 1) / warmup_epochs
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "cosine":
        share = (epoch - warmup_epochs) / (config.epochs - warmup_epochs)
        return config.lr * (1 + math.cos(math.pi * share)) / 2
    return config.lr * config.lr_gamma ** ((epoch - warmup_epochs) // config.lr_step)
