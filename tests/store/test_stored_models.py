"""What a training stores beside its rows: answers per image, and models that give them again."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from released_layout import write_released

from clear_mlflow.api.reevaluate_models import reevaluate
from clear_mlflow.cli import main
from clear_mlflow.core.errors import DataError, RecordError
from clear_mlflow.core.predictions import EvaluationSet, RowPredictions, predictions_file_name
from clear_mlflow.core.record import RowRecord
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.prepare import prepare
from clear_mlflow.learning.progress import progress_for
from clear_mlflow.learning.session import check
from clear_mlflow.process.parent import TrainingProcess
from clear_mlflow.store import names
from clear_mlflow.tracking.in_process import train_in_process
from clear_mlflow.tracking.logged_models import stored_models, weights_folder

SMALL = {"dataset": "clear10", "model": "small_cnn", "image_size": "16", "epochs": "2"}
SMALL |= {"batch_size": "4", "device": "cpu", "lr": "0.05", "precision": "off"}


@pytest.fixture
def released(tmp_path):
    return write_released(tmp_path / "data", train=4)


def artifacts(run):
    return Path(run.info.artifact_uri.removeprefix("file://"))


def trained_run(store, experiment_id, root, *, process=False, **more):
    """A run, trained here, or in a process of its own as the command line does."""
    asked = {**SMALL, "data_root": str(root), **more}
    if process:
        with TrainingProcess(TrainConfig.resolve(asked)) as training:
            train_in_process(store, training, asked)
    else:
        config = check(TrainConfig.resolve(asked))
        train_in_process(store, prepare(config, progress_for(open_null())), asked)
    (run,) = store.search_runs([experiment_id], order_by=["attributes.start_time DESC"])[:1]
    return run


def rows_of(run):
    folder = artifacts(run) / "accuracy_matrix" / "rows"
    return [
        RowRecord.from_json(path.read_text(), source=path.name) for path in sorted(folder.iterdir())
    ]


@pytest.mark.parametrize("kept", ["labels", "probs", "none"])
def test_predictions_are_stored_and_count_what_the_rows_say(store, experiment_id, released, kept):
    """Through the training process into artifacts: every row, every image, one set for the run."""
    run = trained_run(
        store, experiment_id, released, predictions=kept, process=kept == "probs", log_models="last"
    )
    folder = artifacts(run) / "predictions"
    if kept == "none":
        assert not folder.exists()
        return
    images = EvaluationSet.load(folder / "evaluation_set.safetensors")
    rows = rows_of(run)
    assert len(list(folder.glob("*.safetensors"))) == 1 + len(rows)
    assert names.PREDICTIONS_SCORED_TAG in run.data.tags
    for record in rows:
        answers = RowPredictions.load(folder / predictions_file_name(record.row.row))
        answers.check(images, record.row.cells)
        assert (answers.probabilities is not None) == (kept == "probs")
    assert images.num_instances == rows[0].row.num_instances
    assert images.buckets == rows[0].row.buckets
    assert images.names[0] == "235821044"
    assert len(list((artifacts(run) / "models").iterdir())) == 1


def open_null():
    return Path("/dev/null").open("w")


def test_stored_models_give_their_rows_again(store, experiment_id, released):
    """On the same test sets the same counts, in a run of its own below the first."""
    run = trained_run(store, experiment_id, released, log_models="all", strategy="replay")
    assert len(list((artifacts(run) / "models").iterdir())) == len(rows_of(run))
    scores = reevaluate(store, run, data_root=str(released))
    again = store.get_run(scores.run_id)
    assert again.data.tags["mlflow.parentRunId"] == run.info.run_id
    assert again.data.tags[names.RETESTED_TAG] == run.info.run_id
    assert again.info.status == "FINISHED"
    assert [r.row for r in rows_of(again)] == [r.row for r in rows_of(run)]
    assert scores.summary == {
        k: v for k, v in run_metrics(store, run).items() if k in scores.summary
    }


def run_metrics(store, run):
    return store.get_run(run.info.run_id).data.metrics


def test_weights_are_read_where_they_are_left(store, experiment_id, released):
    """The run's files and those of MLflow's models; either may be removed."""
    run = trained_run(store, experiment_id, released, log_models="all")
    models = stored_models(store, run)
    for row, model in models.items():
        name = names.model_file_name(row)
        of_run = artifacts(run) / "models" / name
        of_model = weights_folder(store, model).local / name
        assert of_run.read_bytes() == of_model.read_bytes()
        assert sorted(file.name for file in of_model.parent.iterdir()) == [name]
    (artifacts(run) / "models" / names.model_file_name(2)).unlink()
    (artifacts(run) / "models" / names.model_file_name(1)).unlink()
    store.delete_logged_model(models[3].model_id)
    scores = reevaluate(store, run, data_root=str(released))
    (below,) = store.search_runs([experiment_id], f"tags.`{names.RETESTED_TAG}` != ''")
    assert scores.run_id == below.info.run_id
    assert [row.row for row in rows_of(below)] == [row.row for row in rows_of(run)]


def test_a_test_set_that_came_later_gives_rows_of_its_own(store, experiment_id, released, tmp_path):
    """Another dataset of the same classes: other counts, another digest; the old rows stay."""
    run = trained_run(store, experiment_id, released, log_models="last")
    before = [r.to_json() for r in rows_of(run)]
    later = write_released(tmp_path / "later", train=4, test=3)
    scores = reevaluate(store, run, data_root=str(later))
    (row,) = rows_of(store.get_run(scores.run_id))
    assert row.row.row == len(row.row.buckets)
    assert row.dataset.digest != rows_of(run)[0].dataset.digest
    assert [r.to_json() for r in rows_of(run)] == before


def test_what_cannot_be_tested_again_is_one_line(store, experiment_id, released, tmp_path):
    """No models, a damaged one, other classes, other buckets."""
    run = trained_run(store, experiment_id, released)
    with pytest.raises(RecordError, match="holds no model; train with log_models"):
        reevaluate(store, run, data_root=str(released))
    run = trained_run(store, experiment_id, released, log_models="last")
    (model,) = (artifacts(run) / "models").iterdir()
    model.write_bytes(model.read_bytes()[:-10])
    with pytest.raises(RecordError, match="does not hold the weights of this model"):
        reevaluate(store, run, data_root=str(released))
    with pytest.raises(DataError):
        reevaluate(store, run, data_root=str(tmp_path / "nowhere"))


def test_evaluate_tests_stored_models_again(store, experiment_id, released):
    """On the command line: scores are shown, runs without models are named, the rest is done."""
    kept = trained_run(store, experiment_id, released, log_models="last")
    without = trained_run(store, experiment_id, released, seed="1")
    ids = f"{kept.info.run_id},{without.info.run_id},{'0' * 32}"
    asked = ["evaluate", "--run-id", ids, "--from-models", "--data-root", str(released)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 2
    assert f"run {kept.info.run_id}: its models tested again are run" in done.stdout
    assert "renate/average_accuracy" in done.stdout
    assert (
        f"error: run {without.info.run_id}: run {without.info.run_id} holds no model" in done.stderr
    )
    assert "no such run" in done.stderr
    for wrong in (["--data-root", "x"], ["--from-models", "--dry-run"]):
        assert CliRunner().invoke(main, ["evaluate", "--run-id", ids, *wrong]).exit_code == 2
