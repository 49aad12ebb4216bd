"""Devices, precision and memory of the arithmetic, and its random seeds."""

from __future__ import annotations

import contextlib
import enum
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clear_mlflow.core.errors import ConfigError, TrainingError
from clear_mlflow.learning.parameters.recipes import AUTO

# Share of a device's free memory for images or features; activations need the rest.
_SHARE_FOR_SAMPLES = 0.5

# Parts of torch's messages if memory ran out and it raises a plain RuntimeError: on a CPU, from the
# driver and NCCL, which quotes it, and from CUDA's libraries, which need memory for their handles
# and workspaces.
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator",
    "out of memory",
    "ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "_STATUS_NOT_INITIALIZED",
    "cusolverDnCreate",
    # cuDNN skips every algorithm whose workspace does not fit.
    "unable to find an engine to execute this computation",
    "Unable to find a valid cuDNN algorithm",
)

_AMPERE = (8, 0)  # compute capability


class RngPurpose(enum.IntEnum):
    """Purpose of random numbers; each purpose has its own generator."""

    WEIGHTS = 0
    ORDER = 1
    AUGMENTATION = 2
    MODEL = 3  # layers during training: dropout, stochastic depth
    BUFFER = 4
    FISHER = 5  # the images and labels for the importance of weights
    MEMORY = 6  # the order of a buffer's images in the batches of steps


def resolve_device(requested: str) -> str:
    """Return ``cpu`` or ``cuda``, or raise ConfigError if it is unavailable.

    ``auto`` is cuda if torch can use it.
    """
    is_available = torch.cuda.is_available()
    if requested == AUTO:
        return "cuda" if is_available else "cpu"
    if requested == "cuda" and not is_available:
        raise ConfigError(
            "device is cuda, but torch finds no usable CUDA device here; pass device=auto or "
            "device=cpu, or check the driver and CUDA_VISIBLE_DEVICES",
            parameter="device",
        )
    return requested


def resolve_precision(requested: str, device: str) -> str:
    """Return the precision, or raise ConfigError if the device lacks it.

    ``auto`` is bf16 on a GPU with bf16 and on a CPU with AMX, else ``off``. Only GPUs since Ampere
    have tf32. device: ``cpu`` or ``cuda``.
    """
    if requested == "tf32" and (device == "cpu" or torch.cuda.get_device_capability() < _AMPERE):
        raise ConfigError(
            "precision is tf32, which only GPUs since Ampere support; pass precision=off",
            parameter="precision",
        )
    if device == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if requested == "bf16" and not has_bf16:
            raise ConfigError(
                "precision is bf16, which this GPU does not support; pass precision=fp16 or off",
                parameter="precision",
            )
    else:
        # Without AMX, training in bf16 was slower than in float32, even with AVX512-BF16.
        has_bf16 = torch.cpu._is_amx_tile_supported()
    if requested == AUTO:
        return "bf16" if has_bf16 else "off"
    return requested


def get_convolution_dtype(precision: str) -> torch.dtype:
    """Return bfloat16 for ``bf16``, float16 for ``fp16``, else float32."""
    half_dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return half_dtypes.get(precision, torch.float32)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """Return torch's autocast for ``bf16`` or ``fp16``, else an empty context."""
    dtype = get_convolution_dtype(precision)
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


@contextlib.contextmanager
def allow_tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 within the block, which rounds to ten bits."""
    backends: Any = torch.backends
    cudnn, mkldnn, matmul = backends.cudnn, backends.mkldnn, backends.cuda.matmul
    # The newer switches (torch 2.9), from the top down: "none" inherits from the switch above. All
    # are therefore read before one is changed.
    switches: tuple[Any, ...] = ()
    if hasattr(cudnn, "conv"):
        switches = (backends, cudnn, mkldnn)
        switches += (matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    effective_values = [switch.fp32_precision for switch in switches]
    values = []
    for switch in switches:
        values.append(switch.fp32_precision)
        switch.fp32_precision = "none"
    # The older switches, which torch cannot report while a newer one contradicts: now none does.
    matmul_precision = torch.get_float32_matmul_precision()
    try:
        cudnn_allows_tf32 = cudnn.allow_tf32
    except RuntimeError:
        cudnn_allows_tf32 = True
    try:
        cudnn.allow_tf32 = allowed
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        for switch in switches[3:]:
            switch.fp32_precision = "tf32" if allowed else "ieee"
        yield
    finally:
        cudnn.allow_tf32 = cudnn_allows_tf32
        torch.set_float32_matmul_precision(matmul_precision)
        for switch, value, effective in zip(switches, values, effective_values, strict=True):
            switch.fp32_precision = value  # in torch 2.15, mkldnn's also sets the first one
            if switch.fp32_precision != effective:
                # The default for convolutions reads as tf32, inherits, and cannot be set.
                switch.fp32_precision = "none" if value == "tf32" else effective


@contextlib.contextmanager
def cudnn_benchmark(allowed: bool = True) -> Iterator[None]:
    """Let cuDNN search its fastest algorithms within the block, or forbid it."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, allowed
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def select_storage_device(num_bytes: int, device: torch.device) -> torch.device:
    """Return *device* if it is a GPU with room, else the CPU.

    Room is twice as much free memory.

    num_bytes: size of the samples to store.
    """
    if device.type == "cuda" and num_bytes <= _SHARE_FOR_SAMPLES * count_free_bytes(device):
        return device
    return torch.device("cpu")


def count_free_bytes(device: torch.device) -> int:
    """Return the number of bytes for further tensors on a GPU."""
    free, _ = torch.cuda.mem_get_info(device)
    # Memory that torch has reserved but not allocated is free for its next tensors.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def is_other_device(home: torch.device, device: torch.device) -> bool:
    """Return True if tensors on *home* must be copied to *device*.

    Compares only the types, so all GPUs are the same.
    """
    return home.type != device.type  # "cuda" and "cuda:0" are the same


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a GPU, without waiting for it.

    Returns it unchanged for the CPU.
    """
    if device.type != "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class _CpuEvent:
    """A torch.cuda.Event for the CPU, on which recorded work is always done."""

    def record(self) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return

    def elapsed_time(self, later: _CpuEvent) -> float:
        return 1000 * (later._at - self._at)


def record_event(device: torch.device) -> Any:
    """Record an event after all work that a device has queued.

    It is a torch.cuda.Event, or for the CPU an object with the same methods that has already
    occurred.
    """
    event_class: Any = torch.cuda.Event
    event = event_class(enable_timing=True) if device.type == "cuda" else _CpuEvent()
    event.record()
    return event


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state, even from another type of device.

    Whether the optimizer is fused, and the device of its counters, stay as they are.
    """
    groups = [
        saved | {name: group[name] for name in ("fused", "capturable") if name in group}
        for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})


def is_memory_error(error: RuntimeError) -> bool:
    """Return True if an error of torch means that memory ran out."""
    is_declared = isinstance(error, torch.OutOfMemoryError)
    return is_declared or any(text in str(error) for text in _OUT_OF_MEMORY)


@contextlib.contextmanager
def translate_oom(advice: str) -> Iterator[None]:
    """Turn torch's out-of-memory errors into a TrainingError with advice."""
    try:
        yield
    except RuntimeError as error:
        if not is_memory_error(error):
            raise
        raise TrainingError(f"the device has not enough memory for this; {advice}") from None
    except MemoryError:
        raise TrainingError(f"this machine has not enough memory for this; {advice}") from None


def derive_seed(seed: int, purpose: RngPurpose, *indices: int) -> int:
    """Derive a seed in [0, 2**63) from these numbers only.

    A resumed run so has the same seeds.

    indices: for example of the bucket, the epoch and the process, if they apply.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *indices))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def build_generator(seed: int, purpose: RngPurpose, *indices: int) -> torch.Generator:
    """Return a CPU generator for one purpose, seeded by :func:`derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *indices))


def seed_everything(seed: int, purpose: RngPurpose, *indices: int) -> None:
    """Seed the global generators of random, numpy and torch by :func:`derive_seed`."""
    derived = derive_seed(seed, purpose, *indices)
    random.seed(derived)
    np.random.seed(derived % 2**32)
    torch.manual_seed(derived)
