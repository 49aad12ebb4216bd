"""The metrics of a matrix as plain dictionaries, to compare with what is stored."""

from dataclasses import replace

from clear_mlflow.core.score import ACCURACY
from clear_mlflow.core.text import one_line
from clear_mlflow.metrics import METRICS, build_logged_result, evaluate_metrics, sort_results


def series(matrix, protocol="iid", metrics=METRICS):
    results = evaluate_metrics(metrics, matrix, protocol)
    return {name: result.series for name, result in results.items() if result.series}


def explain(matrix, protocol="iid", metrics=METRICS):
    results = evaluate_metrics(metrics, matrix, protocol)
    return {name: result.reason for name, result in results.items() if result.reason}


def make_results(values, reasons=(), score=ACCURACY, lower_is_better=()):
    """Return results with values or reasons by name, as renderers receive them."""
    reasons = dict(reasons)
    results = {}
    for name in {**values, **reasons}:
        result = build_logged_result(name, values.get(name), score)
        direction = name not in lower_is_better and result.higher_is_better
        reason = "" if name in values else one_line(reasons[name], 200)
        results[name] = replace(result, reason=reason, higher_is_better=direction)
    return sort_results(results)


def values(results):
    return {name: result.value for name, result in results.items() if result.value is not None}


def reasons(results):
    return {name: result.reason for name, result in results.items() if result.value is None}
