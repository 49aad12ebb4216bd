"""Runs of another score than accuracy in a real store: tracked, imported, scored, compared."""

import numpy as np
import pytest
from commands import run_command
from courses import values
from stored_runs import artifact_folder, histories

import clear_mlflow
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.record import assemble
from clear_mlflow.core.score import Score
from clear_mlflow.server.live_pages import render_live_run
from clear_mlflow.store.rows import read_rows

RMSE = Score("rmse", higher_is_better=False)
KEYS = ["2024", "2025", "2026"]
ERRORS = [[9.1, 9.4, 9.0], [2.1, 3.8, 5.2], [2.6, 2.2, 3.9], [2.9, 2.5, 2.0]]


def track(**changes):
    options = {"buckets": KEYS, "score": "rmse", "lower_is_better": True, "strategy": "naive"}
    return clear_mlflow.track(**{**options, **changes})


def track_whole(errors=ERRORS, **changes):
    with track(**changes) as run:
        for i, values in enumerate(errors):
            run.log_values(i, values)
    return run


def test_a_loops_rmse_is_stored_as_a_run(store, experiment_id):
    tracked = track_whole(seed=3)
    (run,) = store.search_runs([experiment_id])
    record = assemble(read_rows(store, run))
    np.testing.assert_array_equal(record.matrix.values, ERRORS[1:])
    assert record.matrix.score == RMSE
    assert run.data.params["score"] == run.data.tags["score"] == "rmse"
    series = {
        name: p for name, p in histories(store, run.info.run_id).items() if "/bucket_" in name
    }
    assert set(series) == {f"test_rmse/bucket_{key}" for key in KEYS}
    first = [(step, value) for step, _, value in series["test_rmse/bucket_2024"]]
    assert first == [(i, row[0]) for i, row in enumerate(ERRORS)]
    metrics = run.data.metrics
    assert metrics["renate/average_rmse"] == np.mean(ERRORS[3])
    assert metrics["renate/backward_transfer"] == pytest.approx(-0.55)
    assert metrics["renate/forward_transfer"] == pytest.approx((9.4 - 3.8 + 9 - 3.9) / 2)
    assert metrics["renate/forgetting"] == pytest.approx(0.55)
    others = {name: value for name, value in metrics.items() if name not in series}
    assert others == pytest.approx(values(tracked.metrics))
    assert not any("accuracy" in name for name in metrics)
    reason = "needs an accuracy (the score is rmse)"
    assert tracked.metrics["clear/challenge_score"].reason == reason
    page = (artifact_folder(run) / "report.html").read_text()
    page = page.split("</style>")[1].split("<script")[0]
    for text in (run.data.tags["mlflow.note.content"], page):
        assert "2.90" in text
        assert " %" not in text
    assert "rmse matrix" in render_live_run(store, run, [], "")


def test_rescoring_changes_nothing(store, experiment_id):
    track_whole()
    assert "1 unchanged" in run_command("evaluate", "--runs", "test", "--dry-run")
    run_command("evaluate", "--runs", "test", "--metrics", "tic,worst_bucket")
    (run,) = store.search_runs([experiment_id], "tags.clear_mlflow.kind = 'train'")
    assert run.data.metrics["worst_bucket/highest_rmse"] == 2.9
    assert run.data.metrics["tic/backward_rmse"] == np.mean([2.6, 2.9, 2.5])


@pytest.mark.slow
def test_a_run_continues_only_with_its_own_score(store, monkeypatch):
    with track() as run:
        run.log_values(1, ERRORS[1])
    monkeypatch.setenv("MLFLOW_RUN_ID", run.run_id)
    for other in ({"score": "mae"}, {"lower_is_better": False}, {"score": "accuracy"}):
        loop = {"lower_is_better": other.get("score") != "accuracy", **other}
        with pytest.raises(ClearError, match="with score") as caught, track(**loop):
            pass
        assert str(caught.value).isprintable()
    with track() as run:
        run.log_values(2, ERRORS[2])
    assert run.matrix.num_rows == 2


def test_accuracies_cannot_be_logged_as_errors(store):
    """A fraction under the name of an error would be ranked wrongly."""
    with track() as run, pytest.raises(ClearError, match="the score is rmse; pass it to log_value"):
        run.log_accuracies(1, [0.5, 0.5, 0.5])


def test_a_score_name_that_metrics_use_is_rejected_before_a_run(store, experiment_id):
    with pytest.raises(ClearError, match="rename the score"):
        track(score="challenge_score")
    assert store.search_runs([experiment_id]) == []


def test_a_file_of_errors_is_imported(store, experiment_id, tmp_path):
    path = tmp_path / "errors.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in ERRORS) + "\n")
    run_command("import", path, "--score", "rmse", "--lower-is-better", "--initial", "first-row")
    (run,) = store.search_runs([experiment_id])
    record = assemble(read_rows(store, run))
    assert record.matrix.score == RMSE
    np.testing.assert_array_equal(record.matrix.initial, ERRORS[0])
    assert run.data.params["score"] == "rmse"
    assert run.data.metrics["renate/average_rmse"] == np.mean(ERRORS[3])
