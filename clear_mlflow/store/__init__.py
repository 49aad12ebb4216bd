"""MLflow in and out: rows, states, names, leases. Knows no use case."""
