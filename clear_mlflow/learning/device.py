"""Where the arithmetic runs, and where its randomness comes from."""

from __future__ import annotations

import contextlib
import enum
import random
import shutil
import sysconfig
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clear_mlflow.core.errors import ConfigError, TrainingError
from clear_mlflow.learning.parameters.recipes import AUTO

# Of a device's free memory, what images or features may take: activations need the rest.
_SHARE_FOR_SAMPLES = 0.5

# Texts by which torch reports that memory ran out where it raises a plain RuntimeError: on a CPU,
# where the driver and not torch was asked, and from within CUDA's libraries.
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # its workspace is the first thing that it asks for
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "'out of memory'",  # NCCL quotes the driver: Cuda failure 2 'out of memory'
)

_VOLTA, _AMPERE = (7, 0), (8, 0)  # compute capability

# On CLEAR-10, 6,500 steps: where each is 10 ms shorter, they pay for the minute that it takes.
_EPOCHS_TO_COMPILE = 50


class RngPurpose(enum.IntEnum):
    """What a random stream is for; each purpose draws from a stream of its own."""

    WEIGHTS = 0
    ORDER = 1
    AUGMENTATION = 2
    MODEL = 3  # what layers draw by themselves while training: dropout, stochastic depth
    BUFFER = 4
    FISHER = 5  # the images and labels that a strategy measures its weights' importance on
    MEMORY = 6  # the order in which a step's batches are taken from a buffer


def resolve_device(asked: str) -> str:
    """``cpu`` or ``cuda``; ``auto`` is cuda where torch sees one."""
    present = torch.cuda.is_available()
    if asked == AUTO:
        return "cuda" if present else "cpu"
    if asked == "cuda" and not present:
        raise ConfigError(
            "device is cuda, but torch finds no usable CUDA device here; pass device=auto or "
            "device=cpu, or check the driver and CUDA_VISIBLE_DEVICES"
        )
    return asked


def resolve_precision(asked: str, device: str) -> str:
    """``off`` (float32), or what was asked for; ``auto`` is bf16 where there are instructions."""
    if asked == "tf32" and (device == "cpu" or torch.cuda.get_device_capability() < _AMPERE):
        raise ConfigError(
            "precision is tf32, which GPUs from Ampere on compute in and this device does not; "
            "pass precision=off"
        )
    if device == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        if asked == "bf16" and not native:
            raise ConfigError(
                "precision is bf16, which this GPU does not compute in; pass precision=fp16 or off"
            )
    else:
        # AVX-512 alone emulates it, more slowly than float32.
        native = bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    if asked == AUTO:
        return "bf16" if native else "off"
    return asked


def resolve_compile(asked: str, device: str, epochs: int, *, on_images: bool) -> str:
    """``on`` or ``off``; ``auto`` is on where many epochs of images pay for it on a GPU."""
    if asked != AUTO:
        return asked
    compilers = map(shutil.which, ("cc", "gcc", "clang"))
    able = device == "cuda" and find_spec("triton") is not None and any(compilers)
    # Triton builds against Python's headers, and knows GPUs from Volta on.
    able = able and Path(sysconfig.get_path("include"), "Python.h").is_file()
    able = able and torch.cuda.get_device_capability() >= _VOLTA
    return "on" if able and on_images and epochs >= _EPOCHS_TO_COMPILE else "off"


def compute_dtype(precision: str) -> torch.dtype:
    """What a convolution computes in, as :func:`resolve_precision` named it."""
    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return halves.get(precision, torch.float32)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """What a forward pass runs in."""
    dtype = compute_dtype(precision)
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


@contextlib.contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Let GPUs round what they multiply to TF32's ten bits, or forbid it; afterwards as before."""
    backends: Any = torch.backends
    cudnn, mkldnn, matmul = backends.cudnn, backends.mkldnn, backends.cuda.matmul
    # The newer settings (torch 2.9), from the top down: each that is "none" is what the one above
    # it is. So all are read before one is changed.
    settings: tuple[Any, ...] = ()
    if hasattr(cudnn, "conv"):
        settings = (backends, cudnn, mkldnn)
        settings += (matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    effective = [setting.fp32_precision for setting in settings]
    own = []
    for setting in settings:
        own.append(setting.fp32_precision)
        setting.fp32_precision = "none"
    # The older ones, which torch does not tell where a newer one says otherwise: "none" now.
    multiplications = torch.get_float32_matmul_precision()
    try:
        convolutions = cudnn.allow_tf32
    except RuntimeError:
        convolutions = True
    try:
        cudnn.allow_tf32 = allowed
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        for setting in settings[3:]:
            setting.fp32_precision = "tf32" if allowed else "ieee"
        yield
    finally:
        cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(multiplications)
        for setting, precision, meant in zip(settings, own, effective, strict=True):
            setting.fp32_precision = precision  # in 2.15 that of mkldnn sets the first one, too
            if setting.fp32_precision != meant:
                # Of convolutions: torch's own default reads as tf32, inherits, and cannot be set.
                setting.fp32_precision = "none" if precision == "tf32" else meant


@contextlib.contextmanager
def fixed_sizes() -> Iterator[None]:
    """Have cuDNN find and keep its fastest algorithm for each size; afterwards as before."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def storage_device(num_bytes: int, device: torch.device) -> torch.device:
    """Where samples of a size stay: on the device if they fit well there, else in main memory."""
    if device.type == "cuda" and num_bytes <= _SHARE_FOR_SAMPLES * free_memory(device):
        return device
    return torch.device("cpu")


def free_memory(device: torch.device) -> int:
    """Bytes that a GPU has for further tensors."""
    free, _ = torch.cuda.mem_get_info(device)
    # What torch keeps of tensors that are gone is free to the next tensor, if not to others.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def is_apart(home: torch.device, device: torch.device) -> bool:
    """Whether what lies at *home* has to be sent to compute with it."""
    return home.type != device.type  # "cuda" is "cuda:0", too


def uploaded(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers of the host on a device, without waiting for what it is at."""
    if device.type != "cpu":
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)


class _Now:
    """What torch.cuda.Event is of a GPU, of a CPU, which is never behind."""

    def record(self) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return

    def elapsed_time(self, later: _Now) -> float:
        return 1000 * (later._at - self._at)


def reached(device: torch.device) -> Any:
    """An event: that a device has done what it was asked for until now."""
    make: Any = torch.cuda.Event
    event = make(enable_timing=True) if device.type == "cuda" else _Now()
    event.record()
    return event


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error of torch means that there was no memory for what it was to compute."""
    known = isinstance(error, torch.OutOfMemoryError)
    return known or any(mark in str(error) for mark in _OUT_OF_MEMORY)


@contextlib.contextmanager
def translate_oom(advice: str) -> Iterator[None]:
    """Turn torch's many ways to run out of memory into one line, which ends with the advice."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"the device has no room for this; {advice}") from None
    except MemoryError:
        raise TrainingError(f"this machine has not enough memory for this; {advice}") from None


def derive_seed(seed: int, purpose: RngPurpose, *where: int) -> int:
    """A seed in [0, 2**63) for one purpose, at a bucket's position and epoch if they apply."""
    # Of these alone: neither testing more often nor stopping and resuming changes what is drawn.
    # Streams of different spawn keys are independent for all that is known.
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *where))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int, purpose: RngPurpose, *where: int) -> torch.Generator:
    """A CPU generator of its own for one purpose; see :func:`derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *where))


def seed_everything(seed: int, purpose: RngPurpose, *where: int) -> None:
    """Seed the process-wide generators, which layers and initialisers draw from."""
    derived = derive_seed(seed, purpose, *where)
    random.seed(derived)
    np.random.seed(derived % 2**32)
    torch.manual_seed(derived)
