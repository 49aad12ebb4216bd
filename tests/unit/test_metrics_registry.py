"""Which metrics there are, when they are undefined, and how they are found."""

import math
import pkgutil
from pathlib import Path

import pytest

from clear_mlflow import AccuracyMatrix, explain, metrics, series, summarize
from clear_mlflow.core.errors import ConfigError, UndefinedMetricError
from clear_mlflow.metrics import ALL_METRICS, Metric, gather, renate

DOCS = Path(__file__).parents[2] / "docs"
NAMES = {
    "clear/in_domain_accuracy",
    "clear/next_domain_accuracy",
    "clear/backward_transfer",
    "clear/forward_transfer",
    "clear/accuracy",
    "clear/challenge_score",
    "renate/average_accuracy",
    "renate/micro_average_accuracy",
    "renate/forgetting",
    "renate/backward_transfer",
    "renate/forward_transfer",
}
FULL = AccuracyMatrix([[0.8, 0.6], [0.7, 0.9]], initial=[0.1, 0.2], num_instances=[5, 5])


def test_names_that_runs_hold_stay():
    """A name that changes orphans every stored series: it is part of the interface."""
    assert {metric.name for metric in metrics.METRICS} >= NAMES
    assert summarize(FULL).keys() >= NAMES


def test_every_metric_has_a_value_or_a_reason():
    """Also where all is measured, and where hardly anything is."""
    for matrix in (FULL, AccuracyMatrix([[math.nan]]), AccuracyMatrix([[0.5]])):
        found = [*summarize(matrix, metrics=ALL_METRICS), *explain(matrix, metrics=ALL_METRICS)]
        assert sorted(found) == sorted(metric.name for metric in ALL_METRICS)


def test_every_function_of_a_family_is_declared_under_its_own_name():
    """A metric that was written but not listed would silently not be logged."""
    for module in pkgutil.iter_modules(metrics.__path__):
        if module.ispkg or module.name.startswith("_"):
            continue
        family = getattr(metrics, module.name)
        written = {
            name: value
            for name, value in vars(family).items()
            if callable(value)
            and getattr(value, "__module__", "") == family.__name__
            and not name.startswith("_")
        }
        own = {
            metric.name.removeprefix(f"{module.name}/"): metric.function
            for metric in family.METRICS
            if metric.function.__module__ == family.__name__
        }
        assert written == own
        assert all(metric.name.startswith(f"{module.name}/") for metric in family.METRICS)


def test_of_forgetting_alone_less_is_better():
    """The table and the comparison of runs rely on it."""
    found = {m.name for m in ALL_METRICS if not m.higher_is_better}
    assert found & NAMES == {"renate/forgetting"}


@pytest.mark.parametrize(
    "name",
    ["", "a:b", "a@b", "a[0]", "ä", "a\n", "x" * 251, "/a", "a/", "a//b", "../a", "./a", "a/../b"],
)
def test_names_that_mlflow_refuses_are_refused_here(name):
    """Found when the package is loaded, and not at the end of somebody's training."""
    with pytest.raises(ValueError, match="MLflow refuses"):
        gather([Metric(name=name, function=renate.forgetting)])


def test_a_name_stands_once():
    """Two definitions under one name is what the families are there to prevent."""
    one = Metric(name="a/b", function=renate.forgetting)
    assert gather([one]) == (one,)
    with pytest.raises(ValueError, match="two metrics are named 'a/b'"):
        gather([one, Metric(name="a/b", function=renate.average_accuracy)])


def test_one_row_of_ten_defines_the_future_but_no_past():
    """A run stopped after its first bucket knows next-domain and forward transfer."""
    matrix = AccuracyMatrix([[0.5] * 10])
    assert {"clear/next_domain_accuracy", "clear/forward_transfer"} <= summarize(matrix).keys()
    reasons = explain(matrix)
    assert reasons["clear/backward_transfer"] == "needs a past bucket: k >= 2 (trained on 1)"
    assert reasons["clear/challenge_score"] == reasons["clear/backward_transfer"]
    assert reasons["renate/forward_transfer"].startswith("needs a second trained bucket")
    assert reasons["renate/micro_average_accuracy"] == "needs test counts per bucket"


def test_a_stream_of_one_bucket_has_no_transfer():
    """Undefined, where others return 0.0."""
    reasons = explain(AccuracyMatrix([[0.5]], initial=[0.1], num_instances=[9]))
    assert reasons["clear/next_domain_accuracy"] == "needs a future bucket: T >= 2"
    assert {"renate/forgetting", "renate/backward_transfer"} <= reasons.keys()
    with pytest.raises(UndefinedMetricError):
        renate.forgetting(AccuracyMatrix([[0.5]]))


def test_without_the_initialisation_row_there_is_no_renate_forward():
    """The reason tells what to measure next time."""
    matrix = AccuracyMatrix([[0.8, 0.6], [0.7, 0.9]])
    assert explain(matrix)["renate/forward_transfer"] == "needs the initialisation row"
    partly = AccuracyMatrix([[0.8, 0.6], [0.7, 0.9]], initial=[0.1, math.nan])
    assert explain(partly)["renate/forward_transfer"] == "b[1] was not measured"


def test_a_missing_row_leaves_gaps_in_the_series():
    """No value stands at a step that was not measured, and later ones are not made up."""
    gap = AccuracyMatrix([[0.8] * 4, [math.nan] * 4, [0.8] * 4])
    found = series(gap)
    assert found["renate/average_accuracy"] == {1: 0.8, 3: pytest.approx(0.8)}
    assert found["clear/in_domain_accuracy"] == {1: 0.8}


def test_protocols_are_checked():
    """A misspelt protocol would otherwise count training images as evidence."""
    for function in (summarize, explain, series):
        with pytest.raises(ConfigError, match="'stream'"):
            function(FULL, "stream")


def test_streaming_reason_gives_way_to_one_that_measuring_cannot_mend():
    """With one bucket trained there is no past, whatever the protocol."""
    reasons = explain(AccuracyMatrix([[0.5, 0.5]]), "streaming")
    assert reasons["clear/backward_transfer"].startswith("needs a past bucket")
    assert reasons["clear/in_domain_accuracy"].startswith("under the streaming protocol")


def test_the_reference_lists_just_these_metrics():
    """docs/metrics.md has one line per metric, with the direction that the code has."""
    table = DOCS.joinpath("metrics.md").read_text().split("## All metrics")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
    told = {row[1].strip("`"): row[4] for row in rows if len(row) > 4 and row[1].startswith("`")}
    assert told == {m.name: "higher" if m.higher_is_better else "lower" for m in ALL_METRICS}
