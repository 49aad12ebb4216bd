"""Tests within a bucket, which leave training as it would be without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.errors import ConfigError, DivergedError
from clear_mlflow.learning.parameters.values import MOST_TESTS, EvalInterval


class WithinBucketTests:
    """Tests a model at each multiple of an interval within a bucket, except at the bucket's end."""

    def __init__(
        self,
        model: nn.Module,
        interval: EvalInterval,
        *,
        keys: tuple[str, ...],
        num_instances: tuple[int, ...],
        test: Callable[[], Sequence[int] | None],
        on_test: Callable[[AnytimeRow], None],
    ) -> None:
        self._model = model
        self._interval = interval
        self._keys = keys
        self._num_instances = num_instances
        self._test = test
        self._on_test = on_test
        self._bucket_index = -1
        self._step = self._num_steps = self._interval_steps = 0

    @property
    def _num_tests(self) -> int:
        return (self._num_steps - 1) // self._interval_steps

    def begin_bucket(self, bucket_index: int, *, epochs: int, epoch_steps: int) -> None:
        """Start a bucket.

        Raises ConfigError if the strategy already trained in the bucket, if test_every results in
        no test inside the first bucket, or in more tests than a run may store.
        """
        if bucket_index == self._bucket_index:
            raise ConfigError(
                "the strategy trains more than once in one bucket, so test_every does not determine"
                " when to test; pass test_every=off"
            )
        self._bucket_index = bucket_index
        self._step = 0
        self._num_steps = epochs * epoch_steps
        self._interval_steps = self._interval.count_steps(epoch_steps)
        if bucket_index == 0 and self._num_tests == 0:
            raise ConfigError(
                f"test_every is {self._interval}, and bucket {self._keys[0]} takes "
                f"{self._num_steps} steps, after which it is tested in any case: test more often"
            )
        if self._num_tests * len(self._keys) > MOST_TESTS:
            raise ConfigError(
                f"test_every is {self._interval}, which is {self._num_tests:,} tests inside bucket "
                f"{self._keys[bucket_index]}; a run of {len(self._keys)} buckets stores at most "
                f"{MOST_TESTS:,} in all: test less often"
            )

    def step_done(self) -> None:
        """Count an optimiser step, and test the model if it is time."""
        self._step += 1
        if self._step % self._interval_steps or self._step == self._num_steps:
            return
        with _restore_modes(self._model):
            correct = self._test()
        if correct is None:
            raise DivergedError(
                f"after {self._step} of {self._num_steps} steps on bucket "
                f"{self._keys[self._bucket_index]} the model's output is not a finite number; pass "
                "a lower lr"
            )
        self._on_test(
            AnytimeRow(
                bucket=self._bucket_index + 1,
                test=self._step // self._interval_steps,
                num_tests=self._num_tests,
                step=self._step,
                num_steps=self._num_steps,
                buckets=self._keys,
                correct=tuple(correct),
                num_instances=self._num_instances,
            )
        )


@contextmanager
def _restore_modes(model: nn.Module) -> Iterator[None]:
    """Restore each layer's mode and torch's random state, which a custom layer may change."""
    modes = [(layer, layer.training) for layer in model.modules()]
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    for layer, training in modes:
        layer.training = training
