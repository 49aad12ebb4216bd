"""What scoring writes: the changes to a model of one run's store, and the series of a run."""

import json
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.entities import Metric as MlflowMetric
from row_points import collect_points
from stored_values import row_record

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.record import assemble, format_row_file_name
from clear_mlflow.metrics import METRICS, Metric, summarize
from clear_mlflow.report.page.matrix_map import MAX_SHOWN, sample_evenly
from clear_mlflow.scoring import Changes, evaluate
from clear_mlflow.scoring.run_log import (
    build_bucket_series_names,
    build_row_points,
    compute_score_hash,
    find_changes,
)
from clear_mlflow.scoring.run_record import StoredRun
from clear_mlflow.store import names
from clear_mlflow.store.rows import hash_rows

NUM_TEST = 50


def first(matrix):
    """Accuracy on the first bucket after training on it."""
    if matrix.num_rows == 0 or math.isnan(matrix.values[0, 0]):
        raise UndefinedMetricError("needs the first cell")
    return float(matrix.values[0, 0])


OWN = Metric(name="lab/first", function=first, version=2)


class ModelStore:
    """A model of one run in a tracking store.

    It appends points, and displays one by MLflow's rule.
    """

    def __init__(self, stored, tags=None):
        self.stored = stored
        self.metric_values = []
        self.tags = dict(tags or {})
        self.files = set()

    def hash_rows(self):
        return hash_rows("run", self.stored.files)

    def history(self, name):
        latest = {}
        for point in (p for p in self.metric_values if p.key == name):
            before = latest.get(point.step)
            if before is None or point.timestamp >= before.timestamp:
                latest[point.step] = point
        return latest

    def get_metric_history(self, run_id, name):
        return [point for point in self.metric_values if point.key == name]

    def list_artifacts(self, run_id, folder):
        paths = (path for path in self.files if path.rpartition("/")[0] == folder)
        return [SimpleNamespace(path=path) for path in paths]

    @property
    def run(self):
        histories = {name: self.history(name) for name in {p.key for p in self.metric_values}}
        metrics = {name: steps[max(steps)].value for name, steps in histories.items()}
        data = SimpleNamespace(metrics=metrics, tags=dict(self.tags), params={})
        info = SimpleNamespace(run_id="run", run_name="run", experiment_id="1")
        return SimpleNamespace(info=info, data=data, inputs=None)

    def find_changes(self, reread=False):
        stored = replace(self.stored, run=self.run)
        return find_changes(self, stored, evaluate(stored), reread=reread)

    def apply(self, changes, *, points=None):
        """Write the changes, or only some points, as a killed process does."""
        self.metric_values += changes.metric_values[:points]
        if points is None:
            if changes.reports:
                self.files |= {names.MATRIX_JSON, names.MATRIX_CSV, names.HEATMAP_PNG}
            if changes.page:
                self.files |= {names.REPORT_HTML}
            self.tags |= changes.tags


@st.composite
def stored_runs(draw):
    """Some rows of a run, with gaps, under either protocol."""
    num_buckets = draw(st.integers(1, 4))
    count = st.integers(0, NUM_TEST)
    counts = st.lists(count, min_size=num_buckets, max_size=num_buckets)
    rows = draw(st.sets(st.integers(0, num_buckets), min_size=1))
    protocol = draw(st.sampled_from(["iid", "streaming"]))
    buckets = tuple(str(j + 1) for j in range(num_buckets))
    records = {
        format_row_file_name(row): row_record(
            AccuracyRow(row, buckets, tuple(draw(counts)), (NUM_TEST,) * num_buckets),
            protocol=protocol,
        )
        for row in sorted(rows)
    }
    return StoredRun(
        run=SimpleNamespace(),
        files={name: record.to_json() for name, record in records.items()},
        rows=records,
        record=assemble(records),
        families=("clear", "renate"),
        metrics=(*METRICS, OWN),
    )


TAGS = st.sampled_from(
    [
        {},
        {names.VERSIONS_TAG: '{"lab/first": 1}'},
        {names.SCORED_TAG: "d2.a", names.VERSIONS_TAG: '{"lab/first": 1}'},
        {names.MLFLOW_NOTE: "a person wrote this"},
        {names.VERSIONS_TAG: "["},
        {names.MATRIX_TAG: "rows of before", "strategy": "naive"},
    ]
)


@st.composite
def stores(draw):
    """A run, and what other scorings, programs and accidents left in its store."""
    store = ModelStore(draw(stored_runs()), draw(TAGS))
    chance = random.Random(draw(st.integers(0, 2**32)))
    if names.SCORED_TAG in store.tags and chance.random() < 0.5:
        store.tags[names.SCORED_TAG] = f"{store.hash_rows()}.a"
    for point in ModelStore(store.stored).find_changes().metric_values:
        if chance.random() < 0.7:
            value = chance.random() if chance.random() < 0.2 else point.value
            time = point.timestamp + chance.choice([0, 9])
            store.metric_values.append(MlflowMetric(point.key, value, time, point.step))
    if chance.random() < 0.5:
        store.files = {names.MATRIX_JSON, names.MATRIX_CSV, names.HEATMAP_PNG}
    return store


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(store=stores(), reread=st.booleans())
def test_after_the_changes_are_written_nothing_is_missing(store, reread):
    before = dict(store.tags)
    has_same_rows = before.get(names.SCORED_TAG, "").partition(".")[0] == store.hash_rows()
    changes = store.find_changes(reread)
    assert changes.reports or has_same_rows
    for point in changes.metric_values:
        logged = store.history(point.key).get(point.step)
        assert logged is None or (
            logged.value != point.value and logged.timestamp < point.timestamp
        )
    assert len({(p.key, p.step) for p in changes.metric_values}) == len(changes.metric_values)
    assert not changes.tags.items() & before.items()
    assert names.MLFLOW_NOTE not in before or names.MLFLOW_NOTE not in changes.tags
    store.apply(changes)
    assert store.find_changes(reread).is_empty
    if reread or not has_same_rows:
        for point in ModelStore(store.stored).find_changes().metric_values:
            assert store.history(point.key)[point.step].value == point.value


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data(), store=stores(), reread=st.booleans())
def test_an_interrupted_scoring_is_continued(data, store, reread):
    changes = store.find_changes(reread)
    num_sent = data.draw(st.integers(0, len(changes.metric_values)))
    store.apply(changes, points=num_sent)
    others = store.find_changes(reread)
    assert not set(changes.metric_values[:num_sent]) & set(others.metric_values)
    store.apply(others)
    assert store.find_changes(reread).is_empty


@pytest.mark.parametrize("tags", [{}, {names.KIND_TAG: "train"}, {names.ROWS_TAG: "partial"}])
def test_a_run_without_rows_is_tagged_once(tags):
    store = ModelStore(StoredRun(run=SimpleNamespace()), tags)
    changes = store.find_changes()
    assert changes.tags == ({names.ROWS_TAG: "none"} if tags else {})
    store.apply(changes)
    assert store.find_changes().is_empty


@given(stored=stored_runs())
def test_the_score_hash_changes_with_what_the_page_shows(stored):
    def build(tags=(), params=(), run_name="run", **profile):
        run = ModelStore(stored, tags).run
        run.info.run_name, run.data.params = run_name, dict(params)
        dataset = SimpleNamespace(name=stored.record.dataset.name, profile=json.dumps(profile))
        run.inputs = SimpleNamespace(dataset_inputs=[SimpleNamespace(dataset=dataset)])
        return replace(stored, run=run)

    first_run = build()
    others = [
        replace(first_run, files={"row_000.json": b""}),
        build(run_name="another"),
        build({names.SCORED_TAG: "..p-1"}),
        build({names.SCORED_TAG: "...t"}),
        build({names.VERSION_TAG: "1"}),
        build(params={"lr": "1"}),
        build(params={"lr": "1", "asked/lr": "auto"}),
        build(split="test"),
        build(num_train={"1": 2}),
        build(warnings=["mind"]),
    ]
    hashes = [compute_score_hash(run, run.record, {"a/b": 1}) for run in (first_run, *others)]
    hashes.append(compute_score_hash(first_run, stored.record, {"a/b": 2}))
    assert len(set(hashes)) == len(hashes)


def test_changes_are_described_in_one_line():
    assert str(Changes()) == "nothing"
    assert str(Changes(reports=True, tags={"b": "1", "a": "2"})) == "the reports, the tags a, b"


CELLS = st.one_of(st.floats(0, 1), st.just(float("nan")))


@st.composite
def matrices(draw):
    """With either protocol, with gaps, with or without the initialisation, complete or not."""
    width = draw(st.integers(1, 5))
    row = st.lists(CELLS, min_size=width, max_size=width)
    values = draw(st.lists(row, min_size=1, max_size=width))
    initial = draw(st.one_of(st.none(), row))
    matrix = AccuracyMatrix(values, initial, [100] * width)
    return matrix.mask(draw(st.sampled_from(["iid", "streaming"])))


@pytest.mark.slow
@given(masked_matrix=matrices())
def test_metrics_logged_row_by_row_equal_those_at_once(masked_matrix):
    sent: dict[str, dict[int, float]] = {}
    for step in range(masked_matrix.num_rows + 1):
        values = summarize(masked_matrix.after(step)) if step else {}
        for point in build_row_points(masked_matrix, step, values, time=0):
            sent.setdefault(point.key, {})[step] = point.value
    assert sent == collect_points(masked_matrix)


@pytest.mark.parametrize("num_buckets", [1, 2, 99, MAX_SHOWN, MAX_SHOWN + 1, 300, 1000])
def test_a_long_stream_charts_a_bounded_number_of_buckets(num_buckets):
    chosen = sample_evenly(num_buckets)
    assert len(chosen) == min(num_buckets, MAX_SHOWN)
    assert (chosen[0], chosen[-1]) == (0, num_buckets - 1)
    gaps = np.diff(chosen)
    assert num_buckets == 1 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)
    matrix = AccuracyMatrix(np.full((2, num_buckets), 0.5) if num_buckets > 1 else [[0.5]])
    names = build_bucket_series_names(matrix.buckets)
    points = build_row_points(matrix, 1, {}, time=0)
    assert [point.key for point in points] == [names[j] for j in chosen]


def test_bucket_names_that_mlflow_rejects_have_a_series_each():
    for keys in (("a b", "a/b", "a?b"), ("a_b.2", "a b", "a/b"), ("a_b.1", "a b", "a?b")):
        assert len(set(build_bucket_series_names(keys))) == 3
