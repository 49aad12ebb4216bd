"""Find which definition, orientation, scale, rounding and step produces a published number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clear_mlflow.api._arguments import check_arguments
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.text import safe_repr
from clear_mlflow.importers import (
    WITHIN_CELLS,
    OrientationError,
    ReadOptions,
    find_cell_error,
    load_file,
    match_number,
    read_runs,
)
from clear_mlflow.metrics import ALL_METRICS, MATRIX, Metric, adapt_metrics, compute_values

_GRADES = ("rounded", "cut off", WITHIN_CELLS)  # best first


@dataclass(frozen=True, kw_only=True)
class Match:
    """A definition that produces a number, and how the matrix and the number must be read.

    Attributes:
        names: metrics with this definition, for example ``renate/forgetting``.
        formula: formula of the definition.
        step: number of buckets trained when the definition produces the number.
        orientation: ``rows`` if the matrix was used as it is, ``columns`` if it was transposed.
        scale: unit of the number: ``fraction``, ``percent``, or ``score`` for another score.
        rounding: ``rounded`` to the decimals of the number, ``cut off`` after them, or ``within
            cells``: equal only within the rounding of the matrix.
        value: value before rounding, in the unit of the number.
        matrix: name of the matrix, if a file contains several.
    """

    names: tuple[str, ...]
    formula: str
    step: int
    orientation: str
    scale: str
    rounding: str
    value: float
    matrix: str

    @property
    def reading(self) -> str:
        """How matrix and number are read, in a few words."""
        orientation = "transposed" if self.orientation == "columns" else ""
        return ", ".join(filter(None, (self.matrix, orientation, self.scale, self.rounding)))


@dataclass(frozen=True, kw_only=True)
class Identification:
    """The definitions that produce a number, the likeliest first.

    Attributes:
        number: number as it was passed.
        matches: definitions that produce it, or an empty tuple.
        num_definitions: number of definitions that were tried.
        expected_by_chance: number of matches, rounded or cut off, to expect if the number has
            nothing to do with the matrix, but is equally likely anywhere near it: within 5 % of the
            range of all values.
        expected_within_cells: the same for matches within the rounding of the matrix.
        cell_error: half a unit of the last decimal of the matrix, in percent for accuracies if the
            number is above 1; 0 if the matrix is not rounded.
    """

    number: str
    matches: tuple[Match, ...]
    num_definitions: int
    expected_by_chance: float
    expected_within_cells: float
    cell_error: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        num_within = sum(match.rounding == WITHIN_CELLS for match in self.matches)
        count = f"none of {self.num_definitions} definitions within rounding"
        if num_exact := len(self.matches) - num_within:
            count = f"matches: {num_exact}"
        line = f"{self.number}: {count}; by chance: about {self.expected_by_chance:.2g}"
        if not self.cell_error:
            return line
        return (
            f"{line}; within the rounding of the cells, +- {self.cell_error:g}: {num_within} more; "
            f"by chance: about {self.expected_within_cells:.2g}"
        )


def identify(
    matrix: AccuracyMatrix | Path | str,
    values: Sequence[str | float],
    *,
    format: str = "auto",  # noqa: A002
    scale: Literal["auto", "fraction", "percent"] = "auto",
    future: Literal["auto", "tested", "not-tested"] = "auto",
    orientation: Literal["auto", "rows", "columns"] = "auto",
    num_instances: str | None = None,
) -> list[Identification]:
    """Find which definitions produce published numbers, and how many would match by chance.

    Tries every built-in metric of the matrix, published variants included, at each step, on the
    matrix as it is and transposed, as a fraction and in percent, rounded and cut off. If the matrix
    is rounded itself, values within its rounding are listed, too. Nothing is stored.

    Args:
        matrix: file of results in any format that import reads, id of a run, or path of a bundle;
            in Python, an AccuracyMatrix as well.
        values: published numbers with all their digits; in Python, text keeps a final zero.
        format: format of a file. auto: detected from the file.
        scale: unit of the accuracies in a file. auto: as the file defines it.
        future: meaning of zeros above the diagonal in a file: tested with accuracy 0, or not
            tested. auto: as the file defines it.
        orientation: whether a row or a column of a file is one test after training. auto: as the
            file shows it.
        num_instances: numbers of test images of the buckets, separated by commas, or one for all.
            Weighted averages need them; numbers of classes weight by class.

    Returns:
        The matches of each number, the likeliest first: those whose way to read matrix and number
        explains the most numbers, then those that do not need the rounding of the matrix, those as
        the matrix is, rounded, and at the last step.

    Raises:
        ConfigError: a value is not a number, or an option contradicts the file.
        RecordError: the matrix is ambiguous or damaged, or num_instances does not fit it.
        TrackingError: the run does not exist, or the store cannot be reached.
    """
    check_arguments(identify, dict(locals()))
    if matrix == "":
        raise ConfigError("matrix is ''; expected a file of results, the id of a run, or a bundle")
    path = Path("" if isinstance(matrix, AccuracyMatrix) else matrix)
    if isinstance(matrix, AccuracyMatrix):
        matrices = {"": matrix}
    elif path.is_dir() or ".tar.xz" in str(path) or not (path.suffix or path.exists()):
        from clear_mlflow.api.load import load

        matrices = {"": load(matrix).record.masked_matrix}
    else:
        options = ReadOptions(scale=scale, future=future, orientation=orientation)
        try:
            runs = read_runs(load_file(path, options), format)
        except OrientationError:  # both orientations are tried in any case
            runs = read_runs(load_file(path, replace(options, orientation="rows")), format)
        matrices = {run.label: run.matrix for run in runs}
    if num_instances is not None:
        matrices = {name: _set_counts(m, num_instances) for name, m in matrices.items()}
    candidates = [pair for name, m in matrices.items() for pair in _iter_candidates(name, m)]
    if not candidates:
        raise RecordError("the matrix lacks rows after training, and so its metrics are undefined")
    cell_error = max(map(_find_cell_error, matrices.values()))
    results = [_identify_number(number, candidates, cell_error) for number in values]
    num_explained: Counter[tuple[str, str, str]] = Counter()
    for result in results:
        exact = [match for match in result.matches if match.rounding != WITHIN_CELLS]
        for matches in (exact, result.matches):  # a number within the rounding counts half
            num_explained.update({*map(_get_reading_without_rounding, matches)})

    def get_rank(match: Match) -> tuple[float, ...]:
        reading, grade = _get_reading_without_rounding(match), _GRADES.index(match.rounding)
        is_transposed = match.orientation == "columns"
        return -num_explained[reading], grade == 2, is_transposed, grade, -match.step

    return [replace(r, matches=tuple(sorted(r.matches, key=get_rank))) for r in results]


def _set_counts(matrix: AccuracyMatrix, num_instances: str) -> AccuracyMatrix:
    """Return the matrix with other numbers of test images: "550,545", or "550"."""
    counts = num_instances.split(",")
    if not all(count.strip().isdecimal() for count in counts):
        raise ConfigError(
            f"num_instances is {num_instances!r}; expected numbers such as 550,545",
            parameter="num_instances",
        )
    weights = [int(count) for count in counts] * (matrix.num_buckets if len(counts) == 1 else 1)
    return AccuracyMatrix(matrix.values, matrix.initial, weights, matrix.buckets, matrix.score)


def _get_reading_without_rounding(match: Match) -> tuple[str, str, str]:
    """Return how matrix and number are read, except for the rounding."""
    return match.matrix, match.orientation, match.scale


def _find_cell_error(matrix: AccuracyMatrix) -> float:
    """Return half a unit of the last decimal of the cells, or 0 if they are not rounded."""
    cells = matrix.values if matrix.initial is None else np.vstack([matrix.initial, matrix.values])
    error = find_cell_error(cells)
    if matrix.num_instances is None:
        return error
    correct = cells * matrix.num_instances
    is_count = np.isnan(cells) | (np.abs(correct.round() - correct) < 1e-6)
    # Nothing is hidden if two counts of correct images differ in the decimals.
    return 0.0 if is_count.all() and error * matrix.num_instances.max() < 1 else error


def _iter_candidates(name: str, matrix: AccuracyMatrix) -> Iterator[tuple[Match, float]]:
    """Yield the value of each definition at each step as a Match, and its error from rounding.

    Metrics with the same function are one definition. A square matrix is transposed as well.
    """
    orientations, cell_error = {"rows": matrix}, _find_cell_error(matrix)
    if matrix.initial is None and matrix.num_rows == matrix.num_buckets:
        counts, buckets, score = matrix.num_instances, matrix.buckets, matrix.score
        transposed = AccuracyMatrix(matrix.values.T, None, counts, buckets, score)
        orientations["columns"] = transposed
    same_definition: dict[Any, list[Metric]] = {}
    for metric in adapt_metrics([m for m in ALL_METRICS if m.needs == MATRIX], matrix.score):
        same_definition.setdefault(metric.function, []).append(metric)
    definitions = {metrics[0].name: metrics for metrics in same_definition.values()}
    for orientation, oriented in orientations.items():
        for step in range(1, oriented.num_rows + 1):
            first_metrics = [metrics[0] for metrics in definitions.values()]
            for first, value in compute_values(oriented.after(step), first_metrics)[0].items():
                match = Match(
                    names=tuple(metric.name for metric in definitions[first]),
                    formula=definitions[first][0].formula,
                    step=step,
                    orientation=orientation,
                    scale="fraction" if matrix.score.is_accuracy else "score",
                    rounding="",
                    value=value,
                    matrix=name,
                )
                yield match, cell_error * definitions[first][0].sensitivity


def _identify_number(
    number: str | float, candidates: Sequence[tuple[Match, float]], cell_error: float
) -> Identification:
    """Find the values that round to a number, or in percent do.

    candidates: values as fractions, with their errors. cell_error: the largest of the cells.
    """
    target, unit = _parse_number(number)
    is_accuracy = candidates[0][0].scale == "fraction"
    matches: list[Match] = []
    expected, expected_within = 0.0, 0.0
    for scale, factor in (("fraction", 1), ("percent", 100)) if is_accuracy else (("score", 1),):
        values = factor * np.array([candidate.value for candidate, _ in candidates])
        errors = factor * np.array([error for _, error in candidates])
        for (candidate, _), value, error in zip(candidates, values, errors, strict=True):
            if rounding := match_number(value, target, unit, cell_error=error):
                match = replace(candidate, scale=scale, rounding=rounding, value=float(value))
                matches.append(match)
        window = max(float(np.ptp(values)) / 20, unit, unit / 2 + errors.max())
        near = errors[np.abs(values - target) <= window]
        expected += len(near) * 1.5 * unit / (2 * window)  # rounded or cut off: 1.5 units wide
        wider = near + np.maximum(near - unit / 2, 0)  # below and above these 1.5 units
        expected_within += float(wider.sum()) / (2 * window)
    return Identification(
        number=str(number),
        matches=tuple(matches),
        num_definitions=len({candidate.names for candidate, _ in candidates}),
        expected_by_chance=expected,
        expected_within_cells=expected_within,
        cell_error=cell_error * (100 if is_accuracy and abs(target) > 1 else 1),
    )


def _parse_number(number: str | float) -> tuple[float, float]:
    """Return a number and the unit of its last digit. Raises ConfigError if it is not finite."""
    try:
        decimal = Decimal(str(number))
    except InvalidOperation:
        decimal = Decimal("nan")
    exponent = decimal.as_tuple().exponent
    if not isinstance(exponent, int) or abs(exponent) > 100:
        raise ConfigError(f"values contains {safe_repr(number)}; expected numbers such as 6.145")
    return float(decimal), 10.0**exponent
