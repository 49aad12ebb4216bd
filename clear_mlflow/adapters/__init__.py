"""Adapters of other frameworks: one module each, which imports its framework.

Nothing is imported here: ``from clear_mlflow.adapters.avalanche import MLflowAccuracyMatrix``.
"""
