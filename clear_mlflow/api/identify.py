"""Find the formula behind published numbers: the declaration of function and command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from clear_mlflow.api._arguments import check_arguments
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.importers import ReadOptions, load_file, read_runs
from clear_mlflow.importers._proofs import OrientationError
from clear_mlflow.metrics._identify import Identification, identify_numbers


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
    matrix as it is and transposed, as a fraction and in percent, rounded and cut off. Accuracies in
    the matrix that are rounded themselves can change the last digit of a value. Nothing is stored.

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
        The matches of each number, the likeliest first.

    Raises:
        ConfigError: a value is not a number, or an option contradicts the file.
        RecordError: the matrix is ambiguous or damaged.
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
    return identify_numbers(matrices, values)


def _set_counts(matrix: AccuracyMatrix, num_instances: str) -> AccuracyMatrix:
    """Return the matrix with other numbers of test images, or raise ConfigError."""
    counts = num_instances.split(",")
    if not all(count.strip().isdecimal() for count in counts):
        raise ConfigError(f"num_instances is {num_instances!r}; expected numbers such as 550,545")
    weights = [int(count) for count in counts] * (matrix.num_buckets if len(counts) == 1 else 1)
    return AccuracyMatrix(matrix.values, matrix.initial, weights, matrix.buckets, matrix.score)
