"""Several training processes on this machine, by PyTorch's own elastic launcher."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from clear_mlflow.core.distributed import threads_for_each
from clear_mlflow.learning.parameters.config import TrainConfig


def processes_to_start(asked: int | None, config: TrainConfig) -> int:
    """How many train together: as asked, or one per GPU, or 2; all that can be is checked."""
    import torch

    from clear_mlflow.core.distributed import DistributedEnv
    from clear_mlflow.learning.device import resolve_device
    from clear_mlflow.learning.parallel.group import check_devices
    from clear_mlflow.learning.session import check

    number = asked
    if number is None:
        number = torch.cuda.device_count() if resolve_device(config.device) == "cuda" else 2
    first = DistributedEnv(size=number, local_size=number)
    check_devices(first, resolve_device(config.device))
    check(config, first)
    return number


def launch(processes: int, arguments: Sequence[str]) -> int:
    """``torchrun -m clear_mlflow train``, with one line on failure; gives its exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    os.environ.setdefault("OMP_NUM_THREADS", str(threads_for_each(processes)))
    logging.disable(logging.ERROR)
    try:
        options = ["--standalone", "--nproc-per-node", str(processes), "--max-restarts", "0"]
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
