"""Unusable stores and environments are one-line errors with an exit code."""

import os
import signal
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import mlflow
import pytest
from click.testing import CliRunner
from forked import run_forked
from stored_runs import stored_run

import clear_mlflow
from clear_mlflow.api import import_
from clear_mlflow.cli import main
from clear_mlflow.core.errors import ConfigError, RecordError, TrackingError
from clear_mlflow.grids import read_grid
from clear_mlflow.importers import ReadOptions, ResultFile, read_runs
from clear_mlflow.store import client as store_client
from clear_mlflow.store.client import preflight


def test_an_artifact_location_that_stores_nothing_is_a_one_line_error(store, monkeypatch):
    """MLflow accepts it for an experiment, and fails at the first artifact."""
    store.create_experiment("elsewhere", artifact_location="http://127.0.0.1:9/x")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    with pytest.raises(TrackingError, match=r":9/x, which is not an artifact store"):
        preflight()


def test_memory_for_a_strategy_without_memory_is_rejected(store, experiment_id):
    """On the command line and in Python. A grid may set it for all strategies."""
    done = CliRunner().invoke(main, ["train", "--strategy", "ewc", "--memory", "100"])
    assert done.exit_code == 2
    assert (
        "error: --memory is 100, but strategy ewc does not use it; leave --memory out"
        in done.output
    )
    with pytest.raises(ConfigError, match="memory is 100, but strategy naive does not use it"):
        clear_mlflow.train(memory=100)
    assert store.search_runs([experiment_id]) == []
    grid = {"fixed": {"memory": 100}, "grid": {"strategy": ["ewc", "replay"]}}
    assert [run.config.strategy for run in read_grid(grid).runs] == ["ewc", "replay"]


def test_messages_spell_options_as_they_are_typed(store, tmp_path):
    """With dashes on the command line and as arguments in Python."""
    (tmp_path / "x.csv").write_text("75,50\n70,90\n")
    done = CliRunner().invoke(main, ["import", str(tmp_path / "x.csv"), "--orientation", "rows"])
    assert "pass --scale percent" in done.output
    with pytest.raises(RecordError, match='pass scale="percent"'):
        read_runs(ResultFile("x.csv", b"75,50\n70,90\n", ReadOptions(orientation="rows")))
    arguments = ["--strategy", "ncm", "--model", "mlp:8", "--features", "pixels"]
    done = CliRunner().invoke(main, ["train", *arguments])
    assert "pass --model linear, and standardise=first" in done.output


@pytest.mark.parametrize("command", [["evaluate", "--unscored-only"], ["import", __file__]])
def test_ctrl_c_while_a_store_hangs_exits_with_130(command, monkeypatch):
    """In the first call."""
    calls = []

    def hang(**options):
        calls.append(options)
        os.kill(os.getpid(), signal.SIGINT)

    for module in (import_, store_client):
        monkeypatch.setattr(module, "preflight", hang)
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 130
    assert len(calls) == 1


def test_an_unreadable_database_is_an_error_within_seconds(tmp_path, monkeypatch):
    """MLflow retries for 101 s without output."""
    naps = []
    monkeypatch.setattr("mlflow.store.db.utils.time", SimpleNamespace(sleep=naps.append))
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}")
    with pytest.raises(TrackingError, match="cannot read experiments"):
        preflight()
    assert 0 < sum(naps) < 10


def test_a_locked_database_is_a_one_line_error(store, experiment_id):
    """Without MLflow's traceback."""
    run_id = stored_run(store, experiment_id).info.run_id
    with closing(sqlite3.connect(store.tracking_uri.removeprefix("sqlite:///"))) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        done = run_forked("evaluate", "--runs", run_id, timeout=120)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "database is locked" in line
    assert "stopped" in line
