"""Other frameworks' loops in MLflow: one module for each framework, which imports it.

Nothing is imported here: ``from clear_mlflow.adapters.avalanche import MLflowAccuracyMatrix``.
"""
