"""What several processes exchange, and on which device, tested without a GPU."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import socket
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch._subclasses import FakeTensorMode

from clear_mlflow.core.distributed import DistributedEnv
from clear_mlflow.core.errors import ConfigError, PeerLostError
from clear_mlflow.learning import process_group as groups
from clear_mlflow.learning.process_group import (
    ProcessGroup,
    SynchronizedBatchNorm,
    _Normalize,
    check_devices,
    process_group,
)


class Context:
    """Autograd's context between both passes."""

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors):
        pass


@pytest.mark.parametrize("count", [0, 3])
def test_batch_normalisation_on_gpus_exchanges_statistics_in_float32(monkeypatch, count):
    """Also for an empty share, for which torch sends zeros of the input's type.

    Tensors have a GPU's device and no numbers.
    """
    exchanged = []

    def exchange(*tensors):
        exchanged.extend((tensor.dtype, tensor.device.type) for tensor in tensors)

    monkeypatch.setattr(dist, "all_gather_into_tensor", exchange)
    monkeypatch.setattr(dist, "all_reduce", exchange)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    with FakeTensorMode():
        with torch.device("cuda"):
            layer = ProcessGroup(1, 3).synchronize_batch_norm(nn.BatchNorm2d(2))
            images = torch.empty(count, 2, 4, 4, dtype=torch.bfloat16)
        assert isinstance(layer, SynchronizedBatchNorm)
        # Called by hand: torch's own engine asks the driver for the device.
        context = Context()
        output, mean, *_ = _Normalize.forward(context, images, layer.weight, layer.bias, 1e-5)
        slopes = _Normalize.backward(context, output)
        assert (output.dtype, mean.dtype) == (torch.bfloat16, torch.float32)
        assert [slope.dtype for slope in slopes[:3]] == [torch.bfloat16] + [torch.float32] * 2
        assert {tensor.device.type for tensor in (output, mean, *slopes[:3])} == {"cuda"}
    assert exchanged == [(torch.float32, "cuda")] * 3


SECOND = DistributedEnv(rank=1, size=2, local_rank=1, local_size=2)
SECOND_MACHINE = DistributedEnv(rank=1, size=2, local_rank=0, local_size=1)


class Store(dict[str, bytes]):
    """A rendezvous store within one process."""

    def set(self, key, value):
        self[key] = value.encode()


@pytest.fixture
def rendezvous(monkeypatch):
    """The values that processes exchange when they meet. The first has its own GPU."""
    store = Store()
    store.set("gpu/0", "uuid of the first")
    store.set("precision/0", "off")
    monkeypatch.setattr(groups, "rendezvous", lambda *_, **__: iter([(store, 1, 2)]))
    describe = lambda gpu: SimpleNamespace(uuid=f"uuid of {gpu.index}")  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", describe)
    return store


@pytest.fixture
def nccl(monkeypatch, rendezvous):
    """Records torch's calls when a GPU group is created. Nothing is executed."""
    requests = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: requests.append(("set_device", gpu)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    start = lambda name, **options: requests.append((name, options))  # noqa: E731
    monkeypatch.setattr(dist, "init_process_group", start)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: requests.append(("destroy",)))
    abort = lambda: requests.append(("abort",))  # noqa: E731
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", abort)
    monkeypatch.setattr(groups, "watch_peers", lambda *_: contextlib.nullcontext())
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return requests


@pytest.mark.parametrize(("rank", "bound"), [(SECOND, "lo"), (SECOND_MACHINE, None)])
def test_processes_of_one_machine_listen_only_locally(nccl, monkeypatch, rank, bound):
    """Neither gloo nor NCCL, which has its own variable, listens beyond the machine."""
    with process_group(rank, "cuda"):
        assert os.environ.get("GLOO_SOCKET_IFNAME") == bound
        assert os.environ.get("NCCL_SOCKET_IFNAME") == bound
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")  # as a user names it
    with process_group(rank, "cuda"):
        assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(143)])
def test_a_gpu_group_is_aborted_after_an_error(nccl, error):
    """Pending GPU work would otherwise block the process at its exit."""
    with pytest.raises(type(error)), process_group(SECOND, "cuda"):
        raise error
    assert nccl[-1] == ("abort",)
    with process_group(SECOND, "cuda"):
        pass
    assert nccl[-1] == ("destroy",)


def test_an_unused_gpu_group_is_not_aborted(nccl, monkeypatch):
    error = dist.DistNetworkError("the client socket has timed out")
    monkeypatch.setattr(dist, "init_process_group", mock.Mock(side_effect=error))
    with pytest.raises(PeerLostError, match="timed out"), process_group(SECOND, "cuda"):
        pass
    assert ("abort",) not in nccl


def test_each_process_may_see_only_one_gpu(nccl, rendezvous, monkeypatch):
    """As with Slurm, where number 0 is another GPU in each. Otherwise each uses its own of all."""
    with process_group(SECOND, "cuda"):
        pass
    assert nccl[0] == ("set_device", torch.device("cuda", 1))
    nccl.clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_devices(SECOND, "cuda", one_each=True)
    rendezvous.set("gpu/0", "uuid of another")
    with process_group(SECOND, "cuda"):
        pass
    (_, selected), (_, options), _ = nccl
    assert selected == options["device_id"] == torch.device("cuda", 0)


def test_processes_that_share_a_gpu_are_rejected(nccl, rendezvous, monkeypatch):
    """Before NCCL is started, whose error takes ten lines."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    rendezvous.set("gpu/0", "uuid of 0")
    message = "2 processes share 1 GPUs, but each process needs one; pass processes=1"
    with pytest.raises(ConfigError, match=message), process_group(SECOND, "cuda"):
        pass
    assert len(nccl) == 1  # set_device


@pytest.mark.parametrize(("present", "one_each"), [(1, False), (2, False), (2, True)])
def test_fewer_gpus_than_processes_are_rejected(monkeypatch, present, one_each):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: present)
    four = DistributedEnv(size=4, local_size=4)
    with pytest.raises(ConfigError, match=f"share {present} GPUs.* pass processes={present} "):
        check_devices(four, "cuda", one_each=one_each)
    check_devices(four, "cpu", one_each=one_each)


@pytest.mark.usefixtures("nccl")
def test_processes_with_different_settings_are_rejected():
    """For example, if auto is resolved differently on each device."""
    message = "precision is off, bf16 in processes 0 to 1.* pass precision=off"
    with pytest.raises(ConfigError, match=message), process_group(SECOND, "cuda", precision="bf16"):
        pass


def end_normally():
    return


def end_by_error():
    raise SystemExit(2)


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_a_gpu():
    time.sleep(60)


def run_members(tmp_path, *endings):
    """Return the exit code of each process of a watched group, which ends in its way."""
    size = len(endings)

    def run_member(rank, ending):
        faulthandler.disable()
        store = FileStore(str(tmp_path / "store"), size)
        env = DistributedEnv(rank=rank, size=size, local_rank=rank, local_size=size)
        with groups.watch_peers(store, env):
            store.set(f"present/{rank}", "yes")
            for other in range(size):
                store.get(f"present/{other}")
            time.sleep(0.3)  # until all are connected
            ending()

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=run_member, args=member) for member in enumerate(endings)]
    started = time.monotonic()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert time.monotonic() - started < 40, "shorter than a wait for a GPU"
    return [process.exitcode for process in processes]


ABORTED = -signal.SIGABRT


@pytest.mark.parametrize(
    ("endings", "codes"),
    [
        ((wait_for_a_gpu, kill_itself, wait_for_a_gpu), [ABORTED, -signal.SIGKILL, ABORTED]),
        ((kill_itself, wait_for_a_gpu, wait_for_a_gpu), [-signal.SIGKILL, ABORTED, ABORTED]),
        ((wait_for_a_gpu, end_by_error), [ABORTED, 2]),
        ((end_by_error, end_by_error), [2, 2]),
        ((end_normally, end_normally, end_normally), [0, 0, 0]),
        ((lambda: time.sleep(3), end_normally), [0, 0]),
    ],
    ids=["killed", "rank 0 killed", "error", "same error", "done", "done earlier"],
)
def test_a_process_on_a_gpu_that_waits_for_a_lost_one_is_aborted(tmp_path, endings, codes):
    """In seconds instead of NCCL's ten minutes. Its own ending counts if it has one."""
    assert run_members(tmp_path, *endings) == codes


def test_strangers_are_not_members(tmp_path):
    store = FileStore(str(tmp_path / "store"), 2)
    with groups.watch_peers(store, DistributedEnv(rank=0, size=2, local_rank=0, local_size=2)):
        port, _ = store.get("watch").decode().split()
        with socket.create_connection(("127.0.0.1", int(port))) as stranger:
            stranger.sendall(b"0" * 32)
        assert run_second_member(store) == 0
    # A process that cannot connect trains without being watched.
    store.set("watch", "1 token")
    with groups.watch_peers(store, SECOND):
        pass


def run_second_member(store):
    """Join a group as the second process of this machine, and end normally."""
    with groups.watch_peers(store, SECOND):
        time.sleep(0.1)
    return 0
