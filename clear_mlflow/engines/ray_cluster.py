"""Training on a Ray cluster, which is there already or is started on this machine.

Ray is imported when it is asked for, and nowhere else.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.engines import Ended, Task

LOCAL = "local"
_STOP_SECONDS = 60.0
_KNOCK_SECONDS = 10.0


class RayEngine:
    """Trains tasks in Ray workers, *jobs* at most; *gpus* None: one each where there are any."""

    def __init__(
        self,
        train_into: Callable[[Mapping[str, str], str, str, str], tuple[int, str | None, bool]],
        address: str = LOCAL,
        *,
        cpus: float = 1.0,
        gpus: float | None = None,
        jobs: int | None = None,
    ) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus or 0.0
        self._finds_gpus = gpus is None
        self._ray: Any = None  # the module
        self._opened = False
        self._train_into = train_into
        self._jobs = jobs
        self._running: dict[Any, Task] = {}
        self._train: Any = None

    def __enter__(self) -> RayEngine:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "engine is ray, which is not installed; pip install 'clear_mlflow[ray]', or pass "
                "engine=local"
            )
        # What Ray would send to its makers, and what it says of them, is not ours to agree to.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray = ray
        if not ray.is_initialized():
            try:
                _knock(self.address)
                ray.init(
                    address=self.address,
                    include_dashboard=False if self.address == LOCAL else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except Exception as error:  # what a cluster that is not there raises has no common base
                raise ConfigError(
                    f"cannot reach a Ray cluster at {safe_repr(self.address, 200)}: "
                    f"{safe_repr(str(error) or type(error).__name__, 300)}; pass the address that "
                    "'ray start --head' printed, with RAY_AUTH_MODE=token in the environment where "
                    "it asks for a token, or address=local"
                ) from error
            self._opened = True
            # A machine that dies is told by its tasks; of its own log, Ray prints 34 lines here.
            ray._private.worker._worker_logs_enabled = False
        if self._finds_gpus:
            self.gpus = float(any(node["Resources"].get("GPU", 0) >= 1 for node in self.nodes()))
        if self.capacity() == 0:
            machines = [node["Resources"] for node in self.nodes()]
            there = [f"{m.get('CPU', 0):g} CPUs and {m.get('GPU', 0):g} GPUs" for m in machines]
            self.__exit__()
            raise ConfigError(
                f"a run asks for cpus={self.cpus:g} and gpus={self.gpus:g}, and no machine of the "
                f"Ray cluster has them (there are {', '.join(there[:5]) or 'no machines'}); ask "
                "for less"
            )
        # A dead worker's run has to be looked at before it is tried again: not Ray's to do.
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": 0}
        self._train = self._ray.remote(**options)(self._train_into)
        return self

    def __exit__(self, *_: object) -> None:
        if running := list(self._running):
            self.stop()
            self._ray.wait(running, num_returns=len(running), timeout=_STOP_SECONDS)
        if self._opened:
            self._ray.shutdown()
            self._ray._private.worker._worker_logs_enabled = True

    def nodes(self) -> list[Mapping[str, Any]]:
        """The machines that are up, as Ray reports them."""
        return [node for node in self._ray.nodes() if node.get("Alive")]

    def capacity(self) -> int:
        """How many pieces of work the machines have room for at a time."""
        needed = [(name, n) for name, n in (("CPU", self.cpus), ("GPU", self.gpus)) if n]
        return sum(
            min((int(node["Resources"].get(name, 0) / n) for name, n in needed), default=1)
            for node in self.nodes()
        )

    def plan(self) -> str:
        """How many tasks run side by side, and on what."""
        return f"{self.room()} at a time, each with {self.cpus:g} CPUs and {self.gpus:g} GPUs"

    def check_store(self, tracking_uri: str) -> None:
        """Raise ConfigError where the store is a file and workers are on other machines."""
        here = self._ray.get_runtime_context().get_node_id()
        refuse_far_file(tracking_uri, self.nodes(), here)

    def room(self) -> int:
        """How many more tasks can be started now."""
        # Asked each time: machines come and go.
        capacity = max(1, self.capacity())
        return min(self._jobs or capacity, capacity) - len(self._running)

    def start(self, task: Task) -> None:
        """Begin a task; returns at once."""
        where = task.run_id, task.experiment_id, task.tracking_uri
        self._running[self._train.remote(dict(task.asked), *where)] = task

    def ended(self, timeout: float) -> Sequence[Ended]:
        """Tasks that have ended since the last call; waits up to *timeout* seconds for one."""
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        return [self._ended(reference) for reference in done]

    def stop(self) -> None:
        """Tell all tasks to stop; each scores its rows and is among the ended ones later."""
        for reference in self._running:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=False)

    def _ended(self, reference: Any) -> Ended:
        run_id = self._running.pop(reference).run_id
        errors = self._ray.exceptions
        try:
            return Ended(run_id, *self._ray.get(reference))
        except errors.TaskCancelledError:
            return Ended(run_id, 130, "stopped by SIGINT")
        except errors.RayTaskError as bug:
            return Ended(run_id, 1, safe_repr(str(bug.cause), 500))
        except errors.RayError as gone:
            why = safe_repr(str(gone).strip().split("\n")[0], 200)
            return Ended(run_id, 137, f"its Ray worker is gone: {why}", lost=True)


def _knock(address: str) -> None:
    """Raise OSError where nobody answers at HOST:PORT; Ray itself would wait for minutes."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    if place.hostname is not None and place.port is not None:
        with socket.create_connection((place.hostname, place.port), timeout=_KNOCK_SECONDS):
            pass


def refuse_far_file(tracking_uri: str, nodes: Iterable[Mapping[str, Any]], here: str) -> None:
    """Raise ConfigError where the store is a file of this machine and workers are elsewhere."""
    if urlsplit(tracking_uri).scheme.partition("+")[0] not in ("sqlite", "file", ""):
        return
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in nodes}
    if far := sorted(set(hosts.values()) - {hosts.get(here)}):
        raise ConfigError(
            f"the tracking store {mask_credentials(tracking_uri)} is a file of this machine, and "
            f"the Ray cluster has workers on {', '.join(far[:5])}, too; start a tracking server "
            "and set MLFLOW_TRACKING_URI to its address"
        )
