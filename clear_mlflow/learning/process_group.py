"""Several processes that train one model, each on its share of every batch."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from clear_mlflow.core.distributed import DistributedEnv
from clear_mlflow.core.errors import ConfigError, PeerLostError

# Time that a process waits for another one, which may be reading the dataset from a slow disk or
# storing a row on a slow server. The end of a process is noticed at once.
WAIT = timedelta(minutes=10)

_GRACE_SECONDS = 2.0  # in which a process ends by itself if another one has ended
# How a machine without power is noticed: seconds until the first question, between questions, and
# how many remain unanswered.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

# Parts of gloo's messages about a lost process, for which torch raises a plain RuntimeError.
_PEER_GONE = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
)


@dataclass(frozen=True)
class ProcessGroup:
    """This process is number *rank* of *size*, perhaps the only one.

    Tensors, bytes and models are then returned unchanged.
    """

    rank: int = 0
    size: int = 1

    def split_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return this process's part of a range, as start and stop.

        The sizes of the parts differ by at most one, and some may be empty.

        >>> [ProcessGroup(rank, 3).split_range(10, 17) for rank in range(3)]
        [(10, 12), (12, 14), (14, 17)]
        """
        count = stop - start
        return start + count * self.rank // self.size, start + count * (self.rank + 1) // self.size

    def all_reduce(self, numbers: Tensor) -> Tensor:
        """Replace *numbers* by their sum over processes, and return them."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def all_gather(self, part: Tensor, start: int, total: int) -> Tensor:
        """Return the rows of all processes, (total, ...), in each process.

        part: this process's rows, (n, ...), of which the first has index *start* in the result.
        """
        if self.size == 1:
            return part
        rows = part.new_zeros((total, *part.shape[1:]))
        rows[start : start + len(part)] = part
        return self.all_reduce(rows)  # exact: only one process has a row that is not 0

    def broadcast(self, content: bytes | None) -> bytes | None:
        """Return the *content* of rank 0 in all processes."""
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

    def weight(self, num_images: int, total: int) -> float:
        """Return the factor of this process's mean loss in the batch's mean.

        The mean of all processes' products is the mean over the batch.

        num_images: of this process, may be 0. total: images in the batch.
        """
        return num_images * self.size / total

    def wrap_ddp(self, model: nn.Module) -> nn.Module:
        """Wrap a model in DistributedDataParallel, which averages gradients over all processes.

        With one process, returns the model unchanged.
        """
        if self.size == 1:
            return model
        with warnings.catch_warnings():
            # The argument has a new name that older versions of torch do not accept.
            warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
            # Buffers are equal in all processes already, since they follow from complete batches.
            return DistributedDataParallel(model, broadcast_buffers=False)

    def synchronize_batch_norm(self, model: nn.Module) -> nn.Module:
        """Change batch normalisation in place to use all processes' images.

        Returns the model.
        """
        for layer in model.modules() if self.size > 1 else ():
            if isinstance(layer, _BatchNorm):
                layer.__class__ = SynchronizedBatchNorm  # keeps weights, statistics and hooks
        return model


SINGLE_PROCESS = ProcessGroup()


def check_devices(dist_env: DistributedEnv, device: str, *, one_each: bool = False) -> None:
    """Raise ConfigError unless each local process has a GPU.

    The device cpu is accepted as well.

    one_each: accept a single visible GPU per process, as Slurm may set it up.
    """
    if device != "cuda":
        return
    present = torch.cuda.device_count()
    if dist_env.local_size > present and not (one_each and present == 1):
        raise _build_gpu_count_error(dist_env.local_size, present)


def _build_gpu_count_error(processes: int, present: int) -> ConfigError:
    return ConfigError(
        f"{processes} processes share {present} GPUs, but each process needs one; pass "
        f"processes={present} (with torchrun: --nproc-per-node), or device=cpu"
    )


@contextlib.contextmanager
def process_group(
    dist_env: DistributedEnv, device: str, *, precision: str = "off"
) -> Iterator[ProcessGroup]:
    """Wait for all, set GPU and network variables, and yield the group.

    Disconnects at the end. A single process gets SINGLE_PROCESS at once.

    precision: resolved precision, to compare with the other processes.

    Raises ConfigError if two processes have the same GPU or their precisions differ, and
    PeerLostError if another process ends or does not respond within the block.
    """
    if dist_env.size == 1:
        yield SINGLE_PROCESS
        return
    if dist_env.local_size == dist_env.size:
        # On one machine, the loopback interface needs no open port and no known host name.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, loopback)
    with translate_lost_peers():
        store, _, _ = next(rendezvous("env://", timeout=WAIT))

        def exchange_texts(key: str, text: str) -> list[str]:
            """Return each process's text by rank, after all sent theirs."""
            store.set(f"{key}/{dist_env.rank}", text)
            return [store.get(f"{key}/{rank}").decode() for rank in range(dist_env.size)]

        precisions = exchange_texts("precision", precision)
        if len(set(precisions)) > 1:
            raise ConfigError(
                f"precision is {', '.join(precisions)} in processes 0 to {dist_env.size - 1}, "
                "whose devices differ; pass precision=off, which all of them support",
                parameter="precision",
            )
        options: dict[str, Any] = {"store": store, "timeout": WAIT}
        options |= {"rank": dist_env.rank, "world_size": dist_env.size}
        if device == "cuda":
            # A scheduler may make a single GPU visible to each process: its index is 0 then.
            gpu = torch.device("cuda", dist_env.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(gpu)
            gpus = exchange_texts("gpu", str(torch.cuda.get_device_properties(gpu).uuid))
            if len(set(gpus)) < len(gpus):
                raise _build_gpu_count_error(len(gpus), len(set(gpus)))
            dist.init_process_group("nccl", device_id=gpu, **options)
        else:
            dist.init_process_group("gloo", **options)
        # Gloo notices the end of a process at once.
        watch = watch_peers(store, dist_env) if device == "cuda" else contextlib.nullcontext()
        try:
            with watch:
                yield ProcessGroup(dist_env.rank, dist_env.size)
        except BaseException:
            # Destroying or aborting a gloo group waits for pending operations, perhaps a process
            # that waits for this one; they end with this process. A waiting GPU must be freed.
            if device == "cuda":
                dist.distributed_c10d._abort_process_group()
            raise
    dist.destroy_process_group()


@contextlib.contextmanager
def watch_peers(store: Any, dist_env: DistributedEnv) -> Iterator[None]:
    """Abort this process soon after a process that it watches ends.

    Rank 0 watches all processes, the others rank 0. NCCL does not notice it, waits for ten minutes,
    and then aborts the process in the same way. Without a connection to rank 0, that is what
    happens.

    store: of the rendezvous.
    """
    has_left = threading.Event()
    connections: list[socket.socket] = []

    def watch(connection: socket.socket) -> None:
        connections.append(connection)
        for option, value in _KEEPALIVE.items():
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(None)
        with contextlib.suppress(OSError):
            if connection.recv(1):  # the other process is done
                return
        # The same error may be about to end this process, too.
        if not has_left.wait(_GRACE_SECONDS):
            os.abort()

    def accept(server: socket.socket, token: bytes) -> None:
        while len(connections) < dist_env.size - 1:
            connection, _ = server.accept()
            connection.settimeout(_GRACE_SECONDS)
            with contextlib.suppress(OSError):
                if connection.recv(len(token), socket.MSG_WAITALL) == token:
                    threading.Thread(target=watch, args=(connection,), daemon=True).start()

    is_local = dist_env.local_size == dist_env.size
    host = "127.0.0.1" if is_local else os.environ["MASTER_ADDR"]
    if dist_env.rank == 0:
        server = socket.create_server((host if is_local else "", 0))
        token = secrets.token_hex(16)
        store.set("watch", f"{server.getsockname()[1]} {token}")
        threading.Thread(target=accept, args=(server, token.encode()), daemon=True).start()
    else:
        port, token = store.get("watch").decode().split()
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), timeout=_GRACE_SECONDS)
            connection.sendall(token.encode())
            threading.Thread(target=watch, args=(connection,), daemon=True).start()
    try:
        yield
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(b".")
    finally:
        has_left.set()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def translate_lost_peers() -> Iterator[None]:
    """Convert errors of another process's end or silence to PeerLostError."""
    try:
        yield
    except RuntimeError as error:
        is_reported = isinstance(error, dist.DistError)
        if not is_reported and not any(mark in str(error) for mark in _PEER_GONE):
            raise
        # "[file:line] Connection closed by peer [address]:port. This is typically ..."
        reason = re.sub(r"^\[\S*\]\s*", "", str(error).strip()).split(". ")[0].splitlines()
        happened = (
            f"has not responded for {WAIT.seconds // 60} minutes"
            if "timed out" in str(error).lower()
            else "has ended"
        )
        raise PeerLostError(
            f"another process of this training {happened}, so this one cannot continue; look for "
            f"the error of that process ({(reason or [type(error).__name__])[0]})"
        ) from error


class SynchronizedBatchNorm(_BatchNorm):
    """Batch normalisation over all processes' images, in training only.

    torch's SyncBatchNorm supports only GPUs. With autocast, its processes without images send zeros
    in bfloat16 and the others statistics in float32, so all wait forever. It also selects the
    processes that have images with masks, for which the host waits in every layer.

    Source:
        Chan et al., Updating Formulae and a Pairwise Algorithm for Computing Sample Variances,
        1979, equation 2.1b, for the variance of several parts.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (the name of the method replaced)
        """Normalise (N, C, ...). N may be 0 in some processes."""
        if not (self.training or self.running_mean is None):
            return super().forward(input)
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps)
        if self.training and self.running_mean is not None and self.running_var is not None:
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
            share = self.momentum
            if share is None:  # the mean of all batches so far
                share = 1.0 / float(self.num_batches_tracked or 1)
            with torch.no_grad():
                self.running_mean.lerp_(mean, share)
                self.running_var.lerp_(variance * (count / (count - 1)), share)
        return torch.as_tensor(output)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        """Accept inputs with any number of dimensions."""
        return


class _Normalize(torch.autograd.Function):
    """Normalises with one exchange each way, and statistics in float32."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the output, and each channel's mean, variance and count."""
        channels = images.shape[1]
        axes = [d for d in range(images.dim()) if d != 1]
        count = images.numel() // channels
        part = torch.zeros(3, channels, dtype=torch.float32, device=images.device)
        if count:
            variance, mean = torch.var_mean(images.float(), dim=axes, correction=0)
            part = torch.stack([mean, variance, torch.full_like(mean, count)])
        parts = part.new_empty(3 * dist.get_world_size(), channels)
        dist.all_gather_into_tensor(parts, part)
        means, variances, counts = parts.view(-1, 3, channels).unbind(1)  # (processes, channels)
        total = counts.sum(0)
        mean = (means * counts).sum(0) / total
        variance = ((variances + (means - mean).square()) * counts).sum(0) / total
        ctx.save_for_backward(images, weight, mean, variance, total)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance, total)
        output = batch_norm(images, mean, variance, weight, bias, training=False, eps=eps)
        return output, mean, variance, total

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients, including those through the statistics of all processes."""
        images, weight, mean, variance, total = ctx.saved_tensors
        axes = [d for d in range(images.dim()) if d != 1]
        shape = [-1 if d == 1 else 1 for d in range(images.dim())]
        scale = (variance + ctx.eps).rsqrt()
        whitened = (images.float() - mean.view(shape)) * scale.view(shape)
        gradient = gradient.float()
        sums = torch.stack([gradient.sum(axes), (gradient * whitened).sum(axes)])
        bias_gradient, weight_gradient = sums.clone()  # DDP averages them over processes
        dist.all_reduce(sums)
        means = sums / total
        gradient = gradient - means[0].view(shape) - whitened * means[1].view(shape)
        gradient = gradient * (scale if weight is None else scale * weight).view(shape)
        return (
            gradient.to(images.dtype),
            None if weight is None else weight_gradient,
            None if weight is None else bias_gradient,
            None,
        )
