"""What a store lacks, planned over a model of one: a plan that is applied is the last."""

import dataclasses
import json
import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.record import DatasetIdentity, RowRecord, assemble, row_file_name
from clear_mlflow.metrics import METRICS, Metric
from clear_mlflow.scoring.computed import Computed, PredictionScores, compute
from clear_mlflow.scoring.plan import Depth, Plan, Stored, plan, plan_without_rows, to_look_up
from clear_mlflow.store import names

NUM_TEST = 50


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

    def stored(self, computed, depth):
        """What a plan is made of, looked up as it asks for it."""
        listing = Stored(
            values={
                name: (h := self.history(name))[max(h)].value
                for name in {p.name for p in self.points}
            },
            tags=dict(self.tags),
        )
        wanted = to_look_up(listing, computed, depth)
        return dataclasses.replace(
            listing,
            series={name: self.history(name) for name in wanted.series},
            files=frozenset(f for f in self.files if f.rpartition("/")[0] in wanted.folders),
        )

    def apply(self, found: Plan, *, points=None):
        """Write a plan, or what a process that died had written of it: some points, and no tag."""
        if found.reports:
            self.files |= {names.MATRIX_JSON, names.MATRIX_CSV, names.MATRIX_TABLE}
            self.files |= {names.HEATMAP_PNG} if found.heat_map else set()
        if found.tables:
            self.files |= {names.PER_CLASS_CSV, names.CONFUSION_FOLDER}
        if found.page is not None:
            self.files |= {names.REPORT_HTML}
        self.points += found.points[:points]
        if points is None:
            self.tags |= found.tags


@st.composite
def computed_runs(draw) -> Computed:
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
    answers = PredictionScores(points={"macro_accuracy/average": steps} if steps else {}, stamp="s")
    return compute(
        "run",
        records,
        assemble(records),
        digest=draw(st.sampled_from(["d1", "d2"])),
        matrix_tag=draw(st.sampled_from([None, "rows"])),
        metrics=(*METRICS, OWN),
        answers=draw(st.sampled_from([None, answers])),
    )


def told(version):
    return {names.VERSIONS_TAG: json.dumps({OWN.name: version})}


DEPTHS = st.builds(Depth, thorough=st.booleans(), accept_new=st.booleans(), pictures=st.booleans())
TAGS = st.sampled_from(
    [
        {},
        told(1),  # of another definition
        told(2),
        {names.SCORED_TAG: "d1"},  # scored before, from the same rows or from others
        {names.SCORED_TAG: "d2 pictures"} | told(1),
        {names.MLFLOW_NOTE: "a person wrote this"},
        {names.VERSIONS_TAG: "[", names.MLFLOW_TABLES: '[{"path": "a.js'},
        {names.MATRIX_TAG: "rows of before", "strategy": "naive"},
    ]
)


@st.composite
def stores(draw, computed: Computed) -> ModelStore:
    """What other scorings, other programs and accidents left behind."""
    store = ModelStore(draw(TAGS))
    chance = random.Random(draw(st.integers(0, 2**32)))
    whole = plan(ModelStore().stored(computed, Depth()), computed, Depth()).points
    for point in whole:
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
@given(data=st.data(), computed=computed_runs(), depth=DEPTHS)
def test_an_applied_plan_is_the_last(data, computed, depth):
    """Whatever a store held: after one plan it lacks nothing, and shows what was computed."""
    store = data.draw(stores(computed))
    scored_rows = store.tags.get(names.SCORED_TAG, "").partition(" ")[0]
    found = plan(store.stored(computed, depth), computed, depth)
    # Reports of other rows are written anew, however little is looked at.
    assert found.reports or scored_rows == computed.digest
    store.apply(found)
    assert plan(store.stored(computed, depth), computed, depth).is_empty
    if depth.thorough:
        left_alone = {} if depth.accept_new else found.outdated
        for name in computed.points.keys() - left_alone.keys():
            values = {step: point.value for step, point in store.history(name).items()}
            assert computed.points[name].items() <= values.items()


@settings(max_examples=300)
@given(data=st.data(), computed=computed_runs(), depth=DEPTHS)
def test_nothing_that_is_stored_is_sent_again(data, computed, depth):
    """No point whose value is in force, no tag that is so; nothing left alone is touched."""
    store = data.draw(stores(computed))
    found = plan(store.stored(computed, depth), computed, depth)
    for point in found.points:
        before = store.history(point.name).get(point.step)
        assert before is None or (before.value != point.value and before.time < point.time)
    assert len({(p.name, p.step) for p in found.points}) == len(found.points)
    assert not found.tags.items() & store.tags.items()
    if not depth.accept_new:
        assert not {p.name for p in found.points} & found.outdated.keys()
    if names.MLFLOW_NOTE in store.tags:
        assert names.MLFLOW_NOTE not in found.tags


@settings(max_examples=300)
@given(data=st.data(), computed=computed_runs(), depth=DEPTHS)
def test_a_plan_that_was_cut_off_is_continued(data, computed, depth):
    """A process that died among the points: the next plan sends the others, and each once."""
    store = data.draw(stores(computed))
    found = plan(store.stored(computed, depth), computed, depth)
    sent = data.draw(st.integers(0, len(found.points)))
    store.apply(found, points=sent)
    rest = plan(store.stored(computed, depth), computed, depth)
    assert not set(found.points[:sent]) & set(rest.points)
    if depth.thorough:
        assert set(found.points[sent:]) <= set(rest.points)
    store.apply(rest)
    assert plan(store.stored(computed, depth), computed, depth).is_empty


@given(tags=st.sampled_from([{}, {names.KIND_TAG: "train"}, {names.ROWS_TAG: "partial"}]))
def test_a_run_without_rows_is_called_so_once(tags):
    """One that should hold rows says that it holds none; another program's is left alone."""
    found = plan_without_rows(Stored(tags=tags))
    assert found.tags == ({names.ROWS_TAG: "none"} if tags else {})
    assert plan_without_rows(Stored(tags={**tags, **found.tags})).is_empty


def test_a_plan_says_in_one_line_what_it_would_write():
    """This is what a dry run prints."""
    assert str(Plan()) == "nothing"
    assert str(Plan(reports=True, heat_map=True, tags={"b": "1", "a": "2"})) == (
        "the reports, the heat map, the tags a, b"
    )
