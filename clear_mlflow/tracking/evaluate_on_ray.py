"""Re-scoring of tens of thousands of runs: batches of them, scored by Ray's workers."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.engines.on_ray import RayCluster
from clear_mlflow.errors import TrackingError
from clear_mlflow.matrix import shown
from clear_mlflow.tracking.evaluate import Evaluation, Verdict
from clear_mlflow.tracking.selection import MissingRun
from clear_mlflow.tracking.sweep import absolute_store
from clear_mlflow.tracking.worker import use_store

# Runs of one piece of work. A listed run takes 50 kB, which travels with it; a piece costs Ray some
# milliseconds.
_BATCH = 50
# Pieces that are begun before the first is taken, for each that there is room for.
_AHEAD = 2


def over_on_ray(
    cluster: RayCluster,
    evaluation: Evaluation,
    client: MlflowClient,
    runs: Iterable[Run | MissingRun],
) -> Iterator[Verdict]:
    """What :meth:`Evaluation.over` gives, in the same order, scored by workers of a cluster.

    Runs are listed here, by the one who asks. A batch whose worker dies is scored again by another,
    which changes nothing that was written.

    Args:
        cluster: entered already.
        evaluation: how; its ``jobs`` are batches at a time.
        client: the store.
        runs: taken as there is room.

    Raises:
        ConfigError: the workers cannot reach the store.
        TrackingError: a batch was given up.
    """
    import ray

    uri = absolute_store(client.tracking_uri)
    cluster.check_store(uri)
    told = {f.name: getattr(evaluation, f.name) for f in fields(evaluation) if f.init}
    # Within a worker one run after another: there are as many workers as there is room for.
    told |= {"jobs": 1, "turn": partial(one_writer, uri)}
    settings = ray.put(told)
    score = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus, max_retries=3)(score_batch)
    most = evaluation.jobs or _AHEAD * cluster.capacity()
    waiting = iter(runs)
    begun: deque[Any] = deque()
    try:
        while batch := list(islice(waiting, _BATCH)):
            begun.append(score.remote(uri, settings, batch))
            while len(begun) >= most:
                yield from _taken(begun)
        while begun:
            yield from _taken(begun)
    finally:
        for reference in begun:
            ray.cancel(reference)


def _taken(begun: deque[Any]) -> list[Verdict]:
    import ray

    reference = begun.popleft()
    try:
        verdicts: list[Verdict] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise TrackingError(
            f"a batch of runs was not scored: {shown(str(error.cause), 300)}; engine=local tells "
            "of which run it is"
        ) from error
    except ray.exceptions.RayError as error:
        why = shown(str(error).strip().split("\n")[0], 200)
        raise TrackingError(
            f"a batch of runs was given up, since its workers died: {why}; the same command does "
            "the rest"
        ) from error
    return verdicts


def score_batch(
    tracking_uri: str, settings: Mapping[str, Any], runs: list[Run | MissingRun]
) -> list[Verdict]:
    """Score runs in this process, which is a worker's.

    Args:
        tracking_uri: of the store, as it is reached from here.
        settings: of the :class:`Evaluation`.
        runs: as they were listed.
    """
    use_store(tracking_uri)
    return list(Evaluation(**settings).over(MlflowClient(), runs))


@contextmanager
def one_writer(tracking_uri: str) -> Iterator[None]:
    """One process of this user and machine at a time; the others wait."""
    digest = hashlib.sha256(tracking_uri.encode()).hexdigest()[:32]
    path = Path(tempfile.gettempdir(), f"clear_mlflow_{os.getuid()}_{digest}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
