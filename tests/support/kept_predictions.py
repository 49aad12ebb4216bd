"""A run with stored predictions, as another program could have stored them, and its scoring."""

from pathlib import Path

import numpy as np
from stored_runs import artifact_folder, row_texts, rows_folder
from stored_values import build_images, build_row_predictions, write_predictions

from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.store import names

BUCKETS, PER_BUCKET, CLASSES = ("1", "2"), 100, 4


def kept_run(client, experiment_id, *, kept="labels"):
    """Return a finished run with rows and predictions of their counts."""
    draws = np.random.default_rng(0)
    total = len(BUCKETS) * PER_BUCKET
    label = draws.integers(0, CLASSES, total)
    content = draws.integers(0, 256, (total, 16)).astype(np.uint8)
    images = build_images((PER_BUCKET,) * len(BUCKETS), label, "abcd", content)
    labels, probabilities = {}, {}
    for row in range(len(BUCKETS) + 1):
        wrong = draws.random(total) < 0.5 - 0.2 * row
        labels[row] = (images.label + wrong) % CLASSES
        probabilities[row] = np.full((total, CLASSES), 0.1, np.float16)
        probabilities[row][np.arange(total), labels[row]] = 0.7
    predictions = build_row_predictions(images, labels, probabilities if kept == "probs" else None)
    run = client.create_run(experiment_id)
    rows = rows_folder(run)
    rows.mkdir(parents=True)
    correct = [of_row.count_correct(images) for of_row in predictions.values()]
    for name, text in row_texts(correct).items():
        (rows / name).write_text(text)
    write_predictions(predictions_folder(run), images, predictions)
    if kept:
        client.set_tag(run.info.run_id, names.PREDICTIONS_TAG, kept)
    client.set_terminated(run.info.run_id)
    return client.get_run(run.info.run_id)


def predictions_folder(run) -> Path:
    return artifact_folder(run) / "predictions"


def rescore(client, run, **options):
    return score(client, run, explicit=True, **options)


def score(client, run, **options):
    """Score a run as found by a search, and return the result."""
    options = {"explicit": False, "dry_run": False, **options}
    (verdict,) = rescore_runs(client, [client.get_run(run.info.run_id)], **options)
    return verdict
