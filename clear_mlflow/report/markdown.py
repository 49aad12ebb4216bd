"""The description of a run in Markdown, which MLflow's page of the run shows first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from clear_mlflow.core.matrix import TEST, AccuracyMatrix, iter_measured_rows
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import format_count, truncate
from clear_mlflow.metrics import MetricResult, MetricResults, get_headlines

# MLflow truncates longer descriptions without a message. Counted in bytes, because some of its
# stores count bytes.
MAX_NOTE_BYTES = 7_900
PAD = "&nbsp;&nbsp;"  # the UI gives cells no padding; one wide cell widens its column
_MAX_KEY = 24  # characters

# Characters that Markdown may interpret: of spans, of addresses that become links, and at the start
# of a line of headings and lists.
_SPECIAL = re.compile(
    r"[\\`*\[\]<>&|~@]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.|^(?:[#+=-]|\d+[.)])", re.I
)


def format_run_description(
    record: Record,
    results: MetricResults,
    *,
    metadata: Mapping[str, str] | None = None,
    report: str | None = None,
) -> str:
    """Return matrix and metrics of a run in Markdown, within MLflow's limit.

    A matrix that is too large is left out, and then as many of the last metrics as necessary.

    metadata: further names and values to show. report: address of the run's page, or None.
    """
    matrix, split = record.masked_matrix, record.dataset.split
    num_trained = f"{record.rows[-1]} of {matrix.num_buckets}"
    items = {
        "dataset": record.dataset.name,
        "protocol": record.dataset.protocol,
        **({} if split == TEST else {"measured on": f"{split} images"}),
        "seed": "none" if record.seed is None else str(record.seed),
        "buckets trained": num_trained,
        **(metadata or {}),
        "digest": record.dataset.digest,
    }
    if record.missing:
        items["rows not stored"] = ", ".join(map(str, record.missing))
    # MLflow's page folds a description after about four lines: the most important ones come first.
    classes = ", with every class" if matrix.score.is_accuracy else ""
    link = [] if report is None else [f"[**Report**{classes}]({report})", ""]
    details = " · ".join(f"{escape(name, 40)} {escape(value, 80)}" for name, value in items.items())
    buckets = format_count(matrix.num_buckets, "bucket")
    heading = escape(f"{record.dataset.name}, {record.rows[-1]} of {buckets}", 100)
    head = [f"### {heading}", "", *link, *_format_headline(results, matrix.score), details, ""]
    tail = ["", *_format_metrics(results.values())]
    text = "\n".join([*head, *_format_matrix(matrix), *tail]) + "\n"
    if count_bytes(text) <= MAX_NOTE_BYTES:
        return text
    note = f"The matrix of {matrix.num_buckets} buckets is too large for this page; see the "
    text = "\n".join([*head, note + "artifacts in accuracy&#95;matrix.", *tail])
    while count_bytes(text) > MAX_NOTE_BYTES:  # with many custom metrics
        text = text.rpartition("\n")[0]
    return text + "\n"


def _format_headline(results: MetricResults, score: Score) -> list[str]:
    """Return the headline metrics in a line, then "", or [] without any."""
    summary = results.values_by_name
    values = [
        f"{metric.headline} **{score.format_cell(summary[metric.name])}{score.unit}**"
        for metric in get_headlines(score)
        if metric.name in summary
    ]
    if values and not score.is_accuracy:
        values[0] = f"{escape(score.label, 80)}: {values[0]}"
    return [", ".join(values), ""] if values else []


def _format_matrix(matrix: AccuracyMatrix) -> list[str]:
    rows = [["", *(_clean_key(key) for key in matrix.buckets)]]
    for i, name, values in iter_measured_rows(matrix):
        label = "initial" if i < 0 else f"after {_clean_key(name)}"
        rows.append([label, *map(matrix.score.format_cell, values)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([label.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip()
        for label, *cells in rows
    ]
    caption = f"Rows: bucket trained last. Columns: bucket tested. {escape(matrix.score.label, 80)}"
    return [caption, "", "```", *lines, "```"]


def _clean_key(key: str) -> str:
    """Cut a key to 24 characters, without punctuation that ends code blocks."""
    return re.sub(r"[!-,/:-@\[-^`{-~]", "_", truncate(key, _MAX_KEY))


def _format_metrics(results: Iterable[MetricResult]) -> list[str]:
    table = [f"| metric | {PAD}value{PAD} | |", "|:--|--:|:--|"]
    for result in results:
        name = f"`{result.name}`" if result.is_built_in else escape(result.name, 60)
        table.append(f"| {name} | {result.text} | {escape(result.note, 100)} |")
    return table


def escape(text: str, limit: int) -> str:
    """Cut an untrusted text to *limit* characters, and escape its Markdown.

    >>> escape("er_ace, lr=0.1: <b>, www.x.y", 60)
    'er_ace, lr=0.1: &#60;b&#62;, www&#46;x.y'
    """
    return _SPECIAL.sub(
        lambda match: "".join(f"&#{ord(char)};" for char in match[0]), truncate(text, limit)
    )


def append_lines(
    lines: Sequence[str], extra: Sequence[str], limit: int, noun: str, end: str = ""
) -> list[str]:
    """Append lines up to *limit* bytes, and a count of omitted ones.

    noun: what an extra line is, as in "… 3 more warnings". end: what follows.
    """
    combined = list(lines)
    for i, line in enumerate(extra):
        if count_bytes("\n".join([*combined, line])) > limit - 60:
            return [*combined, "", f"… {format_count(len(extra) - i, noun)} {end}".rstrip()]
        combined.append(line)
    return combined


def count_bytes(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text.encode("utf-8", "replace"))
