"""Re-test the models that a run stored, into a run of its own below it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clear_mlflow.core.errors import ClearError, RecordError
from clear_mlflow.core.text import shown
from clear_mlflow.core.untrusted import MAX_WEIGHTS_BYTES
from clear_mlflow.learning.parameters.config import TrainConfig, parameter_defaults
from clear_mlflow.learning.parameters.logged import dataset_runs_code
from clear_mlflow.learning.registry import known_strategies
from clear_mlflow.scoring.computed import Scores
from clear_mlflow.scoring.scores import read_scores
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.heartbeat import holding
from clear_mlflow.store.search import MissingRun
from clear_mlflow.tracking.in_process import train_in_process
from clear_mlflow.tracking.lifecycle import create_run
from clear_mlflow.tracking.logged_models import stored_models, weights_folder
from clear_mlflow.tracking.resume import stored_config


def reevaluate_each(
    client: MlflowClient, runs: Iterable[Run | MissingRun], *, data_root: str
) -> Iterator[tuple[str, Scores | ClearError]]:
    """Re-test each run's models; one that cannot be tested does not stop the others."""
    for run in runs:
        if isinstance(run, MissingRun):
            yield run.run_id, ClearError(run.problem)
            continue
        try:
            yield run.info.run_id, reevaluate(client, run, data_root=data_root)
        except ClearError as error:
            yield run.info.run_id, error


def reevaluate(client: MlflowClient, run: Run, *, data_root: str) -> Scores:
    """Test a run's stored models on a dataset, into a run below it, and score the rows of that."""
    # Imported here: scoring rows needs no torch.
    from clear_mlflow.learning.inference.reevaluation import Reevaluation
    from clear_mlflow.learning.prepare import prepare
    from clear_mlflow.learning.progress import progress_for
    from clear_mlflow.learning.session import check

    run_id = run.info.run_id
    record = read_scores(client, run).record
    if record is None:
        raise RecordError(f"run {run_id} holds no row, so nothing says what its models are of")
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
        stored = _stored_models(client, run)
        with mlflow_errors(f"read the models of run {run_id}"):
            models = {
                row: folder.file(names.model_file_name(row), scratch) for row, folder in stored
            }
        asked = _configuration(client, run) | {"data_root": data_root}
        config = check(TrainConfig.resolve(asked))
        training = prepare(config, progress_for(sys.stderr))
        again = Reevaluation.of(training, models, record.matrix.buckets)
        name = f"{run.info.run_name or run_id}, models re-tested"
        tags = {MLFLOW_PARENT_RUN_ID: run_id, names.RETESTED_TAG: run_id, **holding()}
        with mlflow_errors(f"open a run below {run_id}"):
            below = create_run(client, run.info.experiment_id, name, tags)
        return train_in_process(client, again, asked, below)


def _stored_models(client: MlflowClient, run: Run) -> list[tuple[int, ArtifactFolder]]:
    """Rows whose weights are stored, and the folder of each: the run's, else MLflow's model's."""
    own = ArtifactFolder(client, run, names.MODELS_FOLDER)
    found = dict.fromkeys(_rows_with_weights(run, own), own)
    for row, model in stored_models(client, run).items():
        folder = weights_folder(client, model)
        if row not in found and row in _rows_with_weights(run, folder):
            found[row] = folder
    if not found:
        raise RecordError(
            f"run {run.info.run_id} holds no model; train with log_models=last or log_models=all "
            "to keep them"
        )
    return sorted(found.items())


def _rows_with_weights(run: Run, folder: ArtifactFolder) -> Iterator[int]:
    with mlflow_errors(f"list the models of run {run.info.run_id}"):
        sizes = folder.sizes()
    for name, size in sizes.items():
        if (row := names.row_of_weights(name)) is None:
            continue
        if size is not None and size > MAX_WEIGHTS_BYTES:
            raise RecordError(f"{name} has {size} bytes; a model has at most 8 GiB")
        yield row


def _configuration(client: MlflowClient, run: Run) -> dict[str, str]:
    """What the models were trained with, as far as it says how to build and test them."""
    stored = stored_config(client, run)
    # What a store names would be imported to build the model: code that its writer had chosen.
    named = None
    if stored.get("strategy", "naive") not in known_strategies():
        named = f"by strategy {shown(stored['strategy'])}, a class"
    elif dataset_runs_code(stored):
        named = f"on {shown(stored['dataset'])}, a function"
    if named is not None:
        raise RecordError(
            f"run {run.info.run_id} was trained {named} of somebody's own; what a store names is "
            "never imported: test its models with the program that trained them"
        )
    # Where to compute is this machine's to say; the weights are in the stored file.
    known = {name: text for name, text in stored.items() if name in parameter_defaults()}
    here = {"device": "auto", "weights": "none", "compile": "off"}
    return {**known, **here, "log_models": "none", "test_every": "off"}
