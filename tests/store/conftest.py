"""Tests on real MLflow stores, in this process."""

from mlflow_stores import empty_store, experiment_id, fill_once, own_cache, store

__all__ = ["empty_store", "experiment_id", "fill_once", "own_cache", "store"]
