"""Custom loops, tracked from outside of the package: what they store in MLflow."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import mlflow
import numpy as np
import pytest
import torch
from commands import invoke
from courses import reasons, values
from forked import run_python
from one_line_errors import check_error
from stored_runs import artifact_folder, histories, only_run, rows_folder
from trainings import EXPECTED, FOUR_BUCKETS, NUM_TEST

import clear_mlflow
from clear_mlflow.adapters._run import Adapter
from clear_mlflow.core.errors import ConfigError, RecordError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.journal.run_folder import find_run_folders
from clear_mlflow.journal.uploader import Uploader
from clear_mlflow.metrics import summarize
from clear_mlflow.scoring.run_log import score
from clear_mlflow.store import names
from clear_mlflow.tracking import lifecycle
from clear_mlflow.tracking.loop_rows import build_test
from clear_mlflow.tracking.run_recorder import RunRecorder

LOOP = {"buckets": 4, "num_instances": NUM_TEST}
LABELS = [[0, 1, 2], [2, 1], [0, 0, 0, 1]]
OUTPUTS = [[0, 1, 1], [2, 2], [0, 0, 1, 1]]


def artifacts(store, run, folder):
    return [file.path.rsplit("/", 1)[-1] for file in store.list_artifacts(run.info.run_id, folder)]


def log_all(run, order=range(5)):
    for i in order:
        run.log_counts(i, FOUR_BUCKETS[i])


def track_rows(order=range(5), **options):
    with clear_mlflow.track(**{**LOOP, **options}) as run:
        log_all(run, order)
    return run


@pytest.mark.program
def test_a_plain_script_with_a_custom_loop(store, experiment_id, tmp_path):
    script = tmp_path / "elsewhere" / "loop.py"
    script.parent.mkdir()
    script.write_text(
        "import clear_mlflow\n"
        f"rows = {FOUR_BUCKETS}\n"
        "with clear_mlflow.track(buckets=['a', 'b', 'c', 'd'], num_instances=100) as run:\n"
        "    for i, correct in enumerate(rows):\n"
        "        run.log_counts(i, correct)\n"
        "print(run.metrics['renate/backward_transfer'].value, repr(run.matrix))\n"
        "import sys; print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=script.parent, capture_output=True, text=True, check=True
    )
    value, loaded_torch = done.stdout.splitlines()
    expected = summarize(EXPECTED)
    assert float(value.split()[0]) == expected["renate/backward_transfer"]
    assert "4 of 4 buckets trained, initial, num_instances" in value
    assert loaded_torch == "False"
    run = only_run(store, experiment_id)
    assert run.info.status == "FINISHED"
    assert {n: v for n, v in run.data.metrics.items() if "bucket" not in n} == expected
    assert run.data.metrics["test_accuracy/bucket_d"] == 0.95


def test_all_passed_metadata_is_stored_in_the_run(store):
    metadata = {"dataset": "mine", "strategy": "replay", "model": "mlp", "seed": "7"}
    options = {"dataset_digest": "sha256:" + "ab" * 32, "params": {"lr": 0.1}}
    options |= {"tags": {"who": "me"}, "class_names": ["cat", "dog"]}
    run = track_rows(**{**metadata, "seed": 7}, **options)
    stored_run = store.get_run(run.run_id)
    assert metadata.items() <= stored_run.data.tags.items()
    assert {**metadata, "lr": "0.1", "protocol": "iid", "split": "test"} == stored_run.data.params
    assert stored_run.data.tags["who"] == "me"
    assert stored_run.data.tags[names.ROWS_TAG] == "complete"
    assert names.PROCESS_TAG not in stored_run.data.tags
    assert stored_run.info.run_name == "replay mine seed 7"
    (entry,) = stored_run.inputs.dataset_inputs
    assert entry.dataset.digest.startswith(("ab" * 32)[:27])
    assert json.loads(entry.dataset.profile)["num_test"]["4"] == NUM_TEST
    assert "heatmap.png" in artifacts(store, stored_run, "accuracy_matrix")
    assert run.matrix.equals(EXPECTED)
    assert reasons(run.metrics) == {}


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({}, {"num_instances": 2 * NUM_TEST}),
        ({"dataset_digest": "sha256:" + "ab" * 32}, {"split": "validation"}),
        ({"dataset_digest": "mine"}, {"protocol": "streaming"}),
    ],
)
def test_loops_on_other_data_share_no_dataset_input(store, options, other):
    """MLflow would show the profile of the first run with this name and digest."""
    runs = [track_rows(**options, **changes) for changes in ({}, other, {})]
    (first, second, third) = (
        store.get_run(run.run_id).inputs.dataset_inputs[0].dataset for run in runs
    )
    for dataset, run in ((first, runs[0]), (second, runs[1])):
        assert json.loads(dataset.profile) == json.loads(json.dumps(run.dataset.profile))
    assert first.digest == third.digest != second.digest


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("error", "status"),
    [(RuntimeError("broke"), "FAILED"), (KeyboardInterrupt(), "KILLED"), (SystemExit(0), None)],
)
def test_an_exception_leaves_the_rows_scored(store, experiment_id, error, status):
    run = clear_mlflow.track(**LOOP)

    def fail_after(order):
        log_all(run, order)
        raise error

    with pytest.raises(type(error)), run:
        fail_after(range(3))
    stored_run = only_run(store, experiment_id)
    assert stored_run.info.status == (status or "FINISHED")
    assert (names.ERROR_TAG in stored_run.data.tags) == (status is not None)
    assert stored_run.data.tags[names.ROWS_TAG] == "partial"
    metrics = {n: v for n, v in stored_run.data.metrics.items() if "bucket" not in n}
    assert metrics == values(run.metrics) == summarize(EXPECTED.after(2))


@pytest.mark.slow
def test_rows_come_in_any_order_and_twice(store):
    run, in_order = track_rows([3, 0, 4, 1, 3, 2, 0]), track_rows()
    assert run.matrix.equals(in_order.matrix)
    points, expected = (histories(store, tracked.run_id) for tracked in (run, in_order))
    assert points.keys() == expected.keys()
    for name, of_metric in points.items():
        assert [p[::2] for p in of_metric] == [p[::2] for p in expected[name]]  # without times


def test_a_row_logged_again_has_nothing_new(store, monkeypatch, capsys):
    """Another cost or other predictions with the same numbers would be lost without a word."""
    labels, cost = [[0, 1], [1, 0]], {"images": 5}
    with clear_mlflow.track(buckets=2, test_labels=labels) as run:
        run.log_counts(1, [1, 1], cost=cost)
        run.log_counts(1, [1, 1])
        run.log_counts(1, [1, 1], cost=cost)
        run.log_predictions(2, [[0, 0], [1, 1]])
        run.log_predictions(2, [[0, 0], [1, 1]])
        for log_again, message in (
            (lambda: run.log_counts(1, [1, 1], cost={"images": 6}), "row 1 .* with other cost"),
            (lambda: run.log_values(2, [0.5, 0.5]), "row 2 is stored already with other numbers"),
            (lambda: run.log_counts(2, [1, 1], cost=cost), "row 2 is stored already with no cost"),
            (lambda: run.log_predictions(1, [[0, 0], [1, 1]]), "row 1 .* with no predictions"),
            (lambda: run.log_predictions(2, [[1, 1], [1, 1]]), "row 2 .* with other predictions"),
        ):
            with pytest.raises(RecordError, match=message):
                log_again()
    monkeypatch.setenv("MLFLOW_RUN_ID", run.run_id)
    with clear_mlflow.track(buckets=2, test_labels=labels) as again:  # measured by a new process
        again.log_counts(1, [1, 1], cost=cost)
        assert "warning" not in capsys.readouterr().err
        again.log_counts(1, [1, 1], cost={"images": 7})
    assert "row 1 is stored already with another cost, which is kept" in capsys.readouterr().err
    assert again.matrix.costs[0].images == 5


@pytest.mark.parametrize("is_continued", [False, True])
def test_a_tag_or_parameter_that_was_logged_before_is_reported(store, capsys, is_continued):
    with mlflow.start_run() as active:
        if is_continued:
            with clear_mlflow.track(**LOOP, seed=7, strategy="replay") as run:
                log_all(run, [1])
        mlflow.set_tags({"seed": "99", "strategy": "other"})
        if not is_continued:
            mlflow.log_params({"strategy": "third", "lr": "0.1"})
        capsys.readouterr()
        with clear_mlflow.track(**LOOP, seed=7, strategy="replay", params={"lr": 0.2}) as run:
            log_all(run, [1])
    stored = store.get_run(active.info.run_id).data
    errors = capsys.readouterr().err
    tags = {name: stored.tags[name] for name in ("seed", "strategy")}
    if is_continued:
        assert tags == {"seed": "99", "strategy": "other"}  # a person renamed them
        assert "has the tag seed='99' already, and got '7'; the first one is kept" in errors
        assert "parameter" not in errors
    else:
        assert tags == {"seed": "7", "strategy": "replay"}
        assert "has the tag seed='99' already, and got '7'; the first one is rep" in errors
        assert "has the parameter lr='0.1' already, and got '0.2'; the first one is" in errors
        assert stored.params["strategy"] == "third"


def test_a_run_is_continued_only_by_the_same_loop(store, monkeypatch):
    with mlflow.start_run() as active:
        track_rows(range(3), seed=1)
    refused = invoke("train", "--resume", active.info.run_id)
    assert "a custom loop trained it; start the loop with MLFLOW_RUN_ID" in refused.output
    monkeypatch.setenv("MLFLOW_RUN_ID", active.info.run_id)
    with clear_mlflow.track(**LOOP, seed=1) as run:
        assert run.matrix.num_rows == 2
        log_all(run, [2, 3, 4])
    assert run.matrix.equals(EXPECTED)
    assert store.get_run(active.info.run_id).data.tags[names.ROWS_TAG] == "complete"
    monkeypatch.setenv("MLFLOW_RUN_ID", active.info.run_id)
    with pytest.raises(TrackingError, match="with seed 1, but this loop has 2"):
        track_rows(seed=2)
    assert store.get_run(active.info.run_id).info.status == "FINISHED"


def test_accuracies_instead_of_counts(store):
    with clear_mlflow.track(buckets=["x", "y"]) as run:
        run.log_accuracies(1, {"x": 0.5})
        run.log_accuracies(2, np.array([0.25, 0.75], dtype=np.float32))
    np.testing.assert_equal(run.matrix.values, [[0.5, np.nan], [0.25, 0.75]])
    assert run.metrics["renate/backward_transfer"].value == -0.25
    assert run.metrics["renate/micro_average_accuracy"].reason
    with clear_mlflow.track(buckets=2, num_instances=[3, 4]) as both:
        both.log_values(1, [0.5, None])
        both.log_counts(2, [1, 2])
    assert both.metrics["renate/micro_average_accuracy"].value == 3 / 7


def test_a_tracked_run_prints_like_the_stored_one(store):
    run = clear_mlflow.track(**LOOP, seed=3)
    description = "LoopRun('own loop own seed 3', not entered, 0 of 4 rows)"
    assert str(run) == repr(run) == description
    assert "not entered" in run._repr_html_()
    with run:
        log_all(run, [0, 1])
        assert f"{run.run_id}, 1 of 4 rows)" in repr(run)
        assert "partial: 1 of 4 rows" in str(run)
        assert "renate/forgetting" in run._repr_html_()
        log_all(run, [2, 3, 4])
    stored = clear_mlflow.load(run.run_id)
    assert str(run) == str(stored)
    assert run._repr_html_() == stored._repr_html_()
    assert run.plot("a", width=4).get_size_inches()[0] == pytest.approx(4)


def test_predictions_are_counted_stored_and_scored(store):
    ids = [["a", "b", "c"], ["a", "e"], ["f", "g", "h", "i"]]
    classes = ["cat", "dog", "eel"]
    with clear_mlflow.track(
        buckets=3, test_labels=LABELS, test_ids=ids, class_names=classes
    ) as run:
        run.log_predictions(1, OUTPUTS)
        run.log_predictions(2, [np.eye(3)[of_bucket] * 0.7 + 0.1 for of_bucket in OUTPUTS])
    stored_run = store.get_run(run.run_id)
    assert run.matrix.values.tolist() == [[2 / 3, 1 / 2, 3 / 4]] * 2
    assert stored_run.data.tags[names.PREDICTIONS_TAG] == "probs"
    assert stored_run.data.tags["dataset_digest"].startswith("sha256:")
    assert {"evaluation_set.safetensors", "row_001.safetensors", "row_002.safetensors"} <= set(
        artifacts(store, stored_run, "predictions")
    )
    assert any("macro" in name for name in stored_run.data.metrics)


@pytest.mark.slow
def test_the_true_labels_may_be_passed_with_the_predictions(store, monkeypatch):
    with clear_mlflow.track(buckets=3) as run:
        with pytest.raises(ConfigError, match="pass their true labels with"):
            run.log_predictions(1, OUTPUTS)
        run.log_predictions(1, OUTPUTS, LABELS)
        run.log_predictions(2, OUTPUTS, LABELS)
        run.log_predictions(3, OUTPUTS)
        with pytest.raises(RecordError, match="true labels differ from those before"):
            run.log_predictions(3, OUTPUTS, OUTPUTS)
    description = clear_mlflow.track(buckets=3, test_labels=LABELS).dataset
    stored = clear_mlflow.load(run.run_id)
    assert stored.matrix.values.tolist() == [[2 / 3, 1 / 2, 3 / 4]] * 3
    assert stored.predictions.images.digest == description.evaluation_set.digest
    assert stored.record.dataset == description
    assert stored.tags["dataset_digest"] == description.digest
    monkeypatch.setenv("MLFLOW_RUN_ID", run.run_id)
    with pytest.raises(TrackingError, match="but this loop has None; pass it to track, or"):
        track_rows(buckets=3, num_instances=None)
    monkeypatch.setenv("MLFLOW_RUN_ID", run.run_id)
    with clear_mlflow.track(buckets=3, test_labels=LABELS) as again:
        again.log_predictions(3, OUTPUTS, LABELS)
    assert again.run_id == run.run_id


def test_true_labels_after_rows_or_tests_are_rejected(store):
    """What is stored may be of other images."""
    with clear_mlflow.track(buckets=3) as late:
        late.log_accuracies(1, [0.5, 0.5, 0.5])
        with pytest.raises(RecordError, match="true labels"):
            late.log_predictions(2, OUTPUTS, LABELS)
    with clear_mlflow.track(buckets=3, num_instances=[3, 2, 4]) as late:
        late.log_test(1, [1, 1, 1], test=1, num_tests=1, step=1, num_steps=2)  # before any row
        with pytest.raises(RecordError, match="true labels"):
            late.log_predictions(1, OUTPUTS, LABELS)


def test_the_images_of_a_continued_run_are_the_same(store):
    """Otherwise predictions would be compared with other images."""
    arguments = {"buckets": 3, "dataset_digest": "same"}
    with mlflow.start_run():
        for row in (1, 2):
            with clear_mlflow.track(**arguments, test_labels=LABELS) as run:
                run.log_predictions(row, [[row] * 3, [row] * 2, [row] * 4])
        other = clear_mlflow.track(**arguments, test_labels=[[1, 1, 2], *LABELS[1:]])
        with pytest.raises(TrackingError, match="belong to other test images"):
            other.__enter__()
    assert run.matrix.num_rows == 2


def test_bucket_numbers_in_metric_names_have_leading_zeros(store):
    for numbers, first in ((9, "01"), (100, "001")):
        buckets = [*map(str, range(1, numbers + 1)), "autumn of 2004"]
        with clear_mlflow.track(buckets=buckets, num_instances=NUM_TEST) as run:
            run.log_counts(0, range(len(buckets)))
        metrics = store.get_run(run.run_id).data.metrics
        assert metrics[f"test_accuracy/bucket_{first}"] == 0
        assert metrics["test_accuracy/bucket_autumn_of_2004"] == numbers / NUM_TEST


def test_a_row_is_stored_when_its_call_ends(store, experiment_id, monkeypatch):
    upload = Uploader.upload

    def upload_slowly(self, entry):
        if entry.name.startswith(ROWS_FOLDER):
            time.sleep(0.3)
        upload(self, entry)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Uploader, "upload", upload_slowly)
    with clear_mlflow.track(**LOOP) as run:
        run.log_counts(0, FOUR_BUCKETS[0])
        stored = only_run(store, experiment_id)
        assert artifacts(store, stored, ROWS_FOLDER) == ["row_000.json"]
        with monkeypatch.context() as patch:
            patch.setattr(RunRecorder, "_write_points", interrupt)
            with pytest.raises(KeyboardInterrupt):
                run.log_counts(1, FOUR_BUCKETS[1])
        assert artifacts(store, stored, ROWS_FOLDER) == ["row_000.json", "row_001.json"]


def test_buckets_after_the_trained_ones_may_be_reordered(store):
    """The row that is stored already keeps the counts of each bucket. Adapters need this."""
    counts = {"a": 10, "b": 20, "c": 40}
    with clear_mlflow.track(buckets=list(counts), num_instances=counts) as run:
        run.log_counts(1, {"a": 5, "b": 4, "c": 4})
        run.reorder_buckets(("a", "c", "b"))
        run.log_counts(2, {"a": 4, "b": 5, "c": 30})
    assert run.matrix.buckets == ("a", "c", "b")
    np.testing.assert_array_equal(run.matrix.values, [[0.5, 0.1, 0.2], [0.4, 0.75, 0.25]])
    with pytest.raises(TrackingError, match=r"an order of buckets was logged .*; log rows inside"):
        run.reorder_buckets(("a", "b", "c"))


def test_metrics_of_a_continued_run_include_its_earlier_rows_at_once(store, monkeypatch):
    with mlflow.start_run() as active:
        track_rows(range(3))
    monkeypatch.setenv("MLFLOW_RUN_ID", active.info.run_id)
    name, until, points = "clear/backward_transfer", time.monotonic() + 30, []
    with clear_mlflow.track(**LOOP) as run:
        run.log_counts(3, FOUR_BUCKETS[3])
        while not points and time.monotonic() < until:
            time.sleep(0.05)
            history = store.get_metric_history(run.run_id, name)
            points = [point.value for point in history if point.step == 3]
        assert points == [summarize(EXPECTED.after(3))[name]]


def test_buckets_may_be_years(store):
    with clear_mlflow.track(buckets=[2004, 2005], num_instances={2004: 50, 2005: 20}) as run:
        run.log_counts("2004", {2004: 25, 2005: 5})
        run.log_values(2, {2005: 0.5})
    np.testing.assert_equal(run.matrix.values, [[0.5, 0.25], [np.nan, 0.5]])


def test_a_row_outside_of_the_block_is_rejected(store):
    """Nothing would score it."""
    run = clear_mlflow.track(**LOOP)
    with pytest.raises(TrackingError, match="log rows inside of"):
        run.log_counts(0, FOUR_BUCKETS[0])
    with run:
        log_all(run)
    run.__exit__(None, None, None)  # as in a notebook's cell that is run twice
    assert store.get_run(run.run_id).info.status == "FINISHED"
    with pytest.raises(TrackingError, match="log rows inside of"):
        run.log_counts(0, FOUR_BUCKETS[0])


@pytest.mark.parametrize("is_variable", [False, True])
def test_the_program_may_switch_mlflows_store(store, tmp_path, monkeypatch, is_variable):
    """Before the end of the block, for example to load a model."""
    other = f"sqlite:///{tmp_path}/other.db"
    with clear_mlflow.track(**LOOP) as run:
        log_all(run)
        if is_variable:
            mlflow.set_tracking_uri(None)
            monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
        else:
            mlflow.set_tracking_uri(other)
    assert mlflow.get_tracking_uri() == other
    assert mlflow.active_run() is None
    assert store.get_run(run.run_id).info.status == "FINISHED"


def test_a_second_loop_in_the_same_run_is_rejected(store):
    """Otherwise one run would have rows of two models."""
    with clear_mlflow.track(**LOOP) as run:
        with pytest.raises(TrackingError, match=r"^this process trains into run .* already; end"):
            track_rows()
        log_all(run)
    assert run.matrix.equals(EXPECTED)


ENDING = """
from clear_mlflow.adapters._run import Adapter
class Late(Adapter):
    def _log_pending_row(self):
        self._log_row(2, "abc", [0.5, 0.5, 1], [2, 4, 5])
run = Late({{}})
run._log_row(1, "abc", [0.5, 0.25, float("nan")], [2, 4, 5])
{ending}
"""


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("ending", "status"),
    [("raise RuntimeError('no')", "FAILED"), ("", "FINISHED"), ("run.close()", "FINISHED")],
)
def test_a_program_that_ends_leaves_an_adapters_run_scored_and_closed(
    store, experiment_id, ending, status
):
    done = run_python("-c", ENDING.format(ending=ending), timeout=120)
    assert done.returncode == (1 if status == "FAILED" else 0)
    run = only_run(store, experiment_id)
    assert run.info.status == status
    assert run.data.tags[names.ROWS_TAG] == "partial"
    assert names.PROCESS_TAG not in run.data.tags
    assert "clear/backward_transfer" in run.data.metrics
    assert run.data.metrics["clear/in_domain_accuracy"] == 0.5


def test_an_adapters_run_may_stop_before_its_last_row(store):
    """A framework numbers its rows, and cannot count from 0 by mistake."""
    run = Adapter({})
    run._log_row(0, "a", [0.5], [None])
    run.close()
    assert store.get_run(run.run_id).info.status == "FINISHED"


def test_a_closed_adapters_run_accepts_no_different_numbers(store):
    run = Adapter({})
    run._log_row(1, "a", [0.5], [None])  # the last bucket's
    run._log_row(1, "a", [0.5], [None])
    with pytest.raises(RecordError, match="was logged after run"):
        run._log_row(1, "a", [0.6], [None])
    assert run.metrics["clear/in_domain_accuracy"].value == 0.5


def test_only_the_first_of_several_processes_tracks(store, experiment_id, monkeypatch):
    """Each of the others would open its own run."""
    values = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**values, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="call track only on rank 0"):
        track_rows()
    assert not store.search_runs([experiment_id])


INSIDE = {
    1: [[50, 20, 10], [75, 30, 20]],
    2: [[60, 55, 20], [70, 80, 30]],
    3: [[80, 60, 50], [40, 70, 90]],
}
ROWS_AFTER = {1: [90, 40, 20], 2: [85, 92, 40], 3: [70, 75, 95]}


def log_tested(run, buckets=(1, 2, 3)):
    for bucket in buckets:
        for number, correct in enumerate(INSIDE[bucket], start=1):
            run.log_test(bucket, correct, test=number, num_tests=2, step=number, num_steps=3)
        run.log_counts(bucket, ROWS_AFTER[bucket])


def test_tests_within_a_bucket_are_stored_and_scored(store, monkeypatch):
    with clear_mlflow.track(buckets=3, num_instances=100) as run:
        log_tested(run, [1, 2])
        log_tested(run, [1])  # the same numbers again
        with pytest.raises(RecordError, match="test 2 inside bucket 2 is stored already with"):
            run.log_test(2, [1, 1, 1], test=2, num_tests=2, step=2, num_steps=3)
    monkeypatch.setenv("MLFLOW_RUN_ID", run.run_id)
    with clear_mlflow.track(buckets=3, num_instances=100) as again:
        with pytest.raises(RecordError, match="test 1 inside bucket 1 is stored already with"):
            again.log_test(1, [1, 1, 1], test=1, num_tests=2, step=1, num_steps=3)
        log_tested(again)
    stored = store.get_run(run.run_id)
    files = artifacts(store, stored, "anytime_accuracy")
    assert sorted(files) == [f"bucket_00{b}_test_000{t}.json" for b in (1, 2, 3) for t in (1, 2)]
    assert artifacts(store, stored, "accuracy_matrix/rows") == [
        f"row_00{row}.json" for row in (1, 2, 3)
    ]
    assert stored.data.tags[names.ANYTIME_TAG] == "own"
    # Bucket 1 was at 40 at its lowest after its row, bucket 2 at 60.
    lowest = stored.data.metrics["continual_evaluation/minimum_accuracy"]
    assert (
        lowest == again.metrics["continual_evaluation/minimum_accuracy"].value == pytest.approx(0.5)
    )
    assert stored.data.metrics["continual_evaluation/worst_case_accuracy"] == pytest.approx(
        0.95 / 3 + 2 / 3 * 0.5
    )


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((10, 2, 30), (20, 3, 30), "_0002.json is one of 3 tests in 30 steps, and test 1 of its"),
        ((10, 2, 30), (20, 2, 40), "_0002.json is one of 2 tests in 40 steps, and test 1 of its"),
        ((20, 2, 30), (10, 2, 30), "_0002.json follows 10 steps, and test 1 of its bucket 20"),
    ],
)
def test_tests_that_contradict_each_other_are_not_stored(store, first, second, message):
    """Else no metric of the tests within buckets could be computed, and no bundle imported."""
    with clear_mlflow.track(buckets=1, num_instances=100) as run:
        for number, (step, num_tests, num_steps) in enumerate((first, second), start=1):
            with pytest.raises(RecordError, match=message) if number == 2 else nullcontext():
                run.log_test(
                    1, [50], test=number, num_tests=num_tests, step=step, num_steps=num_steps
                )
        run.log_test(1, [60], test=2, num_tests=2, step=25, num_steps=30)
        run.log_counts(1, [90])
    assert run.metrics["continual_evaluation/average_anytime_accuracy"].value is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_instances": 99}, "^run [0-9a-f]+ contains bucket_001_test_0001.json with num_ins"),
        ({"buckets": ["a", "b", "c"]}, r"test_0001.json with buckets \('1', '2', '3'\), but this"),
        ({"num_instances": None}, "but this loop has None; pass it to track, or start a new run"),
    ],
)
def test_a_run_with_tests_and_no_rows_is_continued_with_the_same_images(
    store, monkeypatch, changes, message
):
    loop = {"buckets": 3, "num_instances": 100}
    with clear_mlflow.track(**loop) as run:
        run.log_test(1, INSIDE[1][0], test=1, num_tests=2, step=1, num_steps=3)
    monkeypatch.setenv("MLFLOW_RUN_ID", run.run_id)
    with pytest.raises(TrackingError, match=message), clear_mlflow.track(**{**loop, **changes}):
        pass


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"loop": {}}, "num_instances is not known; pass it to track"),
        ({"loop": {"score": "rmse", "num_instances": 9}}, "but the score is rmse"),
        ({"correct": [1, 2]}, "correct has 2 entries for 3 buckets"),
        ({"correct": [1, 2, 10]}, "expected 0 to its num_instances, 9"),
        ({"step": 3}, "a test at the end of a bucket is a row"),
        ({"test": 3}, "test is 3, of 2"),
        ({"bucket": 4}, "bucket is 4; expected the bucket in training, 1 to 3"),
        ({"bucket": "x"}, "bucket is 'x'; expected the bucket in training, 1"),
        ({"bucket": 1.5}, "bucket is 1.5; expected a whole number"),
        ({"num_tests": 1.5}, "num_tests is 1.5; expected a whole number"),
    ],
)
def test_an_invalid_test_within_a_bucket_is_a_one_line_error(changes, part):
    loop = clear_mlflow.track(buckets=3, **changes.pop("loop", {"num_instances": 9})).dataset
    test = {"bucket": 1, "correct": [1, 2, 3], "test": 1, "num_tests": 2, "step": 1, "num_steps": 3}
    check_error((ConfigError, RecordError), part, build_test, loop, **{**test, **changes})


def test_a_loop_logs_the_cost_of_its_rows(store, experiment_id):
    with clear_mlflow.track(**LOOP) as run:
        for i, correct in enumerate(FOUR_BUCKETS):
            run.log_counts(i, correct, cost={"training_flops": 10 * i, "seconds": 1.5})
    stored_run = only_run(store, experiment_id)
    spent = store.get_metric_history(run.run_id, "cost/training_flops")
    assert {point.step: point.value for point in spent} == {1: 10, 2: 30, 3: 60, 4: 100}
    assert stored_run.data.metrics["cost/seconds"] == 6
    assert run.metrics["cost/images"].reason == "row 1 lacks images"
    without = track_rows()
    assert not [name for name in without.metrics if name.startswith("cost/")]
    for tracked, has_note in ((run, False), (without, True)):
        page = artifact_folder(store.get_run(tracked.run_id)) / "report.html"
        assert ("cost of its training" in page.read_text()) == has_note


KILLED_AFTER_A_ROW = """
import os, signal, sys, clear_mlflow
with clear_mlflow.track(buckets=3, num_instances=10) as run:
    for i in range(4):
        run.log_counts(i, [i, 2 * i, 3])
        if i == 2 and "kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def run_script(folder, text, *words):
    script = folder / "script.py"
    script.write_text(text)
    return run_python(str(script), *words, cwd=folder)


def test_a_loop_killed_after_a_row_continues(store, experiment_id, monkeypatch, tmp_path):
    run_id = store.create_run(experiment_id).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    assert run_script(tmp_path, KILLED_AFTER_A_ROW, "kill").returncode == -9
    draft = rows_folder(store.get_run(run_id)) / ".row_002.json.0a1b.part"
    draft.write_text("{")
    done = run_script(tmp_path, KILLED_AFTER_A_ROW)
    assert done.returncode == 0, done.stderr
    run = store.get_run(run_id)
    assert (run.info.status, run.data.tags[names.ROWS_TAG]) == ("FINISHED", "complete")
    assert names.ERROR_TAG not in run.data.tags
    assert not draft.exists()
    points = histories(store, run_id)["test_accuracy/bucket_03"]
    assert [step for step, _, _ in points] == [0, 1, 2, 3]


def test_a_run_folder_of_an_earlier_process_is_sent_first(store, monkeypatch):
    run = clear_mlflow.track(buckets=3, test_labels=LABELS)
    with monkeypatch.context() as patch:
        patch.setattr(Uploader, "enqueue", lambda self, *items: None)
        with pytest.raises(RecordError, match="missing now"), run:
            run.log_predictions(1, OUTPUTS)
    assert find_run_folders(run.run_id)
    monkeypatch.setenv("MLFLOW_RUN_ID", run.run_id)
    with pytest.raises(TrackingError, match="with buckets"):
        track_rows(buckets=2, num_instances=None, test_labels=LABELS[:2])
    assert store.get_run(run.run_id).info.status == "FAILED"
    monkeypatch.setenv("MLFLOW_RUN_ID", run.run_id)
    with clear_mlflow.track(buckets=3, test_labels=LABELS) as again:
        again.log_predictions(1, OUTPUTS)
        again.log_predictions(2, OUTPUTS)
    assert clear_mlflow.load(run.run_id).predictions.rows.keys() == {1, 2}
    assert store.get_run(run.run_id).info.status == "FINISHED"
    assert not find_run_folders(run.run_id)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("joined", [False, True])
def test_a_loop_that_counts_from_0_is_an_error(store, monkeypatch, capfd, joined):
    run, message = clear_mlflow.track(**LOOP), "row 4 is missing; 0 means before any training"
    joins = mlflow.start_run() if joined else nullcontext()
    with pytest.raises(RecordError, match=message), joins, run:
        log_all(run, range(4))
    assert "row 4" not in capfd.readouterr().err
    stored_run = store.get_run(run.run_id)
    assert stored_run.info.status == "FAILED"
    assert "row 4 is missing" in stored_run.data.tags[names.ERROR_TAG]
    assert stored_run.data.tags[names.ROWS_TAG] == "partial"
    monkeypatch.setenv("MLFLOW_RUN_ID", run.run_id)
    assert track_rows([4]).matrix.equals(EXPECTED)
    assert store.get_run(run.run_id).info.status == "FINISHED"


@pytest.mark.parametrize("rows", [range(3), range(1, 4)])
def test_a_loop_may_stop_early(store, rows):
    """Only rows 0 to T-1 look like a wrong count."""
    assert store.get_run(track_rows(rows).run_id).info.status == "FINISHED"


def test_threads_may_log_the_same_row(store):
    errors = []

    def log(correct):
        try:
            run.log_counts(0, correct)
        except RecordError as error:
            errors.append(str(error))

    with clear_mlflow.track(**LOOP) as run:
        first = FOUR_BUCKETS[0]
        run_in_threads(log, [first] * 8)
        assert errors == []
        run_in_threads(log, [[0] * 4] * 2)
        log_all(run, [1, 2, 3, 4])
    assert len(errors) == 2
    assert all("row 0 is stored already with other numbers" in error for error in errors)
    assert run.matrix.equals(EXPECTED)


def run_in_threads(function, arguments):
    threads = [threading.Thread(target=function, args=[argument]) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_that_log_tests_and_rows(store):
    with clear_mlflow.track(buckets=3, num_instances=100) as run:
        run_in_threads(lambda bucket: log_tested(run, [bucket]), [1, 2, 3] * 3)
    stored = store.get_run(run.run_id)
    assert len(artifacts(store, stored, "anytime_accuracy")) == 6
    assert run.matrix.num_rows == 3
    assert stored.data.tags[names.ROWS_TAG] == "complete"


def test_an_interrupted_call_may_be_repeated(store, monkeypatch):
    interrupts = [KeyboardInterrupt()]
    wait = Uploader.wait_until_stored

    def interrupt(self):
        if interrupts:
            raise interrupts.pop()
        wait(self)

    monkeypatch.setattr(Uploader, "wait_until_stored", interrupt)
    with clear_mlflow.track(**LOOP) as run:
        with pytest.raises(KeyboardInterrupt):
            run.log_counts(0, FOUR_BUCKETS[0])
        log_all(run)
    assert run.matrix.equals(EXPECTED)


FORKS = """
import os, time, clear_mlflow
with clear_mlflow.track(buckets=1, num_instances=10) as run:
    run.log_counts(0, [1])
    if not os.fork():
        began = time.monotonic()
        for log in (
            lambda: run.log_counts(1, [5]),
            lambda: run.log_test(1, [5], test=1, num_tests=1, step=1, num_steps=2),
        ):
            try:
                log()
            except clear_mlflow.ClearError as error:
                print(error)
        print(time.monotonic() - began, flush=True)
        run.__exit__(None, None, None)
        os._exit(0)
    os.wait()
    run.log_counts(1, [7])
"""


OPENED_BY_A_CHILD = """
import os, clear_mlflow
run = clear_mlflow.track(buckets=1, num_instances=10)
if not os.fork():
    with run:
        run.log_counts(0, [1])
        run.log_counts(1, [5])
    os._exit(0)
assert os.wait()[1] == 0
"""


def test_a_run_belongs_to_the_process_that_opens_it(store, experiment_id, tmp_path):
    done = run_script(tmp_path, OPENED_BY_A_CHILD)
    assert done.returncode == 0, done.stderr
    assert only_run(store, experiment_id).info.status == "FINISHED"


def test_a_forked_child_is_rejected(store, experiment_id, tmp_path):
    done = run_script(tmp_path, FORKS)
    assert done.returncode == 0, done.stderr
    first, second, seconds = done.stdout.splitlines()
    assert "the row after 1 was logged in process" in first
    assert "log tests in the process that opened the run" in second
    assert float(seconds) < 5
    run = only_run(store, experiment_id)
    assert (run.info.status, run.data.tags[names.ROWS_TAG]) == ("FINISHED", "complete")
    assert clear_mlflow.load(run.info.run_id).matrix.values.tolist() == [[0.7]]


def test_predictions_may_be_bfloat16_or_an_array_of_arrays(store):
    """NumPy has no such type, and represents buckets of different sizes as objects."""
    outputs = [torch.tensor(np.eye(3)[a] * 0.7 + 0.1).bfloat16() for a in LABELS]
    as_objects = np.empty(3, dtype=object)
    as_objects[:] = [np.array(of_bucket) for of_bucket in LABELS]
    with clear_mlflow.track(buckets=3, test_labels=LABELS) as run:
        run.log_predictions(1, outputs)
        run.log_predictions(2, {str(j + 1): output for j, output in enumerate(outputs)})
        for wrong, expected in (
            ([output.argmax(1).bfloat16() for output in outputs], "a class index"),
            ([[[None] * 3] * len(a) for a in LABELS], "a class index"),
            ([[list(labels) for labels in output] for output in outputs], "an array of numbers"),
        ):
            with pytest.raises(ConfigError, match=f"expected {expected}"):
                run.log_predictions(3, wrong)
        run.log_predictions(3, as_objects)
    assert run.matrix.values.tolist() == [[1.0] * 3] * 3


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("raised", [False, True])
def test_ctrl_c_while_a_run_is_scored(store, monkeypatch, raised):
    def interrupt(client, run_id):
        if raised:  # as in a thread, where signals are not handled
            raise KeyboardInterrupt
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        return score(client, run_id)

    run = clear_mlflow.track(**LOOP)
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "score", interrupt)
        with pytest.raises(KeyboardInterrupt), run:
            log_all(run)
    stored_run = store.get_run(run.run_id)
    assert stored_run.info.status == ("KILLED" if raised else "FINISHED")
    assert names.PROCESS_TAG not in stored_run.data.tags
    assert mlflow.active_run() is None
    assert track_rows().run_id != run.run_id


@pytest.mark.slow
def test_a_loop_rejected_by_an_active_run_does_not_block_the_next(store):
    with mlflow.start_run():
        track_rows([0, 1], seed=1)
        with pytest.raises(TrackingError, match="with seed 1, but this loop has 2"):
            track_rows(seed=2)
        assert track_rows(seed=1).matrix.equals(EXPECTED)
