"""The comparison's page works offline, and untrusted text is never markup."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from comparisons import BY, compare, compared_run, counts, row_records
from comparisons import build_seed_runs as seeds_of
from html_pages import HOSTILE, Page, assert_needs_nothing_but_itself, assert_only_text
from rich.console import Console

from clear_mlflow.comparison import tables
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.page.charts import build_metric_plots
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.record import assemble, format_row_file_name
from clear_mlflow.core.score import Score
from clear_mlflow.metrics import COST_METRICS, METRICS, summarize


def build_page(runs, by=BY, title="a title"):
    comparison = compare(runs, by)
    return comparison, render_comparison_page(comparison, title=title, footer="by a test")


def three_groups(seeds=3):
    levels = {"naive": 120, "replay": 160, "cumulative": 180}
    return [run for name, level in levels.items() for run in seeds_of(name, level, range(seeds))]


def test_a_page_needs_no_other_file():
    assert_needs_nothing_but_itself(build_page(three_groups())[1])


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_only_text(name):
    printable = "".join(c for c in name if c.isprintable())[:40]

    def tags_with(text, key):
        runs = [
            compared_run(label, counts(level, seed), seed=seed, dataset=key, buckets=[key, *"bcd"])
            for seed in range(2)
            for label, level in ((text, 180), ("other", 90))
        ]
        return build_page(runs, title=text)[1]

    text = tags_with(name, printable)
    assert_only_text(text, tags_with("plain", "key"))
    assert len(text) < 120_000


def test_every_number_of_the_leaderboard_is_the_metric():
    runs = [*three_groups(), compared_run("early", counts(150, 1)[:3], seed=1)]
    comparison, text = build_page(runs)
    board = text.split('id="board">')[1].split("</table>")[0]
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", board, re.S)
    assert len(rows) == 4
    columns = re.findall(r'scope="col"[^>]* title="([^"]*)"', board)
    assert columns[0] == comparison.ranked_by
    assert sorted(columns) == sorted(comparison.metrics)
    for group, row in zip(comparison.groups, rows, strict=True):
        values = re.findall(r'<td data-value="([^"]*)"', row)[1:]
        for metric, value in zip(columns, values, strict=True):
            result = group.metrics.get(metric)
            assert value == ("" if result is None else repr(result.mean))
            if result is not None:
                assert f"{result.mean:.4f}" in row
                assert f"± {result.std:.4f}" in row
            if result is not None and result.interval is not None:  # seeds that differ
                assert f"[{result.interval.low:.3f}, {result.interval.high:.3f}]" in row


@pytest.mark.filterwarnings("error")
def test_every_cell_of_every_matrix_is_there():
    runs = [*three_groups(2), compared_run("early", counts(150, 1)[:3], seed=1)]
    comparison, text = build_page(runs)
    tables = re.findall(r'<table class="heat">.*?</table>', text, re.S)
    grids = [group.grid for group in comparison.groups]
    assert len(tables) == len(grids) == 4
    for grid, table in zip(grids, tables, strict=True):
        cells = re.findall(r"<td class=[^>]*>(.*?)</td>", table)
        nothing = "<i>not measured</i>"
        assert cells == [nothing if np.isnan(v) else f"{100 * v:.1f}" for v in grid.ravel()]


@pytest.mark.parametrize("name", [" ", "\t \n", "\u200b", "\u3164", "\u2800", "\u0301"])
@pytest.mark.parametrize("by", [["strategy"], ["strategy", "dataset"], ["shape"], []])
def test_invisible_names_are_written_out(name, by):
    runs = [
        replace(compared_run(label, counts(level, 0), labels={"shape": label}), name=label)
        for label, level in ((name, 150), ("replay", 170))
    ]
    comparison = compare(runs, by)
    group = next(group for group in comparison.groups if group.members[0].name == name)
    assert group.name in (f"strategy={name!a}", f"shape={name!a}", ascii(name))
    page = html.unescape(render_comparison_page(comparison, title="t", footer="f"))
    assert f'data-value="{group.name}">{group.name}</th>' in page
    assert f'<td class="text">{name!a}</td>' in page  # in the list of runs
    assert (
        ascii(name)
        in tables.build_text_columns(comparison, [], str)["group"][comparison.groups.index(group)]
    )


def test_sentences_and_warnings_are_on_the_page():
    comparison, text = build_page(three_groups())
    page_text = " ".join("".join(Page(text).texts).split())
    assert len(comparison.pairs) == 3
    details = [sentence for pair in comparison.pairs for sentence in pair.details]
    assert len(details) >= 3
    for sentence in (*(pair.sentence for pair in comparison.pairs), *details, *comparison.warnings):
        assert " ".join(sentence.split()) in page_text
    assert "adjusted by Holm's method" in page_text


def test_text_for_screen_readers_does_not_widen_a_page():
    """A hidden text once widened the page to 941 pixels on a phone."""
    _, text = build_page(three_groups())
    (hidden,) = re.findall(r"\.hidden {(.*?)}", text)
    assert "position: absolute" in hidden
    (scrolls,) = re.findall(r"\.scroll {(.*?)}", text)
    assert "position: relative" in scrolls
    assert "challenge_<wbr>score" in text  # copied, it is the metric's name


def test_one_run_and_two_settings_make_a_page():
    Page(build_page(seeds_of("replay", 180, [0]))[1])
    runs = [*seeds_of("a", 180, [0, 1]), *seeds_of("a", 180, [2, 3], protocol="streaming")]
    _, text = build_page(runs)
    Page(text)
    assert text.count(">buckets trained</text>") == 3


def test_two_test_sets_have_separate_colours():
    runs = seeds_of("a", 180, [0, 1])
    runs += seeds_of("a", 180, [2, 3], digest="sha256:" + "cd" * 32)
    values = []
    for run in runs:
        matrix = run.record.matrix
        matrix = AccuracyMatrix(matrix.values, matrix.initial, score=Score("gain"))
        summary = summarize(matrix, "iid")
        dataset = replace(run.record.dataset, score=matrix.score)
        record = replace(run.record, matrix=matrix, dataset=dataset)
        values.append(replace(run, record=record, summary=summary))
    for chosen, is_separate in ((values, True), (values[:2], False), (runs, False)):
        text = build_page(chosen)[1]
        assert ("Each test set has its own colour scale." in text) is is_separate


def test_an_axis_of_equal_accuracies_has_a_width():
    """Of 0.12 percentage points, not of rounding errors. Costs are in other plots."""
    run = compared_run("a", [[180] * 4] * 5)
    run = replace(run, summary={**run.summary, "cost/training_flops": 1e9})
    comparison = compare([run], metrics=(*METRICS, *COST_METRICS))
    assert "cost/training_flops" in comparison.metrics
    plots = list(build_metric_plots(comparison))
    assert [plot["title"] for plot in plots] == [*summarize(run.record.matrix, "iid")]
    assert [label for _, label in plots[0]["ticks"]] == ["0.8995", "0.9000", "0.9005"]


def test_fifty_runs_fit():
    rows = [counts(100 + i, i, buckets=10) for i in range(50)]
    runs = [compared_run(f"m{i}", row, seed=0, run_id=f"{i:032x}") for i, row in enumerate(rows)]
    comparison, text = build_page(runs, by=())
    assert len(text.encode()) < 2_000_000
    Page(text)
    assert "The first 24 groups of the leaderboard are shown." in text
    assert {len(plot["dots"]) for plot in build_metric_plots(comparison)} == {24}


def test_runs_without_valid_cells_make_a_page():
    runs = []
    for run in seeds_of("[/x]", 180, [0, 1], protocol="streaming", dataset="[/x]"):
        last = row_records(counts(180, 1), protocol="streaming")[4]
        record = assemble({format_row_file_name(4): last})
        runs.append(replace(run, record=record, summary={}))
    comparison, text = build_page(runs, title="[/x]")
    assert comparison.ranked_by is None
    Page(text)
    for part in render_comparison(comparison):
        Console(quiet=True).print(part)
