"""Published results, shown below a comparison and never part of it."""

import dataclasses
import re

import pytest
from comparisons import build_seed_runs, compare

from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.published_results import NOTE, load_published, select_published
from clear_mlflow.comparison.tables import build_comparison_dict
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.score import Score
from clear_mlflow.metrics import ALL_METRICS
from clear_mlflow.report.terminal_tables import render_text

METRICS = ("clear/in_domain_accuracy", "clear/challenge_score", "clear/forward_transfer")
CLEAR10 = DatasetDescription(name="clear10", buckets=("1", "2"))


def test_each_published_number_has_a_known_metric_and_a_source_with_its_commit():
    names = {metric.name for metric in ALL_METRICS}
    for result in load_published():
        assert result.values.keys() <= names
        assert all(re.fullmatch(r"0\.[0-9]{3}", value) for value in result.values.values())
        assert re.fullmatch(r"https://github\.com/[\w./-]+/blob/[0-9a-f]{40}/.+", result.source)
        assert result.pretrained in ("yes", "no")


def test_published_scores_are_the_means_of_the_published_accuracies():
    scored = [r for r in load_published() if "clear/challenge_score" in r.values]
    assert len(scored) == 4
    for result in scored:
        values = {name: float(value) for name, value in result.values.items()}
        score = values.pop("clear/challenge_score")
        assert sum(values.values()) / 4 == pytest.approx(score, abs=0.0011)


def select(metrics=METRICS, **changes):
    results = select_published([dataclasses.replace(CLEAR10, **changes)], metrics)
    return [(result.stream, result.protocol) for result in results]


def test_only_results_of_the_same_stream_and_protocol_are_shown():
    assert {*select()} == {("clear10", "iid")}
    assert {*select(name="clear100")} == {("clear100", "iid")}
    assert {*select(protocol="streaming")} == {("clear10", "streaming")}
    assert select(metrics=["renate/forgetting"]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "digits"},
        {"split": "validation"},
        {"scenario": {"name": "class"}},
        {"score": Score("rmse", higher_is_better=False)},
        {"name": "clear100", "protocol": "streaming"},
    ],
)
def test_other_streams_have_none(changes):
    assert select(**changes) == []


@pytest.fixture
def comparison():
    runs = build_seed_runs("naive", 120, (0, 1, 2)) + build_seed_runs("replay", 170, (0, 1, 2))
    compared = compare(runs)
    results = select_published(compared.conditions, compared.metrics)
    return dataclasses.replace(compared, published=results)


def test_they_are_printed_below_the_leaderboard_and_nowhere_else(comparison):
    text = render_text(*render_comparison(comparison))
    assert text.index("replay") < text.index("1st place") < text.index(NOTE)
    assert text.index(NOTE) < text.index("✓")  # the first verdict
    assert "0.927" in text
    without = dataclasses.replace(comparison, published=())
    assert NOTE not in render_text(*render_comparison(without))
    assert [g.name for g in without.groups] == [g.name for g in comparison.groups]
    assert without.pairs == comparison.pairs
    content = build_comparison_dict(comparison)
    assert {result["stream"] for result in content["published"]} == {"clear10"}
    assert content["published"][0]["values"]["clear/challenge_score"] == "0.927"
    assert build_comparison_dict(without) == {**content, "published": []}


def test_the_page_shows_them_in_italics_below_the_table(comparison):
    page = render_comparison_page(comparison, title="t", footer="f")
    board = page[page.index('<section id="leaderboard">') :].partition("</section>")[0]
    published = board[board.index('<div id="published">') :]
    assert f"<em>{NOTE}.</em>" in published
    assert "0.927" in published
    assert "ResNet-50-D from scratch, 1 seed" in published
    assert "0.927" not in page.replace(published, "")
    assert ".published td { font-style: italic; }" in page
    without = dataclasses.replace(comparison, published=())
    assert NOTE not in render_comparison_page(without, title="t", footer="f")
