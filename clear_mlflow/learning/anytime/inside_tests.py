"""Tests of a model inside a bucket, which leave its training as it would be without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.errors import ConfigError, DivergedError
from clear_mlflow.learning.anytime.schedule import MOST_TESTS, EvalInterval


class InsideTests:
    """Tests a model at each multiple of an interval inside a bucket; its end is its row's."""

    def __init__(
        self,
        model: nn.Module,
        interval: EvalInterval,
        *,
        keys: tuple[str, ...],
        num_instances: tuple[int, ...],
        test: Callable[[], Sequence[int] | None],
        done: Callable[[AnytimeRow], None],
    ) -> None:
        self._model = model
        self._interval = interval
        self._keys = keys
        self._num_instances = num_instances
        self._test = test
        self._done = done
        self._position = -1
        self._step = self._num_steps = self._every = 0

    def begin(self, position: int, *, epochs: int, steps_an_epoch: int) -> None:
        """A bucket's steps begin."""
        if position == self._position:
            raise ConfigError(
                "the strategy descends more than once in one bucket, so test_every does not say "
                "when to test; pass test_every=off"
            )
        self._position = position
        self._step = 0
        self._num_steps = epochs * steps_an_epoch
        self._every = self._interval.steps(steps_an_epoch)
        num_tests, key = (self._num_steps - 1) // self._every, self._keys[position]
        if position == 0 and num_tests == 0:
            raise ConfigError(
                f"test_every is {self._interval}, and bucket {key} takes {self._num_steps} steps, "
                "after which it is tested in any case: test more often"
            )
        if num_tests * len(self._keys) > MOST_TESTS:
            raise ConfigError(
                f"test_every is {self._interval}, which is {num_tests:,} tests inside bucket {key};"
                f" a run of {len(self._keys)} buckets stores at most {MOST_TESTS:,} in all: test "
                "less often"
            )

    def step_done(self) -> None:
        """An optimiser step is done; test the model if it is time."""
        self._step += 1
        if self._step % self._every or self._step == self._num_steps:
            return
        with _as_it_was(self._model):
            correct = self._test()
        key = self._keys[self._position]
        if correct is None:
            raise DivergedError(
                f"after {self._step} of {self._num_steps} steps on bucket {key} the model's "
                "output is not a finite number; pass a lower lr"
            )
        self._done(
            AnytimeRow(
                bucket=self._position + 1,
                test=self._step // self._every,
                num_tests=(self._num_steps - 1) // self._every,
                step=self._step,
                num_steps=self._num_steps,
                buckets=self._keys,
                correct=tuple(correct),
                num_instances=self._num_instances,
            )
        )


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Give each part its mode back, and torch its random numbers: a layer of your own may draw."""
    modes = [(part, part.training) for part in model.modules()]
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    for part, training in modes:
        part.training = training
