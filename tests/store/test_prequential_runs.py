"""Predictions before training in MLflow: one file, which grows with the rows and is scored."""

import json
import shutil

import pytest
from interrupted_runs import prepare_parameters
from kept_predictions import predictions_folder, rescore
from stored_runs import histories, only_run

import clear_mlflow
from clear_mlflow.api.compared import compare_stored_runs
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.batch_record import PREQUENTIAL_FILE, PrequentialRecord
from clear_mlflow.core.predictions import PREDICTIONS_FOLDER
from clear_mlflow.journal.run_folder import RunFolder
from clear_mlflow.learning.measured import Measurement
from clear_mlflow.metrics import PREQUENTIAL_METRICS, compute_values
from clear_mlflow.scoring.run_log import read_scores
from clear_mlflow.store import names
from clear_mlflow.store.lease import Lease
from clear_mlflow.store.rows import parse_rows, read_row_files
from clear_mlflow.tracking.resume import ResumePoint
from clear_mlflow.tracking.sync import list_folders_to_upload, sync_folders
from clear_mlflow.tracking.tracked_training import train_in_process
from clear_mlflow.tracking.training_run import TrainingRun

pytestmark = pytest.mark.usefixtures("own_cache")

PARAMETERS = {"dataset": "weather", "protocol": "streaming", "epochs": "1", "batch_size": "16"}
PARAMETERS |= {"lr": "0.1", "device": "cpu", "time_order": "on", "prequential": "0,10"}


def get_file(run):
    return predictions_folder(run) / PREQUENTIAL_FILE


def select_values(values):
    return {name: value for name, value in values.items() if name.startswith("prequential/")}


@pytest.fixture
def finished(store, experiment_id, fill_once):
    fill_once(store, lambda: train_in_process(store, prepare_parameters(PARAMETERS), PARAMETERS))
    return only_run(store, experiment_id)


def test_metrics_are_those_of_the_file_at_every_step(store, finished):
    record = PrequentialRecord.load(get_file(finished))
    assert (record.distances, record.k, record.size.sum()) == ((0, 10), 8, 1461)
    values = compute_values(record, PREQUENTIAL_METRICS)[0]
    assert select_values(finished.data.metrics) == pytest.approx(values)
    assert values.keys() == {
        *("prequential/accuracy", "prequential/near_future_10"),
        *("prequential/blind_0", "prequential/blind_10"),
        *("prequential/most_frequent_class", "prequential/label_correlation"),
    }
    stored = histories(store, finished.info.run_id)
    for bucket in range(1, 9):
        values = compute_values(record.after(bucket), PREQUENTIAL_METRICS)[0]
        for name, points in stored.items():
            if name in values:
                assert {step: v for step, _, v in points}[bucket] == pytest.approx(values[name])


def test_the_days_are_in_the_order_of_time(finished):
    record = PrequentialRecord.load(get_file(finished))
    assert (record.first_time[1:] == record.last_time[:-1] + 86_400).all()
    assert record.first_time[0] == 1_325_376_000  # 2012-01-01


def test_the_order_is_recorded_as_a_parameter_that_affects_results(finished):
    described = json.loads(finished.data.tags[names.PARAMETERS_TAG])
    assert (described["method"]["time_order"], described["method"]["label_delay"]) == ("on", "off")
    assert "prequential" not in described["method"]
    assert (
        finished.data.params["prequential"] == finished.data.tags[names.PREQUENTIAL_TAG] == "0,10"
    )


def test_scoring_again_writes_nothing_and_missing_values_are_computed(store, finished):
    run_id = finished.info.run_id
    scores = read_scores(store, store.get_run(run_id))
    assert scores.changes.is_empty
    assert scores.stored.prequential is not None
    (quick,) = rescore_runs(store, [store.get_run(run_id)])
    assert (quick.action, quick.scores.stored.prequential) == ("unchanged", None)
    store.delete_tag(run_id, names.SCORED_TAG)
    store.log_metric(run_id, "prequential/accuracy", -1.0, step=8)
    rescore(store, store.get_run(run_id))
    values = store.get_run(run_id).data.metrics
    assert select_values(values) == select_values(finished.data.metrics)


def test_a_damaged_file_is_reported_and_the_rows_are_scored(store, finished):
    content = get_file(finished).read_bytes()
    for damaged in (b"", content[:-1], content.replace(b"[0, 10]", b"[0, 11]")):
        get_file(finished).write_bytes(damaged)
        result = rescore(store, finished)
        assert result.is_problem
        part = f"its predictions before training were left out: {PREQUENTIAL_FILE}: "
        assert part in result.detail
        assert result.scores.results["renate/forward_transfer"].value is not None
    get_file(finished).write_bytes(content)
    assert not rescore(store, finished).is_problem


def test_a_run_folder_does_not_replace_the_file_of_more_rows(store, finished, tmp_path):
    content, run_id = get_file(finished).read_bytes(), finished.info.run_id
    earlier = PrequentialRecord.load(get_file(finished)).after(3).to_bytes()
    for stored, sent in ((content, earlier), (earlier, content)):
        get_file(finished).write_bytes(stored)
        journal = RunFolder.create(tmp_path / run_id, run_id, store.tracking_uri)
        journal.append(f"{PREDICTIONS_FOLDER}/{PREQUENTIAL_FILE}", sent)
        journal.close()
        (synced,) = sync_folders(list_folders_to_upload(journal.folder))
        assert synced.action == "sent", synced.detail
        assert get_file(finished).read_bytes() == content
        shutil.rmtree(journal.folder, ignore_errors=True)


def test_a_resumed_run_completes_the_file_of_a_stored_row(store, finished):
    """A process was killed after the last row and before its file."""
    content, run_id = get_file(finished).read_bytes(), finished.info.run_id
    get_file(finished).write_bytes(PrequentialRecord.load(get_file(finished)).after(7).to_bytes())
    training = prepare_parameters(PARAMETERS)
    rows = parse_rows(read_row_files(store, finished, may_be_missing=None))
    records = {record.row.row: record for record in rows.values()}
    point = ResumePoint(
        run=finished,
        config=training.config,
        records=records,
        damaged_rows=frozenset(),
        state_rows=(),
        state=None,
        artifacts=frozenset({f"{PREDICTIONS_FOLDER}/{PREQUENTIAL_FILE}"}),
    )
    Lease(store, run_id).acquire()
    with TrainingRun(store, run_id, training.config, {}, resume_point=point) as run:
        run.log_dataset(training.dataset)
        run.log(Measurement(records[8].row, prequential=content))
    assert get_file(finished).read_bytes() == content


def test_a_value_is_undefined_while_the_file_lacks_the_last_row(store, finished):
    """A process was killed after a row and before its file."""
    earlier = PrequentialRecord.load(get_file(finished)).after(7).to_bytes()
    get_file(finished).write_bytes(earlier)
    result = read_scores(store, finished).results["prequential/accuracy"]
    assert (result.value, max(result.series)) == (None, 7)
    assert result.reason == "needs the batches of all 8 buckets trained, k >= 1"


def test_a_bundle_has_the_file(store, finished, tmp_path):
    path = clear_mlflow.export(finished.info.run_id, tmp_path / "bundle")
    run = clear_mlflow.load(path)
    assert run.prequential.to_bytes() == get_file(finished).read_bytes()
    values = {name: result.value for name, result in run.metrics.items()}
    assert select_values(values) == pytest.approx(select_values(finished.data.metrics))


def test_a_comparison_has_the_values(store, finished):
    (group,) = compare_stored_runs(store, [finished], group_by=(), explicit=True).comparison.groups
    means = {name: metric.mean for name, metric in group.metrics.items()}
    assert select_values(means) == pytest.approx(select_values(finished.data.metrics))
