"""Streams of random features, and trainings on them."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from image_tables import build_table, build_test_stream

from clear_mlflow.data.features import StoredFeatures
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.samples import FeatureStream
from clear_mlflow.learning.session import StreamTraining, resolve_config

CLASSES = 4
WIDTH = 6


def config(**changes):
    """Return a configuration of a linear head, from texts."""
    parameters = {
        "features": "made_up",
        "device": "cpu",
        "epochs": "7",
        "lr": "0.5",
        "lr_step": "3",
    }
    return TrainConfig.resolve(
        {**parameters, **{name: str(value) for name, value in changes.items()}}
    )


def made_up(counts=((30, 20), (17, 9), (24, 13)), *, without=None):
    """Return overlapping classes around centres that move from bucket to bucket.

    Class *without* has no training images in its bucket.
    """
    draws = np.random.default_rng(0)
    centres = draws.normal(size=(CLASSES, WIDTH))
    buckets, train_sets, test_sets = {}, [], []
    for i, of_splits in enumerate(counts):
        centres += draws.normal(scale=0.5, size=centres.shape)
        sets = []
        for features, count in zip((train_sets, test_sets), of_splits, strict=True):
            labels = draws.integers(0, CLASSES, count)
            features.append(
                (centres[labels] + draws.normal(size=(count, WIDTH))).astype(np.float32)
            )
            features[-1].setflags(write=False)  # as a mapped file is
            if without is not None and without[0] == i and features is train_sets:
                labels = np.where(labels == without[1], (labels + 1) % CLASSES, labels)
            paths = tuple(Path(f"{i}/{len(sets)}/{n}.jpg") for n in range(count))
            contents = tuple(hashlib.sha256(str(path).encode()).hexdigest() for path in paths)
            sets.append(build_table(paths, labels, contents))
        buckets[str(i + 1)] = tuple(sets)
    names = tuple(map(str, range(CLASSES)))
    stream = build_test_stream("made-up", names, buckets)
    return stream, StoredFeatures("made_up", "sha256:1", WIDTH, tuple(train_sets), tuple(test_sets))


def training(settings, buckets=None, saved=None):
    stream, features = made_up() if buckets is None else buckets
    return StreamTraining(
        config=resolve_config(settings),
        stream=stream,
        progress=TrainingProgress(),
        features=features,
        saved=saved,
    )


def train_counts(settings, buckets=None):
    """Return (correct images per bucket, weight, bias) of every row."""
    stream, features = made_up() if buckets is None else buckets
    placed = FeatureStream(stream, features, device=torch.device("cpu"))
    return [
        (
            trained_bucket.row.correct,
            *(p.detach().double().numpy() for p in trained_bucket.model.parameters()),
        )
        for trained_bucket in train(placed, resolve_config(settings), progress=TrainingProgress())
    ]


def train_rows(settings, buckets=None):
    return [row[0] for row in train_counts(settings, buckets)]
