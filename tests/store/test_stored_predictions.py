"""Predictions that a training stores with its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from released_layout import write_released
from stored_runs import artifact_folder, load_rows

from clear_mlflow.core.predictions import EvaluationSet, RowPredictions, predictions_file_name
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import build_progress
from clear_mlflow.learning.session import check, prepare
from clear_mlflow.process.training_process import TrainingProcess
from clear_mlflow.store import names
from clear_mlflow.tracking.tracked_training import train_in_process

pytestmark = pytest.mark.slow

SMALL = {"dataset": "clear10", "model": "small_cnn", "image_size": "16", "epochs": "2"}
SMALL |= {"batch_size": "4", "device": "cpu", "lr": "0.05", "precision": "off"}


@pytest.fixture
def released(tmp_path):
    return write_released(tmp_path / "data", train=4)


def trained_run(store, experiment_id, root, *, process=False, **options):
    """Return a run, trained in this process or in its own as by the command."""
    parameters = {**SMALL, "data_root": str(root), **options}
    if process:
        with TrainingProcess(TrainConfig.resolve(parameters)) as training:
            train_in_process(store, training, parameters)
    else:
        config = check(TrainConfig.resolve(parameters))
        train_in_process(store, prepare(config, build_progress(open_null())), parameters)
    (run,) = store.search_runs([experiment_id], order_by=["attributes.start_time DESC"])[:1]
    return run


@pytest.mark.parametrize("prediction_mode", ["labels", "probs", "none"])
def test_stored_predictions_have_the_counts_of_the_rows(
    store, experiment_id, released, prediction_mode
):
    """Every row and image, with one evaluation set."""
    run = trained_run(
        store,
        experiment_id,
        released,
        predictions=prediction_mode,
        process=prediction_mode == "probs",
        log_models="last",
    )
    folder = artifact_folder(run) / "predictions"
    if prediction_mode == "none":
        assert not folder.exists()
        return
    images = EvaluationSet.load(folder / "evaluation_set.safetensors")
    rows = list(load_rows(run).values())
    assert len(list(folder.glob("*.safetensors"))) == 1 + len(rows)
    assert run.data.tags[names.SCORED_TAG].count(".") == 2  # predictions were scored, too
    for record in rows:
        predictions = RowPredictions.load(folder / predictions_file_name(record.row.row))
        predictions.check(images, record.row.cells)
        assert (predictions.probabilities is not None) == (prediction_mode == "probs")
    assert images.num_instances == rows[0].row.num_instances
    assert images.buckets == rows[0].row.buckets
    assert images.names[0] == "235821044"
    assert len(list((artifact_folder(run) / "models").iterdir())) == 1


def open_null():
    return Path("/dev/null").open("w")
