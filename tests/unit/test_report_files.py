"""Matrix files and the run's description: exact numbers, and escaped texts."""

import csv
import html
import io
import json
import math
import re

import numpy as np
import pytest
from courses import explain, make_results
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from stored_values import row_record

from clear_mlflow import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.record import DatasetIdentity, Record, assemble, row_file_name
from clear_mlflow.metrics import ALL_METRICS, METRICS, summarize
from clear_mlflow.report.exports import format_matrix_csv, format_matrix_json
from clear_mlflow.report.markdown import escape, format_run_description

NAN = math.nan
printable = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=100)


@st.composite
def matrices(draw):
    width = draw(st.integers(1, 5))
    k = draw(st.integers(0, width))
    cell = st.floats(0, 1) | st.just(NAN)
    row = st.lists(cell, min_size=width, max_size=width)
    return AccuracyMatrix(
        np.array(draw(st.lists(row, min_size=k, max_size=k))).reshape(k, width),
        draw(st.none() | row),
        draw(st.none() | st.lists(st.integers(1, 2**53), min_size=width, max_size=width)),
        draw(st.lists(printable, min_size=width, max_size=width, unique=True)),
    )


@given(matrices())
def test_a_matrix_round_trips_through_json(matrix):
    """Full precision, null for unmeasured cells."""
    content = json.loads(format_matrix_json(matrix), parse_constant=pytest.fail)
    assert content["schema"] == {"name": "clear_mlflow/accuracy_matrix", "version": "1.0"}
    values = np.array(content["values"], dtype=float).reshape(-1, matrix.num_buckets)
    again = AccuracyMatrix(values, content["initial"], content["num_instances"], content["buckets"])
    assert again.equals(AccuracyMatrix(matrix.values, matrix.initial, *counts_and_keys(matrix)))


def counts_and_keys(matrix):
    return matrix.num_instances, matrix.buckets


@pytest.mark.slow
@given(matrices())
def test_cells_round_trip_through_csv(matrix):
    """Full precision, empty for unmeasured cells, one line per row."""
    header, *lines = csv.reader(io.StringIO(format_matrix_csv(matrix)))
    assert header[0] == "trained_through"
    assert [key.removeprefix("'") for key in header[1:]] == [
        key.removeprefix("'") for key in matrix.buckets
    ]
    cells = [[float(cell) if cell else NAN for cell in line[1:]] for line in lines]
    expected = [*([] if matrix.initial is None else [matrix.initial]), *matrix.values]
    np.testing.assert_array_equal(cells, np.array(expected).reshape(np.shape(cells)))


@pytest.mark.parametrize("key", ["=1+1", "+1", "-1", "@SUM(A1)", "＝1", '=HYPERLINK("x","y")'])
def test_csv_contains_no_formulas(key):
    """So that a bucket's name runs in no spreadsheet."""
    text = format_matrix_csv(AccuracyMatrix([[0.5]], buckets=[key]))
    header, line = csv.reader(io.StringIO(text))
    assert header[1] == f"'{key}"
    assert line[0] == f"'{key}"


def build_stored_record(matrix: AccuracyMatrix, **metadata) -> Record:
    """Return a record with this matrix's counts of 1,000 test images per bucket."""
    counts = [round(1000 * v) for v in matrix.values.ravel()]
    width = matrix.num_buckets
    rows = [counts[i : i + width] for i in range(0, len(counts), width)]
    initial = [100] * width
    records = {
        row_file_name(number): row_record(
            AccuracyRow(number, matrix.buckets, tuple(row), (1000,) * width),
            protocol=metadata.get("protocol", "iid"),
            dataset=DatasetIdentity(metadata.get("name", "clear10"), "sha256:abc"),
        )
        for number, row in enumerate([initial, *rows])
        if number not in metadata.get("without", ())
    }
    return assemble(records)


def describe(record: Record, metrics=METRICS, **options) -> str:
    summary = summarize(record.matrix, record.protocol, metrics)
    return format_run_description(
        record, make_results(summary, explain(record.matrix, record.protocol, metrics)), **options
    )


def test_description_shows_matrix_and_metrics():
    text = describe(build_stored_record(AccuracyMatrix([[0.9, 0.6], [0.5, 0.8]])))
    lines = text.splitlines()
    assert lines[0] == "### clear10, 2 of 2 buckets"
    assert lines[2].startswith("in-domain **85.0 %**, next-domain **60.0 %**")
    start = lines.index("```")
    assert lines[start : start + 6] == [
        "```",
        "            1     2",
        "initial  10.0  10.0",
        "after 1  90.0  60.0",
        "after 2  50.0  80.0",
        "```",
    ]
    assert "| `clear/backward_transfer` | 0.5000 |  |" in lines
    assert "| `renate/backward_transfer` | -0.4000 |  |" in lines
    assert "| `renate/forgetting` | 0.4000 | lower is better |" in lines


def test_the_description_of_a_partial_run_names_missing_rows_and_the_reason():
    """Undefined metrics have their reason."""
    text = describe(
        build_stored_record(AccuracyMatrix([[0.9, 0.6, 0.1], [0.5, 0.8, 0.1]]), without=(0, 1))
    )
    assert "buckets trained 2 of 3" in text
    assert "rows not stored 0, 1" in text
    assert re.search(r"^after 1 +– +– +–$", text, re.MULTILINE)
    assert "| `renate/forgetting` | – | row 1, column 1 was not measured |" in text
    assert "nan" not in text


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.text(max_size=300))
def test_description_stays_below_the_limit_and_on_its_lines(width, fact):
    """MLflow truncates longer ones. Untrusted text ends no line or cell, and starts no tag."""
    matrix = AccuracyMatrix(
        np.full((width, width), 0.5), buckets=[f"|<b>{j}`" for j in range(width)]
    )
    text = describe(build_stored_record(matrix), ALL_METRICS, metadata={"strategy": fact})
    assert len(text.encode("utf-8", "replace")) < 8000
    assert text.count("\n### ") == 0
    foreign = re.sub(rf"`({'|'.join(m.name for m in ALL_METRICS)})`|^```$", "", text, flags=re.M)
    assert not re.search(r"[<>`\[\]\\]", foreign)
    block = text.split("\n```\n")
    assert len(block) in (1, 3)  # the matrix, where it fits, and nothing ends its block
    assert len(block) == 1 or block[1].count("\n") == width + 1
    assert "`clear/in_domain_accuracy` | 0.5000" in text


def test_description_leaves_out_what_is_too_large():
    """A matrix of 25 buckets fits, and one of 60 does not."""
    texts = {
        n: describe(build_stored_record(AccuracyMatrix(np.full((n, n), 0.5)))) for n in (25, 60)
    }
    assert re.search(r"^after 1( +50\.0){25}$", texts[25], re.MULTILINE)
    assert "too large for this page" in texts[60]
    assert "after 1" not in texts[60]


PUNCTUATED = st.text(st.sampled_from("ab1 _*`~[]()<>&|\\\\!#+-=.:/@\"'{}"), max_size=30)


@given(PUNCTUATED.map(" ".join).map(str.strip) | PUNCTUATED.map(str.strip))
@example("[x](http://evil)")
@example("![](x)")
@example("<script>")
@example("**b** _c_ ~~d~~")
@example("1. a")
@example("- a")
@example("&lt;")
def test_untrusted_text_is_shown_unchanged(text):
    """By a Markdown renderer, in lists and table cells."""
    read = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    spaces = re.compile(r"\s+")
    for source, tags in (
        (f"- {escape(text, 99)}", r"<ul>\s<li>(.*)</li>\s</ul>\s"),
        (f"| {escape(text, 99)} |\n|--|", r"<table>\s<thead>\s<tr>\s<th>(.*)</th>.*"),
    ):
        (rendered,) = re.fullmatch(tags, read.render(source), re.S).groups()
        assert "<" not in rendered
        assert spaces.sub(" ", html.unescape(rendered)) == spaces.sub(" ", text)
    for address in ("https://evil", "www.evil.org", "a@evil.org"):  # these links need no mark
        assert not re.search(r"://|www\.|@", escape(address, 99))
    assert escape("er_ace, lr=0.1, der++, 100% joint", 99) == "er_ace, lr=0.1, der++, 100% joint"
