"""Costs in a row's file, in metrics, and in verdicts."""

import itertools
import json
import platform
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from comparisons import (
    METRICS_AND_COSTS,
    add_costs,
    build_cost_runs,
    compare_costs,
    counts,
    row_records,
)

from clear_mlflow import AccuracyMatrix, scores
from clear_mlflow.comparison.groups import COST, is_equal_cost
from clear_mlflow.comparison.ranking import select_equal_cost
from clear_mlflow.core.distributed import get_processor_name
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.record import RowRecord, assemble
from clear_mlflow.core.score import RowCost, parse_row_cost
from clear_mlflow.metrics import FAMILIES, add_matrix_metrics, evaluate_metrics, summarize

BY = ["strategy"]


def test_a_cost_round_trips_in_the_rows_file():
    record = add_costs(row_records(counts(180, 0)), 5)["row_002.json"]
    text = record.to_json()
    cost = {"training_flops": 5, "images": 10, "replayed_images": 2, "stored_bytes": 5}
    assert json.loads(text)["cost"] == cost
    again = RowRecord.from_json(text, source="row_002.json")
    assert again.row.cost == record.row.cost
    assert again.to_json() == text
    assert "cost" not in json.loads(replace(record, row=bare(record.row)).to_json())
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
    records = add_costs(row_records(counts(180, 0)), 5)
    matrix = assemble(records).matrix
    assert [m.name for m in add_matrix_metrics((), matrix)] == [m.name for m in FAMILIES["cost"]]
    for k in (1, 4):
        metrics = summarize(matrix.after(k), metrics=METRICS_AND_COSTS)
        costs = {COST: 5 * k, "cost/images": 12 * k, "cost/stored_bytes": 5}
        assert costs.items() <= metrics.items()
    per_pflop = metrics["clear/challenge_score"] / (20 / 1e15)
    assert metrics["cost/challenge_score_per_pflop"] == pytest.approx(per_pflop)
    row = records["row_002.json"]
    records["row_002.json"] = replace(row, row=bare(row.row))
    results = evaluate_metrics(METRICS_AND_COSTS, assemble(records).matrix)
    assert results[COST].reason == "row 2 lacks training_flops"
    assert results["cost/seconds"].reason == "row 1 lacks seconds"
    assert add_matrix_metrics((), assemble(add_costs(records.values(), None)).matrix) == ()


def test_a_verdict_states_the_cost_of_the_better_method():
    naive = build_cost_runs("naive", 120, 1000)
    for price, sentence in (
        (1900, " seeds; replay at 1.9 times the training FLOPs)."),
        (500, " seeds; replay at 0.50 times the training FLOPs)."),
        (1025, " seeds; replay at 1.02 times the training FLOPs)."),
        (1011, " seeds; replay at 1.01 times the training FLOPs)."),
        (1009, " seeds)."),
        (1010, " seeds)."),  # 1 % of the higher cost
        (None, " seeds)."),
    ):
        (verdict,) = compare_costs(naive, build_cost_runs("replay", 180, price)).pairs
        assert verdict.outcome == "different"
        assert sentence in verdict.sentence
        assert ("FLOPs" in verdict.sentence) == ("FLOPs" in sentence)


def test_runs_without_costs_are_reported_once():
    mixed = compare_costs(build_cost_runs("naive", 120, None), build_cost_runs("replay", 180, 2))
    (cost_warning,) = [warning for warning in mixed.warnings if "cost" in warning]
    assert cost_warning.startswith("3 of 6 runs have not logged their cost")
    assert mixed.ranked_by == "clear/challenge_score"


def with_budget(budget, *groups):
    runs = itertools.chain(*groups)
    return [replace(run, labels={**run.labels, "budget": budget}) for run in runs]


@pytest.mark.parametrize("budget", ["naive:1", "2e+15"])
def test_runs_with_a_budget_are_not_advised_to_get_one(budget):
    naive, ewc = build_cost_runs("naive", 120, 1000), build_cost_runs("ewc", 180, 1025)
    with pytest.raises(ConfigError, match="they have budgets already: train all with") as error:
        select_equal_cost(with_budget(budget, naive, ewc), "training_flops", BY)
    assert f"ewc 4.1e+03 with budget={budget})" in str(error.value)
    assert "naive:1;" not in str(error.value)
    for runs in ([*naive, *ewc], with_budget("off", naive, ewc)):
        with pytest.raises(ConfigError, match=r"; train them with budget=naive:1$"):
            select_equal_cost(runs, "training_flops", BY)
    replay = build_cost_runs("replay", 150, 1000)
    runs = with_budget(budget, naive, ewc, replay)
    remaining, messages = select_equal_cost(runs, "training_flops", BY)
    assert len(remaining) == 6
    assert messages[-1].endswith(f"; left out: ewc 4.1e+03 with budget={budget}.")


def test_costs_are_equal_within_a_hundredth_of_the_higher_one():
    assert is_equal_cost(100, 99)
    assert is_equal_cost(99, 100)
    assert not is_equal_cost(100, 98.9)
    assert is_equal_cost(0, 0)


def test_a_processor_is_named_by_its_model(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n")
    assert get_processor_name(info) == "Fast CPU @ 3 GHz"
    assert get_processor_name(tmp_path / "none") == platform.machine()
