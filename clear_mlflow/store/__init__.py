"""MLflow in and out: rows, states, names, heartbeats. Knows no use case."""
