"""An engine that trains on a Ray cluster: an existing one, or one started on this machine.

Ray is imported only when an engine is entered.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ConfigError, TrainingError, require_package
from clear_mlflow.core.text import safe_repr, warn
from clear_mlflow.sweeps.grid import SweepRun

LOCAL = "local"
_STOP_SECONDS = 60.0
_LOST_SECONDS = 20.0
_CONNECT_SECONDS = 10.0


class RayEngine:
    """Trains runs in Ray workers, with the methods of :class:`.local.LocalEngine`.

    Args:
        train: trains with (parameters, run id, experiment id, tracking URI) in a worker, and
            returns exit code, error or None, and True if the training process was killed.
        address: address of the cluster, or "local" to start one on this machine.
        cpus: CPUs per run.
        gpus: GPUs per run. None: one if the cluster has any.
        jobs: largest number of runs at a time. None: as many as the cluster has room for.
    """

    def __init__(
        self,
        train: Callable[[Mapping[str, str], str, str, str], tuple[int, str | None, bool]],
        address: str = LOCAL,
        *,
        cpus: float = 1.0,
        gpus: float | None = None,
        jobs: int | None = None,
    ) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus or 0.0
        self._is_gpu_auto = gpus is None
        self._ray: Any = None  # the module
        self._has_connected = self._is_lost = False
        self._train = train
        self._jobs = jobs
        self._running: dict[Any, SweepRun] = {}
        self._remote_train: Any = None  # Ray's wrapper of it

    def __enter__(self) -> RayEngine:
        if self.address == LOCAL and " " in sys.prefix:
            warn(
                f"the path of this Python environment has a space ({sys.prefix}), with which some "
                "versions of Ray end this process after a minute; if so, use one without a space"
            )
        # Usage reports are for the user to agree to.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        with require_package("ray", "engine ray"):
            import ray

        self._ray = ray
        if not ray.is_initialized():
            try:
                _check_reachable(self.address)
                ray.init(
                    address=self.address,
                    include_dashboard=False if self.address == LOCAL else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except Exception as error:  # a missing cluster raises errors of many classes
                raise ConfigError(
                    f"cannot reach a Ray cluster at {safe_repr(self.address, 200)}: "
                    f"{safe_repr(str(error) or type(error).__name__, 300)}; pass the address that "
                    "'ray start --head' printed, with RAY_AUTH_MODE=token in the environment where "
                    "it asks for a token, or address=local"
                ) from error
            self._has_connected = True
            # The tasks of a machine that dies report it; Ray would print 34 more lines.
            ray._private.worker._worker_logs_enabled = False
        resources = [node["Resources"] for node in self.list_nodes()]
        if self._is_gpu_auto:
            self.gpus = float(any(node.get("GPU", 0) >= 1 for node in resources))
        if self.count_slots() == 0:
            machines = [f"{r.get('CPU', 0):g} CPUs and {r.get('GPU', 0):g} GPUs" for r in resources]
            self.__exit__()
            raise ConfigError(
                f"a run needs cpus={self.cpus:g} and gpus={self.gpus:g}, and no machine of the Ray "
                f"cluster has them (it has {', '.join(machines[:5]) or 'no machines'}); "
                "request less"
            )
        # Ray must not retry: the run of a dead worker is checked before it is trained again.
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": 0}
        self._remote_train = self._ray.remote(**options)(self._train)
        return self

    def __exit__(self, *_: object) -> None:
        if running := list(self._running):
            self.stop()
            self._ray.wait(running, num_returns=len(running), timeout=_STOP_SECONDS)
        if self._has_connected and not self._is_lost:
            self._ray.shutdown()
            self._ray._private.worker._worker_logs_enabled = True

    def list_nodes(self) -> list[Mapping[str, Any]]:
        """Wait for the cluster, and list its live machines, or raise TrainingError."""
        self._wait_for_cluster()
        return [node for node in self._ray.nodes() if node.get("Alive")]

    def count_slots(self) -> int:
        """Ask the cluster how many runs fit its machines at a time.

        Ignores *jobs*, and what other programs use of the cluster.
        """
        needed = [(name, n) for name, n in (("CPU", self.cpus), ("GPU", self.gpus)) if n]
        return sum(
            min((int(node["Resources"].get(name, 0) / n) for name, n in needed), default=1)
            for node in self.list_nodes()
        )

    def describe_capacity(self) -> str:
        """Return how many more runs can start, and with what resources."""
        resources = f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"
        return f"{self.count_free_slots()} at a time, each with {resources}"

    def check_store(self, tracking_uri: str) -> None:
        """Raise ConfigError if workers elsewhere cannot reach a local store."""
        node_id = self._ray.get_runtime_context().get_node_id()
        check_store_is_shared(tracking_uri, self.list_nodes(), node_id)

    def count_free_slots(self) -> int:
        """Ask the cluster how many more runs can be started now."""
        num_slots = max(1, self.count_slots())  # counted each time: machines come and go
        return min(self._jobs or num_slots, num_slots) - len(self._running)

    def start(self, run: SweepRun, experiment_id: str, tracking_uri: str) -> None:
        """Submit a run's training to the cluster, and return at once.

        Does not check that :meth:`count_free_slots` is above 0.
        """
        reference = self._remote_train.remote(
            run.passed_parameters, run.run_id, experiment_id, tracking_uri
        )
        self._running[reference] = run

    def wait_for_ended_runs(self, timeout: float) -> Sequence[SweepRun]:
        """Return an ended run after waiting up to *timeout* seconds for one.

        The run has exit code and error. Returns [] at once if none is running.
        """
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        if not done:
            self._wait_for_cluster()
        return [self._collect_ended_run(reference) for reference in done]

    def _wait_for_cluster(self) -> None:
        """Wait up to 20 seconds for the cluster, or raise TrainingError."""
        until = time.monotonic() + _LOST_SECONDS
        while True:
            try:
                return _check_reachable(self._ray.get_runtime_context().gcs_address)
            except OSError as error:
                if time.monotonic() > until:
                    self._running.clear()  # nothing can be waited for
                    self._is_lost = True
                    raise TrainingError(
                        f"the Ray cluster at {self.address} is lost: {error.strerror or error}; "
                        "when it is back, the same command resumes what was training"
                    ) from error
            time.sleep(1.0)

    def stop(self) -> None:
        """Cancel all trainings, and return at once.

        Each that has started still scores its rows. All end like any other training.
        """
        for reference in self._running:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=False)

    def _collect_ended_run(self, reference: Any) -> SweepRun:
        run = self._running.pop(reference)
        errors = self._ray.exceptions
        try:
            code, error, is_lost = self._ray.get(reference)
        except errors.TaskCancelledError:
            return run.set_end(130, "stopped by SIGINT")
        except errors.RayTaskError as bug:  # in our code
            return run.set_end(1, safe_repr(str(bug.cause), 500))
        except errors.RayError as gone:
            reason = safe_repr(str(gone).strip().split("\n")[0], 200)
            return run.set_end(137, f"its Ray worker is gone: {reason}", is_lost=True)
        return run.set_end(code, error, is_lost=is_lost)


def _check_reachable(address: str) -> None:
    """Connect to HOST:PORT, or raise OSError. Other addresses pass."""
    url = urlsplit(address if "://" in address else f"ray://{address}")
    if url.hostname is not None and url.port is not None:
        with socket.create_connection((url.hostname, url.port), timeout=_CONNECT_SECONDS):
            pass


def check_store_is_shared(
    tracking_uri: str, nodes: Iterable[Mapping[str, Any]], node_id: str
) -> None:
    """Raise ConfigError if workers elsewhere cannot reach a local store.

    nodes: machines of the cluster, as Ray describes them. node_id: Ray's id of this machine.
    """
    if urlsplit(tracking_uri).scheme.partition("+")[0] not in ("sqlite", "file", ""):
        return
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in nodes}
    if other_hosts := sorted(set(hosts.values()) - {hosts.get(node_id)}):
        raise ConfigError(
            f"the tracking store {mask_credentials(tracking_uri)} is a file of this machine, and "
            f"the Ray cluster has workers on {', '.join(other_hosts[:5])}, too; start a tracking "
            "server and set MLFLOW_TRACKING_URI to its address"
        )
