"""Test images that show the same thing: drawn together, and no more evidence than they are."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binomtest

from clear_mlflow import AccuracyMatrix
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.predictions import EvaluationSet, RowPredictions
from clear_mlflow.data import load_stream
from clear_mlflow.data.evaluation_set import evaluation_set
from clear_mlflow.metrics import METRICS
from clear_mlflow.statistics import (
    CorrectMatrix,
    ImageBootstrap,
    mcnemar_exact,
    paired,
)

BY_NAME = {metric.name: metric for metric in METRICS}


def paired_bootstrap(a, b, **options):
    return ImageBootstrap(**options).test(a, b)


def a_run(
    right: NDArray[np.bool_], bucket: NDArray[np.int64], cluster: NDArray[np.int64] | None = None
) -> CorrectMatrix:
    """(T + 1, N) hits of a run of T buckets."""
    return CorrectMatrix(
        evaluation_set="d",
        buckets=tuple(str(j + 1) for j in range(len(right) - 1)),
        bucket=bucket.astype(np.uint16),
        rows=tuple(range(len(right))),
        right=right,
        cluster=cluster,
    )


def scans_in_buckets(scans: int, times: int, width: int) -> tuple[NDArray[np.int64], ...]:
    """Each scan in so many buckets in a row, as the embedded digits have them: bucket, cluster."""
    places = [((s + k) % width, s) for s in range(scans) for k in range(times)]
    bucket, cluster = np.array(sorted(places)).T
    return bucket, cluster


def random_run(seed: int, scans: int = 20, times: int = 2, share: float = 0.6) -> CorrectMatrix:
    bucket, cluster = scans_in_buckets(scans, times, 3)
    draws = np.random.default_rng(seed)
    return a_run(draws.random((4, len(bucket))) < share, bucket, cluster)


def test_the_embedded_digits_show_549_scans(tmp_path):
    """1,500 test images; those of one scan are of one cluster, in whatever buckets they are."""
    images = evaluation_set(load_stream("digits", "auto", cache_dir=tmp_path))
    assert images.cluster is not None
    assert (len(images), len(np.unique(images.cluster))) == (1500, 549)
    for name, number in zip(images.names, images.cluster.tolist(), strict=True):
        assert (np.array(images.names)[images.cluster == number] == name).all()


def test_where_every_image_is_of_its_own_nothing_is_stored(tmp_path):
    """Writers' scans are in one bucket each; names of other datasets tell nothing."""
    stream = load_stream("digits-writers", "auto", cache_dir=tmp_path)
    assert evaluation_set(stream).cluster is None
    digits = load_stream("digits", "auto", cache_dir=tmp_path)
    assert evaluation_set(replace(digits, names_are_clusters=False)).cluster is None


def images_of(cluster: NDArray[np.uint32] | None) -> EvaluationSet:
    return EvaluationSet(
        buckets=("1", "2"),
        class_names=("a", "b"),
        bucket=np.array([0, 0, 1], np.uint16),
        label=np.array([0, 1, 1], np.uint16),
        content=np.arange(48, dtype=np.uint8).reshape(3, 16),
        names=("x", "y", "x"),
        cluster=cluster,
    )


def test_clusters_are_stored_where_there_are_any(tmp_path):
    """A file without clusters has no array of them, and the same digest."""
    known, unknown = images_of(np.array([7, 3, 7], np.uint32)), images_of(None)
    assert known.digest == unknown.digest
    for images in (known, unknown):
        path = tmp_path / "evaluation_set.safetensors"
        path.write_bytes(images.to_bytes())
        read = EvaluationSet.load(path).cluster
        assert (read is None) == (images.cluster is None)
        assert read is None or read.tolist() == [7, 3, 7]
    assert b"cluster" not in unknown.to_bytes()
    answer = RowPredictions(row=1, labels=np.zeros(3, np.uint8), evaluation_set=known.digest)
    assert CorrectMatrix.of(known, [answer]).cluster is known.cluster
    assert CorrectMatrix.of(known, [answer]).after(1).cluster is known.cluster
    with pytest.raises(RecordError, match=r"cluster of an evaluation set is int64"):
        images_of(np.zeros(3, np.int64))
    with pytest.raises(RecordError, match="one number for each of 3 images"):
        replace(CorrectMatrix.of(known, [answer]), cluster=np.zeros(2, np.uint32))


def test_the_cluster_bootstrap_is_its_slow_twin(monkeypatch):
    """Scan by scan: one draw of scans for all buckets, whose shares are of the images drawn."""
    a, b = random_run(3), random_run(4, share=0.7)
    found = paired_bootstrap(a, replace(b, cluster=None), resamples=60, seed=9, level=0.8)
    monkeypatch.setattr(paired, "_BLOCK", 20)
    assert paired_bootstrap(a, b, resamples=60, seed=9, level=0.8) == found
    draws = np.random.default_rng(9)
    # Scans in the order of their first images; they chain all buckets together.
    scans = list(dict.fromkeys(a.cluster.tolist()))
    assert found.keys() == BY_NAME.keys()
    changes: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(60):
        drawn = [scans[n] for n in draws.integers(0, len(scans), size=len(scans))]
        values = []
        for run in (a, b):
            cells = np.zeros((4, 3))
            for i, j in np.ndindex(4, 3):
                shown = [
                    run.right[i, m]
                    for scan in drawn
                    for m in range(len(run.bucket))
                    if run.cluster[m] == scan and run.bucket[m] == j
                ]
                cells[i, j] = sum(map(bool, shown)) / len(shown)
            values.append(AccuracyMatrix(cells[1:], cells[0], run.matrix().num_instances))
        for name in found:
            one, other = (BY_NAME[name].function(matrix) for matrix in values)
            changes[name].append(one - other)
    for name, test in found.items():
        assert test.interval == pytest.approx(tuple(np.quantile(changes[name], [0.1, 0.9])))
        assert test.error == pytest.approx(np.std(changes[name]))
        assert (test.n, test.clusters) == (40, 20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 8)), min_size=1, max_size=25)
)
def test_mcnemar_of_clusters_counts_all_signs(images):
    """Every way to give the clusters' differences their signs, by enumeration."""
    a, b, cluster = (np.array(part) for part in zip(*images, strict=True))
    differences = [int((a[cluster == c].astype(int) - b[cluster == c]).sum()) for c in set(cluster)]
    reached = abs(sum(differences))
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    expected = sum(s >= reached for s in sums) / len(sums)
    found = mcnemar_exact(a.astype(bool), b.astype(bool), cluster)
    assert found.p_value == pytest.approx(expected)
    alone = mcnemar_exact(a.astype(bool), b.astype(bool), np.arange(len(a)))
    only_a, only_b = found.only_a, found.only_b
    sign_test = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert alone.p_value == pytest.approx(sign_test)
