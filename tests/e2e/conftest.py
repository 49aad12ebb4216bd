"""Tests of commands, servers and clusters, each in processes of their own."""

from mlflow_stores import empty_store, experiment_id, store

__all__ = ["empty_store", "experiment_id", "store"]
