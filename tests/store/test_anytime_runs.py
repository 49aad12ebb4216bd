"""Tests within buckets in MLflow: separate files, each stored once, scored with the rows."""

import pytest
from anytime_courses import inside_bucket
from kept_predictions import rescore
from mlflow.server.constants import BACKEND_STORE_URI_ENV_VAR
from stored_runs import artifact_folder, histories, only_run, rows_folder, stored_run
from trainings import FOUR_BUCKETS, NUM_TEST, KnownTraining

from clear_mlflow.api.compared import compare_stored_runs
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.anytime import (
    ANYTIME_FOLDER,
    AnytimeMatrix,
    AnytimeRow,
    format_anytime_file_name,
)
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.journal.run_folder import RunFolder
from clear_mlflow.metrics import WITHIN_BUCKET_METRICS, compute_values, evaluate_metrics
from clear_mlflow.scoring.run_log import read_scores, score
from clear_mlflow.scoring.run_record import split_score_hash
from clear_mlflow.server.live_pages import describe_state, render_live_run
from clear_mlflow.store import names
from clear_mlflow.store.lease import Lease
from clear_mlflow.store.rows import parse_rows, read_row_files
from clear_mlflow.tracking.resume import ResumePoint
from clear_mlflow.tracking.sync import list_folders_to_upload, sync_folders
from clear_mlflow.tracking.tracked_training import train_in_process
from clear_mlflow.tracking.training_run import TrainingRun

pytestmark = pytest.mark.usefixtures("own_cache")

INSIDE = {
    1: [[40, 30, 20, 10], [70, 50, 40, 30]],
    2: [[50, 60, 40, 30], [65, 80, 60, 50]],
    3: [[60, 70, 80, 60], [75, 80, 90, 80]],
    4: [[40, 60, 80, 85], [60, 75, 85, 90]],
}
TESTS = {
    bucket: inside_bucket(bucket, counts, (NUM_TEST,) * 4) for bucket, counts in INSIDE.items()
}
MATRIX = AnytimeMatrix.from_tests(
    [test for tests in TESTS.values() for test in tests],
    AccuracyMatrix([[c / NUM_TEST for c in row] for row in FOUR_BUCKETS[1:]]),
)
EXPECTED = compute_values(MATRIX, WITHIN_BUCKET_METRICS)[0]
FILES = [format_anytime_file_name(bucket, test) for bucket in TESTS for test in (1, 2)]
ALL_TESTS = [test for tests in TESTS.values() for test in tests]
WRITTEN_AT = "2026-01-31T12:00:00Z"


def get_tests_folder(run):
    return artifact_folder(run) / ANYTIME_FOLDER


def stored_tests(run):
    return [
        AnytimeRow.from_json(path.read_bytes(), source=path.name)
        for path in sorted(get_tests_folder(run).iterdir())
    ]


def select_values(run):
    """Return the metrics that need tests within buckets."""
    return {n: v for n, v in run.data.metrics.items() if n.startswith("continual_evaluation/")}


def plain_run(store, finished, untrained):
    train_in_process(store, KnownTraining([untrained, *FOUR_BUCKETS[1:]]), {})
    runs = store.search_runs([finished.info.experiment_id])
    (run,) = (run for run in runs if run.info.run_id != finished.info.run_id)
    return run


@pytest.fixture
def finished(store, experiment_id, fill_once):
    training = KnownTraining(FOUR_BUCKETS, tests=TESTS)
    fill_once(store, lambda: train_in_process(store, training, {}))
    return only_run(store, experiment_id)


def test_metrics_are_those_of_the_tests_at_every_step(store, finished):
    assert select_values(finished) == pytest.approx(EXPECTED)
    stored = histories(store, finished.info.run_id)
    results = evaluate_metrics(WITHIN_BUCKET_METRICS, MATRIX.matrix, tests=MATRIX)
    for name, result in results.items():
        assert {step: value for step, _, value in stored[name]} == pytest.approx(result.series)
    assert finished.data.tags[names.ANYTIME_TAG] == "2"


def test_scoring_again_writes_nothing(store, finished):
    scores = read_scores(store, store.get_run(finished.info.run_id))
    assert scores.changes.is_empty
    assert scores.stored.tests is not None
    (quick,) = rescore_runs(store, [store.get_run(finished.info.run_id)])
    assert quick.action == "unchanged"
    assert quick.scores.stored.tests is None
    assert select_values(finished).items() <= quick.scores.results.values_by_name.items()


@pytest.mark.slow
def test_evaluate_logs_metrics_of_tests_for_a_run_without_them(store, experiment_id):
    run = stored_run(store, experiment_id)
    get_tests_folder(run).mkdir()
    for test in ALL_TESTS:
        file = get_tests_folder(run) / format_anytime_file_name(test.bucket, test.test)
        file.write_bytes(test.to_json(WRITTEN_AT))
    store.set_tag(run.info.run_id, names.ANYTIME_TAG, "2")
    late = file.rename(file.with_suffix(".late"))  # it is looked for again while it lacks
    assert score(store, run.info.run_id).stored.tests is not None
    assert split_score_hash(store.get_run(run.info.run_id).data.tags)[3] == ""
    late.rename(file)
    assert rescore(store, run).action == "scored"
    assert select_values(store.get_run(run.info.run_id)) == pytest.approx(EXPECTED)
    assert rescore(store, run).action == "unchanged"


def test_a_damaged_test_is_reported_and_the_rows_are_scored(store, finished):
    (get_tests_folder(finished) / FILES[3]).write_text("{")
    verdict = rescore(store, finished)
    assert verdict.is_problem
    assert "its tests inside buckets were left out: bucket_002_test_0002.json:" in verdict.detail
    assert verdict.scores.results["clear/accuracy"].value == finished.data.metrics["clear/accuracy"]
    (get_tests_folder(finished) / "notes.txt").write_text("nothing of ours")
    (get_tests_folder(finished) / FILES[3]).write_bytes(TESTS[2][1].to_json(WRITTEN_AT))
    verdict = rescore(store, finished)
    assert not verdict.is_problem
    assert select_values(store.get_run(finished.info.run_id)) == pytest.approx(EXPECTED)


def test_a_run_folder_never_replaces_a_stored_test(store, finished, tmp_path):
    """Another process may have trained on its bucket again."""
    other = inside_bucket(2, [[1, 2, 3, 4], [5, 6, 7, 8]], (NUM_TEST,) * 4)
    (get_tests_folder(finished) / FILES[3]).unlink()
    run_id = finished.info.run_id
    journal = RunFolder.create(tmp_path / run_id, run_id, store.tracking_uri)
    for test in other:
        name = f"{ANYTIME_FOLDER}/{format_anytime_file_name(test.bucket, test.test)}"
        journal.append(name, test.to_json(WRITTEN_AT))
    journal.close()
    (synced,) = sync_folders(list_folders_to_upload(journal.folder))
    assert synced.action == "sent", synced.detail
    assert stored_tests(finished)[2:4] == [TESTS[2][0], other[1]]
    assert not journal.folder.exists()
    assert score(store, run_id).changes.is_empty


def test_a_resumed_run_keeps_the_tests_that_led_to_a_stored_row(store, finished):
    run_id, folder = finished.info.run_id, get_tests_folder(finished)
    for file in ("row_003.json", "row_004.json"):
        (rows_folder(finished) / file).unlink()
    (folder / FILES[2]).unlink()
    training = KnownTraining(FOUR_BUCKETS, tests=TESTS)
    rows = parse_rows(read_row_files(store, finished, may_be_missing=None))
    point = ResumePoint(
        run=finished,
        config=training.config,
        records={record.row.row: record for record in rows.values()},
        damaged_rows=frozenset(),
        state_rows=(),
        state=None,
        artifacts=frozenset(f"{ANYTIME_FOLDER}/{path.name}" for path in folder.iterdir()),
    )
    counts = [[1, 2, 3, 4], [5, 6, 7, 8]]
    again = {bucket: inside_bucket(bucket, counts, (NUM_TEST,) * 4) for bucket in (2, 3)}
    Lease(store, run_id).acquire()
    with TrainingRun(store, run_id, training.config, {}, resume_point=point) as run:
        run.log_dataset(training.dataset)
        for test in (*again[2], *again[3]):
            run._log_test(test)
    expected = [*TESTS[1], again[2][0], TESTS[2][1], *again[3], *TESTS[4]]
    assert stored_tests(finished) == expected


@pytest.mark.slow
def test_a_comparison_has_metrics_of_tests(store, finished):
    def compare_means(*runs):
        comparison = compare_stored_runs(store, runs, group_by=(), explicit=True).comparison
        (group,) = (g for g in comparison.groups if g.metrics.keys() >= EXPECTED.keys())
        return {name: group.metrics[name].mean for name in EXPECTED}, comparison.warnings

    means, warnings = compare_means(finished, plain_run(store, finished, [5] * 4))
    assert means == pytest.approx(EXPECTED)
    (line,) = (text for text in warnings if "test_every" in text)
    assert line.startswith("1 of 2 runs has no tests within buckets")
    for name in EXPECTED:
        store.log_metric(finished.info.run_id, name, -1.0, step=4)
    assert compare_means(store.get_run(finished.info.run_id))[0] == dict.fromkeys(EXPECTED, -1.0)
    store.delete_tag(finished.info.run_id, names.SCORED_TAG)
    assert compare_means(store.get_run(finished.info.run_id))[0] == pytest.approx(EXPECTED)


def test_the_live_page_of_a_run_draws_its_tests(store, finished, monkeypatch):
    # A server removes the address of its store from messages.
    monkeypatch.setenv(BACKEND_STORE_URI_ENV_VAR, store.tracking_uri)
    run_id = finished.info.run_id
    page = render_live_run(store, finished, [], "")
    assert "The model was tested 8 times within its buckets," in page
    state = describe_state(store, finished)
    (get_tests_folder(finished) / FILES[-1]).unlink()
    assert describe_state(store, finished) == state
    store.update_run(run_id, status="RUNNING")
    running = store.get_run(run_id)
    before = describe_state(store, running)
    assert "was tested 7 times" in render_live_run(store, running, [], "")
    (get_tests_folder(finished) / FILES[-2]).unlink()
    assert describe_state(store, running) != before
    (get_tests_folder(finished) / FILES[0]).write_text("{}")
    page = render_live_run(store, running, [], "")
    assert "Its tests inside buckets were left out: " in page
    assert 'id="inside"' not in page
