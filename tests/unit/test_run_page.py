"""A run's page works offline, has the record's numbers, and has a limited size."""

import base64
import dataclasses
import itertools
import json
import math
import re
import zlib

import numpy as np
import pytest
from anytime_courses import inside_bucket
from courses import make_results
from html_pages import HOSTILE, Page, assert_needs_nothing_but_itself, assert_only_text
from stored_values import build_images, build_row_predictions, row_record

from clear_mlflow.core.anytime import AnytimeMatrix
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.core.record import assemble, format_row_file_name
from clear_mlflow.metrics import (
    METRICS,
    WITHIN_BUCKET_METRICS,
    MetricResults,
    Predictions,
    confusion,
    evaluate_metrics,
)
from clear_mlflow.report.page import run_page as run_page_module
from clear_mlflow.report.page.matrix_map import build_class_map
from clear_mlflow.report.page.run_page import RunReport, render_run_page


def build_predictions(
    num_buckets, classes, per_class, *, skill=0.7, protocol="iid", rows=None, seed=0
):
    draws = np.random.default_rng(seed)
    total = num_buckets * classes * per_class
    label = draws.integers(0, classes, total)
    content = draws.integers(0, 256, (total, 16)).astype(np.uint8)
    names = (f"class {c}" for c in range(classes))
    images = build_images((classes * per_class,) * num_buckets, label, names, content)
    labels = {}
    for row in range(num_buckets + 1) if rows is None else rows:
        guesses = draws.integers(0, classes, total)
        is_right = draws.random(total) < (skill if row else 1 / classes)
        labels[row] = np.where(is_right, label, guesses)
    rows = build_row_predictions(images, labels)
    return Predictions(images, rows, protocol, num_buckets)


def build_record(counts, num_test, *, protocol="iid", dataset="digits", buckets=None, seed=3):
    buckets = buckets or tuple(str(j + 1) for j in range(len(num_test)))
    metadata = {"protocol": protocol, "dataset": {"name": dataset}, "seed": seed}
    records = {}
    for number, right in counts.items():
        row = AccuracyRow(number, tuple(buckets), tuple(right), tuple(num_test))
        records[format_row_file_name(number)] = row_record(row, **metadata)
    return assemble(records)


def build_report(predictions=None, *, counts=None, **changes):
    if counts is None:
        images = predictions.images
        counts = {row: stored.count_correct(images) for row, stored in predictions.rows.items()}
        record = build_record(counts, images.num_instances, protocol=predictions.protocol)
    else:
        num_test = (50,) * len(next(iter(counts.values())))
        record = build_record(counts, num_test, **changes.pop("rows", {}))
    results = evaluate_metrics(METRICS, record.matrix, record.dataset.protocol)
    metadata = {"name": "a run", "run_id": "abc", "results": results, "predictions": predictions}
    return RunReport(record=record, **{**metadata, **changes})


THREE = {0: (5, 5, 5), 1: (40, 30, 20), 2: (35, 45, 30), 3: (30, 40, 48)}


def read_page_data(page):
    return json.loads(Page(page).scripts[0])


def unpack_array(text, dtype):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def test_a_page_needs_no_other_file_and_is_reproducible():
    report = build_report(build_predictions(3, 4, 5))
    text = render_run_page(report)
    assert_needs_nothing_but_itself(text)
    assert render_run_page(report) == text


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_only_text(name):
    printable = "".join(c for c in name if c.isprintable())[:40]

    def tags_with(text, key):
        predictions = build_predictions(3, 2, 5)
        buckets = (key, "b", "c")
        names = {"class_names": (text[:200], "b"), "buckets": buckets}
        images = dataclasses.replace(predictions.images, **names)
        rows = {}
        for row, stored in predictions.rows.items():
            rows[row] = dataclasses.replace(stored, evaluation_set=images.digest)
        predictions = Predictions(images, rows, "iid", 3)
        metrics = {"lab/" + text: 0.5}, {"renate/forgetting": text, "lab/own": text}
        parts = ("configuration", "dataset", "environment")
        report = build_report(
            predictions,
            counts={r: a.count_correct(images) for r, a in rows.items()},
            rows={"dataset": key, "buckets": buckets},
            name=text,
            run_id=text,
            results=make_results(*metrics),
            requested={text: text + "!"},
            notes=[text],
            **{part: {text: text} for part in parts},
        )
        return render_run_page(report)

    text = tags_with(name, printable)
    assert_only_text(text, tags_with("plain", "key"))
    assert json.loads(Page(text).scripts[0])["cells"]
    assert len(text) < 60_000


def test_every_cell_is_on_the_page():
    report = build_report(counts={row: THREE[row] for row in (0, 1, 3)})
    text = render_run_page(report)
    table = text.split('id="map"')[1].split("</table>")[0]
    cells = re.findall(r"<td class=[^>]*>(.*?)</td>", table)
    nothing = ["<i>not measured</i>"] * 3
    expected = [[f"{2 * n:.1f}" for n in THREE[row]] if row != 2 else nothing for row in range(4)]
    assert cells == list(itertools.chain(*expected))
    data = read_page_data(text)
    assert data["rows"] == [0, 1, 2, 3]
    assert data["cells"][3] == [0.6, 0.8, 0.96]
    assert data["cells"][2] == [None] * 3
    assert data["means"][2] == ["", 0]
    assert data["start"] == 3
    assert "Not stored: row 2." in text


def test_metrics_have_their_meaning_or_the_reason_without_a_value():
    report = build_report(counts={1: THREE[1]})
    own = make_results({"lab/own": 0.25}, lower_is_better=["lab/own"])
    report = dataclasses.replace(report, results=MetricResults(report.results | own))
    text = render_run_page(report)
    tile = r'<li[^>]*><span class="name" title="(.*?)".*?<strong>(.*?)</strong>'
    tiles = re.findall(tile, text, re.S)
    assert [name for name, _ in tiles] == [metric.name for metric in METRICS]
    for name, value in tiles:
        expected = report.results[name].value
        assert value == ("–" if expected is None else f"{expected:.4f}")
    assert "Mean accuracy on the bucket just trained: the diagonal." in text
    assert "Not defined: needs a past bucket: k &gt;= 2 (trained on 1)." in text
    assert re.search(r"lab/own</code></th><td>0.2500</td>.*lower is better", text)


def test_tests_within_buckets_have_metrics_next_to_their_charts():
    report = build_report(counts=THREE)
    tests = []
    for bucket in (1, 2, 3):
        tests += inside_bucket(bucket, [[20, 25, 10], list(THREE[bucket])], (50, 50, 50))
    matrix = AnytimeMatrix.from_tests(tests, report.record.matrix)
    results = evaluate_metrics(WITHIN_BUCKET_METRICS, report.record.matrix, tests=matrix)
    combined = MetricResults(report.results | results)
    report = dataclasses.replace(report, results=combined, tests=matrix)
    before, _, section = render_run_page(report).partition('<section id="within-buckets">')
    assert "more metrics" not in before
    for name, result in results.items():
        assert name not in before
        assert re.search(f'title="{name}".*?<strong>{result.value:.4f}</strong>', section, re.S)


@pytest.mark.parametrize("classes", [3, 300])
@pytest.mark.parametrize("protocol", ["iid", "streaming"])
def test_the_page_contains_every_confusion_matrix(classes, protocol):
    predictions = build_predictions(3, classes, 4, protocol=protocol)
    page_answers = read_page_data(render_run_page(build_report(predictions)))["predictions"]
    assert page_answers["classes"] == list(predictions.images.class_names)
    totals = unpack_array(page_answers["totals"], "<u4").reshape(3, classes)
    assert set(page_answers["rows"]) == {"0", "1", "2", "3"}
    for row, packed in page_answers["rows"].items():
        labels = unpack_array(packed, "<u2" if page_answers["wide"] else "u1")
        confusions = np.zeros((3, classes, classes), dtype=int)
        at = 0
        for bucket, truth in itertools.product(range(3), range(classes)):
            for label in labels[at : at + totals[bucket, truth]]:
                confusions[bucket, truth, label] += 1
            at += totals[bucket, truth]
        assert at == len(labels)
        literal = np.zeros_like(confusions)
        images, stored = predictions.images, predictions.rows[int(row)]
        for bucket, truth, label in zip(images.bucket, images.label, stored.labels, strict=True):
            literal[bucket, truth, label] += 1
        assert np.array_equal(confusions, literal)
        # What the script adds up of a row: buckets that are evidence.
        first = int(row) if protocol == "streaming" else 0
        assert np.array_equal(confusions[first:].sum(axis=0), confusion(predictions, int(row)))


def test_the_pages_size_is_limited(monkeypatch):
    predictions = build_predictions(4, 200, 5, skill=0.2)
    page = render_run_page(build_report(predictions))
    assert list(read_page_data(page)["predictions"]["rows"]) == list("01234")
    room = len(read_page_data(page)["predictions"]["rows"]["4"]) + 2000
    monkeypatch.setattr(run_page_module, "MAX_PREDICTION_CHARACTERS", room)
    text = render_run_page(build_report(predictions))
    assert list(read_page_data(text)["predictions"]["rows"]) == ["4"]
    assert len(text) < len(page) - 2 * room
    assert "predictions of the last 1 of 5 rows" in text
    text = render_run_page(build_report(build_predictions(2, run_page_module.MAX_CLASSES + 1, 1)))
    assert read_page_data(text)["predictions"] is None
    assert "not shown for more than 1000 classes" in text


def test_of_very_many_buckets_some_are_shown():
    counts = {row: tuple(range(250)) for row in (0, 250)}
    text = render_run_page(RunReport(
        name="long", run_id="abc", results=MetricResults(),
        record=build_record(counts, (250,) * 250),
    ))  # fmt: skip
    data = read_page_data(text)
    assert len(data["rows"]) == len(data["columns"]) == 100
    assert (data["rows"][0], data["rows"][-1]) == (0, 250)
    assert data["columns"][-1] == 249
    assert data["means"][-1] == ["49.8", 250]
    assert len(text) < 1_500_000
    assert "100 rows and columns of 250 buckets" in text


@pytest.mark.parametrize("protocol", ["iid", "streaming"])
def test_the_page_says_what_streaming_tests(protocol):
    text = render_run_page(build_report(counts=THREE, rows={"protocol": protocol}))
    assert ("Protocol streaming: each bucket" in text) == (protocol == "streaming")


@pytest.mark.parametrize("row", [0, 1])
def test_a_run_with_its_first_row_has_a_page(row):
    assert "of 3 buckets trained" in render_run_page(build_report(counts={row: THREE[row]}))


def test_imported_fractions_have_no_counts():
    row = AccuracyRow.from_values(1, ("a", "b"), (0.5, math.nan))
    record = assemble({format_row_file_name(1): row_record(row, seed=None)})
    report = RunReport(name="x", run_id="y", record=record, results=MetricResults())
    text = render_run_page(dataclasses.replace(report, without_predictions="The run kept none."))
    assert read_page_data(text)["images"] is read_page_data(text)["predictions"] is None
    assert "no seed" in text
    assert "The run kept none." in text


def test_classes_that_come_and_go_are_shown_over_time():
    images = build_predictions(3, 2, 10).images
    label = np.where(images.bucket == 0, 0, np.arange(60) % 2).astype(np.uint16)
    class_rows = build_class_map(dataclasses.replace(images, label=label))
    assert class_rows is not None
    assert [cell["text"] for cell in class_rows["rows"][0]["cells"]] == ["20", "10", "10"]
    assert [cell["style"] for cell in class_rows["rows"][1]["cells"]] == ["x", "v50", "v50"]
    equal = dataclasses.replace(images, label=np.arange(60, dtype=np.uint16) % 2)
    assert build_class_map(equal) is None


def test_classes_with_the_same_shares_in_buckets_of_different_sizes_are_not_shown():
    """Half of 20 images and half of 40 are equal shares."""
    names, label = ("bus", "camera"), np.arange(60) % 2
    assert build_class_map(build_images((20, 40), label, names)) is None
    assert build_class_map(build_images((20, 40), [*[0] * 20, *label[20:]], names)) is not None
