"""Find the formula behind published numbers: the declaration of function and command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from clear_mlflow.api._arguments import check_arguments
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.importers import ReadOptions, load_file, read_runs
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
        num_instances: numbers of test images of a file's buckets, separated by commas, or one for
            all; averages that are weighted with images or classes need them.

    Returns:
        The matches of each number, the likeliest first.

    Raises:
        ConfigError: a value is not a number, or an option contradicts the file.
        RecordError: the matrix is ambiguous or damaged.
        TrackingError: the run does not exist, or the store cannot be reached.
    """
    check_arguments(identify, dict(locals()))
    if isinstance(matrix, AccuracyMatrix):
        return identify_numbers({"": matrix}, values)
    path = Path(matrix)
    if path.is_dir() or ".tar.xz" in str(path) or not (path.suffix or path.exists()):
        from clear_mlflow.api.load import load

        return identify_numbers({"": load(matrix).record.masked_matrix}, values)
    counts = [] if num_instances is None else num_instances.split(",")
    if not all(count.strip().isdecimal() for count in counts):
        raise ConfigError(f"num_instances is {num_instances!r}; expected numbers such as 550,545")
    options = ReadOptions(
        scale=scale,
        future=future,
        orientation=orientation,
        num_instances=tuple(map(int, counts)) or None,
    )
    runs = read_runs(load_file(path, options), format)
    return identify_numbers({run.label: run.matrix for run in runs}, values)
