"""The run above a sweep: one for all that work on it, and its comparison, whatever is deleted."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from mlflow.tracking._tracking_service.utils import _get_store
from stored_runs import stored_run

import clear_mlflow
from clear_mlflow.api.sweep import Sweep, SweepResult
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.engines.local import LocalEngine
from clear_mlflow.grids.grid import read_grid
from clear_mlflow.scoring.scores import score
from clear_mlflow.store import names
from clear_mlflow.store.heartbeat import heartbeat

QUICK = {"runs": [{"features": "pixels", "epochs": 1, "predictions": "none"}]}
ENGINE = SimpleNamespace(check_store=lambda uri: None)  # is asked for nothing else


@pytest.fixture
def sweep(store, experiment_id, tmp_path):
    """A sweep of two runs that are done."""
    file = tmp_path / "sweep.yaml"
    file.write_text("grid: {seed: [0, 1]}")
    grid = read_grid(file)
    for planned in grid.runs:
        run_id = stored_run(store, experiment_id, seed=planned.config.seed).info.run_id
        store.set_tag(run_id, names.SWEEP_RUN_TAG, planned.fingerprint)
        store.set_tag(run_id, "strategy", "naive")
        store.set_tag(run_id, "dataset", "digits")
        score(store, run_id)
    return lambda client=store: Sweep(grid=grid).over(client, experiment_id, ENGINE)


def test_a_comparison_that_is_gone_is_made_again(store, sweep):
    """In the trash, or beyond it."""
    first = sweep()
    assert first.is_well
    assert repr(first) == f"SweepResult(sweep {first.run_id}: 2 done before)"
    assert str(first).startswith(f"sweep {first.run_id}: 2 done before\n\n")
    assert str(first.compared) in str(first)
    assert first.compared._repr_html_() in first._repr_html_()
    metrics = store.get_run(first.run_id).data.metrics
    assert metrics["clear/challenge_score"] == metrics["leader/clear/challenge_score"]
    assert sweep().comparison_run.info.run_id == first.comparison_run.info.run_id
    for gone_for_good in (False, True):
        before = sweep().comparison_run.info.run_id
        store.delete_run(before)
        if gone_for_good:
            _get_store()._hard_delete_run(before)
        again = sweep()
        assert again.is_well, again.problems
        assert again.comparison_run.info.run_id != before
        assert again.run_id == first.run_id


@pytest.mark.parametrize(
    ("signum", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_stopped_in_python_it_raises(store, experiment_id, monkeypatch, capsys, signum, raised):
    """When what was under way is scored; the caller's next line is not reached."""
    started = LocalEngine.start

    def start(self, task):
        started(self, task)
        os.kill(os.getpid(), signum)

    monkeypatch.setattr(LocalEngine, "start", start)
    with pytest.raises(raised):
        clear_mlflow.sweep(QUICK, experiment="test")
    assert "[0/1] started: naive" in capsys.readouterr().err
    (above,) = store.search_runs([experiment_id], f"tags.`{names.KIND_TAG}` = 'sweep'")
    assert above.info.status == "KILLED"


def test_what_was_not_compared_says_why():
    """In one line, as a notebook shows it, too."""
    result = SweepResult("some", (), problems=("the runs were not compared: <b>",))
    with pytest.raises(ConfigError, match="compared in sweep some: no runs; the runs were not"):
        result.compared  # noqa: B018
    assert "not compared: &lt;b&gt;</p>" in result._repr_html_()


def test_a_thread_sweeps(experiment_id):
    """Where Python allows no handler of signals; names in one text, as `compare` takes them."""
    with ThreadPoolExecutor(1) as threads:
        how = {"experiment": "test", "group_by": "strategy,seed"}
        swept = threads.submit(clear_mlflow.sweep, QUICK, **how).result()
    assert swept.is_well
    assert swept.compared.comparison.group_by == ("strategy", "seed")


def elsewhere():
    return json.dumps({**json.loads(heartbeat()), "host": "elsewhere", "token": "another's"})


def test_of_two_that_begin_at_once_one_works(store, experiment_id, sweep):
    """The other one has looked, too, before either said that it works."""

    class Late(MlflowClient):
        def create_run(self, *arguments, **options):
            tags = options["tags"] | {names.PROCESS_TAG: elsewhere()}
            store.create_run(experiment_id, tags=tags)
            return super().create_run(*arguments, **options)

    with pytest.raises(TrackingError, match="another process works on this sweep now"):
        sweep(Late(store.tracking_uri))
    assert len(store.search_runs([experiment_id], f"tags.`{names.SWEEP_TAG}` != ''")) == 1


def test_of_two_that_go_on_at_once_one_works(store, sweep):
    """MLflow lets one of them write the parameter that both want to."""
    above = sweep().run_id

    class Late(MlflowClient):
        def log_param(self, run_id, key, value, synchronous=None):
            super().log_param(run_id, key, elsewhere())
            return super().log_param(run_id, key, value)

    with pytest.raises(TrackingError, match="another process trains into run"):
        sweep(Late(store.tracking_uri))
    assert store.get_run(above).info.status == "FINISHED"
