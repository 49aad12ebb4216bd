"""Compared runs are measured against runs that were trained from scratch."""

import dataclasses
from datetime import date

import numpy as np
import pytest
from comparisons import build_seed_runs, compare, compared_run, counts

from clear_mlflow.comparison.scratch import add_scratch_metrics
from clear_mlflow.comparison.tables import build_comparison_dict
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.report.terminal_tables import render_text

ORACLE = "from_scratch"
NAMES = [f"against_scratch/{name}" for name in ("drop", "lead", "harder", "not_adapted")]


def build_runs(name, seeds=(0, 1, 2), level=150, **options):
    return build_seed_runs(name, level, seeds, **options)


def compute_not_adapted(run, scratch):
    """Return the mean of o[j] - R[i, j] over j > i, with a loop."""
    rows = run.grid[1:]
    cells = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if j > i]
    return np.mean([scratch[j] - rows[i, j] for i, j in cells])


def test_a_run_is_measured_against_the_oracle_of_its_seed():
    oracles, others = build_runs(ORACLE, level=160), build_runs("replay", seeds=(2, 0, 9))
    runs, notes = add_scratch_metrics([*oracles, *others], ORACLE)
    diagonals = {run.seed: run.grid[1:].diagonal() for run in oracles}
    mean = np.mean([*diagonals.values()], axis=0)
    for run, original in zip(runs[3:], others, strict=True):
        scratch = diagonals.get(run.seed, mean)
        expected = compute_not_adapted(original, scratch)
        assert run.summary["against_scratch/not_adapted"] == pytest.approx(expected, abs=1e-12)
        assert original.summary.items() <= run.summary.items()
    assert [run.summary["against_scratch/lead"] for run in runs[:3]] == [0, 0, 0]
    assert notes == []


@pytest.mark.parametrize(
    "other",
    [
        # It would be the oracle of seed 2, and of all seeds in a mean.
        compared_run(ORACLE, np.zeros((5, 4), int).tolist(), seed=2, diverged=True),
        compared_run(ORACLE, counts(100, 2)[:3], seed=2),
    ],
    ids=["diverged", "ended early"],
)
def test_an_oracle_without_a_result_is_not_used(other):
    oracles, others = build_runs(ORACLE, (0, 1), level=160), build_runs("replay", (0, 2, 9))
    expected, _ = add_scratch_metrics([*oracles, *others], ORACLE)
    runs, notes = add_scratch_metrics([other, *oracles, *others], ORACLE)
    assert [run.summary for run in runs[3:]] == [run.summary for run in expected[2:]]
    assert NAMES[3] in runs[-1].summary
    assert not any(note.startswith("against_scratch is undefined for 3") for note in notes)


def test_if_all_oracles_ended_early_the_longest_are_used():
    oracles = [compared_run(ORACLE, counts(160, s)[: 3 + s], seed=s) for s in range(2)]
    runs, notes = add_scratch_metrics([*oracles, *build_runs("replay")], ORACLE)
    assert NAMES[3] not in runs[-1].summary
    (note,) = notes
    assert note.startswith("against_scratch is undefined")
    np.testing.assert_equal(runs[-1].scratch.scratch[:3], oracles[1].grid[1:].diagonal()[:3])


def test_the_terminal_has_the_names_of_all_groups_and_horizons():
    """In 80 columns, further columns left no space for the names of groups."""
    runs, _ = add_scratch_metrics([*build_runs(ORACLE, level=160), *build_runs("replay")], ORACLE)
    same = dataclasses.replace(runs[-1], run_id="same", name="same")
    for number in range(3):
        record = dataclasses.replace(same.record, seed=number)
        labels = {**same.labels, "strategy": "steady"}
        runs.append(dataclasses.replace(same, run_id=f"{number}", record=record, labels=labels))
    printed = render_text(*render_comparison(compare(runs)))
    lines = printed.splitlines()
    for name in ("replay", "steady", "from_"):
        assert sum(line.startswith(name) for line in lines) == 2
    assert "…" not in printed
    assert printed.count("horizon") == 1
    assert max(map(len, lines)) <= 80


def test_the_result_is_in_tables_and_can_rank():
    runs, _ = add_scratch_metrics([*build_runs(ORACLE, level=160), *build_runs("replay")], ORACLE)
    comparison = compare(runs, rank_by="against_scratch/not_adapted")
    assert [*filter(lambda name: name in NAMES, comparison.table_metrics)] == [NAMES[3], *NAMES[:3]]
    for group in build_comparison_dict(comparison)["groups"]:
        parts = [group["metrics"][name]["mean"] for name in NAMES]
        assert parts[0] == pytest.approx(sum(parts[1:]))
        assert group["metrics"]["against_scratch/drop"]["interval"] is not None
        assert group["metrics"]["against_scratch/lead"]["higher_is_better"] is None
    horizons = [group["horizon"] for group in build_comparison_dict(comparison)["groups"]]
    assert len(horizons) == 2
    # At a margin of all points, every model keeps up to the end.
    wide = build_comparison_dict(compare(runs, margin=1.0))["groups"]
    assert [group["horizon"] for group in wide] == ["at least 1"] * 2


@pytest.mark.parametrize(
    ("months", "expected"),
    [((1, 2, 4, 12), {"at least 1 (at least 244 days)"}), ((), {"at least 1"})],
)
def test_a_horizon_is_in_days_if_the_buckets_have_dates(months, expected):
    """The median of the days, not the days of the median: 334, 306, 244 and 0 days to the end."""
    dates = tuple(date(2005, month, 1) for month in months)
    runs, _ = add_scratch_metrics([*build_runs(ORACLE), *build_runs("replay")], ORACLE)
    dated = []
    for run in runs:
        dataset = dataclasses.replace(run.record.dataset, times=dates)
        dated.append(
            dataclasses.replace(run, record=dataclasses.replace(run.record, dataset=dataset))
        )
    groups = build_comparison_dict(compare(dated, margin=1.0))["groups"]
    assert {group["horizon"] for group in groups} == expected


def test_without_an_oracle_there_is_no_column():
    comparison = compare(build_runs("replay"))
    assert "horizon" not in build_comparison_dict(comparison)["groups"][0]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"digest": "sha256:" + "cd" * 32}, "other conditions: dataset digest"),
        ({"method_params": {"model": "mlp:64"}}, "model=linear, and .* with model=mlp:64"),
        ({"method_params": {"epochs": "2"}}, "epochs=1, and .* with epochs=2"),
        ({"method_params": {"budget": "naive:2"}}, "budget=off, and .* with budget=naive:2"),
    ],
)
def test_an_oracle_of_another_test_set_model_or_budget_is_an_error(other, problem):
    params = {"model": "linear", "epochs": "1", "budget": "off"}
    method_params = {**params, **other.pop("method_params", {})}
    oracles = [
        dataclasses.replace(run, method_params=params) for run in build_runs(ORACLE, level=160)
    ]
    runs = [
        dataclasses.replace(run, method_params=method_params)
        for run in build_runs("replay", **other)
    ]
    with pytest.raises(ConfigError, match=problem):
        add_scratch_metrics([*oracles, *runs], ORACLE)


def test_a_parameter_without_effect_is_no_other_budget():
    oracles = [
        dataclasses.replace(run, method_params={"epochs": "5"}) for run in build_runs(ORACLE)
    ]
    ncm = [
        dataclasses.replace(run, method_params={"epochs": "not logged"})
        for run in build_runs("ncm")
    ]
    runs, _ = add_scratch_metrics([*oracles, *ncm], ORACLE)
    assert "against_scratch/drop" in runs[-1].summary


def test_an_oracle_that_no_run_is_is_an_error():
    with pytest.raises(ConfigError, match="oracle is 'joint', which no run has"):
        add_scratch_metrics(build_runs("replay"), "joint")


@pytest.mark.parametrize("cause", ["streaming", "an oracle that stopped"])
def test_what_is_undefined_has_a_reason(cause):
    options = {"protocol": "streaming"} if cause == "streaming" else {}
    oracles = build_runs(ORACLE, **options)
    if cause != "streaming":
        oracles = [compared_run(ORACLE, counts(160, seed)[:3], seed=seed) for seed in range(3)]
    runs, (note,) = add_scratch_metrics([*oracles, *build_runs("replay", **options)], ORACLE)
    assert "against_scratch/not_adapted" not in runs[-1].summary
    assert note.startswith("against_scratch is undefined for 6 of 6 runs; ")
    assert note.endswith("a cell, or training from scratch on a bucket, is not measured.")
