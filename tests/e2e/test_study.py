"""Studies with real trainings: what they store, and that they continue."""

import json
from typing import Any

import pytest
import yaml
from commands import run_command
from stored_runs import artifact_folder
from sweeps import QUICK, start_sweep, wait_for_a_row
from waiting import finish

import clear_mlflow
from clear_mlflow.store import names

pytestmark = pytest.mark.slow

SCORE = "clear/challenge_score"
FIXED = {**QUICK, "batch_size": 16}
NAIVE = {"strategy": "naive", "lr": [0.01, 0.1]}
# A search whose only parameter is ignored: all of its combinations are one training.
NCM = {"strategy": "ncm", "memory": [50, 60]}


def read_parents(store, experiment_id):
    runs = store.search_runs([experiment_id], f"tags.`{names.KIND_TAG}` = '{names.KIND_SWEEP}'")
    return {run.info.run_id: run for run in runs}


def test_a_study_tunes_then_tests_and_continues(store, experiment_id, short_stream, tmp_path):
    path = tmp_path / "study.yaml"
    content = {
        "tune": {"dataset": "digits-writers", "seed": [0]},
        "test": {**short_stream, "seed": [0, 1]},
        "fixed": FIXED,
        "methods": [NAIVE, NCM],
    }
    path.write_text(yaml.safe_dump(content))
    output = run_command("sweep", path, "--dry-run")
    assert "3 runs, of which 3 would be started" in output
    process = start_sweep(path, "--regret")
    wait_for_a_row(store, experiment_id, process)
    process.kill()
    finish(process)
    result = clear_mlflow.sweep(path, experiment="test", regret=True)
    assert result.is_complete, result.problems
    # Tuning: 2 and 1; chosen: 2 methods, 2 seeds; untuned: naive's other rate and its default.
    assert len(result.runs) == 3 + 4 + 4
    naive, ncm = sorted(result.study.methods, key=lambda row: row["method"])
    assert (ncm["regret"], ncm["draws"], naive["draws"]) == (0, 2, 2)
    assert naive["regret"] == naive["best"] - naive["tested"] >= 0
    tuning, chosen = result.runs[:3], result.runs[3:7]
    digest = store.get_run(tuning[0].run_id).inputs.dataset_inputs[0].dataset.digest[:27]
    for run in chosen:
        stored = store.get_run(run.run_id)
        assert stored.data.tags[names.TUNED_ON] == "digits-writers"
        assert stored.data.tags[names.TUNED_ON_DIGEST].removeprefix("sha256:").startswith(digest)
        assert stored.data.tags[names.TUNED_DRAWS] == "2"
        assert stored.data.tags["mlflow.parentRunId"] == result.run_id
        # The test streams' labels are read only after the last tuning run has ended.
        assert stored.info.start_time >= max(
            store.get_run(tuned.run_id).info.end_time for tuned in tuning
        )
    parents = read_parents(store, experiment_id)
    tuned_in = parents[stored.data.tags[names.TUNED_IN]]
    assert tuned_in.data.tags[names.TUNED_ON] == "digits-writers"
    chosen_text = (artifact_folder(tuned_in) / names.CHOSEN).read_text()
    assert chosen_text == (artifact_folder(parents[result.run_id]) / names.SWEEP_GRID).read_text()
    report = json.loads((artifact_folder(parents[result.run_id]) / names.STUDY_JSON).read_text())
    assert report == result.study.to_dict()
    assert all(names.TUNED_ON not in store.get_run(r.run_id).data.tags for r in result.runs[7:])
    again = clear_mlflow.sweep(path, experiment="test", regret=True)
    assert again.counts == {"done before": 11}
    assert again.study == result.study
    assert (again.run_id, read_parents(store, experiment_id).keys()) == (
        result.run_id,
        parents.keys(),
    )
    # A sweep of the same parameters without a study trains its own runs, and is not tuned.
    untuned = {"fixed": {**short_stream, **FIXED}, "runs": [{"strategy": "ncm", "seed": [0]}]}
    (run,) = clear_mlflow.sweep(untuned, experiment="test").runs
    assert run.run_id not in {run.run_id for run in result.runs}
    run_ids = [str(other.run_id) for other in (run, *chosen)]
    compared = clear_mlflow.compare(run_ids, group_by="strategy", log=False)
    assert len(compared.comparison.groups) == 3


def test_one_stream_for_both_yields_the_chosen_yaml_of_a_sweep(store, experiment_id):
    methods: list[dict[str, Any]] = [NAIVE, {"strategy": "ncm"}]
    seed = {"seed": [0]}
    study = {
        "tune": {"dataset": "digits-writers", **seed},
        "test": {"dataset": "digits-writers", "seed": [0, 1, 2, 3, 4]},
        "fixed": FIXED,
        "methods": methods,
    }
    fixed = {**FIXED, "dataset": "digits-writers", "split": "validation"}
    grid = {"fixed": fixed, "runs": [{**method, **seed} for method in methods]}
    swept = clear_mlflow.sweep(grid, experiment="test")
    expected = (artifact_folder(store.get_run(swept.compared.run_id)) / names.CHOSEN).read_text()
    result = clear_mlflow.sweep(study, experiment="test")
    assert [run.run_id for run in result.runs[:3]] == [run.run_id for run in swept.runs]
    tags = store.get_run(result.runs[3].run_id).data.tags
    tuned_in = store.get_run(tags[names.TUNED_IN])
    assert (artifact_folder(tuned_in) / names.CHOSEN).read_text() == expected


def test_failures_are_one_line_and_nothing_is_tested(store, experiment_id, short_stream, tmp_path):
    path = tmp_path / "study.yaml"
    study = {
        "tune": short_stream,
        "test": {"dataset": "digits"},
        "fixed": FIXED,
        "methods": [{"strategy": "naive", "lr": [0.01]}],
    }
    path.write_text(yaml.safe_dump({**study, "search": {"metric": "nope"}}))
    output = run_command("sweep", path, code=2)
    assert "error: nothing was chosen: nothing was compared in sweep" in output
    assert "metric of search is 'nope', which no run defines" in output
    path.write_text(yaml.safe_dump({**study, "search": {"metric": "nope"}, "select_on": "first"}))
    output = run_command("sweep", path, code=2)
    assert "metric of search is 'nope', which no tuning run defines for select_on=first" in output
    content = {"fixed": {**short_stream, **FIXED}, "grid": {"strategy": ["ncm"]}}
    path.write_text(yaml.safe_dump(content))
    output = run_command("sweep", path, "--rank-by", "nope", code=2)
    assert "rank_by is 'nope', which no run defines" in output
    # A run that fails: its stream was damaged.
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    path.write_text(yaml.safe_dump({**study, "tune": {**short_stream, "data_root": str(damaged)}}))
    output = run_command("sweep", path, code=2)
    assert "error: nothing was chosen: 1 of 1 tuning run is not done, such as" in output
    trained = store.search_runs([experiment_id], "params.dataset = 'digits'")
    assert trained == []
    grid = tmp_path / "grid.yaml"
    grid.write_text("grid: {seed: [0]}")
    output = run_command("sweep", grid, "--regret", code=2)
    assert "--regret is on, but the grid lacks the sections tune and test" in output
