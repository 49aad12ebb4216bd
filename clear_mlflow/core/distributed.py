"""The rank of this process among several, the cores that it may use, and the processor's name.

torchrun sets environment variables for the rank; schedulers limit cores by affinity or quota.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.untrusted import MAX_TEXT_CHARACTERS

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class DistributedEnv:
    """One of the processes that train one model, by default the only."""

    rank: int = 0  # 0 keeps the record
    size: int = 1  # processes in all
    local_rank: int = 0  # on this machine: the number of its GPU
    local_size: int = 1  # processes on this machine

    @property
    def keeps_record(self) -> bool:
        """Whether this process talks to MLflow and to people."""
        return self.rank == 0


SINGLE_PROCESS_ENV = DistributedEnv()


def count_usable_cores(
    process_groups: Path = Path("/proc/self/cgroup"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> int:
    """Count the cores that this process may use, within CPU quotas.

    Outside Linux, returns the cores of the machine. process_groups, cgroup_root: paths of Linux.
    """
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError):
        for line in process_groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):  # cgroup v2 or v1
                group = cgroup_root / ("cpu" if controllers else "") / path.lstrip("/")
                folders = (group, *group.parents)  # which have quotas, too
                cores = min(cores, *(_read_quota(folder, cores) for folder in folders))
    return cores


def _read_quota(cgroup: Path, default: int) -> int:
    names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    files = [cgroup / name for name in names if (cgroup / name).is_file()]
    numbers = " ".join(file.read_text() for file in files).split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):  # "max", -1
        return default
    return math.ceil(int(numbers[0]) / int(numbers[1]))


def count_threads_per_process(processes: int) -> int:
    """Compute how many OpenMP threads each process should use, at least 1.

    They share the physical cores, or the cores that this process may use if those are fewer.
    """
    import psutil  # imported here: reading runs works without it

    usable = count_usable_cores()
    return max(1, min(psutil.cpu_count(logical=False) or usable, usable) // processes)


def read_dist_env(environment: Mapping[str, str] = os.environ) -> DistributedEnv:
    """Read the variables that torchrun sets for each process that it starts.

    Returns ``SINGLE_PROCESS_ENV`` if RANK or WORLD_SIZE is not set, or there is one process. Raises
    ConfigError if both are set, and another variable is missing or a number is invalid.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return SINGLE_PROCESS_ENV
    missing = [name for name in _VARIABLES if name not in environment]
    try:
        rank, size, local_rank, local_size = (int(environment[n]) for n in _VARIABLES[:4])
    except (KeyError, ValueError):
        rank = -1
        size = local_rank = local_size = 0
    if size == 1 and not missing:
        return SINGLE_PROCESS_ENV
    if missing or not (0 <= rank < size and 0 <= local_rank < local_size):
        problem = ", ".join(f"{name}={environment.get(name)}" for name in _VARIABLES[:4])
        if missing:
            problem = f"{', '.join(missing)} missing"
        raise ConfigError(
            f"RANK and WORLD_SIZE are set, as for one of several processes, but {problem}; start "
            "all processes with torchrun, or unset RANK and WORLD_SIZE to run only one"
        )
    return DistributedEnv(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def get_processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model, or its architecture such as ``x86_64``."""
    with suppress(OSError):
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()[:MAX_TEXT_CHARACTERS]
    return platform.machine()
