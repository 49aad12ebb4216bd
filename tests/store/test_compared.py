"""Comparisons in a real store, read back, and their errors."""

import csv
import io
import itertools
import sqlite3

import mlflow
import numpy as np
import pytest
from commands import invoke, run_command
from compare_command import compare, load_comparison
from comparisons import NUM_TEST, counts, log_predictions, log_run, log_training
from forked import run_python
from stored_runs import rows_folder

import clear_mlflow
from clear_mlflow import AccuracyMatrix
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.metrics import summarize
from clear_mlflow.store import names
from clear_mlflow.sweeps.grid import hash_config, read_grid

SCORE = "clear/challenge_score"


@pytest.fixture
def runs(store, experiment_id, fill_once):
    return fill_once(store, lambda: log_strategies(store, experiment_id, range(2)))


def log_strategies(store, experiment_id, seeds):
    return [
        log_run(
            *(store, experiment_id, f"{strategy} clear10 seed {seed}", counts(level, seed)),
            strategy=strategy,
            seed=seed,
        )
        for strategy, level in (("naive", 120), ("replay", 180))
        for seed in seeds
    ]


def count_runs(content):
    return {group["name"]: len(group["runs"]) for group in content["groups"]}


@pytest.mark.slow
def test_a_comparison_is_a_run_with_all_artifacts(store, experiment_id, runs):
    output, content = compare(store, experiment_id)
    run, folder = load_comparison(store, experiment_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "compare replay vs naive (4 runs)"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        *("comparison.html", "leaderboard.json", "leaderboard.csv", "leaderboard.tex"),
        *("compared_runs.json", "figures/metrics.svg", "figures/curves.svg"),
    }
    assert set(run.data.tags[names.COMPARED_TAG].split(",")) == {r.info.run_id for r in runs}
    assert run.data.tags[names.COMPARED_COUNT_TAG] == "4"
    note = run.data.tags["mlflow.note.content"]
    assert len(note) < 8000
    assert "| replay | 2 |" in note
    address = f"(#/experiments/{experiment_id}/runs/{run.info.run_id}/artifacts/comparison.html"
    assert address in note
    assert all(f"](#/runs/{compared.info.run_id})" in note for compared in runs)
    assert run.data.tags[names.LEADER_TAG] == "replay"
    for metric in (SCORE, "clear/in_domain_accuracy", "renate/forgetting"):
        of_seeds = [
            summarize(AccuracyMatrix(rows[1:], rows[0]))[metric]
            for rows in (np.array(counts(180, seed)) / NUM_TEST for seed in (0, 1))
        ]
        assert run.data.metrics[f"leader/{metric}"] == pytest.approx(np.mean(of_seeds), abs=1e-12)
    assert not any(name.startswith("clear/") for name in run.data.metrics)
    assert [group["name"] for group in content["groups"]] == ["replay", "naive"]
    (verdict,) = content["verdicts"]
    assert (verdict["outcome"], verdict["metric"]) == ("too few", SCORE)

    # MLflow's own reader finds the table.
    table = mlflow.load_table(names.LEADERBOARD_TABLE, run_ids=[run.info.run_id])
    assert table["group"].tolist() == ["replay", "naive"]
    lines = list(csv.DictReader(io.StringIO((folder / names.LEADERBOARD_CSV).read_text())))
    values = [float(line["mean"]) for line in lines if line["metric"] == SCORE]
    assert table[SCORE].tolist() == pytest.approx(values, rel=1e-12)
    assert r"\begin{tabular}{lr" in (folder / "leaderboard.tex").read_text()
    for part in (
        "replay and naive: too few seeds to test clear/challenge_score",
        f"{values[0]:.3f} ±",
        f"clear-mlflow open {run.info.run_id}",
        str(folder / names.COMPARISON_PAGE),
    ):
        assert part in output


def test_published_results_are_shown_and_stored_on_request(store, experiment_id, runs):
    output, content = compare(store, experiment_id, "--published")
    assert "CLEAR challenge 2022" in output
    assert content["published"][0]["values"][SCORE] == "0.927"
    assert count_runs(content) == {"replay": 2, "naive": 2}
    run, folder = load_comparison(store, experiment_id)
    assert run.data.params["published"] == "true"
    assert 'id="published"' in (folder / "comparison.html").read_text()
    assert "0.927" not in (folder / "leaderboard.csv").read_text()


def test_a_stream_without_published_results_is_named(store, experiment_id):
    log_run(store, experiment_id, "a", counts(150, 0), strategy="a", seed=0, dataset="mine")
    output, content = compare(store, experiment_id, "--published")
    assert content["published"] == []
    assert "No result is published for this stream" in output


@pytest.mark.slow
def test_compare_and_evaluate_skip_comparisons(store, experiment_id, runs):
    invoke("compare", "--runs", "test")
    run_command("compare", "--runs", "test")
    comparisons = store.search_runs([experiment_id], f"tags.`{names.KIND_TAG}` = 'compare'")
    assert [run.data.tags[names.COMPARED_COUNT_TAG] for run in comparisons] == ["4", "4"]
    result = invoke("evaluate", "--runs", "test")
    assert "compare replay" not in result.output


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no runs are chosen"),
        (["RUN", "no-such-run"], "error: cannot compare run no-such-run: no such run"),
        (["--runs", "other"], "no experiment has the name or id 'other'"),
        (["--runs", "test", "--group-by", "memory"], "--group-by names 'memory'"),
        (["--runs", "test", "--group-by", ","], "expected names with commas"),
        (["--runs", "test", "--rank-by", "speed"], "is 'speed', which no run"),
        (["--runs", "test", "--margin", "101"], "margin is 101.0; expected percentage points"),
        (
            ["--runs", "test", "--margin", "none of it"],
            "--margin is 'none of it'; expected a number",
        ),
        (["--runs", "test", "--baseline", "gdumb"], "baseline is 'gdumb', which no group is"),
        (["--runs", "test", "--filter", "tags.strategy = 'none'"], "none of the chosen runs"),
    ],
)
def test_runs_that_cannot_be_compared_are_a_one_line_error(
    store, experiment_id, runs, arguments, message
):
    output = run_command(
        "compare", *(word.replace("RUN", runs[0].info.run_id) for word in arguments), code=2
    )
    assert message in output
    assert len(output.strip().splitlines()) == 1
    assert len(store.search_runs([experiment_id])) == 4


@pytest.mark.parametrize("group_by", ["auto", "strategy"])
def test_verdicts_across_a_tag(store, experiment_id, group_by):
    """Runs were grouped by their parameters, and tags were ignored."""
    levels = {"x": {"naive": 120, "replay": 150}, "y": {"naive": 150, "replay": 120}}
    for site, strategy, seed in itertools.product(levels, ("naive", "replay"), range(3)):
        correct = counts(levels[site][strategy], seed)
        tags = {"site": site}
        log_run(store, experiment_id, "a run", correct, strategy=strategy, seed=seed, tags=tags)
    options = ("--across", "site", "--group-by", group_by)
    (pair,) = compare(store, experiment_id, *options)[1]["across"]["pairs"]
    sign = 1 if pair["a"] == "replay" else -1
    assert pair["differences"] == pytest.approx({"x": sign * 0.15, "y": -sign * 0.15}, abs=0.02)
    assert (pair["better"], pair["worse"]) == (1, 1)


@pytest.mark.slow
def test_runs_without_rows(store, experiment_id, runs):
    empty = store.create_run(experiment_id, run_name="empty")
    assert "empty" not in invoke("compare", "--runs", "test").output
    assert "Left out: empty" in run_command("compare", empty.info.run_id, runs[0].info.run_id)
    assert "contains no rows" in run_command("compare", empty.info.run_id, code=2)


@pytest.mark.slow
def test_a_damaged_row_leaves_a_run_out(store, experiment_id, runs):
    (rows_folder(runs[0]) / "row_002.json").write_text("{")
    output, _ = compare(store, experiment_id)
    assert "Left out: naive clear10 seed 0" in output
    run, _ = load_comparison(store, experiment_id)
    assert run.data.tags[names.COMPARED_COUNT_TAG] == "3"


def test_runs_of_the_rarer_score_are_left_out(store):
    for score in ("accuracy", "rmse", "accuracy"):
        with clear_mlflow.track(buckets=1, score=score, lower_is_better=score == "rmse") as run:
            run.log_values(1, [0.5])
    comparison = clear_mlflow.compare("test", group_by=(), log=False).comparison
    assert [run.record.matrix.score.name for run in comparison.runs] == ["accuracy"] * 2
    left_out = [warning for warning in comparison.warnings if "left out" in warning]
    assert left_out == [
        "1 run is left out because the score is rmse (lower is better), while accuracy is compared."
    ]
    run_ids = [run.run_id for run in clear_mlflow.runs("test")]
    with pytest.raises(ConfigError, match="the runs have different scores: "):
        clear_mlflow.compare(run_ids, group_by=(), log=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_stored_predictions_compare_single_runs(store, experiment_id, tmp_path, seed):
    for run, level in zip(log_strategies(store, experiment_id, [0]), (120, 180), strict=True):
        log_predictions(store, run, counts(level, seed), tmp_path)
    output, _ = compare(store, experiment_id)
    better = "The model of replay is significantly better than the model of naive in "
    assert (better in output) == (seed == 0)
    condition = "test images, one training run per method, other seeds may differ)."
    assert (condition in output) == (seed == 0)
    assert ("Predictions of naive clear10 seed 0 are not used" in output) == (seed == 1)


@pytest.mark.program
def test_mlflow_run_fills_its_own_run(store, experiment_id, runs, project, tmp_path):
    options = ("--env-manager", "local", "--experiment-name", "test", "-P", "runs=test")
    done = run_python("-m", "mlflow", "run", str(project), "-e", "compare", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run, folder = load_comparison(store, experiment_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "compare replay vs naive (4 runs)"
    assert run.data.tags[names.COMPARED_COUNT_TAG] == "4"
    assert (folder / "comparison.html").is_file()
    assert len(store.search_runs([experiment_id])) == 5


@pytest.mark.slow
def test_a_seed_that_diverged_without_a_row_is_counted(store, experiment_id, runs):
    tags = {"strategy": "naive", "dataset": "clear10", "seed": "2", names.DIVERGED_TAG: "true"}
    diverged = store.create_run(experiment_id, run_name="naive clear10 seed 2", tags=tags)
    store.set_terminated(diverged.info.run_id, "FAILED")
    output, content = compare(store, experiment_id)
    assert "2, 1 diverged" in output
    assert "1 of 3 seeds of naive diverged and has no value" in output
    assert content["groups"][1]["diverged"] == [diverged.info.run_id]


def test_a_diverged_run_does_not_decide_how_many_buckets_are_compared(store, experiment_id):
    for seed, rows in ((0, 3), (1, 3), (2, 4)):
        options = {"strategy": "naive", "seed": seed}
        options["tags"] = {names.DIVERGED_TAG: "true"} if seed == 2 else {}
        log_run(store, experiment_id, f"naive {seed}", counts(120, seed)[:rows], **options)
    (group,) = clear_mlflow.compare("test").to_dict()["groups"]
    assert len(group["diverged"]) == 1
    assert group["metrics"]["clear/in_domain_accuracy"]["n"] == 2


@pytest.mark.slow
def test_an_inconclusive_verdict_names_the_command_that_trains_more_seeds(store, experiment_id):
    for strategy, level in (("naive", 150), ("replay", 155)):
        for seed in range(2):
            parameters = {"strategy": strategy, "epochs": "3", "seed": str(seed)}
            log_training(store, experiment_id, counts(level, seed), parameters)
    output, content = compare(store, experiment_id)
    _, folder = load_comparison(store, experiment_id)
    grid = read_grid(folder / names.MORE_SEEDS)
    (verdict,) = content["verdicts"]
    suggestion = verdict["more_seeds"]
    assert suggestion >= 3
    assert {run.config_hash for run in grid.runs} == {
        hash_config(TrainConfig.resolve({"strategy": s, "epochs": "3", "seed": str(2 + i)}))
        for s in ("naive", "replay")
        for i in range(suggestion)
    }
    # Complete without defaults, and as people write it.
    lines = [line.strip(" -") for line in grid.text.splitlines()]
    for strategy in ("naive", "replay"):
        start = lines.index(f"strategy: {strategy}")
        assert lines[start + 1].startswith("dataset: ")
        assert "epochs: 3" in lines[start:]
    assert "'" not in grid.text
    command = f"clear-mlflow sweep --grid {folder / names.MORE_SEEDS}"
    assert f"MLFLOW_EXPERIMENT_ID={experiment_id} {command}" in output
    assert names.MORE_SEEDS in (folder / names.COMPARISON_PAGE).read_text()


def test_the_last_line_names_missing_baselines(store, experiment_id):
    for seed in range(3):
        parameters = {"strategy": "naive", "epochs": "3", "seed": str(seed)}
        log_training(store, experiment_id, counts(150, seed), parameters)
    output, content = compare(store, experiment_id)
    _, folder = load_comparison(store, experiment_id)
    names_of_baselines = (
        "ncm (nearest mean of frozen features), from_scratch, joint, cumulative at equal cost"
    )
    assert content["missing_baselines"] == names_of_baselines.split(", ")
    assert content["next_sweeps"][names.BASELINES] == (folder / names.BASELINES).read_text()
    command = f"clear-mlflow sweep --grid {folder / names.BASELINES}"
    last = f"lacks {names_of_baselines}: MLFLOW_EXPERIMENT_ID={experiment_id} {command}"
    assert output.endswith(last)  # `compare` joins all words by one space
    assert not any("joint" in warning for warning in content["warnings"])
    imported = log_run(store, experiment_id, "x", counts(150, 9), strategy="naive")
    compared = clear_mlflow.compare(imported.info.run_id)
    assert compared.missing_baselines == []
    assert not any(line.startswith("lacks") for line in compared.links)


@pytest.mark.slow
def test_a_baseline_and_a_margin(store, experiment_id, runs):
    compare(store, experiment_id, "--baseline", "naive", "--margin", "1")
    run, _ = load_comparison(store, experiment_id)
    assert (run.data.params["baseline"], run.data.params["margin"]) == ("naive", "1")


def log_replay_runs(store, experiment_id):
    for strategy, level in (("naive", 120), ("replay", 180)):
        for seed in range(3):
            is_other = strategy == "replay" and seed == 2
            epochs, lr = ("1", "0.01") if is_other else ("3", "0.02")
            parameters = {"strategy": strategy, "seed": str(seed), "epochs": epochs, "lr": lr}
            parameters |= {"device": "cpu" if seed else "auto", "predictions": "none"}
            log_training(store, experiment_id, counts(level, seed), parameters)


@pytest.mark.slow
def test_different_parameters_are_separate_groups(store, experiment_id):
    log_replay_runs(store, experiment_id)
    output, content = compare(store, experiment_id)
    assert "mixes" not in output
    assert count_runs(content) == {
        "replay, epochs=3, lr=0.02": 2,
        "replay, epochs=1, lr=0.01": 1,
        "naive, epochs=3, lr=0.02": 3,
    }
    assert content["group_by"] == ["strategy", "dataset", "epochs", "lr"]


@pytest.mark.slow
def test_merged_parameters_are_named_in_every_output(store, experiment_id):
    log_replay_runs(store, experiment_id)
    output, content = compare(store, experiment_id, "--group-by", "strategy")
    mixed = "epochs 1 and 3, lr 0.01 and 0.02"
    warning = f"replay mixes runs with different parameters ({mixed})"
    assert f"! {warning}" in output
    run, folder = load_comparison(store, experiment_id)
    replay, naive = content["groups"]
    assert replay["mixed"] == {"epochs": ["1", "3"], "lr": ["0.01", "0.02"]}
    assert naive["mixed"] == {}
    assert any(text.startswith(warning) for text in content["warnings"])
    (verdict,) = content["verdicts"]
    assert f"replay mixes {mixed}" in verdict["sentence"]
    assert warning in (folder / "comparison.html").read_text()
    assert "mixes runs with different parameters" in run.data.tags["mlflow.note.content"]


@pytest.mark.slow
def test_a_run_without_parameters_is_a_group_of_its_own(store, experiment_id):
    for seed in range(2):
        parameters = {"strategy": "replay", "seed": str(seed)}
        log_training(store, experiment_id, counts(180, seed), parameters)
    options = {"strategy": "replay", "seed": 2, "dataset": "digits"}
    log_run(store, experiment_id, "imported", counts(180, 2), **options)
    _, content = compare(store, experiment_id)
    assert len(content["group_by"]) == 3
    assert sorted(count_runs(content).values()) == [1, 2]


LOSS = """
def loss(matrix):
    return 1 - matrix.values[-1].mean()

def declared(matrix):
    return 1 - matrix.values[-1].mean()

declared.lower_is_better = True
"""


@pytest.mark.slow
def test_a_function_ranks_only_with_a_declared_direction(
    store, experiment_id, tmp_path, monkeypatch
):
    (tmp_path / "mylab.py").write_text(LOSS)
    monkeypatch.chdir(tmp_path)
    log_strategies(store, experiment_id, range(3))
    options = ("--metrics", "mylab:loss", "--rank-by", "mylab/loss")
    output = run_command("compare", "test", *options, code=2)
    assert "mylab/loss, a function that does not declare which values are better" in output
    assert len(store.search_runs([experiment_id])) == 6
    options = ("--metrics", "mylab:declared", "--rank-by", "mylab/declared")
    better = "replay is significantly better than naive in mylab/declared (lower is better:"
    assert better in compare(store, experiment_id, *options)[0]
    # Without a direction the metric is shown, and no value is marked as the best.
    compared = clear_mlflow.compare("test", metrics=["mylab:loss"], log=False)
    content = compared.to_dict()
    assert content["rank_by"] == SCORE
    assert content["groups"][0]["metrics"]["mylab/loss"]["higher_is_better"] is None
    assert "**" not in compared.to_markdown("mylab/loss")


@pytest.mark.slow
def test_an_experiment_and_run_ids_may_be_named_in_one_place(store, experiment_id, runs, tmp_path):
    run_command("compare", "test")
    compared, _ = load_comparison(store, experiment_id)
    assert compared.data.tags[names.COMPARED_COUNT_TAG] == "4"
    assert compared.data.params["runs"] == "test"
    ids = [run.info.run_id for run in runs]
    run_command("compare", ids[0][:8], ids[2][:31])
    run_command("compare", "test", "--filter", "tags.strategy = 'naive'")
    assert clear_mlflow.load(ids[0][:10]).run_id == ids[0]
    (evaluated,) = clear_mlflow.evaluate(ids[1][:10], dry_run=True)
    assert evaluated.run_id == ids[1]
    for arguments in (("show", ids[0][:9]), ("evaluate", "test"), ("evaluate", ids[0][:9])):
        assert invoke(*arguments).exit_code == 0, arguments
    run_command("export", "test", str(tmp_path / "bundles"))
    result = invoke("show", "test")
    assert (result.exit_code, "'test' is an experiment" in result.output) == (2, True)


def test_an_ambiguous_beginning_of_a_run_id_lists_the_runs(store, experiment_id):
    ids = []
    for number in range(2):
        run_id = store.create_run(experiment_id, run_name=f"run {number}").info.run_id
        ids.append(f"abcdef{number}{run_id[7:]}")
        with sqlite3.connect(store.tracking_uri.removeprefix("sqlite:///")) as database:
            for table in ("runs", "tags"):
                update = f"UPDATE {table} SET run_uuid = ? WHERE run_uuid = ?"
                database.execute(update, (ids[-1], run_id))
    output = run_command("show", "abcdef", code=2)
    assert "2 runs start with abcdef; use more digits of" in output
    assert all(f"{run_id} run" in output for run_id in ids)
    assert "no such run" in invoke("show", "abcde").output
    assert f"{ids[0]} " in invoke("show", "abcdef0").output
