"""Pages in MLflow's own server: the experiments with rows, their comparison, and a run's report."""
