"""What a store lacks, planned over a model of one: a plan that is applied is the last."""

import json
import math
import random
from types import SimpleNamespace

from clear_mlflow.scoring.plan import plan, plan_without_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.record import DatasetIdentity, RowRecord, assemble, row_file_name
from clear_mlflow.metrics import METRICS, Metric
from clear_mlflow.scoring import Plan, Scores, Scoring, compute
from clear_mlflow.scoring.run_record import Beside
from clear_mlflow.store import names
from clear_mlflow.store.matrix_tag import StoredRows

NUM_TEST = 50
TAG_TEXTS = st.sampled_from([None, "rows"])


def first(matrix):
    """Accuracy on the first bucket after the first."""
    if matrix.num_rows == 0 or math.isnan(matrix.values[0, 0]):
        raise UndefinedMetricError("needs the first cell")
    return float(matrix.values[0, 0])


OWN = Metric(name="lab/first", function=first, version=2)


class ModelStore:
    """One run of a tracking store: what was appended, and MLflow's rule of which value is shown."""

    def __init__(self, tags=None):
        self.points = []
        self.tags = dict(tags or {})
        self.files = set()

    def history(self, name):
        in_force = {}
        for point in (p for p in self.points if p.name == name):
            before = in_force.get(point.step)
            if before is None or point.time >= before.time:
                in_force[point.step] = point
        return in_force

    def get_metric_history(self, run_id, name):
        return [
            SimpleNamespace(key=p.name, value=p.value, timestamp=p.time, step=p.step)
            for p in self.points
            if p.name == name
        ]

    def list_artifacts(self, run_id, folder):
        found = (f for f in self.files if f.rpartition("/")[0] == folder)
        return [SimpleNamespace(path=path) for path in found]

    @property
    def run(self):
        shown = {name: self.history(name) for name in {p.name for p in self.points}}
        metrics = {name: steps[max(steps)].value for name, steps in shown.items()}
        data = SimpleNamespace(metrics=metrics, tags=dict(self.tags), params={})
        info = SimpleNamespace(run_id="run", run_name="run", experiment_id="1")
        return SimpleNamespace(info=info, data=data, inputs=None)

    def lacks(self, computed, thorough=False):
        return plan(self, self.run, computed, thorough=thorough)

    def apply(self, found: Plan, *, points=None):
        """Write a plan, or what a process that died had written of it: some points, and no tag."""
        if found.reports:
            self.files |= {names.MATRIX_JSON, names.MATRIX_CSV, names.HEATMAP_PNG}
        if found.page is not None:
            self.files |= {names.REPORT_HTML}
        self.points += found.points[:points]
        if points is None:
            self.tags |= found.tags


@st.composite
def computed_runs(draw) -> Scores:
    """What some rows of a run define, with gaps, under either protocol, with and without more."""
    num_buckets = draw(st.integers(1, 4))
    count = st.integers(0, NUM_TEST)
    counts = st.lists(count, min_size=num_buckets, max_size=num_buckets)
    kept = draw(st.sets(st.integers(0, num_buckets), min_size=1))
    protocol = draw(st.sampled_from(["iid", "streaming"]))
    buckets = tuple(str(j + 1) for j in range(num_buckets))
    records = {
        row_file_name(row): RowRecord(
            row=AccuracyRow(row, buckets, tuple(draw(counts)), (NUM_TEST,) * num_buckets),
            protocol=protocol,
            dataset=DatasetIdentity("digits", "sha256:" + "ab" * 32),
            seed=0,
            package_version="0.1.0",
            written_at=f"2026-01-31T00:00:{row:02d}.123+00:00",
        )
        for row in sorted(kept)
    }
    steps = {step: draw(st.floats(0, 1)) for step in kept - {0}}
    answers = Beside(points={"macro_accuracy/average": steps} if steps else {}, stamp="s")
    return compute(
        ModelStore().run,
        StoredRows(records, draw(st.sampled_from(["d1", "d2"])), draw(TAG_TEXTS), False),
        assemble(records),
        Scoring(metrics=(*METRICS, OWN)),
        answers=draw(st.sampled_from([None, answers])),
    )


def told(version):
    return {names.VERSIONS_TAG: json.dumps({OWN.name: version})}


TAGS = st.sampled_from(
    [
        {},
        told(1),  # of another definition
        told(2),
        {names.SCORED_TAG: "d2"} | told(1),
        {names.MLFLOW_NOTE: "a person wrote this"},
        {names.VERSIONS_TAG: "["},
        {names.MATRIX_TAG: "rows of before", "strategy": "naive"},
    ]
)


@st.composite
def stores(draw, computed: Scores) -> ModelStore:
    """What other scorings, other programs and accidents left behind."""
    store = ModelStore(draw(TAGS))
    chance = random.Random(draw(st.integers(0, 2**32)))
    for point in ModelStore().lacks(computed).points:
        if chance.random() < 0.7:
            wrong = chance.random() < 0.2
            value = chance.random() if wrong else point.value
            store.points.append(
                point._replace(value=value, time=point.time + chance.choice([0, 9]))
            )
    if chance.random() < 0.5:
        store.files = {names.MATRIX_JSON, names.MATRIX_CSV, names.HEATMAP_PNG}
    return store


@settings(max_examples=300)
@given(data=st.data(), computed=computed_runs(), thorough=st.booleans())
def test_an_applied_plan_is_the_last_and_sends_nothing_again(data, computed, thorough):
    """Whatever a store held: after one plan it lacks nothing, and shows what was computed."""
    store = data.draw(stores(computed))
    before, same_rows = dict(store.tags), store.tags.get(names.SCORED_TAG) == computed.digest
    found = store.lacks(computed, thorough)
    assert found.reports or same_rows
    for point in found.points:
        held = store.history(point.name).get(point.step)
        assert held is None or (held.value != point.value and held.time < point.time)
    assert len({(p.name, p.step) for p in found.points}) == len(found.points)
    assert not found.tags.items() & before.items()
    assert names.MLFLOW_NOTE not in before or names.MLFLOW_NOTE not in found.tags
    store.apply(found)
    assert store.lacks(computed, thorough).is_empty
    for name in computed.points if not same_rows else ():
        values = {step: point.value for step, point in store.history(name).items()}
        assert computed.points[name].items() <= values.items()


@settings(max_examples=300)
@given(data=st.data(), computed=computed_runs(), thorough=st.booleans())
def test_a_plan_that_was_cut_off_is_continued(data, computed, thorough):
    """A process that died among the points: the next plan sends the others, and each once."""
    store = data.draw(stores(computed))
    found = store.lacks(computed, thorough)
    sent = data.draw(st.integers(0, len(found.points)))
    store.apply(found, points=sent)
    rest = store.lacks(computed, thorough)
    assert not set(found.points[:sent]) & set(rest.points)
    store.apply(rest)
    assert store.lacks(computed, thorough).is_empty


@given(tags=st.sampled_from([{}, {names.KIND_TAG: "train"}, {names.ROWS_TAG: "partial"}]))
def test_a_run_without_rows_is_called_so_once(tags):
    """One that should hold rows says that it holds none; another program's is left alone."""
    found = plan_without_rows(ModelStore(tags).run)
    assert found.tags == ({names.ROWS_TAG: "none"} if tags else {})
    assert plan_without_rows(ModelStore({**tags, **found.tags}).run).is_empty


def test_a_plan_says_in_one_line_what_it_would_write():
    """This is what a dry run prints."""
    assert str(Plan()) == "nothing"
    assert str(Plan(reports=True, tags={"b": "1", "a": "2"})) == "the reports, the tags a, b"
