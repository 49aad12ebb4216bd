"""Sweeps: which runs a file of strategies, seeds and parameters asks for. Knows no MLflow."""
