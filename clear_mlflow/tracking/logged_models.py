"""The weights that a run stored, as models that MLflow loads, serves, ranks and registers."""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path
from typing import Any, Literal

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, Metric, Run
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
from PIL import Image

from clear_mlflow.core.record import Record
from clear_mlflow.core.untrusted import MAX_WEIGHTS_BYTES
from clear_mlflow.learning.inference.description import ModelDescription, read_description
from clear_mlflow.scoring import Scores
from clear_mlflow.scoring.run_log import build_row_points
from clear_mlflow.scoring.run_record import compute_times
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.offline import get_offline_folder

# Module that MLflow imports to load a model; it imports neither MLflow nor training.
LOADER = "clear_mlflow.learning.inference.served"
_READY: Literal["READY"] = "READY"
_NO_MODELS = "none"  # as in a run's parameters


def log_models(client: MlflowClient, run: Run, scores: Scores) -> int:
    """Log stored weights as MLflow models, and return their number.

    Each model gets the accuracies of its row as metrics. Skips models that are logged already, and
    completes those that a killed process left unfinished. Logs nothing if the run lacks rows or its
    parameter ``log_models`` is "none". Raises RecordError if a file of weights is damaged.
    """
    params = run.data.params
    # A configuration file may have another value than the one that "mlflow run" logged.
    log_models = params.get("used/log_models", params.get("log_models", _NO_MODELS))
    is_offline = get_offline_folder(client.tracking_uri) is not None  # logged by sync
    if log_models == _NO_MODELS or scores.record is None or is_offline:
        return 0
    run_id = run.info.run_id
    weights = ArtifactFolder(client, run, names.MODELS_FOLDER)
    with mlflow_errors(f"list the models of run {run_id}"):
        rows = {names.parse_model_file_name(name) for name in weights.list_sizes()}
        models_by_row = {
            model.tags.get(names.MODEL_ROW_TAG): model for model in _search_models(client, run)
        }
    made = 0
    for row in sorted(row for row in rows if row is not None):
        logged = models_by_row.get(str(row))
        if logged is None or str(logged.status) != _READY:
            made += _log_model(client, run, scores, scores.record, row, weights, logged)
    return made


def _search_models(client: MlflowClient, run: Run) -> list[LoggedModel]:
    query = f"source_run_id = '{run.info.run_id}'"
    # Not MLflow's own search: the program may have set another store since.
    page = client.search_logged_models([run.info.experiment_id], query)
    models = list(page)
    while page.token:
        page = client.search_logged_models([run.info.experiment_id], query, page_token=page.token)
        models += page
    return models


def _log_model(
    client: MlflowClient,
    run: Run,
    scores: Scores,
    record: Record,
    row: int,
    weights_folder: ArtifactFolder,
    unfinished_model: LoggedModel | None,
) -> bool:
    run_id, file = run.info.run_id, names.format_model_file_name(row)
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
        with mlflow_errors(f"read {file} of run {run_id}"):
            weights = weights_folder.fetch_file(file, scratch)
        if weights.stat().st_size > MAX_WEIGHTS_BYTES:
            return False
        if (description := read_description(weights)) is None:
            return False
        with mlflow_errors(f"log {file} of run {run_id} as a model"):
            # A model that a process began and did not finish is completed.
            model = unfinished_model or client.create_logged_model(
                run.info.experiment_id,
                # Without characters that MLflow rejects in a model's name.
                name=re.sub(r"[/:.%\"']", "_", f"{run.info.run_name}, after {row}"),
                source_run_id=run_id,
                params={
                    "strategy": description.strategy,
                    "dataset": description.dataset,
                    "model": description.model,
                    "seed": run.data.params.get("seed", ""),
                    "bucket": description.bucket,
                },
                tags={names.MODEL_ROW_TAG: str(row)},
                model_type="classifier",
            )
            folder = Path(scratch, "model")
            _save_model(folder, weights, description, Model(run_id=run_id, model_id=model.model_id))
            client.log_model_artifacts(model.model_id, str(folder))
            outputs = client.get_run(run_id).outputs if unfinished_model else None
            linked = [output.model_id for output in outputs.model_outputs] if outputs else []
            if model.model_id not in linked:
                client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=row)])
            client.log_batch(run_id, metrics=_build_metrics(scores, record, row, model))
            client.finalize_logged_model(model.model_id, _READY)
    return True


def _save_model(folder: Path, weights: Path, description: ModelDescription, model: Model) -> None:
    output_schema = Schema(
        [
            ColSpec(DataType.long, "class"),
            ColSpec(DataType.string, "label"),
            ColSpec(DataType.double, "probability"),
        ]
    )
    example: pd.DataFrame | np.ndarray | tuple[Any, dict[str, str]]
    if description.width:
        input_schema = Schema([TensorSpec(np.dtype(np.float32), (-1, description.width))])
        example = np.zeros((1, description.width), dtype=np.float32)
    else:
        input_schema = Schema([ColSpec(DataType.binary, "image")])
        png_file = io.BytesIO()
        side = description.image_size
        Image.new("RGB", (side, side), "grey").save(png_file, "PNG")
        example = pd.DataFrame({"image": [png_file.getvalue()]})
    params: Any = None
    if description.classes_by_bucket:
        params = ParamSchema([ParamSpec("bucket", DataType.string, default="")])
        example = (example, {"bucket": next(iter(description.classes_by_bucket))})
    mlflow.pyfunc.save_model(
        str(folder),
        loader_module=LOADER,
        data_path=str(weights),
        mlflow_model=model,
        signature=ModelSignature(inputs=input_schema, outputs=output_schema, params=params),
        input_example=example,
        pip_requirements=list(description.requirements),
    )


def _build_metrics(scores: Scores, record: Record, row: int, model: LoggedModel) -> list[Metric]:
    """Build the scores after *row* buckets, named like the run's."""
    time = compute_times(scores.stored.rows, row)[row]
    inputs = scores.stored.run.inputs
    datasets = [each.dataset for each in inputs.dataset_inputs] if inputs else []
    name = record.dataset.name
    digest = next((dataset.digest for dataset in datasets if dataset.name == name), None)
    return [
        Metric(
            point.key,
            point.value,
            point.timestamp,
            point.step,
            model_id=model.model_id,
            dataset_name=None if digest is None else name,
            dataset_digest=digest,
        )
        for point in build_row_points(record.masked_matrix, row, {}, time)
    ]
