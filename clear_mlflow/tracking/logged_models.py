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
from clear_mlflow.data.scenarios import TASK
from clear_mlflow.learning.inference.description import ModelDescription, read_description
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.scoring import Scores
from clear_mlflow.scoring.run_log import build_points, name_bucket_series
from clear_mlflow.store import names
from clear_mlflow.store.artifacts import ArtifactFolder
from clear_mlflow.store.client import mlflow_errors

# What MLflow imports to load a model; it needs no MLflow, and nothing that trains.
LOADER = "clear_mlflow.learning.inference.served"
_READY: Literal["READY"] = "READY"


def log_models(client: MlflowClient, run: Run, scores: Scores) -> int:
    """Make models of a run's weights that are none yet, with its accuracies; how many were made."""
    params = run.data.params
    # A configuration file may have another value than the one that "mlflow run" logged.
    log_models = params.get("used/log_models", params.get("log_models", NONE))
    if log_models == NONE or scores.record is None:
        return 0
    run_id = run.info.run_id
    weights = ArtifactFolder(client, run, names.MODELS_FOLDER)
    with mlflow_errors(f"list the models of run {run_id}"):
        rows = {names.parse_model_file_name(name) for name in weights.list_sizes()} - {None}
        there = {model.tags.get(names.MODEL_ROW_TAG): model for model in _models_of(client, run)}
    made = 0
    for row in sorted(row for row in rows if row is not None):
        known = there.get(str(row))
        if known is None or str(known.status) != _READY:
            made += _log_model(client, run, scores, scores.record, row, weights, known)
    return made


def _models_of(client: MlflowClient, run: Run) -> list[LoggedModel]:
    wanted = f"source_run_id = '{run.info.run_id}'"
    page = client.search_logged_models([run.info.experiment_id], wanted)
    found = list(page)
    while page.token:
        page = client.search_logged_models([run.info.experiment_id], wanted, page_token=page.token)
        found += page
    return found


def _log_model(
    client: MlflowClient,
    run: Run,
    scores: Scores,
    record: Record,
    row: int,
    stored: ArtifactFolder,
    known: LoggedModel | None,
) -> bool:
    """Log one model; return False if its file is too large or does not describe its predictions."""
    run_id, file = run.info.run_id, names.format_model_file_name(row)
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_") as scratch:
        with mlflow_errors(f"read {file} of run {run_id}"):
            weights = stored.fetch_file(file, scratch)
        if weights.stat().st_size > MAX_WEIGHTS_BYTES:
            return False
        if (about := read_description(weights)) is None:
            return False
        scenarios = [run.data.params.get(name) for name in ("scenario", "used/scenario")]
        if TASK in scenarios and not about.classes_by_bucket:  # stored by an earlier version
            return False
        with mlflow_errors(f"log {file} of run {run_id} as a model"):
            # A model that a process began and did not finish is completed.
            model = known or client.create_logged_model(
                run.info.experiment_id,
                # Without what MLflow takes in no model's name.
                name=re.sub(r"[/:.%\"']", "_", f"{run.info.run_name}, after {row}"),
                source_run_id=run_id,
                params={
                    "strategy": about.strategy,
                    "dataset": about.dataset,
                    "model": about.model,
                    "seed": run.data.params.get("seed", ""),
                    "bucket": about.bucket,
                },
                tags={names.MODEL_ROW_TAG: str(row)},
                model_type="classifier",
            )
            folder = Path(scratch, "model")
            _save(folder, weights, about, Model(run_id=run_id, model_id=model.model_id))
            client.log_model_artifacts(model.model_id, str(folder))
            outputs = client.get_run(run_id).outputs if known else None
            linked = [output.model_id for output in outputs.model_outputs] if outputs else []
            if model.model_id not in linked:
                client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=row)])
            client.log_batch(run_id, metrics=_accuracies(scores, record, row, model))
            client.finalize_logged_model(model.model_id, _READY)
    return True


def _save(folder: Path, weights: Path, description: ModelDescription, model: Model) -> None:
    answer = Schema(
        [
            ColSpec(DataType.long, "class"),
            ColSpec(DataType.string, "label"),
            ColSpec(DataType.double, "probability"),
        ]
    )
    example: pd.DataFrame | np.ndarray | tuple[Any, dict[str, str]]
    if description.width:
        asked = Schema([TensorSpec(np.dtype(np.float32), (-1, description.width))])
        example = np.zeros((1, description.width), dtype=np.float32)
    else:
        asked = Schema([ColSpec(DataType.binary, "image")])
        example = pd.DataFrame({"image": [_grey(description.image_size)]})
    params: Any = None
    if description.classes_by_bucket:
        params = ParamSchema([ParamSpec("bucket", DataType.string, default="")])
        example = (example, {"bucket": next(iter(description.classes_by_bucket))})
    mlflow.pyfunc.save_model(
        str(folder),
        loader_module=LOADER,
        data_path=str(weights),
        mlflow_model=model,
        signature=ModelSignature(inputs=asked, outputs=answer, params=params),
        input_example=example,
        pip_requirements=list(description.requirements),
    )


def _grey(side: int) -> bytes:
    """An encoded image: what the model is asked about looks like this."""
    content = io.BytesIO()
    Image.new("RGB", (side, side), (128, 128, 128)).save(content, "PNG")
    return content.getvalue()


def _accuracies(scores: Scores, record: Record, row: int, model: LoggedModel) -> list[Metric]:
    """The run's own points at this row, which MLflow then has of the model, too."""
    prefix = names.format_bucket_prefix(record.matrix.score.name)
    series = set(name_bucket_series(record.masked_matrix.buckets, prefix))
    return [
        Metric(
            *point,
            model_id=model.model_id,
            dataset_name=record.dataset.name,
            dataset_digest=names.shorten_digest(record.dataset.digest),
        )
        for point in build_points(scores.stored, scores.results)
        if point.step == row and point.name in series
    ]
