"""Sweeps: the runs of a file of strategies, seeds and parameters. Does not import MLflow."""
