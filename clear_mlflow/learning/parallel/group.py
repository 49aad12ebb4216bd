"""The processes that train one model, each on its share of every batch."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from clear_mlflow.core.distributed import DistributedEnv
from clear_mlflow.core.errors import ConfigError, PeerLostError
from clear_mlflow.learning.parallel.batch_norm import SynchronizedBatchNorm

# How long a process waits for another that lives and says nothing. It covers what the first may
# rightly do meanwhile: read the dataset on a slower disk, store a row on a slow server. One that
# dies is noticed at once.
WAIT = timedelta(minutes=10)

# Texts by which gloo reports that it has lost another process, where torch raises a plain
# RuntimeError.
_PEER_GONE = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
)


@dataclass(frozen=True)
class ProcessGroup:
    """This process is number *rank* of *size*. With one process, every method does nothing."""

    rank: int = 0
    size: int = 1

    def share(self, start: int, stop: int) -> tuple[int, int]:
        """Return this process's part of a range.

        The sizes of the parts differ by at most one, and some may be empty.

        >>> [ProcessGroup(rank, 3).share(10, 17) for rank in range(3)]
        [(10, 12), (12, 14), (14, 17)]
        """
        count = stop - start
        return start + count * self.rank // self.size, start + count * (self.rank + 1) // self.size

    def all_reduce(self, numbers: Tensor) -> Tensor:
        """Replace *numbers* by their sum over all processes, and return them."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def all_gather(self, part: Tensor, start: int, total: int) -> Tensor:
        """Return the rows of all processes, (total, ...), in each process.

        part: this process's rows, (n, ...), which begin at *start*.
        """
        if self.size == 1:
            return part
        rows = part.new_zeros((total, *part.shape[1:]))
        rows[start : start + len(part)] = part
        return self.all_reduce(rows)  # each place has one term that may not be 0: exact

    def broadcast(self, content: bytes | None) -> bytes | None:
        """Return the first process's *content* in all processes. That of the others is ignored."""
        if self.size == 1:
            return content
        where = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
        own_content = content if self.rank == 0 else None
        length = torch.tensor(-1 if own_content is None else len(own_content), device=where)
        dist.broadcast(length, 0)
        if length.item() < 0:
            return None
        received = torch.empty(int(length.item()), dtype=torch.uint8, device=where)
        if own_content is not None:
            received.copy_(torch.frombuffer(bytearray(own_content), dtype=torch.uint8))
        dist.broadcast(received, 0)
        return received.cpu().numpy().tobytes()

    def weight(self, part: int, whole: int) -> float:
        """Return the weight of a mean over *part* images in the mean over the *whole* batch."""
        return part * self.size / whole

    def wrap_ddp(self, model: nn.Module) -> nn.Module:
        """Return the model for steps, whose gradients are then averaged over processes."""
        if self.size == 1:
            return model
        with warnings.catch_warnings():
            # Under its new name older torch does not know it.
            warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
            # Buffers are the same everywhere already: all follow from the same batches.
            return DistributedDataParallel(model, broadcast_buffers=False)

    def synchronize(self, model: nn.Module) -> nn.Module:
        """Make batch normalisation use the complete batch instead of this process's share."""
        return model if self.size == 1 else SynchronizedBatchNorm.convert(model)


ALONE = ProcessGroup()


def check_devices(dist_env: DistributedEnv, device: str, *, one_each: bool = False) -> None:
    """Raise ConfigError unless each process of this machine has a GPU.

    one_each: accept a single visible GPU per process, as Slurm may set it up.
    """
    if device != "cuda":
        return
    present = torch.cuda.device_count()
    if dist_env.local_size > present and not (one_each and present == 1):
        raise _too_few_gpus(dist_env.local_size, present)


def _too_few_gpus(processes: int, present: int) -> ConfigError:
    return ConfigError(
        f"{processes} processes share {present} GPUs, and each needs one; pass "
        f"processes={present} (with torchrun: --nproc-per-node), or device=cpu"
    )


@contextlib.contextmanager
def process_group(
    dist_env: DistributedEnv, device: str, *, precision: str = "off"
) -> Iterator[ProcessGroup]:
    """Connect all processes by gloo or NCCL.

    Raises ConfigError if GPUs are too few, or if the processes choose different precisions.
    """
    if dist_env.size == 1:
        yield ALONE
        return
    if dist_env.local_size == dist_env.size:
        # All on one machine: no port is opened to others, and its name need not be known to any.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, loopback)
    with reported_losses():
        store, _, _ = next(rendezvous("env://", timeout=WAIT))

        def exchange_texts(key: str, text: str) -> list[str]:
            """Return the text of each process by rank, after all have sent theirs."""
            store.set(f"{key}/{dist_env.rank}", text)
            return [store.get(f"{key}/{rank}").decode() for rank in range(dist_env.size)]

        precisions = exchange_texts("precision", precision)
        if len(set(precisions)) > 1:
            raise ConfigError(
                f"precision is {', '.join(precisions)} in processes 0 to {dist_env.size - 1}, "
                "whose devices differ; pass precision=off, which all of them compute in"
            )
        options: dict[str, Any] = {"store": store, "timeout": WAIT}
        options |= {"rank": dist_env.rank, "world_size": dist_env.size}
        if device == "cuda":
            # A scheduler may show each process a GPU of its own: the first that it sees.
            gpu = torch.device("cuda", dist_env.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(gpu)
            gpus = exchange_texts("gpu", str(torch.cuda.get_device_properties(gpu).uuid))
            if len(set(gpus)) < len(gpus):
                raise _too_few_gpus(len(gpus), len(set(gpus)))
            dist.init_process_group("nccl", device_id=gpu, **options)
        else:
            dist.init_process_group("gloo", **options)
        try:
            yield ProcessGroup(dist_env.rank, dist_env.size)
        except BaseException:
            # Both ways to end gloo's wait for what is under way, which may be for a process that
            # waits for this one: the end of this process ends it. A GPU that waits is to be freed.
            if device == "cuda":
                dist.distributed_c10d._abort_process_group()
            raise
    dist.destroy_process_group()


@contextlib.contextmanager
def reported_losses() -> Iterator[None]:
    """Turn the many ways in which another process's end or silence shows into a PeerLostError."""
    try:
        yield
    except RuntimeError as error:
        is_reported = isinstance(error, dist.DistError)
        if not is_reported and not any(mark in str(error) for mark in _PEER_GONE):
            raise
        # "[file:line] Connection closed by peer [address]:port. This is typically ..."
        reason = re.sub(r"^\[\S*\]\s*", "", str(error).strip()).split(". ")[0].splitlines()
        happened = (
            f"has said nothing for {WAIT.seconds // 60} minutes"
            if "timed out" in str(error).lower()
            else "has ended"
        )
        raise PeerLostError(
            f"another process of this training {happened}, so this one cannot continue; look for "
            f"that one's own error ({(reason or [type(error).__name__])[0]})"
        ) from error
