"""Tests of commands, servers and clusters, each in its own processes."""

from forked import loaded_fork_server
from mlflow_stores import empty_store, experiment_id, fill_once, store
from short_stream import hold, short_stream

__all__ = [
    "empty_store",
    "experiment_id",
    "fill_once",
    "hold",
    "loaded_fork_server",
    "short_stream",
    "store",
]
