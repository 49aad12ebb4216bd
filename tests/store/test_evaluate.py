"""Re-scoring: which runs, what is written, and what is said of those that cannot be scored."""

import json
import sqlite3

import pytest
from commands import invoke
from stored_runs import stored_run
from trainings import FOUR_BUCKETS

from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.store import names
from clear_mlflow.store.lease import format_lease
from clear_mlflow.store.search import select_runs


def run_evaluate(store, *run_ids, dry_run=False):
    chosen = select_runs(store, run_ids=run_ids)
    return list(rescore_runs(store, chosen, explicit=True, dry_run=dry_run))


def test_an_unreadable_artifact_store_affects_only_its_own_runs(store, experiment_id):
    elsewhere = store.create_experiment("elsewhere", artifact_location="nowhere://bucket/path")
    good, other = stored_run(store, experiment_id), store.create_run(elsewhere)
    training = store.create_run(elsewhere, tags={names.KIND_TAG: names.KIND_TRAIN})
    for run in (other, training):
        store.set_terminated(run.info.run_id)
    failed, scored = run_evaluate(store, other.info.run_id, good.info.run_id)
    assert (failed.action, scored.action) == ("failed", "scored")
    assert "nowhere" in failed.detail
    actions = {result.run_id: result.action for result in rescore_runs(store, select_runs(store))}
    expected = ("unchanged", "skipped", "failed")
    assert tuple(actions[run.info.run_id] for run in (good, other, training)) == expected


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


@pytest.mark.slow
@pytest.mark.parametrize("table", ["metrics", "tags"])
def test_a_store_that_takes_nothing_is_an_error_of_an_experiment_too(
    store, experiment_id, tmp_path, table
):
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
