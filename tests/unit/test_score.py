"""Matrices of other scores than accuracy."""

import json
import math
from dataclasses import replace
from functools import partial

import courses
import numpy as np
import pytest
from comparisons import compare
from hypothesis import example, given, settings
from hypothesis import strategies as st
from one_line_errors import check_error
from published import SECOND_PLACE
from stored_values import row_record

from clear_mlflow import AccuracyMatrix, metrics
from clear_mlflow.comparison.groups import ComparedRun
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.ranking import rank_groups
from clear_mlflow.comparison.tables import build_leaderboard_frame
from clear_mlflow.core.anytime import AnytimeMatrix, AnytimeRow
from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.record import assemble, format_row_file_name
from clear_mlflow.core.score import ACCURACY, Score, format_significant
from clear_mlflow.importers import ReadOptions, ResultFile, parse_runs
from clear_mlflow.metrics import ALL_METRICS, ANY, CHANGE, LEVEL, Metric, adapt_metrics
from clear_mlflow.report.colours import build_cell_scale
from clear_mlflow.report.exports import format_matrix_json
from clear_mlflow.report.markdown import format_run_description
from clear_mlflow.report.page.line_charts import (
    Line,
    LinePoint,
    build_axis,
    list_round_ticks,
    pad_range,
)
from clear_mlflow.report.page.run_page import RunReport, render_run_html, render_run_page
from clear_mlflow.report.terminal_tables import build_matrix_table
from clear_mlflow.tracking.loop_rows import (
    add_true_labels,
    build_count_row,
    build_prediction_row,
    build_value_row,
    parse_score,
)

RMSE = Score("rmse", higher_is_better=False)
MACRO_F1 = Score("macro_f1")
NAN = math.nan
# An error that falls on what comes, and rises on what was.
ERRORS = [[2.0, 4.0, 6.0], [3.0, 2.5, 5.0], [3.5, 3.0, 1.5]]
UNTRAINED = [8.0, 9.0, 10.0]
explain = partial(courses.explain, metrics=ALL_METRICS)
summarize = partial(metrics.summarize, metrics=ALL_METRICS)


def record(row, values, score=RMSE, *, seed=0, num_instances=None, **changes):
    keys = tuple(str(j + 1) for j in range(len(values)))
    row = AccuracyRow.from_values(row, keys, values, num_instances, score)
    return row_record(row, seed=seed, **changes)


def build_tracked_run(values=ERRORS, initial=UNTRAINED, score=RMSE, seed=0):
    rows = [*([] if initial is None else [(0, initial)]), *enumerate(values, start=1)]
    return assemble(
        {format_row_file_name(i): record(i, cells, score, seed=seed) for i, cells in rows}
    )


@pytest.mark.parametrize(
    ("name", "higher", "part"),
    [
        ("", True, "expected a name"),
        ("x" * 41, True, "expected a name"),
        ("rmse\n", True, "expected a name"),
        (7, True, "expected a name"),
        ("rmse", 1, "expected true or false"),
        ("accuracy", False, "higher is better"),
        ("Accuracy", True, "expected accuracy"),
    ],
)
def test_a_score_without_a_name_or_a_direction_is_rejected(name, higher, part):
    check_error(RecordError, part, Score, name, higher)


@pytest.mark.parametrize("other", [ACCURACY, MACRO_F1, Score("rmse")])
def test_a_row_of_another_score_is_rejected(other):
    rows = [record(1, [0.5, 0.25]), record(2, [0.5, 0.25], other)]
    message = "contradict each other: score is"
    check_error(RecordError, message, assemble, {format_row_file_name(r.row.row): r for r in rows})
    check_error(RecordError, message, AccuracyMatrix.from_rows, [r.row for r in rows])


cells = st.floats(-100, 100, allow_subnormal=False) | st.just(NAN)
rows_of_four = st.lists(cells, min_size=4, max_size=4)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(rows_of_four, min_size=1, max_size=4),
    st.none() | rows_of_four,
    st.sampled_from(["iid", "streaming"]),
)
def test_a_negated_matrix_has_the_same_metrics(values, initial, protocol):
    matrix = AccuracyMatrix(values, initial, [3, 1, 4, 1], score=Score("gain"))
    negative = None if initial is None else np.negative(initial)
    gain = Score("gain", higher_is_better=False)
    flipped = AccuracyMatrix(np.negative(values), negative, [3, 1, 4, 1], score=gain)
    positive, negated = summarize(matrix, protocol), summarize(flipped, protocol)
    adapted = (adapt_metrics(ALL_METRICS, of.score) for of in (matrix, flipped))
    for declared, value, other in zip(ALL_METRICS, *adapted, strict=True):
        assert (value.name in positive) == (other.name in negated)
        if declared.score_role == LEVEL:
            assert (value.higher_is_better, other.higher_is_better) == (True, False)
        else:
            assert value.higher_is_better == other.higher_is_better == declared.higher_is_better
        if value.name in positive:
            sign = -1 if declared.score_role == LEVEL else 1
            assert negated[other.name] == sign * positive[value.name]
    assert sorted(explain(matrix, protocol).values()) == sorted(explain(flipped, protocol).values())


def test_error_rates_of_a_published_matrix():
    accuracies, error_rate = np.array(SECOND_PLACE), Score("error_rate", False)
    of_accuracy = summarize(AccuracyMatrix(accuracies))
    of_error = summarize(AccuracyMatrix(1 - accuracies, score=error_rate))
    assert of_error["clear/in_domain_error_rate"] == pytest.approx(1 - 0.9228127, abs=1e-6)
    for metric in ALL_METRICS:
        if metric.score_role in (LEVEL, CHANGE) and metric.name in of_accuracy:
            value = of_accuracy[metric.name]
            expected = 1 - value if metric.score_role == LEVEL else value
            assert of_error[metric.adapt(error_rate).name] == pytest.approx(expected, abs=1e-12)


def test_tests_within_buckets_are_not_mixed_with_another_score():
    test = AnytimeRow(1, 1, 1, 1, 2, ("1", "2", "3"), (1, 2, 3), (9, 9, 9))
    matrix = AccuracyMatrix(ERRORS, None, [9, 9, 9], score=RMSE)
    with pytest.raises(RecordError, match="measure accuracy, but rows rmse"):
        AnytimeMatrix.from_tests([test], matrix)


def test_metrics_that_need_accuracies_are_omitted_with_a_reason():
    matrix = AccuracyMatrix(ERRORS, UNTRAINED, [10, 10, 10], score=RMSE)
    reasons = explain(matrix)
    needs = "needs an accuracy (the score is rmse)"
    variants = ("evoprompt", "lander", "podnet", "weighted")
    assert {name for name, reason in reasons.items() if reason == needs} == {
        *("clear/challenge_score", "cost/challenge_score_per_pflop", "diaz_rodriguez/remembering"),
        *(f"published/{variant}_forgetting" for variant in variants),
        *("published/weighted_incremental_accuracy", "published/weighted_average_drop"),
        *("published/base_harmonic_mean", "published/old_new_harmonic_mean"),
        *("published/relative_forgetting", "renate/micro_average_accuracy"),
        "wild_time/fix_id_accuracy",
    }


def test_a_custom_metric_declares_whether_it_accepts_any_score():
    matrix = AccuracyMatrix(ERRORS, score=RMSE)
    own = Metric(name="lab/lowest", function=lambda m: float(m.values.min()))
    reason = "needs an accuracy (the score is rmse)"
    assert courses.explain(matrix, metrics=[own]) == {"lab/lowest": reason}
    assert metrics.summarize(matrix, metrics=[replace(own, score_role=ANY)]) == {"lab/lowest": 1.5}
    level = replace(own, score_role=LEVEL, score_name="lab/{lowest}_{score}")
    assert metrics.summarize(matrix, metrics=[level]) == {"lab/highest_rmse": 6.0}


LOOP = DatasetDescription(name="own", buckets=("1", "2", "3"), score=RMSE)


def test_a_loops_rows_have_its_score():
    row = build_value_row(replace(LOOP, num_test=(9, 9, 9)), 1, {"1": 2.5, "3": 1e4})
    assert (row.score, row.num_instances) == (RMSE, (9, 9, 9))
    assert row.cells[::2] == (2.5, 1e4)
    assert math.isnan(row.cells[1])


@pytest.mark.parametrize(
    ("build_row", "cells", "part"),
    [
        (build_count_row, [1, 2, 3], "counts were passed, but the score is rmse; pass it to"),
        (build_prediction_row, [1], "predictions were passed, but the score is rmse"),
        (build_value_row, [1, 2], "rmse has 2 entries for 3 buckets"),
        (build_value_row, [1, 2, math.inf], "rmse of bucket '3' is inf"),
    ],
)
def test_a_loop_rejects_numbers_of_another_kind(build_row, cells, part):
    check_error((ConfigError, RecordError), part, build_row, LOOP, 1, cells)


def test_a_loop_rejects_labels_and_directions_that_do_not_fit_its_score():
    errors = (ConfigError, RecordError)
    check_error(errors, "test labels were passed", add_true_labels, LOOP, [[0], [0], [0]])
    for name, direction, part in (
        ("rmse", "yes", "lower_is_better is 'yes'; expected"),
        ("accuracy", True, "accuracy', lower is better"),
    ):
        check_error(errors, part, parse_score, name, lower_is_better=direction)


@given(st.floats(-1e150, 1e150), st.integers(2, 5))
def test_displayed_numbers_equal_the_values(value, digits):
    text = format_significant(value, digits)
    assert float(text) == pytest.approx(value, rel=0.6 * 10 ** (1 - digits))
    assert len(text) <= digits + 7


def test_better_values_are_brighter():
    grid = np.array([UNTRAINED, *ERRORS])
    lower, higher = build_cell_scale(RMSE, [grid]), build_cell_scale(Score("mean_reward"), [grid])
    assert lower.ends == ("6.00", "1.50")
    assert float(lower.shade(1.5)) == float(higher.shade(6.0)) == 1.0
    assert float(lower.shade(6.0)) == float(higher.shade(1.5)) == 0.0
    assert float(lower.shade(10.0)) == 0.0  # the untrained model's: beyond the scale
    assert build_cell_scale(ACCURACY, [grid]).ends == ("0.0 %", "100.0 %")
    assert float(build_cell_scale(RMSE, [np.full((3, 2), 4.0)]).shade(4.0)) == 0.5


def test_colours_of_a_run_with_only_the_untrained_model():
    grid = np.array([UNTRAINED, *np.full((3, 3), np.nan)])
    scale = build_cell_scale(RMSE, [grid])
    assert [float(scale.shade(value)) for value in (min(UNTRAINED), max(UNTRAINED))] == [1.0, 0.0]
    # Next to a run that was trained it does not count.
    assert build_cell_scale(RMSE, [grid, np.array([UNTRAINED, *ERRORS])]).ends == ("6.00", "1.50")


def test_an_axis_of_large_values_begins_near_the_lowest():
    """Values from 1000 to 1010 would be a flat line above zero."""
    lines = [Line(0, [LinePoint(1, 1000.0, "first"), LinePoint(2, 1010.0, "second")])]
    for is_large in (True, False):
        ticks = [value for value, _ in build_axis(lines, RMSE).list_ticks(is_large=is_large)]
        assert len(ticks) > 1
        assert all(990 < tick < 1020 for tick in ticks)


def build_report(run):
    results = metrics.evaluate_metrics(metrics.METRICS, run.matrix)
    return RunReport(name="a run", run_id="1", record=run, results=results)


def shown_text(page):
    return page.split("</style>")[-1].split("<script")[0]


def test_pages_and_descriptions_show_the_score_and_no_percent():
    run = build_tracked_run()
    results = metrics.evaluate_metrics(metrics.METRICS, run.matrix)
    page = render_run_page(build_report(run))
    note = format_run_description(run, results)
    part = render_run_html("a run", run.matrix, results.values())
    for text in (shown_text(page), note, part):
        for expected in ("rmse", "2.50", "lower is better"):
            assert expected in text.replace("&#32;", " ")
        assert " %" not in text
        assert "ccuracy in" not in text
    assert ">clear/in_domain_rmse<" in part
    turned = "for rmse with its sign turned instead of accuracy"
    for expected in ("rmse matrix", "backward_transfer", turned):
        assert expected in page
    score = json.loads(format_matrix_json(run.matrix))["score"]
    assert score == {"name": "rmse", "lower_is_better": True}
    headers = [str(column.header) for column in build_matrix_table(run.matrix).columns]
    assert headers == ["rmse on →", "1", "2", "3"]
    # The direction of a metric is that of its own, not of the score alone.
    rows = {line.split("|")[1].strip(" `"): line for line in note.splitlines() if "|" in line}
    assert rows["renate/average_rmse"].endswith("| lower is better |")
    assert rows["renate/forgetting"].endswith("| lower is better |")
    assert rows["renate/backward_transfer"].endswith("|  |")


def test_an_untrained_model_far_off_does_not_flatten_the_charts():
    page = render_run_page(build_report(build_tracked_run(initial=[5e4, 6e4, 7e4])))
    charts = shown_text(page).split("rmse over time")[1]
    assert "values of the untrained model outside of it are omitted" in charts
    assert "rmse on each bucket over the whole run" in charts
    titles = [part.split("<")[0] for part in charts.split("<title>")[1:]]
    assert "buckets still to come (mean), after 1: 5.00" in titles
    assert not any("after 0" in title for title in titles)
    near = shown_text(render_run_page(build_report(build_tracked_run(initial=[4.0, 5.0, 6.0]))))
    assert "buckets still to come (mean), after 0: 5.00" in near


@example(1e-09, 1e-09, 3)
@given(st.floats(-1e150, 1e150), st.floats(-1e150, 1e150), st.integers(2, 5))
def test_an_axis_has_a_few_round_numbers(one, other, steps):
    low, high = pad_range(min(one, other), max(one, other))
    assert low < min(one, other) <= max(one, other) < high
    ticks = list_round_ticks(low, high, steps)
    assert 1 <= len(ticks) <= 2 * steps + 1
    slack = 1e-12 * max(abs(low), abs(high))
    assert all(low - slack <= value <= high + slack for value, _ in ticks)
    assert max(len(text) for _, text in ticks) <= 14


def build_runs(levels, score=RMSE, seeds=3):
    run_list = []
    for name, factor in levels.items():
        for seed in range(seeds):
            values = (np.array(ERRORS) * factor + 0.01 * seed * (seed + factor)).tolist()
            untrained = [1e5 * factor] * 3  # far from all that is measured later
            run = build_tracked_run(values, untrained, score=score, seed=seed)
            summary = metrics.summarize(run.matrix)
            ids = {"run_id": f"{name}{seed}{score.name}", "name": f"{name} {seed}"}
            labels = {"strategy": name, "dataset": "bikes"}
            run_list += [ComparedRun(**ids, record=run, summary=summary, labels=labels)]
    return run_list


def test_the_lowest_error_leads_and_is_called_better():
    comparison = compare(build_runs({"bad": 2.0, "good": 1.0}), ["strategy"])
    assert comparison.ranked_by == "renate/average_rmse"
    assert [*build_leaderboard_frame(comparison)["group"]] == ["good", "bad"]
    (sentence,) = (pair.sentence for pair in comparison.pairs)
    assert sentence.startswith(
        "good is significantly better than bad in renate/average_rmse (lower is better: good "
        "-2.677, 95 % CI -2.702 to -2.652, p < 0.0001, "
    )
    assert "points" not in sentence
    page = render_comparison_page(comparison, title="errors", footer="")
    assert " %" not in shown_text(page).split("<h2>rmse matrices")[1].split("</section>")[0]


def test_runs_of_different_scores_are_not_compared():
    both = [*build_runs({"a": 1.0}), *build_runs({"b": 1.0}, MACRO_F1)]
    message = "rmse (lower is better; 3 runs), macro_f1"
    check_error(ConfigError, message, rank_groups, both, ["strategy"])


def test_a_plain_matrix_is_imported_as_the_score_that_the_user_states():
    def read(name, content, **options):
        return parse_runs(ResultFile(name, content, ReadOptions(**options)))[0].matrix

    errors = b"2,4,6\n3,2.5,5\n3.5,3,1.5\n"
    matrix = read("errors.csv", errors, score=RMSE, orientation="rows")
    np.testing.assert_array_equal(matrix.values, ERRORS)
    assert matrix.score == RMSE
    # Our own file contains its score, and no option may contradict it.
    own = format_matrix_json(matrix).encode()
    assert read("matrix.json", own).equals(matrix)
    assert read("matrix.json", own, score=RMSE).equals(matrix)
    with pytest.raises(ConfigError, match=r"score is 'macro_f1', but .* contains rmse, lower"):
        read("matrix.json", own, score=MACRO_F1)
    with pytest.raises(ConfigError, match="scale is 'percent', which applies only to accuracies"):
        read("errors.csv", errors, score=RMSE, scale="percent", orientation="rows")
