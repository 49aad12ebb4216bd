"""A run that kept its predictions, as another program could have left it, and its scoring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from stored_runs import row_texts, rows_folder

from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.predictions import (
    EVALUATION_SET_FILE,
    EvaluationSet,
    RowPredictions,
    predictions_file_name,
)
from clear_mlflow.store import names

BUCKETS, PER_BUCKET, CLASSES = ("1", "2"), 100, 4


def kept_run(client, experiment_id, *, probs=False, kept="labels", balanced=False):
    """Return a finished run with rows and the predictions that count up to them.

    Balanced: each bucket has as many images of each class.
    """
    draws = np.random.default_rng(0)
    total = len(BUCKETS) * PER_BUCKET
    label = draws.integers(0, CLASSES, total)
    if balanced:
        label = np.arange(total) % CLASSES
    images = EvaluationSet(
        buckets=BUCKETS,
        class_names=tuple("abcd"),
        bucket=np.repeat(np.arange(len(BUCKETS)), PER_BUCKET).astype(np.uint16),
        label=label.astype(np.uint16),
        content=draws.integers(0, 256, (total, 16)).astype(np.uint8),
        names=tuple(map(str, range(total))),
    )
    predictions = []
    for row in range(len(BUCKETS) + 1):
        wrong = draws.random(total) < 0.5 - 0.2 * row
        labels = ((images.label + wrong) % CLASSES).astype(np.uint8)
        soft = np.full((total, CLASSES), 0.1, np.float16)
        soft[np.arange(total), labels] = 0.7
        predictions.append(
            RowPredictions(
                row=row,
                labels=labels,
                evaluation_set=images.digest,
                probabilities=soft if probs else None,
            )
        )
    run = client.create_run(experiment_id)
    rows = rows_folder(run)
    rows.mkdir(parents=True)
    for name, text in row_texts(
        [row_predictions.correct(images) for row_predictions in predictions]
    ).items():
        (rows / name).write_text(text)
    folder = predictions_folder(run)
    folder.mkdir()
    (folder / EVALUATION_SET_FILE).write_bytes(images.to_bytes())
    for row_predictions in predictions:
        (folder / predictions_file_name(row_predictions.row)).write_bytes(
            row_predictions.to_bytes()
        )
    if kept:
        client.set_tag(run.info.run_id, names.PREDICTIONS_TAG, kept)
    client.set_terminated(run.info.run_id)
    return client.get_run(run.info.run_id)


def predictions_folder(run) -> Path:
    return rows_folder(run).parents[1] / "predictions"


def rescore(client, run, **options):
    """Score a run that a user names, and return the result."""
    return score(client, run, explicit=True, **options)


def score(client, run, **options):
    """Score a run as a search for runs does, and return the result."""
    options = {"explicit": False, "dry_run": False, **options}
    (verdict,) = rescore_runs(client, [client.get_run(run.info.run_id)], **options)
    return verdict
