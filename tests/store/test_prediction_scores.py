"""Stored predictions of a run in a real store: their metrics and costs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from commands import run_command
from kept_predictions import kept_run, predictions_folder, score
from stored_runs import artifact_folder, histories

from clear_mlflow.core.predictions import EVALUATION_SET_FILE, RowPredictions
from clear_mlflow.core.record import assemble
from clear_mlflow.metrics import PREDICTION_METRICS, compute_values
from clear_mlflow.scoring import run_record
from clear_mlflow.store import names
from clear_mlflow.store.rows import read_rows


def test_metrics_of_predictions_are_logged(store, experiment_id):
    run = kept_run(store, experiment_id, kept="probs")
    assert score(store, run, dry_run=True).action == "scored"
    assert score(store, run).action == "scored"
    logged = histories(store, run.info.run_id)
    of_all = {m.name for m in PREDICTION_METRICS if not m.name.startswith("class_changes/")}
    assert of_all <= logged.keys()
    assert [step for step, *_ in logged["macro_accuracy/average"]] == [1, 2]
    record = assemble(read_rows(store, run))
    predictions = run_record.read_predictions(store, run, record)
    images = predictions.images
    correct = [of_row.count_correct(images) for of_row in predictions.rows.values()]
    assert np.array_equal(np.divide(correct, images.num_instances)[1:], record.matrix.values)
    data = store.get_run(run.info.run_id).data
    assert compute_values(predictions, PREDICTION_METRICS)[0].items() <= data.metrics.items()
    assert "macro_accuracy/average" in data.tags["mlflow.note.content"]
    for has_names in (False, True, False):
        assert score(store, run, explicit=has_names).action == "unchanged"
    assert histories(store, run.info.run_id) == logged


def test_runs_without_predictions_cost_nothing(store, experiment_id, monkeypatch):
    scored = kept_run(store, experiment_id)
    score(store, scored)
    none = kept_run(store, experiment_id, kept="")
    foreign = kept_run(store, experiment_id, kept="")

    def record_call(*args, **options):
        raise AssertionError("the artifact store was asked")

    monkeypatch.setattr(run_record, "read_predictions", record_call)
    assert score(store, scored).action == "unchanged"
    for run in (none, foreign):
        assert score(store, run).action == "scored"
        assert "macro_accuracy/average" not in store.get_run(run.info.run_id).data.metrics
    store.set_tag(foreign.info.run_id, names.PREDICTIONS_TAG, "yes")
    with pytest.raises(AssertionError):
        score(store, foreign)


def copy_row_2(folder):
    (folder / "row_001.safetensors").write_bytes((folder / "row_002.safetensors").read_bytes())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / "row_001.safetensors").write_bytes(b"x" * 20),
            "row_001.safetensors: is not a safetensors file of numbers",
        ),
        (
            lambda folder: (folder / EVALUATION_SET_FILE).unlink(),
            f"there are predictions, but no {EVALUATION_SET_FILE}",
        ),
        (copy_row_2, "row_001.safetensors: contains the predictions of row '2'"),
    ],
)
def test_damaged_predictions_do_not_stop_the_rows(store, experiment_id, damage, message):
    run = kept_run(store, experiment_id)
    damage(predictions_folder(run))
    verdict = score(store, run)
    assert (verdict.action, verdict.is_problem) == ("scored", True)
    assert f"its predictions were left out: {message}" in verdict.detail
    values = store.get_run(run.info.run_id).data.metrics
    assert "clear/in_domain_accuracy" in values
    assert "macro_accuracy/average" not in values
    assert score(store, run).is_problem


def test_removed_predictions_are_reported(store, experiment_id):
    run = kept_run(store, experiment_id)
    (predictions_folder(run) / "row_001.safetensors").unlink()
    for _ in range(2):  # what was not stored when the run was scored is not gone
        verdict = score(store, run, explicit=True)
        assert (verdict.is_problem, verdict.scores.stored.predictions is None) == (False, False)
    logged = histories(store, run.info.run_id)
    page = (artifact_folder(run) / names.REPORT_HTML).read_text()
    assert [step for step, *_ in logged["macro_accuracy/average"]] == [2]
    for _ in range(2):
        (predictions_folder(run) / "row_000.safetensors").unlink(missing_ok=True)
        verdict = score(store, run, explicit=True)
        assert verdict.is_problem
        assert "of 1 of 2 rows, they were there when" in verdict.detail
    for path in predictions_folder(run).rglob("*.safetensors"):
        path.unlink()
    verdict = score(store, run, explicit=True)
    assert (verdict.action, verdict.is_problem) == ("unchanged", True)
    assert "its predictions were left out: they were there when it was scored" in verdict.detail
    assert histories(store, run.info.run_id) == logged
    assert (artifact_folder(run) / names.REPORT_HTML).read_text() == page
    scored = store.get_run(run.info.run_id).data.tags[names.SCORED_TAG].rpartition("-")[0]
    store.set_tag(run.info.run_id, names.SCORED_TAG, f"{scored}-{'9' * 5000}")
    assert not score(store, run, explicit=True).is_problem  # nothing is known of the number


def test_changed_predictions_are_scored_again(store, experiment_id):
    run = kept_run(store, experiment_id, kept="probs")
    score(store, run)
    file = predictions_folder(run) / "row_002.safetensors"
    predictions = RowPredictions.load(file)
    changed = predictions.probabilities[:, ::-1].copy()
    assert (changed != predictions.probabilities).any()
    file.write_bytes(replace(predictions, probabilities=changed).to_bytes())
    assert score(store, run, explicit=True).action == "scored"
    assert score(store, run, explicit=True).action == "unchanged"
    newer = [replace(metric, version=metric.version + 1) for metric in PREDICTION_METRICS]
    assert score(store, run, metrics=newer).scores.stored.predictions is not None


def test_a_too_large_file_is_not_downloaded(store, experiment_id, monkeypatch):
    run = kept_run(store, experiment_id)
    monkeypatch.setattr(run_record, "MAX_PREDICTIONS_BYTES", 100)
    assert "bytes; expected at most 100 bytes" in score(store, run).detail


LAB = """
def worst(matrix):
    return matrix.values.min()

def share_of_first_class(predictions):
    return (predictions.get_row(predictions.k).labels == 0).mean()

def broken(matrix):
    return {}["x"]

def broken_too(predictions):
    return {}["y"]
"""


def test_custom_metrics_of_rows_and_predictions(store, experiment_id, tmp_path, monkeypatch):
    (tmp_path / "lab_of_mine.py").write_text(LAB)
    monkeypatch.chdir(tmp_path)
    run = kept_run(store, experiment_id)
    functions = ("worst", "share_of_first_class", "broken", "broken_too")
    metric_names = ",".join(f"lab_of_mine:{name}" for name in functions)
    for chosen, count in ((run.info.run_id, ""), ("test", "1 unchanged")):
        command = ["evaluate", "--runs", chosen, "--metrics", metric_names]
        output = run_command(*command, code=2)
        for name, key in (("broken", "x"), ("broken_too", "y")):
            error = f"{name} left out: lab_of_mine:{name} raised KeyError: '{key}'"
            assert f"lab_of_mine/{error}" in output
        assert count in output
    data = store.get_run(run.info.run_id).data
    assert data.metrics["lab_of_mine/worst"] == assemble(read_rows(store, run)).matrix.values.min()
    assert 0.1 < data.metrics["lab_of_mine/share_of_first_class"] < 0.5
    assert "lab_of_mine/broken" not in data.metrics
    assert "KeyError" in data.tags["mlflow.note.content"]
    versions = json.loads(data.tags["mlflow.clear_mlflow.metric_versions"])
    assert versions["lab_of_mine/share_of_first_class"] == 1
