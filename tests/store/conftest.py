"""Tests on real MLflow stores, in this process."""

from mlflow_stores import empty_store, experiment_id, fill_once, own_cache, store
from offline_folders import offline_folder

__all__ = ["empty_store", "experiment_id", "fill_once", "offline_folder", "own_cache", "store"]
