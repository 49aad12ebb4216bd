"""The description of a run: what MLflow's page about it shows first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from clear_mlflow.core.matrix import TEST, AccuracyMatrix, named_rows
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import truncate
from clear_mlflow.metrics import MetricResult, MetricResults, get_headlines

# MLflow cuts a longer description off, silently, and with it the end of a table. Counted in bytes,
# because some of its stores do.
MAX_NOTE_BYTES = 7_900
PAD = "&nbsp;&nbsp;"  # the UI gives cells no padding; one wide cell widens its column
_LONGEST_KEY = 24

# Marks of spans, of links that write themselves, and at a line's start of headings and lists.
_READ = re.compile(
    r"[\\`*\[\]<>&|~@]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.|^(?:[#+=-]|\d+[.)])", re.I
)


def description(
    record: Record,
    results: MetricResults,
    *,
    metadata: Mapping[str, str] | None = None,
    report: str | None = None,
) -> str:
    """Matrix and metrics of a run, a few facts and its page's address, below MLflow's limit."""
    matrix = record.masked_matrix
    state = f"{record.rows[-1]} of {matrix.num_buckets}"
    known = {
        "dataset": record.dataset.name,
        "protocol": record.protocol,
        **({} if record.split == TEST else {"measured on": f"{record.split} images"}),
        "seed": "none" if record.seed is None else str(record.seed),
        "buckets trained": state,
        **(metadata or {}),
        "digest": record.dataset.digest,
    }
    if record.missing:
        known["rows not stored"] = ", ".join(map(str, record.missing))
    # MLflow's page folds a description after some four lines: what matters most comes first.
    classes = ", with every class" if matrix.score.is_accuracy else ""
    link = [] if report is None else [f"[**Report**{classes}]({report})", ""]
    told = " · ".join(f"{escaped(name, 40)} {escaped(text, 80)}" for name, text in known.items())
    headline = _headline(results, matrix.score)
    heading = escaped(f"{record.dataset.name}, {state} buckets", 100)
    head = [f"### {heading}", "", *link, *headline, told, ""]
    tail = ["", *_metrics(results.values())]
    text = "\n".join([*head, *_matrix(matrix), *tail]) + "\n"
    if num_bytes(text) <= MAX_NOTE_BYTES:
        return text
    note = f"The matrix of {matrix.num_buckets} buckets is too large for this page; see the "
    text = "\n".join([*head, note + "artifacts in accuracy&#95;matrix.", *tail])
    while num_bytes(text) > MAX_NOTE_BYTES:  # of many own metrics
        text = text.rpartition("\n")[0]
    return text + "\n"


def _headline(results: MetricResults, score: Score) -> list[str]:
    summary = results.values_by_name
    values = [
        f"{metric.headline} **{score.cell(summary[metric.name])}{score.unit}**"
        for metric in get_headlines(score)
        if metric.name in summary
    ]
    if values and not score.is_accuracy:
        values[0] = f"{escaped(score.label, 80)}: {values[0]}"
    return [", ".join(values), ""] if values else []


def _matrix(matrix: AccuracyMatrix) -> list[str]:
    """As text of one width: the UI takes the alignment out of tables, and leaves such a block."""
    head = ["", *(_plain(key) for key in matrix.buckets)]
    rows = [head]
    for i, name, values in named_rows(matrix):
        label = "initial" if i < 0 else f"after {_plain(name)}"
        rows.append([label, *map(matrix.score.cell, values)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([label.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip()
        for label, *cells in rows
    ]
    label = matrix.score.caption if matrix.score.is_accuracy else escaped(matrix.score.label, 80)
    told = f"{label}; row: trained through, column: tested on."
    return [told, "", "```", *lines, "```"]


def _plain(key: str) -> str:
    """A key where character references mean nothing; nothing in it ends the block."""
    return re.sub(r"[!-,/:-@\[-^`{-~]", "_", truncate(key, _LONGEST_KEY))


def _metrics(lines: Iterable[MetricResult]) -> list[str]:
    table = [f"| metric | {PAD}value{PAD} | |", "|:--|--:|:--|"]
    for line in lines:
        name = f"`{line.name}`" if line.is_built_in else escaped(line.name, 60)
        table.append(f"| {name} | {line.text} | {escaped(line.note, 100)} |")
    return table


def escaped(text: str, limit: int) -> str:
    """A text from outside as nothing but text: what Markdown would read, as character references.

    >>> escaped("er_ace, lr=0.1: <b>, www.x.y", 60)
    'er_ace, lr=0.1: &#60;b&#62;, www&#46;x.y'
    """
    plain = truncate(text, limit)
    return _READ.sub(lambda match: "".join(f"&#{ord(char)};" for char in match[0]), plain)


def filled(lines: Sequence[str], more: Iterable[str], limit: int, rest: str) -> list[str]:
    """Lines, and as many more as there is room for in so many bytes; *rest* is what is left out."""
    found, waiting = list(lines), list(more)
    for position, line in enumerate(waiting):
        if num_bytes("\n".join([*found, line])) > limit - 60:
            return [*found, "", f"… {len(waiting) - position} {rest}"]
        found.append(line)
    return found


def num_bytes(text: str) -> int:
    """How much of :data:`MAX_NOTE_BYTES` a text takes."""
    return len(text.encode("utf-8", "replace"))
