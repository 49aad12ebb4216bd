"""Re-scoring: which runs, what is written, and what is said of those that cannot be scored."""

import json
import sqlite3

import pytest
from commands import invoke
from stored_runs import artifact_folder, histories, stored_run
from trainings import FOUR_BUCKETS

import clear_mlflow
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.store import names
from clear_mlflow.store.lease import format_lease
from clear_mlflow.store.search import select_runs


def run_evaluate(store, *run_ids, dry_run=False):
    chosen = select_runs(store, run_ids=run_ids)
    return list(rescore_runs(store, chosen, explicit=True, dry_run=dry_run))


def everything(store, run_id):
    """All that a store holds of a run: tags, params, each metric's whole history, artifacts."""
    run = store.get_run(run_id)
    files = {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in artifact_folder(run).rglob("*")
        if path.is_file()
    }
    return run.data.tags, run.data.params, histories(store, run_id), files, run.info.status


@pytest.mark.slow
def test_removed_values_are_restored(store, experiment_id, tmp_path):
    run = stored_run(store, experiment_id)
    run_evaluate(store, run.info.run_id)
    before = everything(store, run.info.run_id)[2]
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        for table in ("metrics", "latest_metrics"):
            database.execute(f"DELETE FROM {table} WHERE key = 'renate/forgetting'")
            database.execute(f"UPDATE {table} SET value = 0.5 WHERE key = 'clear/accuracy'")
        database.execute("DELETE FROM metrics WHERE step < 4 AND key LIKE 'renate/%'")
    (artifact_folder(run) / names.MATRIX_JSON).unlink()
    (verdict,) = run_evaluate(store, run.info.run_id)
    assert verdict.action == "scored"
    after = everything(store, run.info.run_id)[2]
    renate = {name for name in before if name.startswith("renate/")}
    assert {name: after[name] for name in renate} == {name: before[name] for name in renate}
    assert (artifact_folder(run) / names.MATRIX_JSON).exists()
    assert "values changed: clear/accuracy" in verdict.detail
    latest = store.get_run(run.info.run_id).data.metrics
    assert latest["clear/accuracy"] == before["clear/accuracy"][-1][2]
    assert [v.action for v in run_evaluate(store, run.info.run_id)] == ["unchanged"]


@pytest.mark.slow
def test_an_unreadable_artifact_store_affects_only_its_own_runs(store, experiment_id):
    store.create_experiment("elsewhere", artifact_location="nowhere://bucket/path")
    elsewhere = store.get_experiment_by_name("elsewhere").experiment_id
    foreign = store.create_run(elsewhere).info.run_id
    good = stored_run(store, experiment_id)
    run_evaluate(store, good.info.run_id)
    failed, unchanged = run_evaluate(store, foreign, good.info.run_id)
    assert (failed.action, unchanged.action) == ("failed", "unchanged")
    assert "nowhere" in failed.detail
    everywhere = list(rescore_runs(store, select_runs(store), explicit=False, dry_run=False))
    assert sorted(v.action for v in everywhere) == ["skipped", "unchanged"]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("alive", [True, False])
def test_only_the_run_of_a_dead_process_is_closed(store, experiment_id, alive):
    run = stored_run(store, experiment_id, FOUR_BUCKETS[:3])
    store.update_run(run.info.run_id, status="RUNNING")
    process = json.loads(format_lease())
    if not alive:
        process["started"] -= 100  # a process id that was given out again
    store.set_tag(run.info.run_id, names.PROCESS_TAG, json.dumps(process))
    (verdict,) = run_evaluate(store, run.info.run_id)
    run = store.get_run(run.info.run_id)
    if alive:
        assert (verdict.action, run.info.status) == ("skipped", "RUNNING")
        assert not run.data.metrics
    else:
        assert (verdict.action, run.info.status) == ("scored", "KILLED")
        assert run.data.metrics["clear/in_domain_accuracy"] == pytest.approx((0.90 + 0.92) / 2)


def test_a_training_with_unreadable_artifacts_fails_and_another_run_is_skipped(store):
    """In an experiment, not every run must have rows."""
    experiment_id = store.create_experiment("away", artifact_location="nowhere://bucket")
    tags = {names.KIND_TAG: names.KIND_TRAIN}
    training = store.create_run(experiment_id, tags=tags).info.run_id
    other = store.create_run(experiment_id).info.run_id
    for run_id in (training, other):
        store.set_terminated(run_id)
    results = {result.run_id: result for result in clear_mlflow.evaluate("away")}
    assert [results[run_id].action for run_id in (training, other)] == ["failed", "skipped"]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["metrics", "tags"])
def test_a_store_that_takes_nothing_is_an_error_of_an_experiment_too(
    store, experiment_id, tmp_path, table
):
    """Its runs have rows, so that none is skipped as the run of another program."""
    stored_run(store, experiment_id)
    other = store.create_run(experiment_id).info.run_id
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        refusal = "BEGIN SELECT RAISE(ABORT, 'permission denied'); END"
        database.execute(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} {refusal}")
    done = invoke("evaluate", "test")
    assert done.exit_code == 2, done.output
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "cannot log the scores" in error
    assert other not in error
