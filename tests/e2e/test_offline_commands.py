"""Trainings that other commands start are recorded offline, too."""

from pathlib import Path

import pytest
from forked import environment, run_shell
from ports import free_port
from short_stream import options

import clear_mlflow

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def fast(short_stream):
    """Return options of a training of about a second."""
    return {
        **short_stream,
        "strategy": "naive",
        "features": "pixels",
        "epochs": "1",
        "device": "cpu",
    }


def run_offline(line, folder, **variables):
    """Run a command line, and return what it prints and the runs in an offline folder."""
    done = run_shell(line, cwd=folder, env=environment(**variables), timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr, clear_mlflow.runs(folder / "offline_runs")


def test_mlflow_run_records_offline(store, experiment_id, fast, tmp_path):
    parameters = " ".join(f"-P {name}={value}" for name, value in fast.items())
    output, (run,) = run_offline(
        f"mlflow run '{PROJECT}' --env-manager local -P offline=yes {parameters}",
        tmp_path,
        CLEAR_MLFLOW_OFFLINE=str(tmp_path / "offline_runs"),
        MLFLOW_EXPERIMENT_NAME="test",
    )
    assert (run.status, run.matrix.num_rows) == ("FINISHED", 4)
    (opened,) = store.search_runs([experiment_id])
    assert (opened.info.status, opened.data.metrics) == ("FINISHED", {})
    assert f"run {opened.info.run_id}, which mlflow run opened, remains empty" in output


def test_several_processes_record_one_run_offline(store, fast, tmp_path):
    """No process contacts the store of the environment, which does not respond."""
    _, (run,) = run_offline(
        f"clear-mlflow train-distributed --processes 2 --offline {' '.join(options(fast))}",
        tmp_path,
        MLFLOW_TRACKING_URI=f"http://127.0.0.1:{free_port()}",
        CLEAR_MLFLOW_OFFLINE="",
    )
    assert (run.status, run.matrix.num_rows) == ("FINISHED", 4)
