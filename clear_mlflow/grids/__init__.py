"""Sweeps: which runs a file of strategies, seeds and parameters asks for. Knows no MLflow."""

from clear_mlflow.grids.grid import Grid, PlannedRun, digest_of, fingerprint, read_grid

__all__ = ["Grid", "PlannedRun", "digest_of", "fingerprint", "read_grid"]
