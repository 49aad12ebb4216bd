"""Searches in stores with other content return each run once."""

import pytest
from commands import run_command

from clear_mlflow.core.errors import ConfigError, RecordError, TrackingError
from clear_mlflow.store import names, search
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.search import MissingRun, select_runs


def test_a_search_returns_each_run_once_while_others_start(store, experiment_id, monkeypatch):
    monkeypatch.setattr(search, "_PAGE_SIZE", 2)
    times = [1_000, 2_000, 2_000, 2_000, 2_000, 2_000, 3_000, 4_000, 5_000]
    made = {
        store.create_run(experiment_id, start_time=time, run_name=f"{at}").info.run_id: time
        for at, time in enumerate(times)
    }
    scored, comparison, deleted = list(made)[:3]
    store.set_tag(scored, names.SCORED_TAG, "d")
    store.set_tag(comparison, names.KIND_TAG, "compare")
    for entry_point in ("evaluate", "ensemble", "resume", "sweep"):
        store.create_run(experiment_id, tags={names.KIND_TAG: entry_point})
    store.delete_run(deleted)
    run_ids = [run.info.run_id for run in select_runs(store, experiment="test")]
    assert sorted(run_ids) == sorted(set(made) - {comparison, deleted})
    assert [made[run_id] for run_id in run_ids] == sorted((made[r] for r in run_ids), reverse=True)
    unscored = [r.info.run_id for r in select_runs(store, unscored_only=True)]
    assert sorted(unscored) == sorted(set(run_ids) - {scored})
    selected = select_runs(store, run_ids=(*list(made)[3:5], scored), unscored_only=True)
    assert [run.info.run_id for run in selected] == list(made)[3:5]
    first_run, missing, gone = select_runs(store, run_ids=(scored, "0" * 32, deleted, scored))
    assert first_run.info.run_id == scored
    assert isinstance(missing, MissingRun)
    assert "no such run" in missing.problem
    assert "is deleted" in gone.problem
    with pytest.raises(TrackingError, match="no experiment has the name or id 'none'"):
        list(select_runs(store, experiment="none"))
    with pytest.raises(TrackingError, match="cannot list the runs"):
        list(select_runs(store, filter="nonsense"))


def test_an_mlflow_error_is_one_line_without_a_password():
    with pytest.raises(TrackingError) as caught, mlflow_errors("read it"):
        raise ValueError("two\nlines of mysql://me:secret@host/db")
    assert "cannot read it in the tracking store" in str(caught.value)
    assert str(caught.value).endswith("ValueError: two lines of mysql://***@host/db")
    own = RecordError("damaged")
    with pytest.raises(RecordError) as caught, mlflow_errors("read it"):
        raise own
    assert caught.value is own


def test_a_filter_of_very_many_conditions_is_rejected_at_once(store, experiment_id):
    """A database cannot join so many tables. Quoted words are no conditions."""
    with pytest.raises(ConfigError, match="filter has 301 conditions; expected at most 50"):
        list(select_runs(store, filter=" and ".join(["tags.a = 'b'"] * 301)))
    run = store.create_run(experiment_id, tags={"a": "this and that " * 60})
    selected = select_runs(store, filter=f"tags.a = '{'this and that ' * 60}' AND tags.a != 'x'")
    assert [selected_run.info.run_id for selected_run in selected] == [run.info.run_id]


@pytest.mark.parametrize("words", [["show"], ["compare"], ["evaluate"], ["compare", "Default"]])
@pytest.mark.parametrize("name", ["replay 0", "cafe12"])
def test_a_name_of_a_run_is_answered_with_its_id(store, words, name):
    """Runs are chosen by id; names are what tables and pages show."""
    run_id = store.create_run("0", run_name=name).info.run_id
    output = run_command(*words, name, code=2)
    assert f"{name!r} is the name of a run, pass its id: {run_id}" in output


@pytest.mark.parametrize("name", ["o'neill", "2ff8"])
def test_a_name_that_no_run_has_is_answered_with_what_to_pass(store, name):
    output = run_command("show", name, code=2)
    assert "pass the id of a run, or at least its first six digits" in output


def test_the_name_of_an_experiment_is_answered_with_runs(store):
    run_id = store.create_run("0", run_name="replay 0").info.run_id
    output = run_command("show", "Default", code=2)
    assert f"pass the id of one of its runs, for example {run_id} ('replay 0')" in output
