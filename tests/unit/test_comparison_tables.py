"""Tables of comparisons: the leaderboard, frames, and papers' tables."""

import csv
import dataclasses
import io
import json

import pytest
from comparisons import build_seed_runs as seeds_of
from comparisons import compare, compared_run, counts
from rich.console import Console

from clear_mlflow.comparison import tables
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.metrics import COST_METRICS, METRICS


def test_the_leaderboard_has_the_values_of_the_groups():
    comparison = compare([*seeds_of("=1+1", 180, range(2)), *seeds_of("alone", 120, [0])])
    table = json.loads(tables.format_leaderboard_json(comparison))
    for group, row in zip(comparison.groups, table["data"], strict=True):
        row_values = dict(zip(table["columns"], row, strict=True))
        assert row_values.pop("group") == group.name
        assert row_values.pop("seeds") == len(group.members)
        means = {name: group.metrics[name].mean for name in row_values}
        assert row_values == pytest.approx(means, rel=1e-11)
        assert all(len(repr(value)) <= 17 for value in row_values.values())
    lines = list(csv.DictReader(io.StringIO(tables.format_leaderboard_csv(comparison))))
    expected = [(group, *metric) for group in comparison.groups for metric in group.metrics.items()]
    for (group, metric, value), line in zip(expected, lines, strict=True):
        assert line["group"] == ("'=1+1" if group.name == "=1+1" else group.name)
        assert (line["metric"], line["n"]) == (metric, str(value.n))
        assert float(line["mean"]) == pytest.approx(value.mean, rel=1e-11)
        ends = value.interval or (None, None)
        for name, number in (("std", value.std), ("low", ends[0]), ("high", ends[1])):
            written = float(line[name]) if line[name] else None
            assert written == pytest.approx(number)


def test_frames_accept_any_name_and_keep_integers():
    runs = [
        compared_run(name, counts(level, seed), seed=seed, labels={"group": name, "n": "x"})
        for name, level in (("a\ud800", 180), ("b", 120))
        for seed in range(2)
    ]
    comparison = compare(runs, by=("group", "n"))
    assert comparison.runs_frame["seed"].tolist() == [0, 1, 0, 1]
    frame = tables.build_metrics_frame(comparison)
    assert frame.columns[:4].tolist() == ["group", "group", "n", "metric"]
    assert {*frame.iloc[:, 1]} == {"a\ud800", "b"}
    (verdict,) = comparison.pairs_frame.to_dict("records")
    assert (verdict["outcome"], verdict["p"]) == ("too few", None)
    assert isinstance(verdict["more_seeds"], int)
    assert tables.format_leaderboard_csv(comparison).count("\n") == 1 + len(frame)


def partly_defined():
    runs = seeds_of("replay", 180, range(3))
    for i, run in enumerate(runs[1:], start=1):
        summary = {n: v for n, v in run.summary.items() if n != "renate/average_accuracy"}
        runs[i] = dataclasses.replace(run, summary=summary)
    return compare([*runs, *seeds_of("naive", 120, range(3))])


def test_each_output_counts_the_seeds_that_define_a_metric():
    comparison = partly_defined()
    printed = io.StringIO()
    console = Console(width=80, file=printed)
    for part in render_comparison(comparison):
        console.print(part)
    assert printed.getvalue().count("1 of 3") == 1
    for text in (
        tables.format_latex(comparison),
        tables.format_markdown(comparison),
        tables.format_description(comparison, page=""),
    ):
        assert text.count("(1 of 3)") == 1
    assert render_comparison_page(comparison, title="", footer="").count("1 of 3 seeds") >= 1
    lines = list(csv.DictReader(io.StringIO(tables.format_leaderboard_csv(comparison))))
    counts_of = {(li["group"], li["metric"]): (li["n"], li["seeds"]) for li in lines}
    assert counts_of["replay", "renate/average_accuracy"] == ("1", "3")
    assert counts_of["naive", "renate/average_accuracy"] == ("3", "3")
    group = tables.build_comparison_dict(comparison)["groups"][0]
    assert (group["metrics"]["renate/average_accuracy"]["n"], group["seeds"]) == (1, 3)
    frame = tables.build_leaderboard_frame(comparison)
    assert frame["renate/average_accuracy (seeds)"].tolist() == [1, 3]
    assert json.loads(tables.format_leaderboard_json(comparison))["columns"] == [*frame.columns]


def test_the_description_fits_and_starts_with_significant_differences():
    """Many groups with long hostile names stay below MLflow's 8,000 characters."""
    names = [f"{i} <b>|`x`" + "🚌" * 500 for i in range(30)]
    runs = [run for i, name in enumerate(names) for run in seeds_of(name, 100 + 3 * i, range(2))]
    note = tables.format_description(compare(runs), page="comparison.html")
    assert len(note.encode()) < 8000
    assert "<b>" not in note
    assert "more" in note


def test_a_papers_table_says_what_its_numbers_are():
    costs = {"cost/training_flops": 4.6e11}
    runs = [
        dataclasses.replace(run, summary={**run.summary, **costs, "renate/forgetting": -1e-9})
        for name, level in (("na_ive", 120), ("replay", 180))
        for run in seeds_of(name, level, range(3))
    ]
    compared = compare(runs, metrics=(*METRICS, *COST_METRICS))
    latex = tables.format_latex(compared)
    assert r"\caption{Mean $\pm$ standard deviation over seeds." in latex
    head, *rows = [line.split(" & ") for line in latex.splitlines() if " & " in line]
    assert [len(row) for row in rows] == [7, 7]
    assert r"\shortstack[r]{Next-domain \\ accuracy (\%) $\uparrow$}" in head
    assert all(r"\pm" in cell for row in rows for cell in row[2:5])
    assert [row[5:] for row in rows] == [["$0.0$", r"$4.600 \times 10^{11}$ \\"]] * 2
    assert "In-domain" in tables.format_latex(compared, "clear/in_domain_accuracy")
    assert "± 0" not in tables.format_markdown(compared, "cost/training_flops,renate/forgetting")


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("[2, 3]", r"{[}2, 3]"),  # an argument of the line break or rule before it: an error
        ("*new", r"{*}new"),  # the star of the line break before it: not printed
        ("a<b|c>d", r"a\textless{}b\textbar{}c\textgreater{}d"),  # a¡b—c¿d
    ],
)
def test_a_name_is_no_part_of_latex(name, cell):
    latex = tables.format_latex(
        compare([*seeds_of("plain", 120, range(3)), *seeds_of(name, 180, range(3))])
    )
    assert f"\n\\midrule\n{cell} & 3 & " in latex
