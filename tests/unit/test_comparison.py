"""Groups, ranking, tests and warnings of comparisons."""

import csv
import dataclasses
import io
import json
import re
from functools import partial
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from comparisons import NUM_TEST, compared_run, counts
from comparisons import build_seed_runs as seeds_of
from rich.console import Console
from stored_values import build_images, build_row_predictions

from clear_mlflow.comparison import pairs
from clear_mlflow.comparison.figures import plot_history, render_figures
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.pairs import compare_groups
from clear_mlflow.comparison.ranking import rank_groups
from clear_mlflow.comparison.tables import (
    build_comparison_dict,
    build_leaderboard_frame,
    build_metrics_frame,
    build_pairs_frame,
    format_description,
    format_latex,
    format_leaderboard_csv,
    format_leaderboard_json,
    format_markdown,
)
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.metrics import Predictions
from clear_mlflow.statistics import ImageBootstrap

BY = ("strategy", "dataset")
SCORE = "clear/challenge_score"
MINIMUM = "continual_evaluation/minimum_accuracy"


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Use few bootstrap resamples. The bootstrap is tested in test_statistics_bootstrap.py."""
    monkeypatch.setattr(pairs, "ImageBootstrap", partial(ImageBootstrap, resamples=50))


def compare_and_rank(runs_to_compare, by=BY, **options):
    return compare_groups(rank_groups(runs_to_compare, by, **options))


def build_predictions(correct, *, classes=("wrong", "right")):
    """Return predictions with the counts of their rows."""
    counts = (NUM_TEST,) * len(correct[0])
    images = build_images(counts, np.ones(sum(counts)), classes)
    labels = [np.concatenate([np.arange(NUM_TEST) < right for right in row]) for row in correct]
    return Predictions(images, build_row_predictions(images, dict(enumerate(labels))))


def test_the_better_group_leads():
    """By the challenge score, or downwards if lower is better. Without labels, a group is a run."""
    runs = [*seeds_of("naive", 120, [0]), *seeds_of("replay", 180, [0])]
    assert [g.name for g in compare_and_rank(runs).groups] == ["replay", "naive"]
    each = compare_and_rank(
        [compared_run("a", counts(180, s), seed=7, run_id=f"run{s}") for s in range(3)], by=()
    )
    assert len({group.name for group in each.groups}) == 3
    by_forgetting = compare_and_rank(runs, rank_by="renate/forgetting").groups
    values = [g.metrics["renate/forgetting"].mean for g in by_forgetting]
    assert values == sorted(values)


@pytest.mark.parametrize("scenario", ["domain", "class", "task"])
def test_new_classes_are_ranked_by_average_accuracy(scenario):
    """The challenge score includes cells of future classes."""
    runs = seeds_of("naive", 120, [0, 1], params={"scenario": scenario})
    expected = SCORE if scenario == "domain" else "renate/average_accuracy"
    assert compare_and_rank(runs).ranked_by == expected


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"digest": "sha256:" + "cd" * 32}, "dataset digest (abababab and cdcdcdcd)"),
        ({"protocol": "streaming"}, "protocol (iid and streaming)"),
        ({"split": "validation"}, "split (test and validation)"),
        ({"buckets": ["a", "b", "c", "d"]}, "buckets"),
    ],
)
def test_different_test_sets_are_never_in_one_group(other, message):
    """They are never tested, and the difference is named."""
    runs = [
        *seeds_of("replay", 180, range(7)),
        *seeds_of("replay", 120, range(7, 14), **other),
    ]
    comparison = compare_and_rank(runs)
    assert [len(group.members) for group in comparison.groups] == [7, 7]
    assert len({group.name for group in comparison.groups}) == 2
    assert comparison.list_pairs() == []
    assert any(
        "different conditions" in warning and message in warning for warning in comparison.warnings
    )


def test_a_repeated_run_counts_once():
    """By its id, and by its seed and matrix."""
    runs = seeds_of("replay", 180, range(3))
    copy = compared_run("replay", counts(180, 1), seed=1, run_id="copy")
    comparison = compare_and_rank([*runs, runs[0], copy])
    (group,) = comparison.groups
    assert [run.run_id for run in group.members] == ["replay-0", "replay-1", "replay-2"]
    assert any("repeats" in warning and "copy" in warning for warning in comparison.warnings)


def test_a_repeated_seed_with_different_numbers_is_reported():
    """Its spread is not one over seeds."""
    runs = [
        *seeds_of("replay", 180, [1]),
        compared_run("replay", counts(170, 5), seed=1, run_id="x"),
    ]
    comparison = compare_and_rank(runs)
    assert len(comparison.groups[0].members) == 2
    assert any("seed 1 more than once" in warning for warning in comparison.warnings)


def test_one_run_only():
    """It is shown without a test."""
    comparison = compare_and_rank(seeds_of("replay", 180, [0]))
    assert comparison.list_pairs() == []
    assert comparison.groups[0].metrics[SCORE].interval is None
    assert "one run each" in comparison.warnings[0]
    assert comparison.get_interval(0, SCORE) == (None, False)
    run = comparison.groups[0].members[0]
    comparison = compare_groups(
        rank_groups([run], BY), {run.run_id: build_predictions(counts(180, 0))}
    )
    interval, is_over_images = comparison.get_interval(0, SCORE)
    assert is_over_images
    assert interval.low < comparison.groups[0].metrics[SCORE].mean < interval.high


def test_a_run_that_ended_early_is_left_out_of_means():
    """Its cells are shown."""
    whole = seeds_of("replay", 180, range(3))
    early = compared_run("replay", counts(180, 9)[:3], seed=9)
    comparison = compare_and_rank([*whole, early])
    (group,) = comparison.groups
    assert group.metrics[SCORE].n == 3
    assert group.metrics[SCORE].mean == compare_and_rank(whole).groups[0].metrics[SCORE].mean
    assert group.seeds_per_cell.tolist() == [[4] * 4] * 3 + [[3] * 4] * 2
    assert any("trained on 2 of 4 buckets" in warning for warning in comparison.warnings)


def test_streaming_shows_only_valid_cells():
    """Cells on training images are masked in matrices and metrics."""
    runs = seeds_of("replay", 180, range(2), protocol="streaming")
    (group,) = compare_and_rank(runs).groups
    assert np.isnan(group.grid[1:][np.tri(4, dtype=bool)]).all()
    assert SCORE not in group.metrics
    assert "clear/next_domain_accuracy" in group.metrics


def test_predictions_of_single_runs_are_paired():
    """A bootstrap of each metric over common test images."""
    cells = {"a": counts(180, 0), "b": counts(120, 0)}
    ranked = rank_groups([compared_run(name, c) for name, c in cells.items()], BY)
    assert {run.name for run in ranked.list_runs_to_bootstrap()} == {"a seed 0", "b seed 0"}
    comparison = compare_groups(
        ranked, {f"{name}-0": build_predictions(c) for name, c in cells.items()}
    )
    (verdict,) = comparison.list_pairs()
    assert (verdict["unit"], verdict["outcome"]) == ("images", "different")
    assert verdict["difference"] == pytest.approx(
        comparison.groups[0].metrics[SCORE].mean - comparison.groups[1].metrics[SCORE].mean
    )


def test_different_test_images_are_not_paired():
    """Although the dataset's digest is the same."""
    cells = {"a": counts(180, 0), "b": counts(120, 0)}
    ranked = rank_groups([compared_run(name, c) for name, c in cells.items()], BY)
    comparison = compare_groups(
        ranked,
        {f"{name}-0": build_predictions(c, classes=(name, "right")) for name, c in cells.items()},
    )
    assert comparison.list_pairs() == []
    assert any("different test images" in warning for warning in comparison.warnings)


def test_runs_without_the_label_are_an_error():
    """One line that names the existing labels."""
    with pytest.raises(ConfigError, match=r"group_by names 'memory'.*there are dataset, strategy"):
        rank_groups(seeds_of("replay", 180, [0]), ["memory"])
    with pytest.raises(ConfigError, match=r"rank_by .*is 'speed'"):
        rank_groups(seeds_of("replay", 180, [0]), BY, rank_by="speed")
    with pytest.raises(ConfigError, match="nothing to compare"):
        rank_groups([], BY)


def test_the_leaderboard_has_the_values_of_the_groups():
    """With twelve digits. Undefined values are empty in both files."""
    comparison = compare_and_rank([*seeds_of("=1+1", 180, range(2)), *seeds_of("alone", 120, [0])])
    table = json.loads(format_leaderboard_json(comparison))
    for group, row in zip(comparison.groups, table["data"], strict=True):
        shown = dict(zip(table["columns"], row, strict=True))
        assert (shown.pop("group"), shown.pop("seeds")) == (group.name, len(group.members))
        assert shown == pytest.approx({name: group.metrics[name].mean for name in shown}, rel=1e-11)
        assert all(len(repr(value)) <= 17 for value in shown.values())
    lines = list(csv.DictReader(io.StringIO(format_leaderboard_csv(comparison))))
    expected = [(group, *metric) for group in comparison.groups for metric in group.metrics.items()]
    for (group, metric, value), line in zip(expected, lines, strict=True):
        assert line["group"] == ("'=1+1" if group.name == "=1+1" else group.name)
        assert (line["metric"], line["n"]) == (metric, str(value.n))
        assert float(line["mean"]) == pytest.approx(value.mean, rel=1e-11)
        ends = value.interval or (None, None)
        for name, number in (("std", value.std), ("low", ends[0]), ("high", ends[1])):
            assert (
                line[name] == "" if number is None else float(line[name]) == pytest.approx(number)
            )


def test_frames_accept_any_name_and_keep_integers():
    """Lone surrogates, and labels named like a column."""
    runs = [
        compared_run(name, counts(level, seed), seed=seed, labels={"group": name, "n": "x"})
        for name, level in (("a\ud800", 180), ("b", 120))
        for seed in range(2)
    ]
    comparison = compare_and_rank(runs, by=("group", "n"))
    assert comparison.runs_frame["seed"].tolist() == [0, 1, 0, 1]
    frame = build_metrics_frame(comparison)
    assert frame.columns[:4].tolist() == ["group", "group", "n", "metric"]
    assert {*frame.iloc[:, 1]} == {"a\ud800", "b"}
    (verdict,) = build_pairs_frame(comparison).to_dict("records")
    assert (verdict["outcome"], verdict["p"]) == ("too few", None)
    assert isinstance(verdict["more_seeds"], int)
    assert format_leaderboard_csv(comparison).count("\n") == 1 + len(frame)


def partly_defined():
    """Return three seeds, of which the first defines its average accuracy."""
    runs = seeds_of("replay", 180, range(3))
    for i, run in enumerate(runs[1:], start=1):
        summary = {n: v for n, v in run.summary.items() if n != "renate/average_accuracy"}
        runs[i] = dataclasses.replace(run, summary=summary)
    return compare_and_rank([*runs, *seeds_of("naive", 120, range(3))])


def test_each_output_counts_the_seeds_that_define_a_metric():
    """As "1 of 3": terminal, LaTeX, Markdown, description, page, CSV, JSON and data frame."""
    comparison = partly_defined()
    printed = io.StringIO()
    console = Console(width=80, file=printed)
    for part in render_comparison(comparison):
        console.print(part)
    assert printed.getvalue().count("1 of 3") == 1
    for text in (
        format_latex(comparison),
        format_markdown(comparison),
        format_description(comparison, page=""),
    ):
        assert text.count("(1 of 3)") == 1
    assert render_comparison_page(comparison, title="", footer="").count("1 of 3 seeds") >= 1
    lines = list(csv.DictReader(io.StringIO(format_leaderboard_csv(comparison))))
    counts_of = {(li["group"], li["metric"]): (li["n"], li["seeds"]) for li in lines}
    assert counts_of["replay", "renate/average_accuracy"] == ("1", "3")
    assert counts_of["naive", "renate/average_accuracy"] == ("3", "3")
    group = build_comparison_dict(comparison)["groups"][0]
    assert (group["metrics"]["renate/average_accuracy"]["n"], group["seeds"]) == (1, 3)
    frame = build_leaderboard_frame(comparison)
    assert frame["renate/average_accuracy (seeds)"].tolist() == [1, 3]
    assert json.loads(format_leaderboard_json(comparison))["columns"] == [*frame.columns]


@pytest.mark.slow
def test_figures_are_pictures():
    """Metrics and curves as on the page, and pages of a PDF."""
    comparison = compare_and_rank(
        [*seeds_of("a$x^<b>", 180, range(2)), *seeds_of("b 🚌", 120, [0])]
    )
    files = dict(render_figures(comparison))
    assert set(files) == {"metrics.svg", "curves.svg", "paper.pdf"}
    page = render_comparison_page(comparison, title="t", footer="f")
    for name, content in files.items():
        if name == "paper.pdf":
            with mpl.rc_context({"text.usetex": True, "savefig.dpi": 30}):
                assert (
                    dict(render_figures(comparison))[name] == content
                )  # undated, and no user's settings
            assert content.count(b"/Type /Page ") == 3  # the curves and two matrices
            assert b"/CIDFontType2" in content
            assert b"/Type3" not in content
            continue
        drawn = ElementTree.fromstring(content)
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        assert "a$x^<b>" in [part.text for part in drawn.iter()]
        curves = re.findall(r'<(?:path class="(?:line|band|reach)"|circle)[^>]*>', content.decode())
        assert len(curves) > 4
        assert all(curve in page for curve in curves if "h26" not in curve)


@pytest.mark.parametrize("width", [1.5, 3.3, 6.5])
@pytest.mark.parametrize("groups", [2, 3, 12])
def test_a_legend_stays_in_its_figure(groups, width):
    """In fewer columns for long names. The axes keep their height."""
    long = ["a long name, " * 9 + letter for letter in "abcdefghi"]
    names = ["from_scratch", "cumulative", "replay, memory 500", *long][:groups]
    comparison = compare_and_rank(
        [run for k, name in enumerate(names) for run in seeds_of(name, 100 + k, [0])]
    )
    figure = plot_history(comparison, width=width)
    figure.draw_without_rendering()
    assert figure.get_size_inches()[0] == width
    (legend,) = figure.legends
    assert len({text.get_text() for text in legend.get_texts()}) == groups
    wide, high = figure.bbox.size
    for part in (legend, figure.axes[0].yaxis.label, figure.axes[0].xaxis.label):
        box = part.get_window_extent()
        assert min(box.x0, box.y0) >= 0
        assert (box.x1, box.y1) <= (wide, high)
        assert box.y1 <= high
    assert figure.axes[0].get_window_extent().height > 0.3 * wide


def test_the_description_fits_and_starts_with_significant_differences():
    """Many groups with long hostile names stay below MLflow's 8,000 characters."""
    runs = [
        run
        for i in range(30)
        for run in seeds_of(f"{i} <b>|`x`" + "🚌" * 500, 100 + 3 * i, range(2))
    ]
    note = format_description(compare_and_rank(runs), page="comparison.html")
    assert len(note.encode()) < 8000
    assert "<b>" not in note
    assert "more" in note


def with_tests(name, level, seed, every):
    """Return a run with a minimum over tests within its buckets."""
    run = compared_run(name, counts(level, seed), seed=seed)
    summary = {**run.summary, MINIMUM: level * (1 - seed / 100) / 400}
    return dataclasses.replace(run, summary=summary, test_every=every)


def test_metrics_of_tests_within_buckets_are_compared():
    """Shown, tested over seeds, and ranked by. Runs without them are named."""
    runs = [with_tests("naive", 120, seed, "2") for seed in range(3)]
    runs += [with_tests("replay", 160, seed, "2") for seed in range(3)]
    comparison = compare_and_rank(runs, rank_by=MINIMUM)
    assert {*comparison.pairs["metric"]} == {MINIMUM}
    assert not any("test_every" in text for text in comparison.warnings)
    comparison = compare_and_rank([*runs, *seeds_of("er_ace", 150, range(2))])
    assert [MINIMUM in group.metrics for group in comparison.groups] == [True, False, True]
    (line,) = [text for text in comparison.warnings if "test_every" in text]
    assert line.startswith("2 of 8 runs have no tests within buckets (test_every): ")


def test_different_test_intervals_are_shown_but_not_tested():
    """A shorter interval finds lower minima."""
    runs = [with_tests("naive", 120, seed, "2") for seed in range(3)]
    runs += [with_tests("replay", 160, seed, "1") for seed in range(3)]
    comparison = compare_and_rank(runs)
    assert any("(test_every: '1', '2')" in text for text in comparison.warnings)
    assert all(MINIMUM in group.metrics for group in comparison.groups)
    assert comparison.list_pairs()
    assert compare_and_rank(runs, rank_by=MINIMUM).list_pairs() == []


def test_the_copy_with_tests_within_buckets_counts():
    """Whichever is listed first."""
    run = with_tests("naive", 120, 0, "2")
    plain = dataclasses.replace(run, run_id="plain", test_every=None)
    for runs_to_compare in ([run, plain], [plain, run]):
        ranked = rank_groups(runs_to_compare, BY)
        assert [member.test_every for member in ranked.runs] == ["2"]
        assert any("repeats" in note for note in ranked.warnings)
