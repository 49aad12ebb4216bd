"""Gradient descent on one bucket after another: the optimiser, its schedule, and the steps."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clear_mlflow.core.errors import DivergedError
from clear_mlflow.core.text import warn
from clear_mlflow.learning.anytime.inside_tests import InsideTests
from clear_mlflow.learning.device import (
    RngPurpose,
    autocast,
    is_other_device,
    record_event,
    seed_everything,
)
from clear_mlflow.learning.measured import CurvePoint
from clear_mlflow.learning.models import input_dtype, set_training_mode
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples.decoded import Batch, Samples, batch_bounds, training_batches
from clear_mlflow.learning.spending.budget import Budget
from clear_mlflow.learning.spending.meter import CostMeter
from clear_mlflow.learning.spending.passing import Passing

# Of one bucket. A chart has some hundred pixels for all of them, and a store takes as long for one
# point as a linear head does for a step.
MOST_POINTS = 100
_FEWEST_POINTS = 10
_STEPS_A_POINT = 10
# Of a loss in float16: with a lesser one gradients would have to be above 2e9 not to fit.
_LEAST_SCALE = 2.0**-15


class GradientDescent:
    """Trains one model through the stream, each process of a group on its share of a batch."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        keys: tuple[str, ...],
        progress: TrainingProgress,
        group: ProcessGroup = ALONE,
    ) -> None:
        self._model = model
        self._group = group
        self._config = config
        self._keys = keys
        self._device = next(model.parameters()).device
        self._dtype = input_dtype(model, config.precision)
        # Gradients below 6e-8 are zero in float16: the loss is scaled, and they are scaled back.
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=config.precision == "fp16")
        self.curve = LossCurve(progress, self._device, group=group)
        self.costs = CostMeter(self._device, group)
        self.budget: Budget | None = None  # of each bucket; None: so many epochs
        self.passing: Passing | None = None  # None: the stream waits for each step
        self.tests: InsideTests | None = None  # that are due inside a bucket
        self._optimizer: torch.optim.Optimizer | None = None
        self._said_apart = group.rank > 0  # that images do not fit: once, by one process
        self._learning: list[nn.Parameter] = []  # whose gradients forward's spreading awaits
        self._plain, self._of_full = self._spread()

    def restart(self, fresh: nn.Module) -> None:
        """Continue with other weights, as if nothing had been learned: no optimiser state stays."""
        self._model.load_state_dict(fresh.state_dict())
        self._optimizer = None

    def state_dict(self) -> dict[str, Any]:
        """Steps, costs, and the optimiser's state by its weights' names where it stays."""
        kept = None
        if self._optimizer is not None and self._config.optimizer_state == "keep":
            known = {id(weight): name for name, weight in self._model.named_parameters()}
            kept = {
                known[id(p)]: dict(self._optimizer.state.get(p, {}))
                for group in self._optimizer.param_groups
                for p in group["params"]
            }
        costs = self.costs.state_dict()
        budget = None if self.budget is None else self.budget.state_dict()
        found = {"steps": self.curve.steps, "costs": costs, "budget": budget}
        if self.passing is not None:
            found["passing"] = self.passing.state_dict()
        if self._scaler.is_enabled():
            found["scaler"] = self._scaler.state_dict()
        return {**found, "optimizer": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; counts of steps lie where the optimiser reads them, so that none waits."""
        self.curve.steps = int(state["steps"])
        self.costs.load_state_dict(state["costs"])
        if self.budget is not None:
            self.budget.load_state_dict(state["budget"])
        if self.passing is not None:
            self.passing.load_state_dict(state["passing"])
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        if (kept := state["optimizer"]) is not None:
            known = dict(self._model.named_parameters())
            self._optimizer = _optimizer_of([known[name] for name in kept], self._config)
            fresh = self._optimizer.state_dict()
            fresh["state"] = {
                n: of_weight for n, of_weight in enumerate(kept.values()) if of_weight
            }
            self._optimizer.load_state_dict(fresh)

    def run(self, samples: Samples, *, position: int, hooks: Any) -> None:
        """Train on *samples* while a bucket lasts, with a new schedule; hooks: a Strategy."""
        epochs = hooks.epochs(self._config, hooks.arguments)
        config = replace(self._config, epochs=epochs)
        bounds = batch_bounds(len(samples), config.batch_size)
        curve, tests, costs, budget = self.curve, self.tests, self.costs, self.budget
        passing = self.passing
        curve.begin(config.epochs * len(bounds), None if budget is None else budget.limit)
        if is_other_device(samples.images.device, self._device):
            self._say_apart(samples, position)
        if tests is not None:
            tests.begin(position, epochs=config.epochs, steps_an_epoch=len(bounds))
        if passing is not None:
            passing.begin(samples, position, bounds)
        if self._optimizer is None or config.optimizer_state == "reset":
            self._optimizer = build_optimizer(self._model, config)
        optimizer = self._optimizer
        set_training_mode(self._model, config.freeze)
        if [id(p) for p in self._learning] != [id(p) for p in _learning(self._model)]:
            self._plain, self._of_full = self._spread()
        full = bounds[0][1] - bounds[0][0]
        sums: deque[tuple[int, _Fetched]] = deque()  # of losses, by epoch
        for epoch in itertools.count() if budget else range(config.epochs):
            if budget is None:
                self._set_learning_rate(optimizer, config, epoch)
            # Processes have different images, which dropout is to treat differently.
            others = (self._group.rank,) if self._group.size > 1 else ()
            seed_everything(config.seed, RngPurpose.MODEL, position, epoch, *others)
            hooks.begin_epoch(position, epoch, len(bounds))
            shares = self._batches(samples, position, epoch)
            rehearsal = hooks.rehearsal(position, epoch, len(bounds))
            chosen, is_over = [], False
            # Both come to their end here: what draws from a buffer keeps its images until then.
            for share, rehearsed in zip(shares, rehearsal, strict=True):
                if passing is not None and not passing.takes():
                    continue
                batch = replace(share, rehearsed=rehearsed) if rehearsed else share
                replayed = [part.total for part in rehearsed]
                shape = (position > 0, len(self._learning), batch.total, *replayed)
                if budget is not None:
                    if budget.is_spent:
                        is_over = True
                        break
                    chosen.append(batch.chosen)
                    self._set_learning_rate(optimizer, config, budget.epoch(config.epochs))
                flops = costs.flops_of.get(shape)
                if flops is None:
                    with costs.step(shape):  # of the model as it is, and not compiled
                        loss = self._step(batch, self._plain, optimizer, hooks)
                else:
                    costs.flops += flops
                    forward = self._of_full if batch.total == full else self._plain
                    loss = self._step(batch, forward, optimizer, hooks)
                costs.seen += batch.total + sum(replayed)
                curve.step_done(loss, batch.total, None if budget is None else budget.spent)
                if tests is not None:
                    tests.step_done()
            if passing is not None:
                costs.images += passing.passed()
            else:
                costs.images += self._num_new(samples, position, chosen if is_over else None)
            sums.append((epoch, curve.end_epoch()))
            # A GPU's after the next epoch, when they are there: the host is not to wait for it.
            if self._device.type == "cpu" or len(sums) > 1:
                self._check_finite(position, config, *sums.popleft())
            if is_over:
                break
        for last in sums:
            self._check_finite(position, config, *last)
        if self._scaler.is_enabled() and self._scaler.get_scale() < _LEAST_SCALE:
            raise DivergedError(
                f"gradients on bucket {self._keys[position]} are no finite numbers in float16, "
                f"however the loss is scaled; pass a lr below {config.lr}, or precision=bf16"
            )
        curve.end()

    def _set_learning_rate(self, optimizer: Any, config: TrainConfig, epoch: int) -> None:
        """Set the rate of the steps that follow, and record it for the curve."""
        self.curve.lr = learning_rate(config, epoch)
        for group in optimizer.param_groups:
            group["lr"] = self.curve.lr

    def _say_apart(self, samples: Samples, position: int) -> None:
        """Say of the first bucket that does not fit the device what is done with it."""
        if not self._said_apart:
            warn(
                f"what bucket {self._keys[position]} is trained on takes "
                f"{samples.images.nbytes / 2**30:.2f} GiB, and the device has not twice as much "
                "free: it stays in main memory, from where each batch is sent"
            )
        self._said_apart = True

    def _check_finite(self, position: int, config: TrainConfig, epoch: int, sums: _Fetched) -> None:
        """Raise DivergedError unless the sum of an epoch's losses is finite."""
        if not math.isfinite(sums.read().item()):
            raise DivergedError(
                f"the loss is no longer a finite number in epoch {epoch + 1} of {config.epochs} on "
                f"bucket {self._keys[position]}; pass a lr below {config.lr}"
            )

    def _num_new(self, samples: Samples, position: int, chosen: Sequence[Tensor] | None) -> int:
        """How many are of the bucket itself: of all, or of those that this process chose."""
        is_new = torch.ones(len(samples), dtype=torch.bool)
        if samples.indices is not None:
            is_new = torch.from_numpy(samples.indices.bucket == position)
        if chosen is None:
            return int(is_new.sum())
        number = sum(int(is_new[part.cpu()].sum()) for part in chosen)
        return int(self._group.add_up(torch.tensor(number, device=self._device)))

    def _step(
        self,
        batch: Batch,
        forward: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        hooks: Any,
    ) -> Tensor:
        """One step; gives its loss."""
        with autocast(self._device, self._config.precision):
            loss: Tensor = hooks.share_of_loss(forward, batch)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self._scaler.scale(loss))
        if self._scaler.is_enabled():
            self._scale_back(optimizer)
        hooks.before_step()
        if self._config.clip_norm:
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(weights, self._config.clip_norm)
        # Where a gradient has overflowed, weights and optimiser stay as they are and the next scale
        # is half of this one. To all else it was a step: the schedule, counts, hooks and the curve.
        self._scaler.step(optimizer)
        self._scaler.update()
        hooks.after_step()
        return loss.detach()

    def _scale_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the gradients those of the loss itself; the scaler notes whether all are finite."""
        self._scaler.unscale_(optimizer)
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    # Of a step that is not taken: what a strategy adds up has to stay finite.
                    weight.grad.nan_to_num_(0.0, 0.0, 0.0)

    def _batches(self, samples: Samples, position: int, epoch: int) -> Iterator[Batch]:
        """An epoch's, of this process."""
        config = self._config
        return training_batches(
            samples,
            batch_size=config.batch_size,
            device=self._device,
            seed=config.seed,
            position=position,
            epoch=epoch,
            group=self._group,
            dtype=self._dtype,
        )

    def _spread(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """The model for any batch, and for full ones, which alone are compiled: one size."""
        self._learning = _learning(self._model)
        spread = self._group.spread(self._model)
        if self._config.compile == "off":
            return spread, spread
        return spread, torch.compile(spread, dynamic=False)


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimiser that a configuration names, over the weights that it trains."""
    return _optimizer_of(_learning(model), config)


def _learning(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _optimizer_of(weights: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    # One kernel for many weights; on a CPU it would change the last digits.
    fused = {weight.device.type for weight in weights} == {"cuda"} or None
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(weights, lr=lr, weight_decay=decay, fused=fused)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=lr, weight_decay=decay, fused=fused)
    momentum = config.momentum
    return torch.optim.SGD(weights, lr=lr, momentum=momentum, weight_decay=decay, fused=fused)


def learning_rate(config: TrainConfig, epoch: int) -> float:
    """The rate of an epoch, from 0: warm-up rises to ``lr``, cosine falls from it towards 0."""
    warm = config.warmup_epochs
    if epoch < warm:
        return config.lr * (epoch + 1) / warm
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "cosine":
        done = (epoch - warm) / (config.epochs - warm)
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    return config.lr * config.lr_gamma ** ((epoch - warm) // config.lr_step)


def num_points(num_steps: int) -> int:
    """How many points the curve of a bucket has: one for ten steps, from ten points to a hundred.

    >>> [num_points(steps) for steps in (3, 70, 500, 1_000_000)]
    [3, 10, 50, 100]
    """
    return min(num_steps, max(_FEWEST_POINTS, min(num_steps // _STEPS_A_POINT, MOST_POINTS)))


class _Fetched:
    """Numbers on their way from a device to the host, which waits for it only to read them."""

    def __init__(self, numbers: Tensor) -> None:
        self._here = numbers.to("cpu", non_blocking=True)
        self.sent = record_event(numbers.device)

    def read(self) -> Tensor:
        self.sent.synchronize()
        return self._here


class LossCurve:
    """Means of the loss over windows of steps, read once a window."""

    def __init__(
        self,
        progress: TrainingProgress,
        device: torch.device,
        *,
        group: ProcessGroup = ALONE,
    ) -> None:
        self._progress = progress
        self._group = group
        self.steps = 0  # since the training began, over all buckets
        self._window = torch.zeros((), device=device)  # sums of losses
        self._epoch = torch.zeros((), device=device)
        self._ends: deque[int] = deque()  # of windows, in steps of the bucket, or of its budget
        self._first = self._start = 0
        self._images = 0
        # Windows that have ended: mean loss, last step, its rate, and images.
        self._coming: deque[tuple[_Fetched, int, float, int]] = deque()
        self._began = record_event(device)
        self.lr = math.nan  # of the steps that follow

    def begin(self, num_steps: int, budget: int | None = None) -> None:
        """A bucket of *num_steps* steps begins; about so many, where a budget ends it."""
        if budget is None:
            self._progress.steps_planned(num_steps)
        points, total = num_points(num_steps), num_steps if budget is None else budget
        self._ends = deque(total * (i + 1) // points for i in range(points))
        self._first = self.steps
        self._began = record_event(self._window.device)
        self._open_window()

    def step_done(self, loss: Tensor, images: int, spent: int | None = None) -> None:
        """A step was issued, of so many of the bucket's images; *spent*: of its budget."""
        self._window += loss
        self._epoch += loss
        self._images += images
        self.steps += 1
        self._progress.step_done()
        done, is_end = self.steps - self._first if spent is None else spent, False
        while self._ends and self._ends[0] <= done:
            self._ends.popleft()
            is_end = True
        if is_end:
            self._end_window()
        self._report()

    def end(self) -> None:
        """The bucket's last step is done; under a budget it may lie inside a window."""
        if self.steps > self._start:
            self._end_window()
        self._report(wait=True)

    def end_epoch(self) -> _Fetched:
        """Return and reset the sum of the losses in this epoch, over all processes."""
        sums = _Fetched(self._group.add_up(self._epoch.clone()))
        self._epoch.zero_()
        return sums

    def _open_window(self) -> None:
        self._window.zero_()
        self._start, self._images = self.steps, 0

    def _end_window(self) -> None:
        steps = self.steps - self._start
        mean = self._group.add_up(self._window / (steps * self._group.size))
        self._coming.append((_Fetched(mean), self.steps, self.lr, self._images))
        self._open_window()

    def _report(self, *, wait: bool = False) -> None:
        """Hand over the points that the device has come to."""
        while self._coming and (wait or self._coming[0][0].sent.query()):
            mean, step, lr, images = self._coming.popleft()
            loss = mean.read().item()
            seconds = self._began.elapsed_time(mean.sent) / 1000
            self._began = mean.sent
            self._progress.curve_measured(
                CurvePoint(
                    step=step,
                    loss=loss,
                    lr=lr,
                    images_per_second=images / seconds if seconds else math.nan,
                    time=round(time.time() * 1000),
                )
            )
