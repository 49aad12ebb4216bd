"""Predictions that a training stores with its rows."""

from __future__ import annotations

import pytest
from released_layout import write_released
from stored_runs import artifact_folder, load_rows, only_run

from clear_mlflow.core.predictions import (
    EvaluationSet,
    RowPredictions,
    format_predictions_file_name,
)
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import prepare_training, resolve_config
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
    parameters = {**SMALL, "data_root": str(root), **options}
    config = TrainConfig.resolve(parameters)
    if process:
        with TrainingProcess(config) as training:
            train_in_process(store, training, parameters)
    else:
        train_in_process(
            store, prepare_training(resolve_config(config), TrainingProgress()), parameters
        )
    return only_run(store, experiment_id)


@pytest.mark.parametrize("mode", ["labels", "probs", "none"])
def test_stored_predictions_have_the_counts_of_the_rows(store, experiment_id, released, mode):
    options = {"predictions": mode, "log_models": "last"}
    run = trained_run(store, experiment_id, released, process=mode == "probs", **options)
    folder = artifact_folder(run) / "predictions"
    if mode == "none":
        assert not folder.exists()
        return
    images = EvaluationSet.load(folder / "evaluation_set.safetensors")
    rows = list(load_rows(run).values())
    assert len(list(folder.glob("*.safetensors"))) == 1 + len(rows)
    assert run.data.tags[names.SCORED_TAG].count(".") == 2  # predictions were scored, too
    for record in rows:
        predictions = RowPredictions.load(folder / format_predictions_file_name(record.row.row))
        predictions.check(images, record.row.cells)
        assert (predictions.probabilities is not None) == (mode == "probs")
    assert images.num_instances == rows[0].row.num_instances
    assert images.buckets == rows[0].row.buckets
    assert images.names[0] == "235821044"
    assert len(list((artifact_folder(run) / "models").iterdir())) == 1
