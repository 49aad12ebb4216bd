"""Closed-form strategies on features, compared with per-image loops and scikit-learn."""

import numpy as np
import pytest
from feature_streams import CLASSES, WIDTH, config, made_up, train_counts, train_rows

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.session import resolve_config


def images_until(bucket_index):
    stream, features = made_up()
    rows = np.concatenate(features.train[: bucket_index + 1]).astype(np.float64)
    return rows, np.concatenate([b.labels for b in stream.train[: bucket_index + 1]])


def held_out(buckets=None):
    _, features = buckets or made_up()
    return np.concatenate(features.test).astype(np.float64)


def center_scores(scores):
    """Return scores minus their mean over classes, which decide the prediction."""
    return scores - scores.mean(axis=1, keepdims=True)


def literal_means(rows, labels):
    means, counts = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
    for x, y in zip(rows, labels, strict=True):
        means[y] = (counts[y] * means[y] + x) / (counts[y] + 1)
        counts[y] += 1
    return means


def literal_slda(rows, labels, shrinkage):
    """Compute Hayes and Kanan's equations 2 to 5 image by image. Returns (weight, bias)."""
    means, counts = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
    covariance = np.zeros((WIDTH, WIDTH))
    for t, (x, y) in enumerate(zip(rows, labels, strict=True)):
        share = counts[y] / (counts[y] + 1)
        delta = share * np.outer(x - means[y], x - means[y])
        covariance = (t * covariance + delta) / (t + 1)
        means[y] = (counts[y] * means[y] + x) / (counts[y] + 1)
        counts[y] += 1
    precision = np.linalg.inv((1 - shrinkage) * covariance + shrinkage * np.eye(WIDTH))
    weight = means @ precision
    return weight, -(weight * means).sum(axis=1) / 2


def test_ncm_equals_the_nearest_running_mean():
    points = held_out()
    for bucket_index, (_, weight, bias) in enumerate(train_counts(config(strategy="ncm"))[1:]):
        means = literal_means(*images_until(bucket_index))
        expected = center_scores(-((points[:, None] - means) ** 2).sum(axis=2))
        scores = center_scores(points @ weight.T + bias)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shrinkage", [1e-4, 0.3])
def test_slda_equals_the_papers_recursion(shrinkage):
    points = held_out()
    run = train_counts(config(strategy="slda", strategy_args=f"shrinkage={shrinkage}"))
    for bucket_index, (_, weight, bias) in enumerate(run[1:]):
        expected_weight, expected_bias = literal_slda(*images_until(bucket_index), shrinkage)
        expected = center_scores(points @ expected_weight.T + expected_bias)
        scores = center_scores(points @ weight.T + bias)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("strategy", ["ncm", "slda"])
def test_closed_forms_ignore_seed_and_optimiser(strategy):
    first = train_rows(config(strategy=strategy, seed=0, epochs=1, batch_size=3))
    other = train_rows(config(strategy=strategy, seed=5, epochs=4, lr=0.01, optimizer="adam"))
    assert first == other
    assert first[1] != first[0]


@pytest.mark.parametrize("strategy", ["ncm", "slda"])
def test_an_unseen_class_is_never_predicted(strategy):
    """Nor is its score infinite, which would be treated as divergence."""
    buckets = made_up(without=(0, 1))
    run = train_counts(config(strategy=strategy), buckets)
    points = held_out(buckets)
    _, weight, bias = run[1]
    scores = points @ weight.T + bias
    assert (scores[:, 1] < scores.max(axis=1) - 1000).all(), "nor has it any probability"
    assert np.isfinite(bias).all()
    _, weight, bias = run[2]
    assert 1 in (points @ weight.T + bias).argmax(axis=1)


def test_linear_equals_naive_on_features():
    linear, naive = (config(strategy=name, batch_size=8) for name in ("linear", "naive"))
    assert train_rows(linear) == train_rows(naive)


@pytest.mark.parametrize("strategy", ["linear", "ncm", "slda"])
def test_images_are_rejected(strategy):
    with pytest.raises(ConfigError, match="features=pixels, which every dataset has"):
        resolve_config(TrainConfig.resolve({"strategy": strategy}))


@pytest.mark.parametrize("args", ["shrinkage=0", "shrinkage=1.5", "shrinkage=x"])
def test_slda_rejects_invalid_arguments(args):
    with pytest.raises(ConfigError, match="strategy_args has"):
        resolve_config(config(strategy="slda", strategy_args=args))
