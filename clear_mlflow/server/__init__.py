"""Pages in MLflow's own server: a list of experiments, a comparison of runs, and a run's report."""
