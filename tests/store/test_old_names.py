"""Runs that were stored under the names of before are scored, resumed and refused as they were."""

import json

import pytest
from click.testing import CliRunner
from mlflow.entities import Metric
from stored_runs import histories, rows_folder, stored_run
from trainings import FOUR_BUCKETS, NUM_TEST, KnownTraining

from clear_mlflow.cli import main
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import series
from clear_mlflow.runs.in_process import train_in_process
from clear_mlflow.runs.lifecycle import end, take
from clear_mlflow.runs.training_run import TrainingRun
from clear_mlflow.scoring.plan import Depth
from clear_mlflow.scoring.scores import Scoring, read_scores, score
from clear_mlflow.scoring.series import all_series
from clear_mlflow.store import names
from clear_mlflow.store.heartbeat import Hold, LostRunError, heartbeat, trains_now
from clear_mlflow.store.matrices import stored_rows_of
from clear_mlflow.store.rows import stored_rows

OLD = {f"accuracy/bucket_0{j + 1}" for j in range(4)}
MATRIX = AccuracyMatrix(
    [[count / NUM_TEST for count in row] for row in FOUR_BUCKETS[1:]],
    [count / NUM_TEST for count in FOUR_BUCKETS[0]],
    [NUM_TEST] * 4,
)


def of_before(store, experiment_id, rows=4):
    """A run as it was stored before the series had their new names, with all its points."""
    run_id = stored_run(store, experiment_id, FOUR_BUCKETS[: rows + 1]).info.run_id
    matrix = MATRIX.after(rows)
    points = all_series(matrix, series(matrix), names.BUCKET_SERIES_BEFORE)
    # At the times that the rows were written.
    times = {step: 1769817600123 + 60_000 * step for step in range(rows + 1)}
    for name, steps in points.items():
        metrics = [Metric(name, value, times[step], step) for step, value in steps.items()]
        store.log_batch(run_id, metrics=metrics)
    store.set_tag(run_id, names.KIND_TAG, names.KIND_TRAIN)
    return run_id


def bucket_series_of(store, run_id):
    return {name for name in store.get_run(run_id).data.metrics if "bucket_" in name}


@pytest.mark.parametrize("depth", [Depth(), Depth(thorough=True)], ids=["plain", "thorough"])
def test_a_run_of_before_keeps_its_names_when_it_is_scored(store, experiment_id, depth):
    """No second series of the same numbers, and no point of theirs again."""
    run_id = of_before(store, experiment_id)
    before = histories(store, run_id)
    score(store, run_id)
    found = histories(store, run_id)
    assert bucket_series_of(store, run_id) == OLD
    assert {n: [(s, v) for s, _, v in p] for n, p in found.items() if n in before} == {
        n: [(s, v) for s, _, v in p] for n, p in before.items()
    }
    assert read_scores(store, store.get_run(run_id), Scoring(depth=depth)).plan.points == ()


def test_a_run_of_before_that_lacks_points_gets_them_under_its_names(store, experiment_id):
    """As of a training that was cut off between a row and its points."""
    run_id = of_before(store, experiment_id, rows=2)
    whole = stored_run(store, experiment_id)
    for row in ("row_003.json", "row_004.json"):
        (rows_folder(store.get_run(run_id)) / row).write_text(
            (rows_folder(whole) / row).read_text()
        )
    score(store, run_id)
    found = histories(store, run_id)
    expected = all_series(MATRIX, {}, names.BUCKET_SERIES_BEFORE)
    assert {n: {s: v for s, _, v in found[n]} for n in OLD} == expected
    assert bucket_series_of(store, run_id) == OLD


def test_rows_that_are_gone_are_missed_in_a_run_of_either_name(store, experiment_id):
    """Its points tell of them."""
    old = of_before(store, experiment_id)
    train_in_process(store, KnownTraining(FOUR_BUCKETS), {})
    new = store.search_runs([experiment_id])[0].info.run_id
    for run_id in (old, new):
        for tag in (names.ROWS_TAG, names.SCORED_TAG, names.MATRIX_TAG):
            if tag in store.get_run(run_id).data.tags:
                store.delete_tag(run_id, tag)
        folder = rows_folder(store.get_run(run_id))
        folder.rename(folder.with_name("elsewhere"))
        with pytest.raises(RecordError, match="no row file is"):
            stored_rows(store, store.get_run(run_id))


def test_a_training_goes_on_under_the_names_that_its_run_has(store, experiment_id):
    """A run that was begun before and is resumed has one series a bucket."""
    run_id = store.create_run(experiment_id).info.run_id
    store.log_metric(run_id, "accuracy/bucket_01", 0.1, step=0)
    take(store, store.get_run(run_id))
    training = KnownTraining(FOUR_BUCKETS)
    with TrainingRun(store, run_id, training.config, {}) as run:
        run.log_facts(training.facts)
        for measured in training.rows():
            run.log_row(measured)
    assert bucket_series_of(store, run_id) == OLD


def test_runs_of_both_names_are_compared(store, experiment_id):
    """What is compared are rows."""
    of_before(store, experiment_id)
    train_in_process(store, KnownTraining(FOUR_BUCKETS), {})
    done = CliRunner().invoke(main, ["compare", "--experiment", "test"])
    assert done.exit_code == 0, done.output


def test_a_run_whose_tags_were_shown_keeps_them(store, experiment_id):
    """It is scored already, its rows are in its tag; of other rows, its own tags say so."""
    run_id = stored_run(store, experiment_id).info.run_id
    score(store, run_id)
    new = {k: v for k, v in store.get_run(run_id).data.tags.items() if "clear_mlflow." in k}
    for key, text in new.items():
        if key.startswith("mlflow."):
            store.delete_tag(run_id, key)
            store.set_tag(run_id, key.removeprefix("mlflow."), text)
    assert {names.SCORED_TAG, names.MATRIX_TAG, names.NOTE_TAG} <= new.keys()
    run = store.get_run(run_id)
    for depth in (Depth(), Depth(thorough=True)):
        assert read_scores(store, run, Scoring(depth=depth)).plan.is_empty
    assert stored_rows_of(store, run, "none").from_tag
    missing = CliRunner().invoke(main, ["evaluate", "--experiment", "test", "--only", "unscored"])
    assert "no run" in missing.output, missing.output
    (rows_folder(run) / "row_004.json").unlink()
    with pytest.raises(RecordError):
        stored_rows(store, run)
    whole = stored_run(store, experiment_id, [FOUR_BUCKETS[0], *FOUR_BUCKETS[:0:-1]])
    for file in rows_folder(whole).iterdir():
        (rows_folder(run) / file.name).write_text(file.read_text())
    score(store, run_id)
    tags = store.get_run(run_id).data.tags
    assert not any(key.startswith("mlflow.clear_mlflow.") for key in tags)
    scored = names.SCORED_TAG.removeprefix("mlflow.")
    assert tags[scored] != new[names.SCORED_TAG]


def test_who_holds_a_run_is_seen_by_this_version_and_by_one_before(store, experiment_id):
    """One of before looks only where pages show it: there it finds who has taken its run."""
    process, holder = (t.removeprefix("mlflow.") for t in (names.PROCESS_TAG, names.HOLDER_TAG))
    other = json.dumps({**json.loads(heartbeat()), "host": "another", "token": "another's"})
    old = store.create_run(experiment_id, tags={process: other, holder: other})
    assert trains_now(store, old)
    take(store, old)
    held = store.get_run(old.info.run_id).data.tags
    assert json.loads(held[process])["token"] == json.loads(held[holder])["token"] != "another's"
    assert not {names.PROCESS_TAG, names.HOLDER_TAG} & held.keys()
    Hold(store).check(old.info.run_id)
    end(store, old.info.run_id, None)
    assert process not in store.get_run(old.info.run_id).data.tags

    new = store.create_run(experiment_id)
    take(store, new)
    Hold(store).check(new.info.run_id)
    store.set_tag(new.info.run_id, holder, other)
    with pytest.raises(LostRunError):
        Hold(store).check(new.info.run_id)
