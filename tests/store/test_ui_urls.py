"""Pages that ``clear-mlflow open`` opens: a run's best page, and the leaderboard view."""

import json
import signal
import socket
import subprocess
import urllib.request
from urllib.parse import quote

import psutil
import pytest
from commands import run_command
from forked import Forked
from mlflow import MlflowClient
from stored_runs import stored_run
from trainings import FOUR_BUCKETS, KnownTraining

import clear_mlflow
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.store.sqlite import name_sqlite_driver
from clear_mlflow.store.ui_urls import VIEW_TAG, find_page_url, format_run_links
from clear_mlflow.tracking.tracked_training import train_in_process

THEIRS = "mlflow.sharedViewState.0123abcd"


def test_a_run_opens_at_its_best_page(store, experiment_id):
    run = stored_run(store, experiment_id)
    at = f"#/experiments/{experiment_id}/runs/{run.info.run_id}"
    view = "?workflowType=machine_learning"
    assert find_page_url(store, run.info.run_id) == at + view
    assert find_page_url(store, run.info.run_id[:8]) == at + view
    score(store, run.info.run_id)
    assert find_page_url(store, run.info.run_id) == f"{at}/artifacts/report.html{view}"
    compared, sweep = (store.create_run(experiment_id).info.run_id for _ in range(2))
    store.set_tag(compared, names.KIND_TAG, names.KIND_COMPARE)
    made = json.dumps({"run_id": compared, "of": "0123"})
    store.set_tag(sweep, names.SWEEP_COMPARISON_TAG, made)
    for target in (compared, sweep):
        expected = f"#/experiments/{experiment_id}/runs/{compared}/artifacts/comparison.html{view}"
        assert find_page_url(store, target) == expected


def test_an_experiment_opens_as_a_leaderboard(store, experiment_id):
    run = stored_run(store, experiment_id)
    store.set_tag(run.info.run_id, names.KIND_TAG, names.KIND_TRAIN)
    store.set_experiment_tag(experiment_id, THEIRS, "theirs")
    page = f"#/experiments/{experiment_id}/runs?workflowType=machine_learning"
    for target in ("test", experiment_id, None):
        view = f"{page}&viewStateShareKey=clear_mlflow_leaderboard"
        assert find_page_url(store, target) == view
    tags = store.get_experiment(experiment_id).tags
    assert tags[THEIRS] == "theirs"
    state = json.loads(tags[VIEW_TAG])
    assert state["orderByKey"] == "metrics.`clear/challenge_score`"
    assert len(state["selectedColumns"]) == 6
    shown = [(part["name"], part["display"]) for part in state["compareRunSections"]]
    assert shown == [("Accuracy and forgetting", True), ("Accuracy matrices", True)]


@pytest.mark.slow
def test_the_leaderboard_has_charts_of_the_logged_metrics(store, experiment_id):
    train_in_process(store, KnownTraining(FOUR_BUCKETS), {})
    (run,) = store.search_runs([experiment_id])
    store.create_run(experiment_id)
    state = read_view(store)
    assert len(store.get_experiment(experiment_id).tags[VIEW_TAG]) < 5000  # what a database keeps
    check_charts(state, [run], store.search_runs([experiment_id], state["searchFilter"]))
    charts, sections = state["compareRunCharts"], state["compareRunSections"]
    assert {chart["metricSectionId"] for chart in charts} == {s["uuid"] for s in sections}
    assert len({chart["uuid"] for chart in charts}) == len(charts)
    (key,) = next(chart["imageKeys"] for chart in charts if chart["type"] == "IMAGE")
    images = [file.path for file in store.list_artifacts(run.info.run_id, "images")]
    assert any(path.startswith(f"images/{key}+step+0+") for path in images), images


def check_charts(state, expected_runs, runs):
    assert {run.info.run_id for run in runs} == {run.info.run_id for run in expected_runs}
    metric_keys = [c["metricKey"] for c in state["compareRunCharts"] if c["type"] != "IMAGE"]
    assert all(set(metric_keys) <= run.data.metrics.keys() for run in runs)
    assert [f"metrics.`{name}`" for name in metric_keys] == state["selectedColumns"][:-1]
    return metric_keys


def read_view(store):
    find_page_url(store, "test")
    return json.loads(store.get_experiment_by_name("test").tags[VIEW_TAG])


@pytest.mark.slow
@pytest.mark.parametrize("lower_is_better", [True, False])
def test_the_leaderboard_of_another_score_has_its_metrics(store, experiment_id, lower_is_better):
    assert read_view(store)["orderByKey"] == "metrics.`clear/challenge_score`"
    loop = {"buckets": ["1", "2", "3"], "strategy": "naive", "score": "rmse"}
    for level in (2.0, 1.0):
        with clear_mlflow.track(**loop, lower_is_better=lower_is_better) as run:
            for row in range(1, 4):
                run.log_values(row, [level, level + row, 2 * level])
    state, runs = read_view(store), store.search_runs([experiment_id])
    found = store.search_runs([experiment_id], state["searchFilter"])
    metric_keys = check_charts(state, runs, found)
    assert (len(runs), len(set(metric_keys))) == (2, 4)
    assert metric_keys[0] == "renate/average_rmse"
    order = [f"{state['orderByKey']} {'ASC' if state['orderByAsc'] else 'DESC'}"]
    values = [
        run.data.metrics[metric_keys[0]]
        for run in store.search_runs([experiment_id], order_by=order)
    ]
    assert values == sorted(values, reverse=not lower_is_better)
    titles = {section["name"] for section in state["compareRunSections"]}
    assert titles == {"rmse and forgetting", "rmse matrices"}


def test_a_missing_run_is_reported(store):
    for target in ("no such", "0123456789abcdef0123456789abcdef", "77"):
        with pytest.raises(TrackingError, match="no experiment has the name or id"):
            find_page_url(store, target)
    with pytest.raises(TrackingError, match="no run of clear_mlflow yet"):
        find_page_url(store, None)
    assert "port is 'many'" in run_command("open", "--port", "many", code=2)


@pytest.mark.slow
def test_imports_and_custom_loops_end_with_links(store, experiment_id, tmp_path, capfd):
    with clear_mlflow.track(buckets=2) as loop:
        loop.log_values(1, [0.5, 0.25])
    assert f"clear-mlflow open {loop.run_id}" in capfd.readouterr().err
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, text in zip(paths, ("0.5\n0.5,0.5\n", "0.9\n0.5,0.75\n"), strict=True):
        path.write_text(text)
    for count in (1, 2):  # to a run or, for several runs, to their experiment
        output = run_command("import", *map(str, paths[:count]), "--again")
        assert "clear-mlflow open " in output
        assert (f"clear-mlflow open {experiment_id}\n" in output) == (count == 2)


def test_the_newest_run_is_found_behind_many_experiments(store, experiment_id, monkeypatch):
    """MLflow returns 1,000 experiments at a time, here one."""
    run = stored_run(store, experiment_id)
    store.set_tag(run.info.run_id, names.KIND_TAG, names.KIND_TRAIN)
    search = store.search_experiments
    for name in ("a newer one", "another"):
        store.create_experiment(name)
    monkeypatch.setattr(
        store, "search_experiments", lambda max_results, **o: search(max_results=1, **o)
    )
    assert find_page_url(store, None).startswith(f"#/experiments/{experiment_id}/runs?")


@pytest.mark.slow
def test_the_command_names_the_store_unless_it_is_the_default(tmp_path, monkeypatch):
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = name_sqlite_driver(f"sqlite:///{quote(str(folder))}/mlflow.db")
    client = MlflowClient(uri)
    run = client.create_run("0")
    command = f"clear-mlflow open {run.info.run_id}"
    assert format_run_links(client, run) == [f"open     {command}"]
    monkeypatch.chdir(tmp_path)
    assert format_run_links(client, run) == [f"open     MLFLOW_TRACKING_URI={uri} {command}"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    assert format_run_links(client, run) == [f"open     {command}"]


def test_a_port_in_use_is_rejected_at_once(store, experiment_id):
    stored_run(store, experiment_id)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        output = run_command("open", "test", "--port", port, "--browser", "no", code=2)
    assert f"port is {port}" in output
    assert "http" not in output


@pytest.mark.program
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("stopped_by", [signal.SIGINT, signal.SIGHUP])
def test_a_store_without_a_server_gets_one_until_it_is_stopped(store, experiment_id, stopped_by):
    run = stored_run(store, experiment_id)
    score(store, run.info.run_id)
    opened = Forked("open", run.info.run_id, "--browser", "no", stdout=subprocess.PIPE)
    try:
        address = opened.stdout.readline().strip()
        assert address.endswith("/artifacts/report.html?workflowType=machine_learning")
        base = address.partition("/#")[0]
        url = f"{base}/get-artifact?path=report.html&run_uuid={run.info.run_id}"
        with urllib.request.urlopen(url) as response:
            assert b"<h1>" in response.read()
        children = psutil.Process(opened.pid).children(recursive=True)
        processes = [" ".join(process.cmdline()) for process in children]
        assert any("uvicorn" in line for line in processes)
        assert not any("huey" in line or "jobs" in line for line in processes)  # MLflow's job queue
        opened.send_signal(stopped_by)
        assert opened.wait(60) == 0
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(base)
        assert format_run_links(store, run)[0] == f"open     clear-mlflow open {run.info.run_id}"
    finally:
        if opened.poll() is None:
            opened.kill()
