"""Several training processes: start them with torchrun, and supervise each rank but 0."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence

from clear_mlflow.core.distributed import DistributedEnv, count_threads_per_process
from clear_mlflow.core.errors import (
    ClearError,
    ConfigError,
    DataError,
    DivergedError,
    PeerLostError,
    TrainingDied,
    require_package,
)
from clear_mlflow.core.text import one_line
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.process.training_process import TrainingProcess

# How long this process stays after its training process failed. When this process ends, torchrun
# stops rank 0, too. Until then, rank 0 notices the failure itself, so it does not take torchrun's
# signal for an order to stop.
_LINGER_SECONDS = 5.0
# The same if rank 0 meets the same error: it loads MLflow first, then reports the error.
_LONG_LINGER_SECONDS = 60.0


def resolve_num_processes(requested: int | None, config: TrainConfig) -> int:
    """Choose the number of processes, and check that they can train.

    If none is requested: one per GPU, or 2 on a CPU.

    Raises ConfigError if so many processes cannot train with *config* on this machine.
    """
    with require_package("torch", "training"):
        import torch

    from clear_mlflow.learning.device import resolve_device
    from clear_mlflow.learning.process_group import check_devices
    from clear_mlflow.learning.session import resolve_config

    device, number = resolve_device(config.device), requested
    if number is None:
        number = torch.cuda.device_count() if device == "cuda" else 2
    rank_0 = DistributedEnv(size=number, local_size=number)
    check_devices(rank_0, device)
    resolve_config(config, rank_0)
    return number


def launch(num_processes: int, arguments: Sequence[str]) -> int:
    """Run torchrun in this process, disable logging, and return its exit code.

    It runs ``-m clear_mlflow train ARGUMENTS``. After a signal, the code is 128 plus its number.
    Prints one line if a signal ended a training process. Sets OMP_NUM_THREADS if it is not set.

    num_processes: processes to start on this machine.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    os.environ.setdefault("OMP_NUM_THREADS", str(count_threads_per_process(num_processes)))
    logging.disable(logging.ERROR)
    try:
        options = ["--standalone", "--nproc-per-node", str(num_processes), "--max-restarts", "0"]
        main([*options, "-m", "clear_mlflow", "train", *arguments])
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode < 0:
            print(f"error: rank {rank}: ended by signal {-failure.exitcode}", file=sys.stderr)
            return 128 - failure.exitcode
        return int(failure.exitcode)
    return 0


def run_rank(dist_env: DistributedEnv, config: TrainConfig, signals: StoppingSignals) -> int:
    """Train as a rank other than 0, and return the exit code.

    Records no rows.

    It is 0, 2 after a ClearError, 1 if the training process died, or 128 plus the number of a
    signal that was received. After an error without a signal, see :func:`_wait_and_print_error`.

    signals: stop the training process.
    """
    with TrainingProcess(config) as process:
        signals.hand_to(process.stop)
        try:
            members = process.config.split_seeds()
            _ = process.dataset
            for member in members:
                for _ in process.for_member(member).rows():
                    pass
            return 0
        except (ClearError, TrainingDied) as error:
            process.stop()
            if not signals.received:
                _wait_and_print_error(dist_env, error, signals)
            if signals.received:
                return 128 + signals.received[0]
            return 2 if isinstance(error, ClearError) else 1


def _wait_and_print_error(
    dist_env: DistributedEnv, error: ClearError | TrainingDied, signals: StoppingSignals
) -> None:
    """Wait for a signal, and print an error unless rank 0 does."""
    is_same_on_rank_0 = isinstance(error, DivergedError) or (
        # All ranks have the same files and devices.
        isinstance(error, (ConfigError, DataError)) and dist_env.local_size == dist_env.size
    )
    until = time.monotonic() + (_LONG_LINGER_SECONDS if is_same_on_rank_0 else _LINGER_SECONDS)
    while time.monotonic() < until and not signals.received:
        time.sleep(0.05)
    if not (signals.received and (is_same_on_rank_0 or isinstance(error, PeerLostError))):
        message = one_line(f"rank {dist_env.rank}: {error}")
        print(f"error: {message}", file=sys.stderr, flush=True)
