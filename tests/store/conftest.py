"""Tests on real MLflow stores, in this process."""

import subprocess

import pytest
from forked import ForkedToo, loaded_fork_server
from mlflow_stores import empty_store, experiment_id, fill_once, own_cache, store
from trained_runs import nine_runs, trained_runs

__all__ = [
    "empty_store",
    "experiment_id",
    "fill_once",
    "loaded_fork_server",
    "nine_runs",
    "own_cache",
    "store",
    "trained_runs",
]


@pytest.fixture(scope="module", autouse=True)
def forked_programs():
    """Fork the training processes and programs that the package starts, with torch imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", ForkedToo)
        yield
