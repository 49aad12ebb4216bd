"""What ``clear-mlflow open`` opens: a run's best page, and a leaderboard beside others' views."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from click.testing import CliRunner
from stored_runs import stored_run

from clear_mlflow.cli import main
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.scoring.scores import score
from clear_mlflow.store import names
from clear_mlflow.store.ui_urls import VIEW_TAG, page_of_target

THEIRS = "mlflow.sharedViewState.0123abcd"


def test_a_run_opens_at_its_best_page(store, experiment_id):
    """A report where there is one, the comparison of a sweep, else the run."""
    run = stored_run(store, experiment_id)
    at = f"#/experiments/{experiment_id}/runs/{run.info.run_id}"
    view = "?workflowType=machine_learning"
    assert page_of_target(store, run.info.run_id) == at + view
    score(store, run.info.run_id)
    assert page_of_target(store, run.info.run_id) == f"{at}/artifacts/report.html{view}"
    compared, sweep = (store.create_run(experiment_id).info.run_id for _ in range(2))
    store.set_tag(compared, names.KIND_TAG, names.KIND_COMPARE)
    made = json.dumps({"run_id": compared, "of": "0123"})
    store.set_tag(sweep, names.SWEEP_COMPARISON_TAG, made)
    for target in (compared, sweep):
        expected = f"#/experiments/{experiment_id}/runs/{compared}/artifacts/comparison.html{view}"
        assert page_of_target(store, target) == expected


def test_an_experiment_opens_as_a_leaderboard(store, experiment_id):
    """By name, by id, or as the newest run's; a view of the user's own stays as it is."""
    run = stored_run(store, experiment_id)
    store.set_tag(run.info.run_id, names.KIND_TAG, names.KIND_TRAIN)
    store.set_experiment_tag(experiment_id, THEIRS, "theirs")
    expected = (
        f"#/experiments/{experiment_id}/runs?workflowType=machine_learning"
        "&viewStateShareKey=clear_mlflow_leaderboard"
    )
    for target in ("test", experiment_id, None):
        assert page_of_target(store, target) == expected
    tags = store.get_experiment(experiment_id).tags
    assert tags[THEIRS] == "theirs"
    state = json.loads(tags[VIEW_TAG])
    assert state["orderByKey"] == "metrics.`clear/challenge_score`"
    assert len(state["selectedColumns"]) == 6


def test_the_leaderboard_has_our_runs_alone(store, experiment_id):
    """Its filter, as MLflow's search takes it."""
    ours = stored_run(store, experiment_id)
    score(store, ours.info.run_id)
    store.create_run(experiment_id)
    page_of_target(store, "test")
    state = json.loads(store.get_experiment(experiment_id).tags[VIEW_TAG])
    found = store.search_runs([experiment_id], state["searchFilter"])
    assert [run.info.run_id for run in found] == [ours.info.run_id]


def test_what_is_not_there_is_told(store):
    for target in ("no such", "0123456789abcdef0123456789abcdef", "77"):
        with pytest.raises(TrackingError, match="no run and no experiment is called"):
            page_of_target(store, target)
    with pytest.raises(TrackingError, match="no run of clear_mlflow yet"):
        page_of_target(store, None)
    answer = CliRunner().invoke(main, ["open", "--port", "many"])
    assert answer.exit_code == 2
    assert "port is 'many'" in answer.output


def test_a_store_without_a_server_gets_one_until_it_is_stopped(store, experiment_id):
    """The printed address answers; Ctrl-C ends server and command."""
    run = stored_run(store, experiment_id)
    score(store, run.info.run_id)
    command = [sys.executable, "-m", "clear_mlflow", "open", run.info.run_id, "--browser", "no"]
    opened = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        address = opened.stdout.readline().strip()
        assert address.endswith("/artifacts/report.html?workflowType=machine_learning")
        base = address.partition("/#")[0]
        asked = f"{base}/get-artifact?path=report.html&run_uuid={run.info.run_id}"
        with urllib.request.urlopen(asked) as answer:
            assert b"<h1>" in answer.read()
        opened.send_signal(signal.SIGINT)
        assert opened.wait(60) == 0
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(base)
    finally:
        if opened.poll() is None:
            opened.kill()
