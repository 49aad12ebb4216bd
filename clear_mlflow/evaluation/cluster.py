"""Work on tens of thousands of runs: batches of them, done by Ray's workers."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.engines.ray_cluster import RayCluster
from clear_mlflow.evaluation.rescore import Evaluation, ScoringResult
from clear_mlflow.store.client import absolute_store, use_store
from clear_mlflow.store.search import MissingRun

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Runs of one piece of work. A listed run takes 50 kB, which travels with it; a piece costs Ray some
# milliseconds.
_BATCH = 50


def evaluated_on_ray(
    cluster: RayCluster,
    evaluation: Evaluation,
    client: MlflowClient,
    runs: Iterable[Run | MissingRun],
) -> Iterator[ScoringResult]:
    """What :meth:`Evaluation.over` gives, in the same order, scored by workers of a cluster.

    A batch whose worker dies is scored again by another, which changes nothing that was written.

    Args:
        cluster: entered already.
        evaluation: how; its ``jobs`` are batches at a time.
        client: the store.
        runs: listed here, in the caller's process; taken as there is room.

    Raises:
        ConfigError: the workers cannot reach the store.
        TrackingError: a batch was given up.
    """
    settings = {f.name: getattr(evaluation, f.name) for f in fields(evaluation) if f.init}
    # Within a worker one run after another: there are as many workers as there is room for.
    settings |= {"jobs": 1, "turn": partial(one_writer, absolute_store(client.tracking_uri))}
    return over_on_ray(cluster, client, partial(_score, settings), runs, jobs=evaluation.jobs)


def over_on_ray(
    cluster: RayCluster,
    client: MlflowClient,
    work: Callable[[MlflowClient, Iterable[_Item]], Iterable[_Result]],
    items: Iterable[_Item],
    *,
    jobs: int | None = None,
    batch: int = _BATCH,
) -> Iterator[_Result]:
    """What ``work(client, items)`` gives, in the same order, done by workers of a cluster.

    Args:
        cluster: entered already.
        client: the store; each worker has a client of its own to the same one.
        work: gives a result for each item; a function that workers can import.
        items: runs, or what is asked of runs; taken as there is room.
        jobs: batches at a time; None: as many as keep the workers busy.
        batch: items of one piece of work.

    Raises:
        ConfigError: the workers cannot reach the store.
        TrackingError: a batch was given up.
    """
    uri = absolute_store(client.tracking_uri)
    cluster.check_store(uri)
    return cluster.map(partial(_at_worker, uri, work), items, jobs=jobs, batch=batch)


def _at_worker(
    tracking_uri: str,
    work: Callable[[MlflowClient, Iterable[_Item]], Iterable[_Result]],
    items: list[_Item],
) -> list[_Result]:
    """Do a batch in this process, which is a worker's."""
    use_store(tracking_uri)
    return list(work(MlflowClient(), items))


def _score(
    settings: Mapping[str, Any], client: MlflowClient, runs: Iterable[Run | MissingRun]
) -> Iterator[ScoringResult]:
    return Evaluation(**settings).over(client, runs)


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
