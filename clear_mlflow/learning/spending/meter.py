"""What training costs: FLOPs by the shape of a step, images, seconds, and what a strategy keeps."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from clear_mlflow.core.distributed import processor_name
from clear_mlflow.core.errors import StateError
from clear_mlflow.core.matrix import RowCost
from clear_mlflow.learning.parallel.group import ALONE, ProcessGroup

# What tells the steps of one training apart: the same FLOPs wherever these are the same.
Shape = tuple[int, ...]


_ATTENTION_BACKWARD = {
    operator
    for operator in flop_registry
    if "scaled_dot_product" in str(operator) and "backward" in str(operator)
}


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what passes while it is entered, as torch.utils.flop_counter does; changes nothing.

    That one tracks modules, too, which costs more and leaves hooks; and it counts the gradient of a
    grouped convolution's weight as if there were one group.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        operator = func._overloadpacket
        if operator is torch.ops.aten.convolution_backward:
            gradient, inputs, weight, transposed = args[0], args[1], args[2], args[7]
            moved = (inputs if transposed else gradient).numel() * weight[0].numel()
            self.flops += sum(args[10][:2]) * 2 * moved
        elif operator is torch.ops.aten._native_multi_head_attention:  # where nothing is trained
            (_, tokens, width), rows = args[0].shape, args[0].numel() // args[3]
            self.flops += 8 * rows * width**2 + 4 * rows * tokens * width
        elif operator in _ATTENTION_BACKWARD:
            # What some devices compute again, to save memory, is not part of the training.
            shapes = [tensor.shape for tensor in args[1:4]]
            self.flops += 2 * sdpa_flop_count(*shapes)  # type: ignore[no-untyped-call]
        elif (formula := flop_registry.get(operator)) is not None:
            self.flops += formula(*args, **kwargs, out_val=found)
        return found


class CostMeter:
    """Counts what one training costs, from row to row; each process of a group holds the same."""

    def __init__(self, device: torch.device, group: ProcessGroup = ALONE) -> None:
        self.flops = 0  # of the bucket so far; those of tests are apart
        self.seen = self.images = 0  # images of all steps; those of the bucket among them
        self.flops_of: dict[Shape, int] = {}  # a step's, by its shape, of all processes together
        self._device, self._group = device, group
        self.begin()

    def begin(self) -> None:
        """The training of a bucket begins."""
        self.flops = self.seen = self.images = 0
        self._test_flops, self._test_seconds = 0, 0.0
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._began, self._cpu_began = self._now(), time.process_time()

    @contextmanager
    def step(self, shape: Shape) -> Iterator[None]:
        """The first step of a shape, which all processes take at once."""
        before = self.flops
        with self.counted():
            yield
        self.flops_of[shape] = self.flops - before

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what passes, and add it to the bucket's."""
        with FlopCounter() as counter:
            yield
        total = counter.flops
        if self._group.size > 1:  # of one alone, the host does not wait for its device
            total = int(self._group.add_up(torch.tensor(total, device=self._device)))
        self.flops += total

    def trained(self) -> None:
        """The training of a bucket is done; what follows is its row's test."""
        self._seconds = self._now() - self._began
        own = time.process_time() - self._cpu_began
        if self._device.type == "cuda":
            own = self._seconds
        of_all = torch.tensor(own, device=self._device, dtype=torch.float64)
        self._device_seconds = float(self._group.add_up(of_all))

    @contextmanager
    def test(self) -> Iterator[None]:
        """A test of all buckets, which is no training."""
        began, cpu, flops = self._now(), time.process_time(), self.flops
        with self.counted():
            yield
        self._test_flops += self.flops - flops
        self.flops = flops
        seconds = self._now() - began
        self._test_seconds += seconds
        self._began += seconds
        self._cpu_began += time.process_time() - cpu

    def row(self, model: nn.Module, strategy: Any, *, trained: int) -> RowCost:
        """Return what training since the last row, and the tests, cost."""
        on_gpu = self._device.type == "cuda"
        return RowCost(
            training_flops=self.flops,
            test_flops=self._test_flops,
            images=self.images,
            replayed_images=self.seen - self.images,
            stored_bytes=stored_bytes(strategy, trained - 1),
            trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
            seconds=round(self._seconds, 3),
            device_seconds=round(self._device_seconds, 3),
            test_seconds=round(self._test_seconds, 3),
            peak_bytes=torch.cuda.max_memory_allocated(self._device) if on_gpu else _peak_memory(),
            device=torch.cuda.get_device_name(self._device) if on_gpu else processor_name(),
        )

    def state_dict(self) -> dict[str, Any]:
        """What is known of shapes: a step that is counted again would be another one, compiled."""
        return {"flops_of": dict(self.flops_of)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` gave."""
        self.flops_of = dict(state["flops_of"])

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def stored_bytes(strategy: Any, position: int) -> int | None:
    """What a strategy keeps once a bucket is done: its state, and images; None: not known."""
    try:
        state = strategy.state_dict()
    except StateError:  # one of your own, which cannot be resumed either
        return None
    images: int = strategy.num_kept_images(position)
    return _size(state) + images * int(strategy.stream.image_bytes)


def _size(value: Any) -> int:
    """Bytes of all tensors and arrays in a value, and 8 for each other number."""
    if isinstance(value, (Tensor, np.ndarray)):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return 8 if isinstance(value, (int, float)) else 0


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
