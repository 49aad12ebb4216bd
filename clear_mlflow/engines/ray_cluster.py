"""Training on a Ray cluster, which is there already or is started on this machine.

Ray is imported when it is asked for, and nowhere else.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import urlsplit

from clear_mlflow.core.credentials import masked
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.core.text import shown
from clear_mlflow.engines.engine import Ended, Task

LOCAL = "local"
_STOP_SECONDS = 60.0
_KNOCK_SECONDS = 10.0
# Batches that are begun before the first is taken, for each that there is room for.
_AHEAD = 2

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class RayCluster:
    """A connection to Ray, closed at the exit where it was opened here.

    Args:
        address: ``local``: start Ray on this machine; else as ``ray.init`` takes it.
        cpus: that one piece of work needs.
        gpus: that one piece of work needs.

    Raises:
        ConfigError: Ray is not installed, cannot be reached, or has no machine large enough.
    """

    def __init__(self, address: str = LOCAL, *, cpus: float = 1.0, gpus: float = 0.0) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus
        self._opened = False

    def __enter__(self) -> RayCluster:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "engine is ray, which is not installed; pip install 'clear_mlflow[ray]', or pass "
                "engine=local"
            )
        # What Ray would send to its makers, and what it says of them, is not ours to agree to.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

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
                    f"cannot reach a Ray cluster at {shown(self.address, 200)}: "
                    f"{shown(str(error) or type(error).__name__, 300)}; pass the address that "
                    "'ray start --head' printed, with RAY_AUTH_MODE=token in the environment where "
                    "it asks for a token, or address=local"
                ) from error
            self._opened = True
        try:
            self._check_size()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened:
            import ray

            ray.shutdown()

    def nodes(self) -> list[Mapping[str, Any]]:
        """The machines that are up, as Ray reports them."""
        import ray

        return [node for node in ray.nodes() if node.get("Alive")]

    def capacity(self) -> int:
        """How many pieces of work the machines have room for at a time."""
        return sum(_fits(node["Resources"], self.cpus, self.gpus) for node in self.nodes())

    def check_store(self, tracking_uri: str) -> None:
        """Raise ConfigError where the store is a file and workers are on other machines."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        refuse_far_file(tracking_uri, self.nodes(), here)

    def in_batches(
        self,
        work: Callable[[list[_Item]], list[_Result]],
        items: Iterable[_Item],
        *,
        batch: int,
        jobs: int | None = None,
    ) -> Iterator[_Result]:
        """``work(items)``, in batches that workers do, with results in the order of the items.

        A batch whose worker dies is done again by another, so *work* must be repeatable.

        Args:
            work: gives a list as long as its own; a function that workers can import.
            items: taken as there is room.
            batch: items of one piece of work.
            jobs: batches at a time; None: as many as keep the workers busy.

        Raises:
            TrackingError: a batch was given up.
        """
        import ray

        shared = ray.put(work)
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=3)(_do)
        most = jobs or _AHEAD * self.capacity()
        waiting = iter(items)
        begun: deque[Any] = deque()
        try:
            while taken := list(islice(waiting, batch)):
                begun.append(remote.remote(shared, taken))
                while len(begun) >= most:
                    yield from _done(begun.popleft())
            while begun:
                yield from _done(begun.popleft())
        finally:
            for reference in begun:
                ray.cancel(reference)

    def _check_size(self) -> None:
        if self.capacity() == 0:
            largest = [
                f"{node['Resources'].get('CPU', 0):g} CPUs and "
                f"{node['Resources'].get('GPU', 0):g} GPUs"
                for node in self.nodes()
            ]
            raise ConfigError(
                f"a run asks for cpus={self.cpus:g} and gpus={self.gpus:g}, and no machine of the "
                f"Ray cluster has them (there are {', '.join(largest[:5]) or 'no machines'}); ask "
                "for less"
            )


def _do(work: Callable[[list[_Item]], list[_Result]], items: list[_Item]) -> list[_Result]:
    return work(items)


def _done(reference: Any) -> list[Any]:
    import ray

    try:
        results: list[Any] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise TrackingError(
            f"a batch of runs failed: {shown(str(error.cause), 300)}; engine=local shows of which "
            "run it is"
        ) from error
    except ray.exceptions.RayError as error:
        why = shown(str(error).strip().split("\n")[0], 200)
        raise TrackingError(
            f"a batch of runs was given up, since its workers died: {why}; the same command does "
            "the rest"
        ) from error
    return results


def _knock(address: str) -> None:
    """Raise OSError where nobody answers at HOST:PORT; Ray itself would wait for minutes."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    if place.hostname is not None and place.port is not None:
        with socket.create_connection((place.hostname, place.port), timeout=_KNOCK_SECONDS):
            pass


def refuse_far_file(tracking_uri: str, nodes: Iterable[Mapping[str, Any]], here: str) -> None:
    """Raise ConfigError where the store is a file of this machine and workers are elsewhere.

    Args:
        tracking_uri: of the store.
        nodes: of the cluster, as ``ray.nodes()`` reports them.
        here: id of the node that this process is on.
    """
    if urlsplit(tracking_uri).scheme not in ("sqlite", "file", ""):
        return
    nodes = list(nodes)
    own = {node["NodeManagerHostname"] for node in nodes if node["NodeID"] == here}
    if far := sorted({node["NodeManagerHostname"] for node in nodes} - own):
        raise ConfigError(
            f"the tracking store {masked(tracking_uri)} is a file of this machine, and the Ray "
            f"cluster has workers on {', '.join(far[:5])}, too; start a tracking server and set "
            "MLFLOW_TRACKING_URI to its address"
        )


def _fits(resources: Mapping[str, float], cpus: float, gpus: float) -> int:
    rooms = [
        int(resources.get(name, 0) / needed)
        for name, needed in (("CPU", cpus), ("GPU", gpus))
        if needed
    ]
    return min(rooms, default=1)


class RayEngine(RayCluster):
    """Trains each task in a Ray worker, which supervises a training process as the command does.

    Args:
        train_into: called in a worker with a task's parameters, run, experiment and tracking URI;
            gives the exit code, one line of what went wrong, and whether its process was killed.
        address: see :class:`RayCluster`.
        cpus: of each run.
        gpus: of each run.
        jobs: runs under way at once; None: as many as there is room for.
    """

    def __init__(
        self,
        train_into: Callable[[Mapping[str, str], str, str, str], tuple[int, str | None, bool]],
        address: str = LOCAL,
        *,
        cpus: float = 1.0,
        gpus: float = 0.0,
        jobs: int | None = None,
    ) -> None:
        super().__init__(address, cpus=cpus, gpus=gpus)
        self._train_into = train_into
        self._jobs = jobs
        self._running: dict[Any, Task] = {}
        self._train: Any = None

    def __enter__(self) -> RayEngine:
        super().__enter__()
        import ray

        # A dead worker's run has to be looked at before it is tried again: not Ray's to do.
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": 0}
        self._train = ray.remote(**options)(self._train_into)
        return self

    def __exit__(self, *_: object) -> None:
        if self._running:
            import ray

            self.stop()
            ray.wait(list(self._running), num_returns=len(self._running), timeout=_STOP_SECONDS)
        super().__exit__()

    def room(self) -> int:
        """How many more tasks can be started now."""
        # Asked each time: machines come and go.
        return (self._jobs or max(1, self.capacity())) - len(self._running)

    def start(self, task: Task) -> None:
        """Begin a task; returns at once."""
        reference = self._train.remote(
            dict(task.asked), task.run_id, task.experiment_id, task.tracking_uri
        )
        self._running[reference] = task

    def ended(self, timeout: float) -> Sequence[Ended]:
        """Tasks that have ended since the last call; waits up to *timeout* seconds for one."""
        import ray

        if not self._running:
            return []
        done, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
        return [self._ended(reference) for reference in done]

    def stop(self) -> None:
        """Tell all tasks to stop; each scores its rows and is among the ended ones later."""
        import ray

        for reference in self._running:
            with suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=False)

    def _ended(self, reference: Any) -> Ended:
        import ray

        run_id = self._running.pop(reference).run_id
        try:
            code, error, lost = ray.get(reference)
        except ray.exceptions.TaskCancelledError:
            return Ended(run_id, 130, "stopped by SIGINT")
        except ray.exceptions.RayTaskError as bug:
            return Ended(run_id, 1, shown(str(bug.cause), 500))
        except ray.exceptions.RayError as gone:
            why = shown(str(gone).strip().split("\n")[0], 200)
            return Ended(run_id, 137, f"its Ray worker is gone: {why}", lost=True)
        return Ended(run_id, code, error, lost)
