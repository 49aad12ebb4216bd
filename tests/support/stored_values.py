"""Rows, test images and predictions as a run stores them."""

import numpy as np

from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    EvaluationSet,
    RowPredictions,
    format_predictions_file_name,
)
from clear_mlflow.core.record import RowRecord


def row_record(row, **changes) -> RowRecord:
    """Return a row with the metadata of its file. dataset: fields of its description."""
    described = {"name": "digits", "digest": "sha256:" + "ab" * 32, "buckets": row.buckets}
    described |= {"num_test": row.num_instances, "score": row.score}
    described |= {name: changes.pop(name) for name in ("protocol", "split") if name in changes}
    described |= changes.pop("dataset", {})
    metadata = {"seed": 0, "package_version": "0.1.0", "written_at": "2026-01-31T12:00:00.123Z"}
    return RowRecord(row=row, dataset=DatasetDescription(**described), **{**metadata, **changes})


def build_images(counts, label, class_names, content=None, **changes) -> EvaluationSet:
    """Return so many images in each bucket, of these classes."""
    parts = {
        "buckets": tuple(str(j + 1) for j in range(len(counts))),
        "class_names": tuple(class_names),
        "bucket": np.repeat(np.arange(len(counts)), counts).astype(np.uint16),
        "label": np.asarray(label, dtype=np.uint16),
        "content": np.zeros((sum(counts), 16), np.uint8) if content is None else content,
        "names": tuple(map(str, range(sum(counts)))),
    }
    return EvaluationSet(**{**parts, **changes})


def build_row_predictions(images, labels, probabilities=None) -> dict[int, RowPredictions]:
    """Return the predictions of each row, by its number."""
    label_type = np.uint8 if len(images.class_names) <= 256 else np.uint16
    return {
        row: RowPredictions(
            row=row,
            labels=np.asarray(of_row, dtype=label_type),
            evaluation_set=images.digest,
            probabilities=None if probabilities is None else probabilities[row],
        )
        for row, of_row in labels.items()
    }


def write_predictions(folder, images, predictions_by_row):
    """Write an evaluation set and predictions into a new folder, as a run stores them."""
    folder.mkdir()
    (folder / EVALUATION_SET_FILE).write_bytes(images.to_bytes())
    for row, predictions in predictions_by_row.items():
        (folder / format_predictions_file_name(row)).write_bytes(predictions.to_bytes())
