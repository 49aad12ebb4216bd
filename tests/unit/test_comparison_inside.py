"""Tests inside buckets of several runs: their metrics compared, their curves in one chart."""

import dataclasses
import re

import numpy as np
import pytest
from anytime_courses import inside_bucket
from comparisons import NUM_TEST, counts, subject

from clear_mlflow.comparison import arrange, compare
from clear_mlflow.comparison.figures import figures
from clear_mlflow.comparison.page import comparison_page
from clear_mlflow.comparison.page.inside_section import inside_parts
from clear_mlflow.core.anytime.anytime_matrix import AnytimeMatrix
from clear_mlflow.metrics import anytime

BY = ("strategy",)
MINIMUM = "continual_evaluation/minimum_accuracy"
BUCKETS = 3


def course(name, level, seed, *, every="2", num_tests=2, **options):
    """A run of three buckets and its tests: each so many below the row that follows it."""
    rows = counts(level, seed, BUCKETS)
    run = subject(name, rows, seed=seed, **options)
    tests = [
        test
        for bucket in range(1, BUCKETS + 1)
        for test in inside_bucket(
            bucket,
            [[max(0, c - 10 * n - seed) for c in rows[bucket]] for n in range(num_tests, 0, -1)],
            (NUM_TEST,) * BUCKETS,
        )
    ]
    matrix = AnytimeMatrix.of_tests(tests, run.record.matrix, run.record.protocol)
    summary = {**run.summary, **anytime.summarize(matrix)}
    return dataclasses.replace(run, summary=summary, test_every=every), matrix


def compared(pairs, plain=(), **options):
    inside = {run.run_id: matrix for run, matrix in pairs}
    arrangement = arrange([*(run for run, _ in pairs), *plain], BY, **options)
    drawn = {run.run_id: inside[run.run_id] for run in arrangement.wants_tests(40)}
    return compare(arrangement, inside=drawn)


def two_methods(seeds=3):
    return [
        course(name, level, seed)
        for name, level in (("naive", 120), ("replay", 160))
        for seed in range(seeds)
    ]


def about_inside(comparison):
    return [text for text in comparison.warnings if "test_every" in text]


def points_of(curve):
    numbers = [float(text) for text in re.split(r"[ L]", curve["line"].removeprefix("M"))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_their_metrics_are_compared_as_all_others():
    """In the leaderboard, tested over seeds, and to rank by; nothing is to be said of it."""
    pairs = two_methods()
    comparison = compared(pairs, rank_by=MINIMUM)
    assert comparison.ranked_by == MINIMUM
    for group in comparison.groups:
        values = [anytime.summarize(m)[MINIMUM] for run, m in pairs if run in group.members]
        assert group.metrics[MINIMUM].mean == pytest.approx(np.mean(values))
    assert {verdict.metric for verdict in comparison.verdicts} == {MINIMUM}
    assert {metric.name for metric in anytime.METRICS} <= set(comparison.metrics)
    others = {test.metric for test in comparison.exploratory}
    assert "continual_evaluation/worst_case_accuracy" in others
    assert not comparison.is_higher_better("continual_evaluation/windowed_forgetting_10")
    assert about_inside(comparison) == []


def test_curves_are_the_means_over_seeds():
    """Of the buckets before, each moment's accuracies averaged; the band has the ends of them."""
    pairs = two_methods(seeds=2)
    comparison = compared(pairs)
    (part,) = inside_parts(comparison)
    before, new = part["means"]
    assert [curve["colour"] for curve in before["curves"]] == [0, 0, 1, 1]
    assert len(new["curves"]) == 6
    leader = comparison.groups[0]
    matrices = [matrix for run, matrix in pairs if run in leader.members]
    ticks = {tick["text"]: tick["at"] for tick in before["up"]}
    low, high = min(ticks, key=int), "100"

    def height(value):
        share = (value - int(low) / 100) / (1 - int(low) / 100)
        return ticks[low] + (ticks[high] - ticks[low]) * share

    expected = []  # while bucket 3 is trained on: row 2, two tests, row 3
    for matrix in matrices:
        cells = [matrix.matrix.values[1], *(t.accuracy for t in matrix.tests[2])]
        cells.append(matrix.matrix.values[2])
        expected.append([np.mean(of_all[:2]) for of_all in cells])
    found = points_of(before["curves"][1])
    assert [y for _, y in found] == pytest.approx(
        [height(v) for v in np.mean(expected, axis=0)], abs=0.06
    )
    band = [float(text) for text in re.findall(r"[\d.]+", before["curves"][1]["band"])]
    assert band[1:8:2] == pytest.approx([height(v) for v in np.max(expected, axis=0)], abs=0.06)
    assert [entry["name"] for entry in part["legend"]] == ["replay (2 runs)", "naive (2 runs)"]


def test_a_run_without_such_tests_is_empty_and_named_in_one_line():
    plain = [subject("er_ace", counts(150, seed, BUCKETS), seed=seed) for seed in range(2)]
    comparison = compared(two_methods(), plain)
    (line,) = about_inside(comparison)
    assert line.startswith("2 of 8 runs were not tested inside their buckets (test_every): ")
    (without,) = (group for group in comparison.groups if group.name == "er_ace")
    assert MINIMUM not in without.metrics
    (part,) = inside_parts(comparison)
    assert "Not drawn, for lack of such tests: er_ace." in part["about"]
    assert len(part["legend"]) == 2
    assert '<section id="inside">' in comparison_page(comparison, title="a", footer="b")


def test_intervals_that_differ_are_shown_and_not_tested():
    """A shorter interval finds lower minima: that is no difference of methods."""
    pairs = [course("naive", 120, seed) for seed in range(3)]
    pairs += [course("replay", 160, seed, every="1", num_tests=5) for seed in range(3)]
    comparison = compared(pairs)
    (line,) = about_inside(comparison)
    assert "(test_every: '1', '2')" in line
    assert all(MINIMUM in group.metrics for group in comparison.groups)
    assert comparison.exploratory
    assert not any(t.metric.startswith("continual_evaluation/") for t in comparison.exploratory)
    assert compared(pairs, rank_by=MINIMUM).verdicts == ()


def test_ends_of_buckets_lie_at_one_place_however_many_steps_runs_take():
    """And tests of each at their share of its bucket."""
    pairs = [course("naive", 120, 0), course("replay", 160, 0, every="1", num_tests=5)]
    (part,) = inside_parts(compared(pairs))
    assert "as long as their mean" in part["about"]
    chart = part["buckets"][0]
    assert len(chart["marks"]) == BUCKETS
    for curve, num_tests in zip(chart["curves"], (5, 2), strict=True):
        across = [x for x, _ in points_of(curve)]
        assert len(across) == (num_tests + 1) * BUCKETS
        assert across[num_tests :: num_tests + 1] == chart["marks"]
        assert np.diff([chart["left"], *across]) == pytest.approx(
            (chart["right"] - chart["left"]) / BUCKETS / (num_tests + 1), abs=0.11
        )


def test_a_seed_that_was_tested_otherwise_leaves_the_moments_of_all():
    pairs = [course("naive", 120, 0), course("naive", 120, 1, num_tests=5)]
    (part,) = inside_parts(compared(pairs))
    first = part["buckets"][0]["curves"][0]
    assert len(points_of(first)) == 3 * BUCKETS  # a third, two thirds, the row


def test_of_two_runs_of_one_training_the_one_with_tests_counts():
    """Whichever is listed first."""
    run, matrix = course("naive", 120, 0)
    plain = dataclasses.replace(run, run_id="plain", test_every=None)
    for subjects in ([run, plain], [plain, run]):
        arrangement = arrange(subjects, BY)
        assert [member.test_every for member in arrangement.subjects] == ["2"]
        assert any("repeats" in note for note in arrangement.notes)
        assert compare(arrangement, inside={run.run_id: matrix}).inside


def test_each_group_is_drawn_before_a_second_run_of_any():
    wanted = arrange([run for run, _ in two_methods()], BY).wants_tests(4)
    assert [(run.labels["strategy"], run.record.seed) for run in wanted] == [
        ("replay", 0),
        ("naive", 0),
        ("replay", 1),
        ("naive", 1),
    ]


def test_nothing_is_drawn_under_streaming_or_without_tests():
    """Tests of a bucket trained on are of its training images there."""
    streaming = [course("naive", 120, 0, protocol="streaming")]
    assert list(inside_parts(compared(streaming))) == []
    plain = compared([], [subject("naive", counts(120, 0, BUCKETS))])
    assert list(inside_parts(plain)) == []
    assert about_inside(plain) == []
    assert 'id="inside"' not in comparison_page(plain, title="a", footer="b")


def test_the_figure_for_papers():
    """Where there are tests; beside the others."""
    names = [name for name, content in figures(compared(two_methods(seeds=2))) if content]
    assert "inside.png" in names
    plain = compared([], [subject("naive", counts(120, 0, BUCKETS))])
    assert "inside.png" not in [name for name, _ in figures(plain)]
