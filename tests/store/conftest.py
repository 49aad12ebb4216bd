"""Tests on real MLflow stores, in this process."""

from mlflow_stores import empty_store, experiment_id, store

__all__ = ["empty_store", "experiment_id", "store"]
