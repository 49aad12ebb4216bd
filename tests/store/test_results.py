"""The page of results follows from the archives in the repository."""

import runpy
from collections import Counter
from pathlib import Path

import pytest

import clear_mlflow
from clear_mlflow.api.bundle import read_bundles
from clear_mlflow.core.errors import RecordError
from clear_mlflow.learning.strategies import list_strategies
from clear_mlflow.metrics import DROP_PARTS
from clear_mlflow.sweeps.grid import read_grid

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAGE = runpy.run_path(str(BENCHMARKS / "results.py"))


def test_the_page_and_its_figures_follow_from_the_archives(store):
    for path, content in PAGE["write_files"]().items():
        assert path.read_bytes() == content, f"{path.name}: run python benchmarks/results.py"


@pytest.mark.parametrize("study", [*PAGE["STUDIES"], *PAGE["BORDERS"]])
def test_an_archive_holds_what_its_grid_trains(study):
    planned = read_grid(BENCHMARKS / "results" / f"{study}.yaml").runs
    planned_runs = sorted(
        (run.config.strategy, str(run.config.seed), run.config.borders) for run in planned
    )
    runs = read_bundles(BENCHMARKS / "results" / f"{study}.tar.xz")
    assert (
        sorted(
            (params["strategy"], params["seed"], params.get("borders", "none"))
            for params in (run.data.params for run in runs)
        )
        == planned_runs
    )
    assert all("torch " in run.data.tags["clear_mlflow.software"] for run in runs)
    if study == "digits":
        assert {strategy for strategy, *_ in planned_runs} == set(list_strategies())


# Percentage points on future buckets, by loops over the mean matrices of the archives: drop, lead,
# harder, not adapted.
DROPS = {
    ("digits", "naive"): (46.26, 4.42, 1.21, 40.63),
    ("digits", "replay"): (46.66, 4.62, 1.21, 40.83),
    ("digits", "cumulative"): (47.13, 5.12, 1.21, 40.80),
    ("digits-writers", "naive"): (10.15, 0.00, 0.40, 9.75),
    ("weather", "linear"): (21.42, 0.33, -3.78, 24.87),
    ("weather", "ewc"): (14.54, -14.22, -3.78, 32.54),
}


@pytest.mark.parametrize("study", sorted({study for study, _ in DROPS}))
def test_a_drop_is_a_lead_harder_data_and_what_was_not_adapted(store, study):
    """Against training from scratch: ewc drops less than linear only because it never got up."""
    runs = clear_mlflow.runs(BENCHMARKS / "results" / f"{study}.tar.xz")
    chosen = {strategy for name, strategy in DROPS if name == study} | {"from_scratch"}
    runs = [run for run in runs if run.config["strategy"] in chosen]
    compared = clear_mlflow.compare(runs, oracle="from_scratch", log=False)
    table = compared.leaderboard(DROP_PARTS).set_index("group")
    points = 100 * table.loc[:, list(DROP_PARTS)]
    for strategy in chosen - {"from_scratch"}:
        assert tuple(points.loc[strategy].round(2)) == DROPS[study, strategy]
    assert points.loc["from_scratch", "against_scratch/lead"] == 0


def test_a_verdict_that_depends_on_the_borders_is_found(store):
    """Cumulative against linear: worse with years, sixths and half-years, better with quarters."""
    archive = BENCHMARKS / "results" / "weather-borders.tar.xz"
    compared = clear_mlflow.compare(archive, baseline="linear", across="borders", log=False)
    pairs = {frozenset((pair.a, pair.b)): pair for pair in compared.comparison.across.pairs}
    pair = pairs[frozenset(("linear", "cumulative"))]
    sign = 1 if pair.a == "cumulative" else -1
    assert {value: round(100 * sign * d, 1) for value, d in pair.differences.items()} == {
        "year": -3.9,
        "equal:6": -4.6,
        "half": -5.5,
        "quarter": 4.0,
    }
    assert pair.sentence == (
        "linear against cumulative depends on the borders: better under 3, worse under 1 of 4"
    )
    outcomes = [
        pair.sentence.split(" under ")[1]
        for pair in pairs.values()
        if " under all" in pair.sentence
    ]
    assert outcomes == ["all 4 values of borders"] * 2
    content = compared.to_dict()["across"]
    assert [content["parameter"], sorted(content["values"])] == ["borders", sorted(pair.outcomes)]


def test_the_example_of_borders_is_a_valid_sweep():
    configs = [run.config for run in read_grid(BENCHMARKS.parent / "examples/borders.yaml").runs]
    combinations = {(c.strategy, c.borders, c.seed) for c in configs}
    assert len(combinations) == len(configs) == 36
    assert {c.split for c in configs} == {"stream:0"}


def test_the_flights_contain_nothing_of_the_future():
    table = runpy.run_path(str(BENCHMARKS.parent / "examples" / "flights.py"))["read_flights"]()
    assert len(table) == 327_346
    late = table["arrival"].eq("late").groupby(table["time"].str[5:7]).mean()
    assert (late["01"], late["07"], late["09"]) == pytest.approx((0.227, 0.315, 0.132), abs=5e-4)
    words = {name.partition("_")[0] for name in table.columns}
    assert words == {
        *("time", "arrival", "carrier", "origin", "hour", "weekday", "minute", "distance"),
        *("temp", "dewp", "humid", "wind", "precip", "pressure", "visib"),
    }
    assert not table.isna().any().any()
    # The first flight from Newark leaves at 5:15, which is 10:15 in UTC. There were 39.92 degrees
    # at 9:00, and 39.02 at 10:00.
    first = table[table["origin_EWR"].eq(1)].iloc[0]
    assert first["time"] == "2013-01-01T05:15:00"
    assert first["temp"] == pytest.approx((39.92 - 55) / 18)


def test_the_report_of_a_study_follows_from_the_runs_in_its_archive(store):
    """By loops over the logged scores of replay, whose choice is not the best."""
    runs = read_bundles(BENCHMARKS / "results" / f"{PAGE['STUDY'][0]}.tar.xz")
    tags = Counter(run.data.tags.get("tuned_on", "") for run in runs)
    # 24 tuning runs and 18 of the other combinations, with three seeds; six choices.
    assert tags == {"": 24 + 18 * 3, "digits-writers": 6 * 3}
    scores: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.data.params["strategy"] == "replay":
            key = run.data.params["dataset"], run.data.params["lr"]
            scores.setdefault(key, []).append(run.data.metrics["clear/challenge_score"])
    means = {key: sum(values) / len(values) for key, values in scores.items()}
    tuned, tested = (
        {lr: mean for (name, lr), mean in means.items() if name == dataset}
        for dataset in ("digits-writers", "digits")
    )
    report = PAGE["compute_report"](PAGE["STUDY"][0])
    (row,) = (row for row in report.methods if row["method"] == "replay")
    chosen = max(tuned, key=tuned.__getitem__)
    assert row["chosen"] == {"lr": chosen}
    assert row["regret"] == pytest.approx(max(tested.values()) - tested[chosen])
    assert 0 < row["regret"] < 0.001
    assert round(report.tau, 2) == 0.97


def test_an_archive_that_was_changed_is_refused(tmp_path):
    content = (BENCHMARKS / "results" / "weather.tar.xz").read_bytes()
    for offset in (0, *range(200, len(content), len(content) // 10), len(content) - 1):
        changed = content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]
        (tmp_path / "changed.tar.xz").write_bytes(changed)
        with pytest.raises(RecordError, match=r"changed\.tar\.xz"):
            read_bundles(tmp_path / "changed.tar.xz")
