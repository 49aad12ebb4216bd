"""The parent run of a sweep and its comparison."""

import json
import os
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import mlflow
import pytest
from commands import invoke, run_command
from mlflow import MlflowClient
from mlflow.tracking._tracking_service.utils import _get_store
from mlflow.utils.mlflow_tags import (
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_PROJECT_ENTRY_POINT,
    MLFLOW_RUN_NOTE,
)
from stored_runs import stored_run

import clear_mlflow
from clear_mlflow.api.sweep import SweepOptions, SweepResult, train_and_compare
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.lease import format_lease
from clear_mlflow.sweeps.grid import read_grid
from clear_mlflow.sweeps.local import LocalEngine
from clear_mlflow.sweeps.store import SweepStore

QUICK = {"runs": [{"features": "pixels", "epochs": 1, "predictions": "none"}]}
ENGINE = SimpleNamespace(check_store=lambda uri: None)  # is asked for nothing else


def run_sweep(grid, client, experiment_id, engine=ENGINE, **options):
    store = SweepStore(client, experiment_id)
    store.read_states(grid)
    return train_and_compare(grid, SweepOptions(store, engine, **options))


@pytest.fixture
def sweep(store, experiment_id, grid_file):
    grid = read_grid(grid_file)
    for planned in grid.runs:
        run_id = stored_run(store, experiment_id, seed=planned.config.seed).info.run_id
        tags = {names.SWEEP_RUN_TAG: planned.config_hash, "strategy": "naive", "dataset": "digits"}
        for name, text in tags.items():
            store.set_tag(run_id, name, text)
        score(store, run_id)
    return lambda client=store: run_sweep(grid, client, experiment_id)


def test_a_sweep_ends_with_the_link_of_its_comparison(sweep):
    compared = sweep().compared
    assert compared.links[0] == f"open     clear-mlflow open {compared.run_id}"


@pytest.mark.slow
def test_a_deleted_comparison_is_made_again(store, sweep):
    first = sweep()
    assert first.is_complete
    assert repr(first) == f"SweepResult(sweep {first.run_id}: 2 done before)"
    assert str(first).startswith(f"sweep {first.run_id}: 2 done before\n\n")
    assert str(first.compared) in str(first)
    assert first.compared._repr_html_() in first._repr_html_()
    metrics = store.get_run(first.run_id).data.metrics
    assert metrics["clear/challenge_score"] == metrics["leader/clear/challenge_score"]
    assert sweep().compared.run_id == first.compared.run_id
    for gone_for_good in (False, True):
        before = sweep().compared.run_id
        store.delete_run(before)
        if gone_for_good:
            _get_store()._hard_delete_run(before)
        again = sweep()
        assert again.is_complete, again.problems
        assert again.compared.run_id != before
        assert again.run_id == first.run_id


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("signum", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_sweep_stopped_in_python_raises(
    store, experiment_id, monkeypatch, capsys, signum, raised
):
    started = LocalEngine.start

    def start(self, *run):
        started(self, *run)
        os.kill(os.getpid(), signum)

    monkeypatch.setattr(LocalEngine, "start", start)
    with pytest.raises(raised):
        clear_mlflow.sweep(QUICK, experiment="test")
    assert "[0/1] started: naive" in capsys.readouterr().err
    (parent,) = store.search_runs([experiment_id], f"tags.`{names.KIND_TAG}` = 'sweep'")
    assert parent.info.status == "KILLED"


@pytest.fixture
def grid_file(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("grid: {seed: [0, 1]}")
    return path


def test_a_project_run_names_the_sweep_that_it_continued(
    store, experiment_id, grid_file, monkeypatch
):
    def start_and_stop():
        return run_sweep(read_grid(grid_file), store, experiment_id, should_stop=lambda: True)

    first = start_and_stop()
    tags = {MLFLOW_PROJECT_ENTRY_POINT: "sweep"}
    project_run_id = store.create_run(experiment_id, tags=tags).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", project_run_id)
    assert start_and_stop().run_id == first.run_id
    tags = store.get_run(project_run_id).data.tags
    assert tags[MLFLOW_RUN_NOTE] == f"Continued the sweep of run {first.run_id}."


def test_a_dry_run_creates_no_experiment(store, grid_file):
    before = {experiment.name for experiment in store.search_experiments()}
    arguments = ["sweep", str(grid_file), "--dry-run", "--experiment", "nowhere"]
    assert "2 runs, of which 2 would be started" in run_command(*arguments)
    assert {experiment.name for experiment in store.search_experiments()} == before


def test_a_dry_run_creates_no_store(tmp_path, grid_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    before = mlflow.get_tracking_uri()
    try:
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/new.db")
        result = invoke("sweep", "sweep.yaml", "--dry-run")
    finally:
        mlflow.set_tracking_uri(before)
    assert "2 runs, of which 2 would be started" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        (
            [{"strategy": "ewc"}, {"strategy": "ewc", "strategy_args": "strength=3"}],
            "strategy_args",
        ),
        ([{"weights": "/no/where.pth"}], "where.pth cannot be read"),
        ([{"dataset": "clear10", "data_root": "/no/where"}], "data root /no/where"),
        ([{"dataset_args": "nope=1"}], "nope"),
        ([{"seed": 0}, {"test_every": "200"}], "test_every is 200"),
    ],
)
def test_a_run_that_cannot_be_trained_is_rejected_before_anything_starts(
    store, experiment_id, runs, problem
):
    with pytest.raises(ConfigError, match=problem):
        clear_mlflow.sweep({"runs": runs}, experiment="test")
    assert store.search_runs([experiment_id]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("ncm", {"memory": 10, "lr": 0.5, "momentum": 0.5, "dataset": "digits"}),
        ("ewc", {"strategy_args": "gamma=0.95,strength=3"}),
    ],
)
def test_a_run_that_is_equal_in_effect_is_done_already(store, strategy, changes):
    quick = {**QUICK["runs"][0], "strategy": strategy}
    first = clear_mlflow.sweep({"runs": [quick]}, experiment="test")
    second = clear_mlflow.sweep({"runs": [{**quick, **changes}]}, experiment="test")
    assert second.counts == {"done before": 1}
    assert [run.run_id for run in second.runs] == [run.run_id for run in first.runs]


def test_a_failed_run_is_an_error_of_the_sweep(store, experiment_id, tmp_path, monkeypatch):
    def start_and_fail(arguments, environment, log):
        Path(log).write_text("error: no luck\n")
        return subprocess.Popen(["false"])

    module = import_module("clear_mlflow.cli.sweep")
    monkeypatch.setattr(module, "start_program", start_and_fail)
    grid = tmp_path / "sweep.yaml"
    grid.write_text("grid: {seed: [0]}")
    done = invoke("sweep", "--grid", str(grid))
    assert done.exit_code == 2
    (run,) = store.search_runs([experiment_id], f"tags.`{names.SWEEP_RUN_TAG}` != ''")
    assert run.info.status == "FAILED"
    assert f"\nerror: naive digits seed 0: no luck (run {run.info.run_id})\n" in done.stderr
    assert int(re.search(r"\[1/1\] failed in (\d+) s", done.stderr)[1]) < 60


def test_a_missing_comparison_has_a_reason():
    result = SweepResult("some", (), problems=("the runs were not compared: <b>",))
    with pytest.raises(ConfigError, match="compared in sweep some: no runs; the runs were not"):
        result.compared  # noqa: B018
    assert "not compared: &lt;b&gt;</p>" in result._repr_html_()
    assert result.to_dict()["compared"] is None


@pytest.mark.slow
def test_a_thread_can_sweep(experiment_id):
    """Although Python allows no signal handler there. Names may be one text."""
    with ThreadPoolExecutor(1) as threads:
        options = {"experiment": "test", "group_by": "strategy,seed"}
        swept = threads.submit(clear_mlflow.sweep, QUICK, **options).result()
    assert swept.is_complete
    assert swept.compared.comparison.group_by == ("strategy", "seed")


@pytest.mark.slow
def test_one_of_two_concurrent_sweeps_trains_a_common_run(store, experiment_id, tmp_path):
    """Both see that it is missing before either opens it."""
    file = tmp_path / "other.yaml"
    file.write_text("grid: {seed: [2]}")
    grid = read_grid(file)
    (planned,) = grid.runs
    tags = {names.KIND_TAG: "sweep", names.PROCESS_TAG: elsewhere()}
    parent = store.create_run(experiment_id, tags=tags).info.run_id
    other_ids = []

    class Late(MlflowClient):
        def create_run(self, *arguments, **options):
            if options["tags"].get(names.SWEEP_RUN_TAG) == planned.config_hash and not other_ids:
                tags = {names.SWEEP_RUN_TAG: planned.config_hash, MLFLOW_PARENT_RUN_ID: parent}
                other_ids.append(store.create_run(experiment_id, tags=tags).info.run_id)
                store.update_run(other_ids[0], status="SCHEDULED")
            return super().create_run(*arguments, **options)

    engine = SimpleNamespace(check_store=lambda uri: None, count_free_slots=lambda: 1)
    engine.wait_for_ended_runs = lambda timeout: []  # it starts nothing
    result = run_sweep(grid, Late(store.tracking_uri), experiment_id, engine)
    assert [(run.state, run.run_id) for run in result.runs] == [("trains elsewhere", *other_ids)]
    condition = f"tags.`{names.SWEEP_RUN_TAG}` = '{planned.config_hash}'"
    (with_tag,) = store.search_runs([experiment_id], condition)
    assert [with_tag.info.run_id] == other_ids
    assert with_tag.info.status == "SCHEDULED"


def elsewhere():
    return json.dumps({**json.loads(format_lease()), "host": "elsewhere", "token": "another's"})


@pytest.mark.slow
def test_one_of_two_concurrent_continuations_works(store, sweep):
    """MLflow lets one of them write a parameter."""
    parent_id = sweep().run_id

    class Late(MlflowClient):
        def log_param(self, run_id, key, value, synchronous=None):
            super().log_param(run_id, key, elsewhere())
            return super().log_param(run_id, key, value)

    with pytest.raises(TrackingError, match="another process trains into run"):
        sweep(Late(store.tracking_uri))
    assert store.get_run(parent_id).info.status == "FINISHED"
