"""What a matrix defines as plain dictionaries, to be set beside what is stored."""

from clear_mlflow.metrics import METRICS, course, undefined


def series(matrix, protocol="iid", metrics=METRICS):
    """Metric name to {buckets trained: value}."""
    return course(matrix.masked(protocol), protocol, metrics).series


def explain(matrix, protocol="iid", metrics=METRICS):
    """Metric name to why it has no value."""
    return {name: str(error) for name, error in undefined(matrix, protocol, metrics).items()}


def values(results):
    """Metric name to value, of those that have one."""
    return {name: found.value for name, found in results.items() if found.value is not None}


def reasons(results):
    """Metric name to why it has no value."""
    return {name: found.reason for name, found in results.items() if found.value is None}
