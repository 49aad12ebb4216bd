"""What is wrong with a dataset, reported to whoever asks: a loader stops, a check continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from clear_mlflow.core.errors import DataError

# Told the kind of a problem, where it is, and the error that a loader stops with.
Report: TypeAlias = Callable[[str, Path, DataError], None]

# What is wrong, in the order in which it is listed.
KINDS = {
    "structure": "the loader cannot read the dataset",
    "class-list": "a class list is not as it should be",
    "metadata": "a metadata file is not as it should be",
    "missing": "metadata names an image that is not there",
    "unreadable": "an image cannot be decoded",
    "empty-class": "a class has no images in a bucket",
    "train-and-test": "an image is in a training and in a test set",
    "across-buckets": "an image is in more than one bucket",
    "across-classes": "an image is in more than one class",
    "within-bucket": "an image is twice in one bucket and class",
    "not-an-image": "a file among the images that is no image",
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, with the path where it is."""

    kind: str  # a key of KINDS
    path: Path
    detail: str
    others: tuple[Path, ...] = ()  # the further copies of a doubled image


def stop(kind: str, path: Path, error: DataError) -> None:
    """Report to a loader: a training must not start."""
    raise error


@contextmanager
def reported(report: Report, kind: str, path: Path) -> Iterator[None]:
    """What goes wrong inside is reported; where that does not stop, the rest is left out."""
    try:
        yield
    except DataError as error:
        report(kind, path, error)
