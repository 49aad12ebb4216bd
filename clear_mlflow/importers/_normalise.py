"""From the numbers in a file to a matrix of fractions: orientation, scale, untrained row, zeros.

Nothing is guessed. RecordError asks for the option that decides, and ConfigError names an option
that contradicts the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.core.dataset import find_row_indices
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.core.untrusted import MAX_BUCKETS
from clear_mlflow.importers._base import (
    EARLIER,
    FORGETTING,
    LINE_AVERAGE,
    MEAN_WEIGHTED,
    NAN,
    WEIGHTED,
    Format,
    ParsedRun,
    PrintedNumber,
    ReadOptions,
    ResultFile,
    check_not_numbered,
    suggest_buckets,
)
from clear_mlflow.importers._rounding import WITHIN_CELLS, find_cell_error, match_number

_Cells: TypeAlias = "NDArray[np.float64]"


class OrientationError(RecordError):
    """Nothing proves whether rows or columns are tests after training."""


@dataclass(frozen=True)
class ImportedRun:
    """One run that was read from a file."""

    matrix: AccuracyMatrix
    metadata: Mapping[str, str]  # strategy, dataset, model and seed, if the file names them
    label: str  # name of the run within its file; empty if it is the only one
    format_name: str
    proof: str = ""  # which averages in the file the matrix fits; empty if there are none


def convert_run(file: ResultFile, file_format: Format, parsed: ParsedRun) -> ImportedRun:
    """Convert a parsed run to a matrix of fractions, by options.

    Applies ``file.options``: makes rows of columns, orders rows by their labels, separates the row
    of the untrained model, and masks future buckets. A score other than accuracy keeps its unit.

    Raises RecordError if the file is ambiguous or invalid, OrientationError if nothing proves the
    orientation, and ConfigError if an option contradicts the file.
    """
    options, score = file.options, _choose_score(file_format, parsed, file.options)
    first = [cell for cell in (*parsed.rows, ())[0] if cell == cell]
    if score.is_accuracy and file_format.is_general and first and min(first) > 100:
        years = suggest_buckets([f"{cell:g}" for cell in first])
        raise RecordError(f"contains {max(first)}, which is not an accuracy: {years}")
    if (
        score.is_accuracy
        and file_format.is_general
        and any(cell > 1 for row in parsed.rows for cell in row)
    ):
        check_not_numbered([[f"{cell:g}" for cell in row] for row in parsed.rows])
    parsed = _sort_rows_by_label(parsed, options)
    rows, buckets, initial = [*parsed.rows], parsed.buckets, parsed.initial
    orientation, proof = _detect_orientation(file_format, parsed, options)
    if orientation == "columns":
        rows = [*_transpose(rows)]
        buckets = buckets if parsed.labels is None else parsed.labels
    if options.initial == "first-row":
        if file_format.marks_initial or initial is not None:
            raise ConfigError(
                f"initial is 'first-row', but the format {file_format.name} itself marks which row "
                "is the untrained model's; leave initial out",
                parameter="initial",
            )
        initial, rows = (rows[0], rows[1:]) if rows else (None, rows)
    cells = _build_array(initial, rows)
    if score.is_accuracy:
        if proof and options.scale == "auto" and 1 < np.nanmax(cells, initial=0) <= 100:
            options = replace(options, scale="percent")  # averages in the file have that unit, too
            proof = f"percent, {proof}"
        cells = _convert_to_fractions(cells, file_format, options)
    num_rows, num_buckets = len(rows), cells.shape[1]
    if num_rows > num_buckets:
        raise RecordError(
            f"has {num_rows} rows for {format_count(num_buckets, 'bucket')}; expected a row per "
            "bucket trained and a column per bucket tested on. If the first row is the untrained "
            "model's, "
            'pass initial="first-row"; if a column is one test after training, '
            'orientation="columns"'
        )
    counts = options.num_instances or parsed.num_instances
    if isinstance(counts, (tuple, list)) and len(counts) == 1:
        counts = [*counts] * num_buckets
    other = options.same_data_as
    if other is not None and counts is None:
        counts = other.num_instances
    values = _mask_future(cells[1:], file_format, options)
    stated = options.bucket_names
    if buckets and stated != [*buckets] and sorted(stated) == sorted(buckets):
        raise ConfigError(
            f"buckets is {safe_repr(','.join(stated))}, but the file has the order "
            f"{safe_repr(','.join(buckets))}; pass columns=... to read columns in another order",
            parameter="buckets",
        )
    buckets = stated or buckets or None
    matrix = AccuracyMatrix(values, cells[0], counts, buckets, score)
    if other is not None and not (
        matrix.buckets == other.buckets
        and np.array_equal(np.array(matrix.num_instances), np.array(other.num_instances))
    ):
        raise ConfigError(
            f"same_data_as names a run on the buckets {safe_repr(other.buckets)} with "
            f"{safe_repr(other.num_instances)} test images; the file has other buckets or numbers",
            parameter="same_data_as",
        )
    if matrix.num_rows == 0 and matrix.initial is None:
        raise RecordError(f"contains no measured {score.name}")
    if matrix.num_instances is not None and score.is_accuracy:
        _check_against_counts(cells, matrix.num_instances)
    proof += f"; {parsed.order}" if proof and parsed.order else parsed.order
    return ImportedRun(matrix, dict(parsed.metadata), parsed.label, file_format.name, proof)


def _build_array(initial: Sequence[float] | None, rows: Sequence[Sequence[float]]) -> _Cells:
    """Stack *initial* (NaN if None) and rows, filled with NaN."""
    lengths = [len(row) for row in rows]
    width = max(lengths, default=0) if initial is None else len(initial)
    if not 1 <= width <= MAX_BUCKETS or len(rows) > MAX_BUCKETS:
        raise RecordError(
            f"contains {format_count(len(rows), 'row')} of up to {format_count(width, 'number')}; "
            f"expected 1 to {MAX_BUCKETS}"
        )
    if any(length not in (width, min(width, i + 1)) for i, length in enumerate(lengths)):
        raise RecordError(
            f"contains rows of {safe_repr(lengths)} numbers; expected a number for each of {width} "
            "buckets in every row, or one more in each row than in the row before"
        )
    cells = np.full((len(rows) + 1, width), NAN)
    for i, row in enumerate([initial or [], *rows]):
        cells[i, : len(row)] = row
    return cells


def _detect_orientation(
    file_format: Format, parsed: ParsedRun, options: ReadOptions
) -> tuple[str, str]:
    """Return the stated or proven orientation, "rows" or "columns", and the proof.

    The proof is a text that names the averages in the file that the matrix fits, or "". An
    orientation that the options state is returned unchecked.
    """
    stated, orientation = options.orientation, parsed.orientation
    is_marked = not file_format.is_general or (
        parsed.initial is not None and orientation != "named"
    )
    if is_marked and stated not in ("auto", "rows" if file_format.is_log else ""):
        raise ConfigError(
            f"orientation is {stated!r}, but the format {file_format.name} itself marks the rows; "
            "leave orientation out",
            parameter="orientation",
        )
    if not is_marked and stated != "auto":
        return stated, ""
    is_jagged = len({*map(len, parsed.rows)}) > 1
    is_proven = is_marked or is_jagged or options.initial == "first-row"
    if orientation in ("auto", "named") and is_proven:
        orientation = "rows"
    printed = parsed.printed if parsed.initial is None else ()
    if orientation not in ("auto", "named") and not printed:
        return orientation, ""
    return _prove_orientation(_build_array(None, parsed.rows)[1:], printed, orientation)


def _sort_rows_by_label(parsed: ParsedRun, options: ReadOptions) -> ParsedRun:
    """Return the run with rows sorted by label, missing ones as NaN."""
    labels, keys, rows = parsed.labels, parsed.buckets, parsed.rows
    orientation = parsed.orientation if options.orientation == "auto" else options.orientation
    if labels is None or (orientation == "columns" and keys is None):
        return parsed
    if orientation == "columns":
        labels, keys, rows = keys, labels, _transpose(rows)
    if len(labels) != len(rows):
        count = format_count(len(rows), "row of numbers", "rows of numbers")
        raise RecordError(f"contains {count}, but names {len(labels)}")
    width = max(map(len, rows), default=0)
    is_stream_order = bool(options.columns) or options.bucket_names == [*(keys or ())]
    keys = keys or options.bucket_names or [""] * width
    try:
        indices = find_row_indices(labels, keys, is_stream_order=is_stream_order)
    except RecordError as error:
        raise RecordError(
            f"{error}; pass row_labels=ignore if the rows are in order from the first bucket on, "
            "columns=... for another order of the columns, or buckets=... to name them"
        ) from error
    last = max(indices, default=-1)
    rows_by_index = dict(zip(indices, rows, strict=True))
    rows = [rows_by_index.get(i, [NAN] * width) for i in range(last + 1)]
    if orientation == "columns":
        return replace(parsed, rows=_transpose(rows))
    if len(rows) > len(labels):  # not square without the rows that are missing
        orientation = "rows"
    printed = [
        replace(n, step=1 + (indices[n.step - 1] if n.name == LINE_AVERAGE else last))
        for n in (parsed.printed if parsed.initial is None else ())
    ]
    printed.sort(key=lambda number: number.step)
    labels = [labels[i] for i in np.argsort(indices)]
    return replace(parsed, rows=rows, labels=labels, printed=printed, orientation=orientation)


def _transpose(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    transposed: list[list[float]] = _build_array(None, rows)[1:].T.tolist()
    return transposed


def _check_against_counts(cells: _Cells, num_instances: NDArray[np.int64]) -> None:
    """Raise RecordError if an accuracy contradicts the number of images.

    It must be h / num_instances for an integer h, exactly or rounded to 1 to 5 decimals.

    cells: fractions, a column per bucket; NaN is skipped. num_instances: test images per bucket.
    """
    difference = np.abs(np.round(cells * num_instances) / num_instances - cells)
    is_possible = np.isnan(cells) | (difference <= 1e-6)
    for digits in range(1, 6):  # accuracies may be rounded
        is_rounded = np.abs(np.round(cells, digits) - cells) < 1e-12
        is_possible |= is_rounded & (difference <= 0.5 * 10**-digits)
    if not is_possible.all():
        row, column = np.argwhere(~is_possible)[0]
        raise RecordError(
            f"contains {cells[row, column]:g}, which no number of {num_instances[column]} test "
            "images results in; leave num_instances out, also for means over runs"
        )


def _choose_score(file_format: Format, parsed: ParsedRun, options: ReadOptions) -> Score:
    """Return the score of the numbers, from the file or options."""
    score = parsed.score
    if options.score not in (ACCURACY, score):
        if not file_format.is_general or score != ACCURACY:
            raise ConfigError(
                f"score is {options.score.name!r}, but the file (format {file_format.name}) "
                f"contains {score.name}, {score.better} is better; leave score out",
                parameter="score",
            )
        score = options.score
    if not score.is_accuracy and options.scale != "auto":
        raise ConfigError(
            f"scale is {options.scale!r}, which applies only to accuracies, but the score is "
            f"{score.name}; leave scale out",
            parameter="scale",
        )
    return score


def _convert_to_fractions(cells: _Cells, file_format: Format, options: ReadOptions) -> _Cells:
    """Check the range of accuracies, and divide percent by 100."""
    scale = file_format.scale or options.scale
    if options.scale not in ("auto", scale):
        raise ConfigError(
            f"scale is {options.scale!r}, but the format {file_format.name} contains accuracies "
            f"as {file_format.scale}; leave scale out",
            parameter="scale",
        )
    unit, limit = ("percentage", 100) if scale == "percent" else ("fraction", 1)
    smallest, largest = np.nanmin(cells, initial=0), np.nanmax(cells, initial=0)
    if smallest < 0:
        raise RecordError(f"contains {smallest}; an accuracy is never below 0")
    if largest > limit:
        advice = 'if they are percent, pass scale="percent"'
        if scale != "auto":
            advice = f"expected accuracies from 0 to {limit}"
        raise RecordError(f"contains {largest}, which is not a {unit}: {advice}")
    if scale == "percent" and file_format.scale is None and 0 < largest <= 1:
        raise RecordError(f'contains no accuracy above {largest} %; scale="percent" seems wrong')
    return cells / limit


def _mask_future(values: _Cells, file_format: Format, options: ReadOptions) -> _Cells:
    """Set untested future cells to NaN, and drop untrained rows of zeros."""
    future = ~np.tri(*values.shape, dtype=np.bool_)
    measured = values[future & ~np.isnan(values)]
    if file_format.is_general and options.future == "auto" and measured.size and not measured.any():
        raise RecordError(
            'contains 0 for every future bucket: pass future="not-tested" if future buckets '
            'were not tested, or future="tested" if the accuracy there is 0'
        )
    if options.future != "not-tested":
        return values
    if measured.any():
        raise RecordError(
            "contains accuracies above the diagonal other than 0; future=not-tested cannot be true"
        )
    masked: _Cells = np.where(future, NAN, values)
    # A matrix that began as zeros has rows of zeros at its end if the run stopped early.
    trained = np.flatnonzero(np.nan_to_num(masked).any(axis=1))
    return masked[: trained[-1] + 1 if trained.size else 0]


def _prove_orientation(
    cells: _Cells, printed: Sequence[PrintedNumber], marked_orientation: str
) -> tuple[str, str]:
    """Return the orientation that fits printed averages and empty cells, with proof.

    A matrix that is not square is "rows" unless marked. The text names the averages in the file
    that the matrix fits ("" without averages). cells: NaN or 0 where nothing was measured. printed:
    averages from the same file. marked_orientation: "rows" or "columns" if names or the format
    prove it, or "auto".
    """
    is_square = cells.shape[0] == cells.shape[1] > 1
    if marked_orientation in ("auto", "named") and is_square:
        default = "rows" if marked_orientation == "named" else ""
        proven = _find_orientation_by_shape(cells) or default
        matrices = {"rows": cells, "columns": cells.T}
    else:
        proven = "columns" if marked_orientation == "columns" else "rows"
        matrices = {proven: cells.T if proven == "columns" else cells}
    grades = {name: _match_printed(matrix, printed) for name, matrix in matrices.items()}
    fitting = [name for name, grade in grades.items() if grade]
    if not proven:
        fitting = [name for name in fitting if grades[name] == max(grades.values())]
    last_numbers = {number.name: number for number in printed}.values()
    numbers = ", ".join(f"{number.name} {number.value:g}" for number in last_numbers)
    results = [f"with {name} as tests: {_describe_averages(m)}" for name, m in matrices.items()]
    if not fitting or proven not in (*fitting, ""):
        raise RecordError(
            f"prints {numbers}, but its matrix has other averages after one of its tests "
            f"({'; '.join(results)}): it is truncated, damaged or transposed. For a plain matrix "
            'next to other averages, pass orientation="rows" or orientation="columns"'
        )
    if not proven and len(fitting) > 1:
        raise OrientationError(
            "does not show whether each row or each column is the test after one bucket "
            f'({"; ".join(results)}); pass orientation="rows" or orientation="columns"'
        )
    orientation = proven or fitting[0]
    if any(number.name == WEIGHTED and not number.weights for number in printed):
        numbers += f" ({WEIGHTED}: only within the range of the row)"
    return orientation, f"{orientation} as training: fits {numbers}" if printed else ""


def _find_orientation_by_shape(cells: _Cells) -> str:
    """Return "rows", "columns" or "" by empty cells, or raise RecordError.

    Empty means NaN or 0. The tests are columns if all cells below the diagonal are empty, and some
    above and none on it. Nothing is proven, "", if neither all cells below nor all above it are
    empty, unless the matrix is symmetric. Otherwise, the tests are rows.
    """
    filled = np.nan_to_num(cells)
    has_past, has_future = np.tril(filled, -1).any(), np.triu(filled, 1).any()
    if has_past and has_future and not np.array_equal(filled, filled.T):
        return ""
    if has_past or not has_future or not np.diagonal(filled).all():
        return "rows"
    if len(cells) == 2 and cells[1, 0] == 0:
        raise RecordError(
            'contains 0 below the diagonal: pass orientation="columns" if a column is one test '
            'after training, or orientation="rows" if a row is'
        )
    return "columns"


def _match_printed(cells: _Cells, printed: Sequence[PrintedNumber]) -> int:
    """Return 2 if all printed numbers fit, 1 within rounding, else 0.

    They fit in either unit. Without printed numbers, it is 2.
    """
    cell_error, grades = find_cell_error(cells), []
    for unit in (1.0, 100.0, 0.01):
        best = []
        for number in printed:
            sensitivity = 2 if number.name == FORGETTING else 1
            # The program may have rounded the cells like the number before it computed with them,
            # and 32-bit floats differ in the seventh digit.
            error = max(sensitivity * cell_error * unit, number.precision)
            slack = 0.01 * number.precision + 2e-7
            roundings = [
                match_number(
                    value * unit, number.value, 2 * number.precision, cell_error=error, slack=slack
                )
                for value in _compute_candidates(cells, number, printed)
            ]
            exact = any(rounding not in ("", WITHIN_CELLS) for rounding in roundings)
            best.append(2 if exact else int(any(roundings)))
        grades.append(min(best, default=2))
    return max(grades)


def _compute_candidates(
    cells: _Cells, number: PrintedNumber, printed: Sequence[PrintedNumber]
) -> Sequence[np.floating]:
    """Compute a printed number's values by each of its usual definitions.

    Returns [] if the matrix lacks the row, or the number is not defined after one bucket.

    cells: accuracies, a row per test. number: its name, such as :data:`FORGETTING`, and its step
    choose the definitions. printed: all numbers that the file prints: MEAN_WEIGHTED is the mean of
    those called WEIGHTED.
    """
    step, last = number.step, number.step - 1
    if not 0 < step <= min(cells.shape):
        return []
    row = np.nan_to_num(cells[last, :step])
    if number.name == WEIGHTED:
        if number.weights:
            return [np.average(row, weights=number.weights[:step])]
        return [np.clip(number.value, row.min(), row.max())]  # any weights are possible
    if number.name == MEAN_WEIGHTED:
        totals = {n.step: n.value for n in printed if n.name == WEIGHTED and n.step <= step}
        return [np.mean([*totals.values()])]
    tested = np.nan_to_num(cells[:step, :step])
    if number.name == EARLIER:
        return [np.tril(tested, -1).sum() / (step * last / 2)] if last else []
    if number.name == FORGETTING:
        past = tested[:last, :last]
        best, own = past.max(axis=0, initial=0), np.diagonal(past)
        drops = [np.maximum(best, row[:last]) - row[:last], best - row[:last], own - row[:last]]
        # LibContinual leaves out the task before the last, but divides by the number of all.
        return [drop.sum() / max(last, 1) for drop in (*drops, drops[2][:-1])]
    if number.name == LINE_AVERAGE:
        # The mean of a complete line fits in both orientations, and so it proves neither.
        lines = [line[~np.isnan(line)] for line in (cells[last], cells[:, last])]
        return [row.mean(), *(line.mean() for line in lines if line.size)]
    sums = np.tril(tested).sum(axis=1)
    averages = sums / np.arange(1, step + 1)
    return [averages[-1], averages.mean(), sums.sum() / (step * (step + 1) / 2)]


def _describe_averages(cells: _Cells) -> str:
    """Return "average 0.7, forgetting 0.3" after the last row, for messages."""
    filled, last = np.nan_to_num(cells), len(cells) - 1
    forgetting = filled[:, :last].max(axis=0) - filled[last, :last]
    average = filled[last, : last + 1].mean()
    return f"average {average:.3g}" + (f", forgetting {forgetting.mean():.3g}" if last else "")
