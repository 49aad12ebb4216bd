"""Tables with a line per value or per step, as trackers of experiments export them.

W&B's history and CSV export have a line per step, MLflow's metrics, Aim's data frames and the
Parquet files of Neptune's exporter a line per value.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from clear_mlflow.core import untrusted
from clear_mlflow.core.dataset import parse_label_numbers
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS, MAX_RUNS
from clear_mlflow.importers._base import (
    NAN,
    Format,
    ParsedRun,
    ReadOptions,
    ResultFile,
    check_columns,
    is_cell,
    is_number,
    parse_cell,
)
from clear_mlflow.importers.log_rows import search_lines

# By the number of columns that the user names. Without metric and value, each metric is a column.
_ROLES: Final = {
    1: ("step",),
    2: ("run", "step"),
    3: ("step", "metric", "value"),
    4: ("run", "step", "metric", "value"),
}
_EVERY_NAME = "(.+)"


class LongTable(Format):
    """CSV and Parquet with a line per value, or a column per metric, for the option ``table``."""

    name = "long-table"
    is_general = True
    max_bytes = untrusted.MAX_LOG_BYTES

    def matches(self, file: ResultFile) -> bool:
        """Return True if the options state a table of metrics."""
        return file.options.table

    def parse(self, file: ResultFile) -> Iterator[ParsedRun]:
        """Yield the table's runs.

        Raises RecordError if no metric matches, a cell is not a number, or a value is there twice,
        and ConfigError if the options do not name the columns.
        """
        options = file.options
        roles = dict(zip(_ROLES.get(len(options.columns), ()), options.columns, strict=False))
        if not options.table or not roles:
            raise ConfigError(
                f"columns is {safe_repr(','.join(options.columns))}; pass table=true and the names "
                "of the columns run,step,metric,value or step,metric,value, or, if each metric is "
                "a column, run,step or step",
                parameter="columns",
            )
        runs: dict[str, dict[tuple[str, str], float]] = {}
        for location, run, step, bucket, value in _iter_values(file, roles):
            cells = runs.setdefault(run, {})
            if cells.setdefault((step, bucket), value) != value:
                of_run = f" of run {safe_repr(run)}" if run else ""
                raise RecordError(
                    f"contains {cells[step, bucket]:g} and {value:g} ({location}) for bucket "
                    f"{safe_repr(bucket)} at step {safe_repr(step)}{of_run}; pass columns=... "
                    "with the column of runs, or a table with one value for each"
                )
            if len(runs) > MAX_RUNS:
                raise RecordError(f"contains more than {MAX_RUNS} runs")
        for run, cells in runs.items():
            yield _build_run(cells, options, run if len(runs) > 1 else "")


def _iter_values(
    file: ResultFile, roles: Mapping[str, str]
) -> Iterator[tuple[str, str, str, str, float]]:
    """Yield location, run, step, bucket and value of each bucket's cell."""
    names, columns = _parse_column_names(file), [*roles.values()]
    check_columns(columns, names)
    if is_long := "metric" in roles:
        lines = _iter_records(file, [roles["metric"]])
        metrics = [*dict.fromkeys(cells[0] for _, cells in lines)]
    else:
        metrics = [name for name in names if name not in columns]
    if len(metrics) > MAX_RUNS:
        raise RecordError(f"contains more than {MAX_RUNS} metrics")
    expression = file.options.row_metric or _EVERY_NAME
    matches = search_lines(expression, metrics, name="row_metric", method="fullmatch")
    buckets = {metrics[number - 1]: bucket for number, bucket in matches if bucket}
    if len({*buckets.values()}) < len(buckets):
        raise RecordError(
            f"has several metrics of one bucket among {safe_repr([*buckets])}, by row_metric "
            f"{safe_repr(expression)}; pass an expression that matches one for each bucket"
        )
    if not buckets:
        raise RecordError(
            f"contains no metric that row_metric, {safe_repr(expression)}, matches completely; "
            f"its metrics are {safe_repr(metrics)}"
        )
    unit = "row" if _is_parquet(file) else "line"
    for number, cells in _iter_records(file, columns if is_long else [*columns, *buckets]):
        record = dict(zip(roles, cells, strict=False))
        step = record["step"]
        if is_long:
            values = [(record["metric"], roles["value"], record["value"])]
        else:
            texts = cells[len(columns) :]
            values = [(name, name, text) for name, text in zip(buckets, texts, strict=True)]
        for metric, column, text in values:
            if metric not in buckets or not text:
                continue
            location = f"{unit} {number}, column {safe_repr(column)}"
            if not is_cell(text):
                raise RecordError(
                    f"contains {safe_repr(text)} in {location}; expected a number, or nothing"
                )
            if not step:
                raise RecordError(f"contains no step in {unit} {number}; expected one with a value")
            if (value := parse_cell(text)) == value:
                yield location, record.get("run", ""), _format_step(step), buckets[metric], value


def _build_run(
    cells: Mapping[tuple[str, str], float], options: ReadOptions, label: str
) -> ParsedRun:
    """Build a run by step and bucket, sorting steps that are numbers."""
    steps, keys = ([*dict.fromkeys(names)] for names in zip(*cells, strict=True))
    if len(steps) > MAX_BUCKETS + 1 or len(keys) > MAX_BUCKETS:
        raise RecordError(
            f"contains {format_count(len(steps), 'step')} and {format_count(len(keys), 'bucket')} "
            f"of a run; expected a step for each bucket trained, at most {MAX_BUCKETS}"
        )
    are_numbers, numbers = all(map(is_number, steps)), parse_label_numbers(keys)
    if are_numbers:
        steps.sort(key=float)
    if numbers:
        keys = [key for _, key in sorted(zip(numbers, keys, strict=True))]
    elif sorted(options.bucket_names) == sorted(keys):
        keys = options.bucket_names
    rows = [[cells.get((step, key), NAN) for key in keys] for step in steps]
    # Steps such as 500 and 1000 show the order of the rows, and the bucket only if none is missing.
    num_rows = len(steps) - (options.initial == "first-row")
    is_complete = are_numbers and num_rows == len(keys)
    has_future = any(cell == cell for i, row in enumerate(rows) for cell in row[i + 1 :])
    is_ordered = numbers or keys == options.bucket_names or not has_future
    return ParsedRun(
        rows=rows,
        buckets=keys,
        labels=None if is_complete or options.row_labels == "ignore" else steps,
        orientation="rows",
        order="" if is_ordered else "buckets in the order of the table; --buckets states another",
        label=label,
    )


def _format_step(step: str) -> str:
    """Return a step without the decimals that pandas adds to integers."""
    if not is_number(step) or not (number := float(step)).is_integer():
        return step
    return str(int(number))


def _is_parquet(file: ResultFile) -> bool:
    return file.content.startswith(b"PAR1")


def _parse_column_names(file: ResultFile) -> list[str]:
    if _is_parquet(file):
        with _open_parquet(file) as opened:
            return [*opened.schema_arrow.names]
    return next((cells for _, cells in _iter_csv(file)), [])


def _iter_records(file: ResultFile, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield number and texts of each line, or Parquet row from 1."""
    if _is_parquet(file):
        yield from _iter_parquet(file, columns)
        return
    lines = _iter_csv(file)
    _, names = next(lines)
    indices = [names.index(name) for name in columns]
    for number, cells in lines:
        yield number, [cells[i] if i < len(cells) else "" for i in indices]


def _iter_csv(file: ResultFile) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of each line, names first, or raise RecordError."""
    text = untrusted.decode_text(file.content)
    header = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=header.count), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, [cell.strip() for cell in cells]
            if reader.line_num > untrusted.MAX_LINES:
                raise RecordError(f"contains more than {untrusted.MAX_LINES} lines")
    except csv.Error as error:
        raise RecordError(f"is not CSV in line {reader.line_num}: {error}") from error


def _open_parquet(file: ResultFile, columns: Sequence[str] = ()) -> Any:
    """Open a Parquet file whose *columns* of texts are read as dictionaries."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(pa.BufferReader(file.content), read_dictionary=[*columns])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RecordError(f"is not readable as Parquet: {safe_repr(str(error), 200)}") from error


def _iter_parquet(file: ResultFile, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of each row, or raise RecordError.

    Each distinct text is unpacked once: a long one in a million rows stays one text.
    """
    import pyarrow as pa

    numbers, num_bytes = itertools.count(1), 0
    try:
        with _open_parquet(file, columns) as opened:
            for index in range(opened.num_row_groups):
                table = opened.read_row_group(index, columns=[*columns])
                num_bytes += table.nbytes
                if num_bytes > untrusted.MAX_TABLE_BYTES or len(table) > untrusted.MAX_LINES:
                    raise RecordError("is too large when it is unpacked")
                table.validate(full=True)
                for cells in zip(*(_iter_texts(table[name]) for name in columns), strict=True):
                    yield next(numbers), [*cells]
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise RecordError(f"is not readable as Parquet: {safe_repr(str(error), 200)}") from error


def _iter_texts(column: Any) -> Iterator[str]:
    """Yield the cells of an Arrow column as strings, "" for null."""
    import pyarrow as pa

    for chunk in column.chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        texts = encoded.dictionary.cast(pa.string()).to_pylist()
        for index in encoded.indices.to_pylist():
            yield "" if index is None else (texts[index] or "").strip()
