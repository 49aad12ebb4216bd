"""Which simple baselines a comparison lacks, and the sweep that trains them."""

import pytest
import yaml
from comparisons import compare, compared_run, counts

from clear_mlflow.learning.parameters.config import TrainConfig, list_parameter_defaults
from clear_mlflow.sweeps.grid import read_grid
from clear_mlflow.sweeps.next_grids import build_next_grids, find_missing_baselines

ALL = [
    "ncm (nearest mean of frozen features)",
    "naive (only the newest model)",
    "from_scratch",
    "joint",
    "cumulative at equal cost",
]


def trained_run(strategy, seed=0, borders="none", **parameters):
    config = TrainConfig.resolve(
        {"dataset": "digits", "strategy": strategy, "seed": str(seed), **parameters}
    )
    defaults = list_parameter_defaults()
    used = {f"used/{n}": text for n, text in config.as_text().items() if defaults[n] == "auto"}
    logged = {"strategy": strategy, "dataset": config.dataset, "seed": str(seed), **parameters}
    return compared_run(
        strategy,
        counts(150, seed),
        run_id=f"{strategy}-{seed}-{sorted(parameters.items())}-{borders}",
        params={**logged, **used, "used/arithmetic": "float32"},
        labels={"lr": f"{config.lr}"},
        dataset=config.stream_name,
        seed=seed,
        digest=f"sha256:{sum(map(ord, borders)):064x}",
    )


def build_grid(runs, tmp_path):
    comparison = compare(runs, ("strategy", "lr"))
    text = build_next_grids(comparison).get("baselines.yaml")
    if text is None:
        return []
    (tmp_path / "baselines.yaml").write_text(text)
    return [run.config for run in read_grid(tmp_path / "baselines.yaml").runs]


def find(runs):
    return [*find_missing_baselines(compare(runs, ("strategy",)))]


def test_the_baselines_are_trained_as_the_runs_were(tmp_path):
    runs = [
        trained_run(strategy, seed, lr="0.02", epochs="3")
        for strategy in ("replay", "ewc")
        for seed in (3, 5)
    ]
    assert find(runs) == ALL
    configs = build_grid(runs, tmp_path)
    assert [(c.strategy, c.budget, c.seed) for c in configs] == [
        (strategy, budget, seed)
        for strategy, budget in (
            *(("ncm", "off"), ("naive", "off"), ("from_scratch", "off"), ("joint", "off")),
            ("cumulative", "naive:1"),
        )
        for seed in (3, 5)
    ]
    assert {c.features for c in configs if c.strategy == "ncm"} == {"pixels"}
    others = [c for c in configs if c.strategy != "ncm"]
    assert {(c.features, c.lr, c.epochs) for c in others} == {("none", 0.02, 3)}


def test_features_and_budgets_are_those_of_the_runs(tmp_path):
    parameters = {"features": "pixels", "budget": "naive:2"}
    configs = build_grid([trained_run("replay", **parameters)], tmp_path)
    assert {c.strategy: (c.features, c.budget) for c in configs} == {
        "ncm": ("pixels", "off"),
        "naive": ("pixels", "naive:2"),
        "from_scratch": ("pixels", "naive:2"),
        "joint": ("pixels", "off"),
        "cumulative": ("pixels", "naive:2"),
    }


def test_a_stream_that_does_not_wait_has_no_joint_training(tmp_path):
    """And its costs are equal in any case."""
    parameters = {"features": "pixels", "stream_rate": "naive:1", "epochs": "1"}
    configs = build_grid([trained_run("linear", **parameters)], tmp_path)
    assert [c.strategy for c in configs] == ["ncm", "from_scratch", "cumulative"]
    assert {c.budget for c in configs} == {"off"}
    cumulative = trained_run("cumulative", **parameters)
    assert "cumulative at equal cost" not in find([cumulative])


def test_a_strategy_of_the_runs_is_not_missing(tmp_path):
    """Linear is naive on features; cumulative counts if its cost was limited."""
    options = {"features": "pixels"}
    runs = [trained_run(s, **options) for s in ("linear", "ncm", "from_scratch", "joint")]
    runs += [trained_run("cumulative", **options)]
    assert find(runs) == ALL[-1:]
    runs += [trained_run("cumulative", 1, **options, budget="naive:1")]
    assert find(runs) == []
    assert build_grid(runs, tmp_path) == []


def test_each_test_set_needs_its_baselines(tmp_path):
    runs = [trained_run("replay", borders="a"), trained_run("joint", borders="a")]
    runs += [trained_run("replay", borders="b")]
    comparison = compare(runs, ("strategy",))
    counted = {
        phrase: len(entries) for phrase, entries in find_missing_baselines(comparison).items()
    }
    assert counted == {phrase: 1 if phrase == "joint" else 2 for phrase in ALL}


@pytest.mark.parametrize("params", [{}, {"lr": "0.1", "epochs": "3"}])
def test_other_programs_have_no_baselines_to_train(params):
    imported = compared_run("joint", counts(150, 0), params=params, dataset="digits")
    assert find([imported]) == []
    assert "baselines.yaml" not in build_next_grids(compare([imported]))
    our_run = trained_run("replay", borders="a")
    their_run = compared_run(
        "joint",
        counts(150, 0),
        params=params,
        dataset="digits",
        digest=our_run.record.dataset.digest,
    )
    assert find([our_run, their_run]) == [phrase for phrase in ALL if phrase != "joint"]


def test_the_most_common_setting_is_used(tmp_path):
    runs = [trained_run(s, lr="0.02") for s in ("replay", "ewc")]
    runs += [trained_run("lwf", lr="0.5"), trained_run("ncm", features="pixels")]
    configs = build_grid(runs, tmp_path)
    assert {c.lr for c in configs} == {0.02}
    text = build_next_grids(compare(runs, ("strategy", "lr")))["baselines.yaml"]
    assert {entry["strategy"] for entry in yaml.safe_load(text)["runs"]} == {
        *("naive", "from_scratch", "joint", "cumulative")
    }
