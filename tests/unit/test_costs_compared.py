"""Costs in a row's file, in metrics, and in verdicts."""

import json
import platform
import re
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from comparisons import counts, row_records

from clear_mlflow import AccuracyMatrix, scores
from clear_mlflow.comparison.figures import render_figures
from clear_mlflow.comparison.groups import COST, ComparedRun, is_equal_cost
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.pairs import compare_groups
from clear_mlflow.comparison.ranking import rank_groups, select_equal_cost
from clear_mlflow.core.distributed import get_processor_name
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import RowCost, parse_row_cost
from clear_mlflow.core.record import RowRecord, assemble, row_file_name
from clear_mlflow.metrics import FAMILIES, METRICS, add_matrix_metrics, evaluate_metrics, summarize

ALL = (*METRICS, *FAMILIES["cost"])


BY = ["strategy"]


def add_costs(records, price):
    """Return the same rows with FLOPs for each bucket, None if unknown."""

    def cost_of_each_row(record):
        spent = price if record.row.row else 0
        cost = RowCost(training_flops=spent, images=10, replayed_images=2, stored_bytes=spent)
        row = msgspec.structs.replace(record.row, cost=None if price is None else cost)
        return msgspec.structs.replace(record, row=row)

    return {row_file_name(record.row.row): cost_of_each_row(record) for record in records}


def build_runs(strategy, level, price, seeds=range(3)):
    run_list = []
    for seed in seeds:
        record = assemble(add_costs(row_records(counts(level, seed), seed=seed), price))
        summary = summarize(record.masked_matrix, metrics=ALL)
        run_list.append(
            ComparedRun(
                run_id=f"{strategy}{seed}",
                name=f"{strategy} {seed}",
                record=record,
                summary=summary,
                labels={"strategy": strategy},
            )
        )
    return run_list


def compare_all(*runs, **options):
    run_list = [run for of_group in runs for run in of_group]
    return compare_groups(rank_groups(run_list, ["strategy"], metrics=ALL, **options))


def test_a_cost_round_trips_in_the_rows_file():
    """An empty one is omitted."""
    record = add_costs(row_records(counts(180, 0)), 5)["row_002.json"]
    text = record.to_json()
    assert json.loads(text)["cost"] == {
        "training_flops": 5,
        "images": 10,
        "replayed_images": 2,
        "stored_bytes": 5,
    }
    again = RowRecord.from_json(text, source="row_002.json")
    assert again.row.cost == record.row.cost
    assert again.to_json() == text
    assert "cost" not in json.loads(msgspec.structs.replace(record, row=bare(record.row)).to_json())
    assert bare(record.row) == record.row  # two tests of one model may take unlike long


def test_stored_bytes_is_the_largest_number_of_any_row():
    """A buffer may shrink."""
    costs = [RowCost(stored_bytes=size) for size in (500, 900, 700)]
    matrix = AccuracyMatrix(np.full((3, 3), 0.5), costs=costs)
    result = scores(matrix, metrics=["cost"])["cost/stored_bytes"]
    assert result.value == 900
    assert result.series == {1: 500, 2: 900, 3: 900}


def bare(row):
    return msgspec.structs.replace(row, cost=None)


@pytest.mark.parametrize(
    "cost", [{"images": -1}, {"images": 1.5}, {"seconds": "2"}, {"training_flops": 2**63}, [1]]
)
def test_an_invalid_cost_is_rejected(cost):
    record = add_costs(row_records(counts(180, 0)), 5)["row_002.json"]
    document = {**json.loads(record.to_json()), "cost": cost}
    with pytest.raises(RecordError, match="cost"):
        RowRecord.from_json(json.dumps(document), source="row_002.json")


def test_a_loop_may_pass_some_costs():
    assert parse_row_cost({"seconds": 2}) == RowCost(seconds=2.0)
    assert parse_row_cost(None) is None
    with pytest.raises(ConfigError, match="cost names 'flops'; expected some of training_flops"):
        parse_row_cost({"flops": 3})
    numbers = {"images": np.int64(3), "seconds": np.array(1.5), "training_flops": 2e12}
    assert parse_row_cost(numbers) == RowCost(images=3, seconds=1.5, training_flops=2 * 10**12)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (5, "cost is 5; expected a dictionary"),
        ({"seconds": float("inf")}, "cost.seconds: expected"),
        ({"seconds": float("nan")}, "cost.seconds: expected"),
        ({"images": 1.5}, "cost.images: expected"),
        ({"images": np.ones(2)}, "cost.images: expected"),
    ],
)
def test_an_invalid_cost_of_a_loop_is_a_one_line_error(cost, message):
    with pytest.raises(RecordError, match=message):
        parse_row_cost(cost)


def test_costs_are_summed_and_stored_bytes_are_the_maximum():
    """For a truncated run, of its own buckets. A row without cost leaves them undefined."""
    records = add_costs(row_records(counts(180, 0)), 5)
    matrix = assemble(records).matrix
    assert [m.name for m in add_matrix_metrics((), matrix)] == [m.name for m in FAMILIES["cost"]]
    for k in (1, 4):
        metrics = summarize(matrix.after(k), metrics=ALL)
        assert metrics[COST] == 5 * k
        assert metrics["cost/images"] == 12 * k
        assert metrics["cost/stored_bytes"] == 5
    per_pflop = metrics["clear/challenge_score"] / (20 / 1e15)
    assert metrics["cost/challenge_score_per_pflop"] == pytest.approx(per_pflop)
    row = records["row_002.json"]
    records["row_002.json"] = msgspec.structs.replace(row, row=bare(row.row))
    results = evaluate_metrics(ALL, assemble(records).matrix)
    assert results[COST].reason == "row 2 lacks training_flops"
    assert results["cost/seconds"].reason == "row 1 lacks seconds"
    assert add_matrix_metrics((), assemble(add_costs(records.values(), None)).matrix) == ()


def test_a_verdict_states_the_cost_of_the_better_method():
    """Not within 1 %, and not if one is unknown."""
    naive = build_runs("naive", 120, 1000)
    for price, sentence in (
        (1900, " seeds; replay at 1.9 times the training FLOPs)."),
        (500, " seeds; replay at 0.50 times the training FLOPs)."),
        (1025, " seeds; replay at 1.02 times the training FLOPs)."),
        (1011, " seeds; replay at 1.01 times the training FLOPs)."),
        (1009, " seeds)."),
        (1010, " seeds)."),  # 1 % of the higher cost
        (None, " seeds)."),
    ):
        (verdict,) = compare_all(naive, build_runs("replay", 180, price)).list_pairs()
        assert verdict["outcome"] == "different"
        assert sentence in verdict["sentence"]
        assert ("FLOPs" in verdict["sentence"]) == ("FLOPs" in sentence)


@pytest.mark.slow
def test_the_page_and_its_picture_show_the_pareto_front():
    """Without methods that are worse and cost more."""
    both = compare_all(
        build_runs("naive", 120, 1), build_runs("replay", 180, 2), build_runs("lwf", 110, 3)
    )
    page = render_comparison_page(both, title="t", footer="f")
    assert 'id="cost"' in page
    pictures = dict(render_figures(both))
    front = re.search('<path class="front" d="(.+?)"', str(pictures["cost.svg"]))
    assert front[1].count("L") == 1
    equal = compare_all(build_runs("naive", 120, 1000), build_runs("replay", 180, 1005))
    assert "cost.svg" not in dict(render_figures(equal))
    without = compare_all(build_runs("naive", 120, None), build_runs("replay", 180, None))
    assert 'id="cost"' not in render_comparison_page(without, title="t", footer="f")
    free = compare_all(
        build_runs("naive", 120, 1), build_runs("lwf", 110, 3), build_runs("ncm", 100, 0)
    )
    assert ", without ncm (0 FLOPs)" in str(dict(render_figures(free))["cost.svg"])
    assert "cost.svg" not in dict(render_figures(without))
    assert not [w for w in without.warnings if "cost" in w]


def test_names_of_close_methods_do_not_overlap():
    """They are a line apart."""
    levels = {"naive": (120, 100), "naive, momentum": (121, 104), "other": (120, 103)}
    near = [build_runs(name, *level_and_price) for name, level_and_price in levels.items()]
    picture = ElementTree.fromstring(
        dict(render_figures(compare_all(*near, build_runs("far", 180, 900))))["cost.svg"]
    )
    labels = [
        (float(text.get("x")), float(text.get("y")), len(text.text))
        for text in picture.iter("{http://www.w3.org/2000/svg}text")
        if text.text in levels
    ]
    assert len(labels) == 3
    for (x, y, length), (other_x, other_y, other_length) in combinations(labels, 2):
        if x < other_x + 6 * other_length and other_x < x + 6 * length:
            assert abs(y - other_y) >= 10


def test_runs_without_costs_are_reported_once():
    mixed = compare_all(build_runs("naive", 120, None), build_runs("replay", 180, 2))
    (cost_warning,) = [warning for warning in mixed.warnings if "cost" in warning]
    assert cost_warning.startswith("3 of 6 runs have not logged their cost")
    assert mixed.ranked_by == "clear/challenge_score"


def test_equal_cost_selects_the_most_runs():
    """The others are named with their costs. Without two equal runs, it is an error."""
    naive, replay = build_runs("naive", 120, 1000), build_runs("replay", 180, 1005)
    derpp, old = build_runs("derpp", 190, 2800), build_runs("si", 110, None)
    remaining, messages = select_equal_cost([*naive, *replay, *derpp, *old], "training_flops", BY)
    assert {run.labels["strategy"] for run in remaining} == {"naive", "replay"}
    assert messages == [
        "3 of 12 runs are left out: they logged no cost/training_flops.",
        "The 6 runs are within 1 % of cost/training_flops 4e+03; left out: derpp 1.12e+04.",
    ]
    for by in (BY, []):
        messages = select_equal_cost([*naive, *replay], "images", by)[1]
        assert messages == ["The 6 runs are within 1 % of cost/images 48."]
    with pytest.raises(
        ConfigError, match=r"no two methods are within 1 % of each other \(naive 4e"
    ):
        select_equal_cost([*naive, *derpp], "training_flops", BY)
    with pytest.raises(ConfigError, match="no run has logged its cost/images"):
        select_equal_cost(old, "images", BY)


def test_equal_cost_prefers_two_methods_to_many_seeds_of_one():
    """Omitted groups are named, and counted from the seventh on."""
    many = build_runs("lwf", 110, 500, range(10))
    others = [run for i in range(7) for run in build_runs(f"own{i}", 120, 10000 * 2**i, [0])]
    pair = [*build_runs("naive", 120, 1000), *build_runs("replay", 180, 1005)]
    remaining, (messages,) = select_equal_cost([*many, *pair, *others], "training_flops", BY)
    assert {run.labels["strategy"] for run in remaining} == {"naive", "replay"}
    assert "lwf 2e+03, own0 4e+04" in messages
    assert messages.endswith("and 2 more.")


def with_budget(budget, *groups):
    return [
        replace(run, labels={**run.labels, "budget": budget}) for runs in groups for run in runs
    ]


@pytest.mark.parametrize("budget", ["naive:1", "2e+15"])
def test_runs_with_a_budget_are_not_advised_to_get_one(budget):
    """If they exceed it. Runs without one, or with budget=off, are."""
    naive, ewc = build_runs("naive", 120, 1000), build_runs("ewc", 180, 1025)
    with pytest.raises(ConfigError, match="they have budgets already: train all with") as error:
        select_equal_cost(with_budget(budget, naive, ewc), "training_flops", BY)
    assert f"ewc 4.1e+03 with budget={budget})" in str(error.value)
    assert "naive:1;" not in str(error.value)
    for runs in ([*naive, *ewc], with_budget("off", naive, ewc)):
        with pytest.raises(ConfigError, match=r"; train them with budget=naive:1$"):
            select_equal_cost(runs, "training_flops", BY)
    replay = build_runs("replay", 150, 1000)
    remaining, messages = select_equal_cost(
        with_budget(budget, naive, ewc, replay), "training_flops", BY
    )
    assert len(remaining) == 6
    assert messages[-1].endswith(f"; left out: ewc 4.1e+03 with budget={budget}.")


def test_costs_are_equal_within_a_hundredth_of_the_higher_one():
    """Both ends belong to it."""
    assert is_equal_cost(100, 99)
    assert is_equal_cost(99, 100)
    assert not is_equal_cost(100, 98.9)
    assert is_equal_cost(0, 0)


def test_equal_seconds_are_those_of_one_device():
    runs = [*build_runs("naive", 120, 1), *build_runs("replay", 180, 1), *build_runs("lwf", 110, 1)]
    for run, device in zip(runs, ["A"] * 6 + ["B"] * 3, strict=True):
        costs = [RowCost(seconds=2.0, device=device)] * 4
        run.record.masked_matrix.__dict__["costs"] = tuple(costs)
        run.summary["cost/seconds"] = 8.0
    (message,) = select_equal_cost(runs, "seconds", BY)[1]
    assert message == ("The 6 runs are within 1 % of cost/seconds 8 on A; left out: lwf 8 on B.")
    with pytest.raises(ConfigError, match="of each other on one device"):
        select_equal_cost(runs[5:7], "seconds", BY)


def test_a_processor_is_named_by_its_model(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n")
    assert get_processor_name(info) == "Fast CPU @ 3 GHz"
    assert get_processor_name(tmp_path / "none") == platform.machine()
