"""The description of a run in Markdown: its size is limited, and texts are escaped."""

import html
import re

import numpy as np
import pytest
from courses import explain, make_results
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from stored_values import row_record

from clear_mlflow import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.record import Record, assemble, format_row_file_name
from clear_mlflow.metrics import ALL_METRICS, METRICS, summarize
from clear_mlflow.report.markdown import escape, format_run_description


def build_stored_record(matrix: AccuracyMatrix, **metadata) -> Record:
    counts = [round(1000 * v) for v in matrix.values.ravel()]
    width = matrix.num_buckets
    rows = [counts[i : i + width] for i in range(0, len(counts), width)]
    initial = [100] * width
    records = {
        format_row_file_name(number): row_record(
            AccuracyRow(number, matrix.buckets, tuple(row), (1000,) * width),
            protocol=metadata.get("protocol", "iid"),
            dataset={"name": metadata.get("name", "clear10"), "digest": "sha256:abc"},
        )
        for number, row in enumerate([initial, *rows])
        if number not in metadata.get("without", ())
    }
    return assemble(records)


def describe(record: Record, metrics=METRICS, **options) -> str:
    summary = summarize(record.matrix, record.dataset.protocol, metrics)
    results = make_results(summary, explain(record.matrix, record.dataset.protocol, metrics))
    return format_run_description(record, results, **options)


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
    matrix = AccuracyMatrix([[0.9, 0.6, 0.1], [0.5, 0.8, 0.1]])
    text = describe(build_stored_record(matrix, without=(0, 1)))
    assert "buckets trained 2 of 3" in text
    assert "rows not stored 1" in text
    assert re.search(r"^after 1 +– +– +–$", text, re.MULTILINE)
    assert "| `renate/forgetting` | – | row 1, column 1 was not measured |" in text
    assert "nan" not in text


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(1, 70), st.text(max_size=300))
def test_description_stays_below_the_limit_and_on_its_lines(width, fact):
    """MLflow truncates longer ones. Untrusted text ends no line or cell, and starts no tag."""
    buckets = [f"|<b>{j}`" for j in range(width)]
    matrix = AccuracyMatrix(np.full((width, width), 0.5), buckets=buckets)
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
    matrices = {n: AccuracyMatrix(np.full((n, n), 0.5)) for n in (25, 60)}
    texts = {n: describe(build_stored_record(matrix)) for n, matrix in matrices.items()}
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
