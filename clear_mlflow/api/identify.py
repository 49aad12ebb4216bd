"""Find which definition, orientation, scale, rounding and step produces a published number."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clear_mlflow.api._arguments import validate_arguments
from clear_mlflow.core.errors import ConfigError, RecordError, check_unused
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.text import safe_repr
from clear_mlflow.importers import (
    WITHIN_CELLS,
    OrientationError,
    ReadOptions,
    find_cell_error,
    load_file,
    match_number,
    parse_runs,
)
from clear_mlflow.metrics import ALL_METRICS, MATRIX, Metric, adapt_metrics, compute_values

_GRADES = ("rounded", "cut off", WITHIN_CELLS)  # best first
_PLUS_MINUS = re.compile(r"\s*(?:\+/?-|±|\$?\\pm\$?)\s*")


@dataclass(frozen=True, kw_only=True)
class Match:
    """A definition that produces a number, and how both are read.

    Attributes:
        names: metrics with this definition, for example ``renate/forgetting``.
        formula: formula of the definition.
        step: number of buckets trained when the definition produces the number.
        orientation: ``rows`` if the matrix was used as it is, ``columns`` if it was transposed.
        scale: unit of the number: ``fraction``, ``percent``, or ``score`` for another score.
        rounding: ``rounded`` to the decimals of the number, ``cut off`` after them, or ``within
            cells``: equal only within the rounding of the matrix.
        value: value before rounding, in the unit of the number; the mean of several matrices.
        matrix: name of the matrix, if a file contains several, or ``mean of 3``.
        is_negated: True if the value has the other sign than the definition's.
        deviation: deviation of the value over several matrices, or None without one.
        statistic: how it is computed, for example ``standard error``; kinds that fit alike
            are separated by commas.
    """

    names: tuple[str, ...]
    formula: str
    step: int
    orientation: str
    scale: str
    rounding: str
    value: float
    matrix: str
    is_negated: bool = False
    deviation: float | None = None
    statistic: str = ""

    @property
    def reading(self) -> str:
        """How matrix and number are read, in a few words."""
        orientation = "transposed" if self.orientation == "columns" else ""
        parts = self.matrix, self.statistic, orientation, self.scale, self.rounding
        return ", ".join(filter(None, parts))

    @property
    def number(self) -> str:
        """The value, and the deviation if there is one."""
        deviation = "" if self.deviation is None else f" +- {self.deviation:.4g}"
        return f"{self.value:.6g}{deviation}"


@dataclass(frozen=True, kw_only=True)
class Identification:
    """The definitions that produce a number, the likeliest first.

    Attributes:
        number: number as it was passed.
        matches: definitions that produce it, or an empty tuple.
        nearest: without matches, a definition that produces the number with the other sign, or
            else the nearest one at the last step.
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
    nearest: Match | None
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
        if self.nearest is not None:
            sign = " with the other sign" if self.nearest.is_negated else ""
            count += f" (the nearest is {self.nearest.names[0]}{sign}: {self.nearest.number})"
        line = f"{self.number}: {count}; by chance: about {self.expected_by_chance:.2g}"
        if not self.cell_error:
            return line
        return (
            f"{line}; within the rounding of the cells, +- {self.cell_error:g}: {num_within} more; "
            f"by chance: about {self.expected_within_cells:.2g}"
        )


# A definition's value, its error from rounded cells, and its value in each matrix.
_Candidate: TypeAlias = tuple[Match, float, tuple[float, ...]]


@validate_arguments
def identify(
    matrix: Sequence[AccuracyMatrix | Path | str] | AccuracyMatrix | Path | str,
    values: Sequence[str | float],
    *,
    format: str = "auto",  # noqa: A002
    scale: Literal["auto", "fraction", "percent"] = "auto",
    future: Literal["auto", "tested", "not-tested"] = "auto",
    orientation: Literal["auto", "rows", "columns"] = "auto",
    rows: str | None = None,
    num_instances: str | None = None,
) -> list[Identification]:
    """Find which definitions produce published numbers, and how many by chance.

    Tries every built-in metric of the matrix, published variants included, at each step, on the
    matrix as it is and transposed, as a fraction and in percent, rounded and cut off. If the matrix
    is rounded itself, values within its rounding are listed, too. Nothing is stored.

    Args:
        matrix: file of results in any format that import reads, id of a run, or path of a bundle;
            in Python, an AccuracyMatrix as well. Several are the seeds of one method, and the mean
            over them is tried.
        values: published numbers with all their digits; in Python, text keeps a final zero. Of
            several seeds also with a deviation, such as "66.91 +- 1.20".
        format: format of the files. auto: detected from each file.
        scale: unit of the accuracies. auto: as the file defines it.
        future: meaning of zeros above the diagonal: tested with accuracy 0, or not tested. auto:
            as the file defines it.
        orientation: whether each row or each column is the test after one bucket. auto: as the
            file shows it.
        rows: regular expression that finds the rows in the lines of a log: its one group is the
            list of accuracies.
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
    sources = [matrix] if isinstance(matrix, (AccuracyMatrix, Path, str)) else matrix
    numbers = [(text, _parse_number(text)) for text in map(str, values)]
    if not numbers or not sources:
        name, expected = ("matrix", "a file") if numbers else ("values", "numbers such as 6.145")
        raise ConfigError(f"{name} is empty; expected {expected}")
    if not any(map(_is_file, sources)):
        check_unused(
            {
                "format": (format, "auto"),
                "scale": (scale, "auto"),
                "future": (future, "auto"),
                "orientation": (orientation, "auto"),
                "rows": (rows, None),
            },
            ", but no file of results is passed, which it would apply to; leave it out",
        )
    options = ReadOptions(scale=scale, future=future, orientation=orientation, rows=rows)
    matrices = [pair for source in sources for pair in _read_matrices(source, options, format)]
    if num_instances is not None:
        matrices = [(name, _replace_counts(read, num_instances)) for name, read in matrices]
    cell_error = max(_find_cell_error(read) for _, read in matrices)
    single = [candidate for pair in matrices for candidate in _iter_candidates(*pair)]
    means = _average_candidates(single, len(matrices))
    results = []
    for text, number in numbers:
        candidates = means if len(sources) > 1 or len(number) > 1 else single
        if single and not candidates and len(matrices) == 1:
            raise ConfigError(
                f"values contains {safe_repr(text)}, a mean over seeds; pass a matrix for each seed"
            )
        if not candidates:
            raise RecordError("the matrices share no row after training; no metric is defined")
        results.append(_identify_number(text, number, candidates, cell_error))
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


def is_number(text: str) -> bool:
    """Return True for numbers that :func:`identify` accepts, such as "66 +- 1"."""
    try:
        return bool(_parse_number(text))
    except ConfigError:
        return False


def _is_file(source: object) -> bool:
    """Return True if a source is neither a run nor a bundle."""
    if not isinstance(source, (Path, str)):
        return False
    path = Path(source)
    is_bundle = path.is_dir() or ".tar.xz" in str(path)
    return not is_bundle and bool(path.suffix or path.exists())


def _read_matrices(
    source: AccuracyMatrix | Path | str, options: ReadOptions, file_format: str
) -> list[tuple[str, AccuracyMatrix]]:
    """Load the matrices of a file, run or bundle, with names."""
    if isinstance(source, AccuracyMatrix):
        return [("", source)]
    if not isinstance(source, (Path, str)) or source == "":
        raise ConfigError(
            f"matrix is {safe_repr(source, 100)}; expected a file of results, the id of a run, or "
            "a bundle"
        )
    if not _is_file(source):
        from clear_mlflow.api.load import load

        return [("", load(source).record.masked_matrix)]
    path = Path(source)
    try:
        runs = parse_runs(load_file(path, options), file_format)
    except OrientationError:  # both orientations are tried in any case
        runs = parse_runs(load_file(path, replace(options, orientation="rows")), file_format)
    return [(run.label, run.matrix) for run in runs]


def _replace_counts(matrix: AccuracyMatrix, num_instances: str) -> AccuracyMatrix:
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
    """Return half a unit of the cells' last decimal, 0 if unrounded."""
    cells = matrix.values if matrix.initial is None else np.vstack([matrix.initial, matrix.values])
    error = find_cell_error(cells)
    if matrix.num_instances is None:
        return error
    correct = cells * matrix.num_instances
    is_count = np.isnan(cells) | (np.abs(correct.round() - correct) < 1e-6)
    # Nothing is hidden if two counts of correct images differ in the decimals.
    return 0.0 if is_count.all() and error * matrix.num_instances.max() < 1 else error


def _iter_candidates(name: str, matrix: AccuracyMatrix) -> Iterator[_Candidate]:
    """Yield the value of each definition at each step.

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
                yield match, cell_error * definitions[first][0].sensitivity, (value,)


def _average_candidates(candidates: Sequence[_Candidate], num_matrices: int) -> list[_Candidate]:
    """Return the means of definitions that all matrices have."""
    groups: dict[Any, list[_Candidate]] = {}
    for match, error, values in candidates:
        key = match.names, match.step, match.orientation, match.scale
        groups.setdefault(key, []).append((match, error, values))
    means = []
    for group in groups.values():
        values = tuple(value for _, _, single in group for value in single)
        if len(values) == num_matrices > 1:
            mean, name = sum(values) / len(values), f"mean of {len(values)}"
            match = replace(group[0][0], value=mean, matrix=name)
            means.append((match, max(error for _, error, _ in group), values))
    return means


def _identify_number(
    text: str,
    parts: Sequence[tuple[float, float]],
    candidates: Sequence[_Candidate],
    cell_error: float,
) -> Identification:
    """Find the values that round to a number, or in percent do.

    parts: the number and the unit of its last digit, and the same of its deviation if it has one.
    candidates: values as fractions. cell_error: the largest of the cells.
    """
    (target, unit), *deviations = parts
    is_accuracy = candidates[0][0].scale == "fraction"
    factors = _compute_deviation_factors(len(candidates[0][2]))
    matches: list[Match] = []
    misses: list[Match] = []
    expected = np.zeros(2)
    for scale, factor in (("fraction", 1), ("percent", 100)) if is_accuracy else (("score", 1),):
        errors = factor * np.array([error for _, error, _ in candidates])
        values = factor * np.array([candidate.value for candidate, _, _ in candidates])
        window = max(float(np.ptp(values)) / 20, unit, unit / 2 + errors.max())
        for (candidate, _, seeds), value, error in zip(candidates, values, errors, strict=True):
            match, chances = replace(candidate, scale=scale, value=float(value)), np.ones(2)
            roundings = [match_number(value, target, unit, cell_error=error)]
            for deviation in deviations:
                fields, chances = _match_deviation(
                    *deviation, factor * np.std(seeds), error, factors
                )
                roundings.append(fields.pop("rounding"))
                match = replace(match, **fields)
            if all(roundings):
                matches.append(replace(match, rounding=max(roundings, key=_GRADES.index)))
            elif all(roundings[1:]) and match_number(-value, target, unit, cell_error=error):
                misses.append(replace(match, value=-match.value, is_negated=True))
            else:
                misses.append(match)
            if abs(value - target) <= window:
                expected += chances * _compute_widths(unit, error) / (2 * window)

    def get_distance(match: Match) -> tuple[bool, float, float]:
        return not match.is_negated, -match.step, abs(match.value - target)

    rows = [match for match in misses if match.orientation == "rows"]
    return Identification(
        number=text,
        matches=tuple(matches),
        nearest=None if matches else min(rows, key=get_distance),
        num_definitions=len({candidate.names for candidate, _, _ in candidates}),
        expected_by_chance=float(expected[0]),
        expected_within_cells=float(expected[1] - expected[0]),
        cell_error=cell_error * (100 if is_accuracy and abs(target) > 1 else 1),
    )


def _compute_widths(unit: float, error: float) -> NDArray[np.float64]:
    """Return the lengths of the intervals of exact and rounded matches."""
    exact = 1.5 * unit  # rounded or cut off
    return np.array([exact, exact + error + max(error - unit / 2, 0)])


def _compute_deviation_factors(num_values: int) -> dict[str, float]:
    """Return each deviation's ratio to the standard deviation of n values."""
    if num_values < 2:
        return {}
    from scipy.special import stdtrit  # the command line must load without it

    error = 1 / math.sqrt(num_values - 1)
    return {
        "standard deviation (n - 1)": error * math.sqrt(num_values),
        "standard deviation (n)": 1.0,
        "standard error": error,
        "half of a 95 % interval (t)": error * float(stdtrit(num_values - 1, 0.975)),
        "half of a 95 % interval (normal)": error * 1.96,
    }


def _match_deviation(
    printed: float, unit: float, computed: float, error: float, factors: Mapping[str, float]
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """Compare the deviation of values over seeds with a printed one.

    Returns rounding ("" if no kind fits), deviation and statistic of a Match, and the chances
    that an unrelated deviation, equally likely up to twice the printed one, fits exactly or at all.
    """
    values = {statistic: factor * computed for statistic, factor in factors.items()}
    fits = {
        statistic: match_number(value, printed, unit, cell_error=factors[statistic] * error)
        for statistic, value in values.items()
    }
    rounding = min(filter(None, fits.values()), key=_GRADES.index, default="")
    names = (
        [statistic for statistic in fits if fits[statistic] == rounding]
        if rounding
        else [*fits][:1]
    )
    largest = max(2 * printed, unit)
    widths = [_compute_widths(unit, factors[k] * error) for k in values if values[k] <= largest]
    fields = {
        "rounding": rounding,
        "deviation": values[names[0]],
        "statistic": ", ".join(names),
    }
    return fields, np.minimum(sum(widths, np.zeros(2)) / largest, 1)


def _parse_number(text: str) -> list[tuple[float, float]]:
    """Return a number and a deviation with their last digits' units.

    Raises ConfigError if one is not finite, or the deviation is negative.
    """
    parts: list[tuple[float, float]] = []
    for part in _PLUS_MINUS.split(text, maxsplit=1):
        try:
            decimal = Decimal(part)
        except InvalidOperation:
            decimal = Decimal("nan")
        exponent = decimal.as_tuple().exponent
        if not isinstance(exponent, int) or abs(exponent) > 100 or (parts and decimal < 0):
            raise ConfigError(f"values contains {safe_repr(text)}; expected numbers such as 6.145")
        parts.append((float(decimal), 10.0**exponent))
    return parts
