"""The list of all metrics, and its documentation."""

import pkgutil
import re

import numpy as np
import pytest
from courses import explain, series
from one_line_errors import check_error
from published import SECOND_PLACE

from clear_mlflow import AccuracyMatrix, MetricResult, metrics, scores
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.metrics import (
    ALL_METRICS,
    DEFAULT_FAMILIES,
    FAMILIES,
    METRICS,
    Metric,
    get_family_metrics,
    renate,
    split_families,
    summarize,
)
from clear_mlflow.metrics._registry import check_metric_names

NAMES = {
    *("clear/in_domain_accuracy", "clear/next_domain_accuracy", "clear/backward_transfer"),
    *("clear/forward_transfer", "clear/accuracy", "clear/challenge_score"),
    *("renate/average_accuracy", "renate/micro_average_accuracy", "renate/forgetting"),
    *("renate/backward_transfer", "renate/forward_transfer"),
}
FULL = AccuracyMatrix([[0.8, 0.6], [0.7, 0.9]], initial=[0.1, 0.2], num_instances=[5, 5])


def test_the_default_is_clears_and_renates():
    """In this order: a changed name would orphan stored series."""
    assert {metric.name for metric in METRICS} == NAMES == summarize(FULL).keys()
    assert DEFAULT_FAMILIES == ("clear", "renate")
    assert get_family_metrics(DEFAULT_FAMILIES) == METRICS == ALL_METRICS[: len(METRICS)]
    assert [*FAMILIES] == ["clear", "renate", *sorted(FAMILIES.keys() - {"clear", "renate"})]
    assert {m.name for m in METRICS if not m.higher_is_better} == {"renate/forgetting"}


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (MetricResult(name="a/b", value=0.5), "a/b 0.5000 (higher is better)"),
        (
            MetricResult(name="a/b", value=0.5, interval=(0.25, 1), higher_is_better=False),
            "a/b 0.5000 [0.2500, 1.0000] (lower is better)",
        ),
        (MetricResult(name="a/b", value=None, reason="needs k >= 2"), "a/b – (needs k >= 2)"),
        (MetricResult(name="a\nb", value=0.5), "a\ufffdb 0.5000 (higher is better)"),
    ],
)
def test_a_result_is_shown_in_one_line(result, line):
    assert str(result) == line
    assert repr(result) == f"MetricResult({line})"


def test_results_are_shown_as_a_table():
    results = scores(FULL)
    lines = str(results).splitlines()
    assert [line.split()[0] for line in lines[2:]] == [*results]
    assert max(map(len, lines)) <= 80
    assert "<code>renate/forgetting</code></th>" in results._repr_html_()
    assert results == dict(results)


def test_scores_accepts_matrices_and_lists():
    from_lists = scores([[0.8, 0.6], [0.7, 0.9]])
    assert from_lists == scores(np.array([[0.8, 0.6], [0.7, 0.9]]))
    assert from_lists["renate/forward_transfer"].value is None
    full = AccuracyMatrix(FULL.values, initial=FULL.initial)
    assert scores(full.to_frame(wide=True)) == scores(full)
    assert scores(AccuracyMatrix(FULL.values).to_frame(wide=True)) == from_lists
    check_error(RecordError, "is not a rectangle of numbers", scores, "matrix.csv")


def test_the_index_of_a_frame_orders_its_rows():
    full = AccuracyMatrix(FULL.values, initial=FULL.initial, buckets=("2004", "2005"))
    frame = full.to_frame(wide=True)
    for labels in (["initial", "2005", "2004"], ["2005", "initial", "2004"]):
        assert scores(frame.loc[labels]) == scores(full)
    results = scores(frame.loc[["2005"]])
    assert results["clear/accuracy"].reason == "row 1, column 1 was not measured"
    numbered = frame.loc[["2005", "2004"]].set_axis([1, 0])
    assert scores(numbered) == scores(AccuracyMatrix(FULL.values, buckets=("2004", "2005")))
    with pytest.raises(RecordError, match="which do not show after which bucket"):
        scores(frame.loc[["2005", "2004"]].set_axis([7, 4]))


def test_every_function_of_a_family_is_declared_under_its_own_name():
    """An undeclared metric would not be logged."""
    for module in pkgutil.iter_modules(metrics.__path__):
        if module.name.startswith("_"):
            continue
        family = getattr(metrics, module.name)
        functions = {v for n, v in vars(family).items() if callable(v) and not n.startswith("_")}
        written = {v for v in functions if getattr(v, "__module__", "") == family.__name__}
        declared = {getattr(metric.function, "func", metric.function) for metric in family.METRICS}
        if module.name == "papers":  # has several families, and other names of metrics
            assert written <= declared
            continue
        assert written == declared
        for metric in family.METRICS:
            function = getattr(metric.function, "func", metric.function)
            assert metric.name.startswith(f"{module.name}/{function.__name__}")


@pytest.mark.parametrize(
    "name",
    ["", "a:b", "a@b", "a[0]", "ä", "a\n", "x" * 251, "/a", "a/", "a//b", "../a", "./a", "a/../b"],
)
def test_metric_names_that_mlflow_rejects_are_rejected(name):
    with pytest.raises(ConfigError, match="MLflow refuses"):
        check_metric_names([Metric(name=name, function=renate.forgetting)])


def test_a_metric_name_is_unique():
    metric = Metric(name="a/b", function=renate.forgetting)
    check_metric_names([metric])
    with pytest.raises(ConfigError, match="two metrics are named 'a/b'"):
        check_metric_names([metric, Metric(name="a/b", function=renate.average_accuracy)])


def test_protocols_are_checked():
    """A misspelt protocol would not mask training images."""
    for function in (summarize, explain, series):
        check_error(ConfigError, "'stream'", function, FULL, "stream")


@pytest.mark.parametrize("text", ["", "claer", "clear,,gem", "clear gem"])
def test_unknown_families_are_a_one_line_error_with_the_list(text):
    check_error(ConfigError, "expected some of clear, renate, ", split_families, text)


@pytest.mark.parametrize("chosen", [None, 5, max, [max], ["clear", None]])
def test_metrics_that_are_no_names_are_rejected(chosen):
    message = "clear_mlflow.evaluate computes custom functions"
    check_error(ConfigError, message, scores, FULL, metrics=chosen)


def test_the_reference_names_the_source_of_every_family(project):
    """docs/metrics.md has a row for each family. The other tables are generated."""
    page = (project / "docs" / "metrics.md").read_text(encoding="utf-8")
    sources = page.partition("## Families and their sources")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", sources, re.M)) >= set(FAMILIES)


def test_the_page_shows_the_metrics_of_the_published_matrix(project):
    page = (project / "docs" / "metrics.md").read_text(encoding="utf-8")
    page_values = dict(re.findall(r"`(\w+/\w+)` is (0\.[0-9]{4})", " ".join(page.split())))
    metrics = summarize(AccuracyMatrix(np.array(SECOND_PLACE)), metrics=ALL_METRICS)
    assert page_values.keys() == {"clear/backward_transfer", "renate/backward_transfer"}
    assert page_values == {name: f"{metrics[name]:.4f}" for name in page_values}
