"""Work on tens of thousands of runs: batches of them, done by Ray's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from mlflow import MlflowClient

from clear_mlflow.engines.ray_cluster import RayCluster
from clear_mlflow.store.client import absolute_store, use_store

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Runs of one piece of work. A listed run takes 50 kB, which travels with it; a piece costs Ray some
# milliseconds.
BATCH = 50


def over_on_ray(
    cluster: RayCluster,
    client: MlflowClient,
    work: Callable[[MlflowClient, Iterable[_Item]], Iterable[_Result]],
    items: Iterable[_Item],
    *,
    jobs: int | None = None,
    batch: int = BATCH,
) -> Iterator[_Result]:
    """What ``work(client, items)`` gives, in the same order, by a cluster's workers.

    *work* can be imported by workers, each of which has a client of its own to the same store;
    *jobs* batches are done at a time, None: as many as keep the workers busy.
    """
    uri = absolute_store(client.tracking_uri)
    cluster.check_store(uri)
    return cluster.map(partial(_at_worker, uri, work), items, jobs=jobs, batch=batch)


def _at_worker(
    tracking_uri: str,
    work: Callable[[MlflowClient, Iterable[_Item]], Iterable[_Result]],
    items: list[_Item],
) -> list[_Result]:
    use_store(tracking_uri)
    return list(work(MlflowClient(), items))
