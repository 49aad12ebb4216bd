"""The costs of a training: FLOPs, images, seconds, and the bytes that a strategy keeps."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from clear_mlflow.core.distributed import get_processor_name
from clear_mlflow.core.errors import StateError
from clear_mlflow.core.score import RowCost
from clear_mlflow.learning.process_group import SINGLE_PROCESS, ProcessGroup

# What the FLOPs of a step depend on, within one training.
StepShape = tuple[int, ...]
# Enter it, with the shape of a batch, around the model's forward pass in a test.
CountBatch = Callable[[torch.Size], AbstractContextManager[None]]

_ATTENTION_BACKWARD = {
    operator
    for operator in flop_registry
    if "scaled_dot_product" in str(operator) and "backward" in str(operator)
}


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the FLOPs in its block by torch.utils.flop_counter's formulas.

    torch's own counter also tracks modules, which costs more and leaves hooks, and it counts the
    gradient of a grouped convolution's weight as if there were one group.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        operator = func._overloadpacket
        if operator is torch.ops.aten.convolution_backward:
            gradient, inputs, weight, transposed = args[0], args[1], args[2], args[7]
            products = (inputs if transposed else gradient).numel() * weight[0].numel()
            self.flops += sum(args[10][:2]) * 2 * products
        elif operator is torch.ops.aten._native_multi_head_attention:  # in evaluation mode
            (_, tokens, width), rows = args[0].shape, args[0].numel() // args[3]
            self.flops += 8 * rows * width**2 + 4 * rows * tokens * width
        elif operator in _ATTENTION_BACKWARD:
            # What some devices compute again, to save memory, is not part of the training.
            shapes = [tensor.shape for tensor in args[1:4]]
            self.flops += 2 * sdpa_flop_count(*shapes)  # type: ignore[no-untyped-call]
        elif (formula := flop_registry.get(operator)) is not None:
            self.flops += formula(*args, **kwargs, out_val=output)
        return output


class CostMeter:
    """Counts the costs of training and tests from row to row.

    Each process of a group counts the same.
    """

    def __init__(self, device: torch.device, group: ProcessGroup = SINGLE_PROCESS) -> None:
        self._step_flops: dict[StepShape, int] = {}  # of all processes together
        self._device, self._group = device, group
        self.begin_bucket()

    def begin_bucket(self) -> None:
        """Reset counts, clocks and the GPU's peak memory for a bucket.

        Keeps the FLOPs of each shape of step, which :meth:`count_step` has measured.
        """
        self.flops = 0  # of the bucket so far, without tests
        self.images_in_steps = self.images = 0  # all images in steps; those of the bucket
        self._test_flops, self._test_seconds = 0, 0.0
        self._take_peak_bytes()
        self._peak_bytes = self._first_peak_bytes = 0
        self._repeats_a_step = False
        self._start, self._cpu_start = self._read_clock(), time.process_time()

    @contextmanager
    def count_step(self, shape: StepShape) -> Iterator[bool]:
        """Add a step's FLOPs. Yields True if it measures them.

        It measures only the first step of each shape, and adds that number for every later one.
        All processes take the first step of a shape at once. It must not be compiled.
        """
        if (flops := self._step_flops.get(shape)) is not None:
            self.flops += flops
            self._repeats_a_step = True
            yield False
            return
        before = self.flops
        self._peak_bytes = max(self._peak_bytes, self._take_peak_bytes())
        with self.count():
            yield True
        # In this step, cuDNN's search for algorithms takes memory that no later step needs.
        self._first_peak_bytes = max(self._first_peak_bytes, self._take_peak_bytes())
        self._step_flops[shape] = self.flops - before

    @contextmanager
    def count(self) -> Iterator[None]:
        """Count the block's FLOPs in all processes, for the bucket."""
        with FlopCounter() as counter:
            yield
        self.flops += self._sum_over_processes(counter.flops)

    def end_training(self) -> None:
        """Wait for the device, and store the seconds of a bucket's training.

        Without tests: this process's seconds, and their sum over all processes (of CPU time if the
        device is a CPU).
        """
        self._seconds = self._read_clock() - self._start
        is_cuda = self._device.type == "cuda"
        seconds = self._seconds if is_cuda else time.process_time() - self._cpu_start
        total = torch.tensor(seconds, device=self._device, dtype=torch.float64)
        self._device_seconds = float(self._group.all_reduce(total))

    @contextmanager
    def count_test(self) -> Iterator[CountBatch]:
        """Count the block's FLOPs and seconds as a test, not as training.

        Batches that are entered are counted. The first batch of each shape is measured, and its
        number added for every later one: measuring all took 10 to 65 % of a test.
        """
        start, cpu_start = self._read_clock(), time.process_time()
        measured: dict[torch.Size, int] = {}  # in this test: a head may grow before the next
        total = 0

        @contextmanager
        def count_batch(shape: torch.Size) -> Iterator[None]:
            nonlocal total
            if shape in measured:
                yield
            else:
                with FlopCounter() as counter:
                    yield
                measured[shape] = counter.flops
            total += measured[shape]

        yield count_batch
        self._test_flops += self._sum_over_processes(total)
        seconds = self._read_clock() - start
        self._test_seconds += seconds
        self._start += seconds
        self._cpu_start += time.process_time() - cpu_start

    def build_row_cost(self, model: nn.Module, strategy: Any, *, trained: int) -> RowCost:
        """Return the costs counted since the bucket began, without resetting them.

        trained: number of buckets that are trained. Call :meth:`end_training` first.
        """
        on_gpu = self._device.type == "cuda"
        return RowCost(
            training_flops=self.flops,
            test_flops=self._test_flops,
            images=self.images,
            replayed_images=self.images_in_steps - self.images,
            stored_bytes=count_stored_bytes(strategy, trained - 1),
            trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
            seconds=round(self._seconds, 3),
            device_seconds=round(self._device_seconds, 3),
            test_seconds=round(self._test_seconds, 3),
            peak_bytes=max(
                self._peak_bytes,
                self._take_peak_bytes(),
                0 if self._repeats_a_step else self._first_peak_bytes,
            ),
            device=torch.cuda.get_device_name(self._device) if on_gpu else get_processor_name(),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the FLOPs of each shape of step, but no counts.

        A resumed run would otherwise measure a step again, which would then not be compiled.
        """
        return {"flops_of": dict(self._step_flops)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self._step_flops = dict(state["flops_of"])

    def _sum_over_processes(self, number: int) -> int:
        if self._group.size == 1:  # the host need not wait for its device
            return number
        return int(self._group.all_reduce(torch.tensor(number, device=self._device)))

    def _take_peak_bytes(self) -> int:
        """Return and reset the GPU's peak memory, or return this process's."""
        if self._device.type != "cuda":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return peak if sys.platform == "darwin" else peak * 1024
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return peak

    def _read_clock(self) -> float:
        """Wait for the device, and return the time in seconds."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def count_stored_bytes(strategy: Any, bucket_index: int) -> int | None:
    """Return the bytes of a strategy's state and images, None if unknown.

    Returns None if a custom strategy's ``state_dict`` raises StateError.
    """
    try:
        state = strategy.state_dict()
    except StateError:  # a custom strategy, which cannot be resumed either
        return None
    images: int = strategy.count_stored_images(bucket_index)
    return _count_bytes(state) + images * int(strategy.stream.image_bytes)


def _count_bytes(value: Any) -> int:
    if isinstance(value, (Tensor, np.ndarray)):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_count_bytes, value))
    return 8 if isinstance(value, (int, float)) else 0
