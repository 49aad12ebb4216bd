"""Datasets: files on disk in, a stream of buckets out."""

from __future__ import annotations

from pathlib import Path

from clear_mlflow.data import digits
from clear_mlflow.data.files import path_text
from clear_mlflow.data.layouts import read_any
from clear_mlflow.data.stream import BucketStream
from clear_mlflow.errors import DataError

EMBEDDED = "digits"
_AUTO = "auto"


def load_stream(dataset: str, data_root: str, *, cache_dir: Path) -> BucketStream:
    """The stream of a dataset: every file hashed, nothing decoded.

    Args:
        dataset: ``digits`` for the embedded dataset; any other name is that of the dataset that
            lies at *data_root*.
        data_root: the dataset's folder; ``auto`` for the embedded one.
        cache_dir: where the embedded dataset is written on first use.

    Raises:
        DataError: the dataset is missing, damaged, or of no known layout.
    """
    if dataset != EMBEDDED:
        if data_root == _AUTO:
            raise DataError(f"dataset {dataset} needs its folder; pass data_root=DIR")
        return read_any(Path(data_root), name=dataset)
    root = digits.digits_root(cache_dir) if data_root == _AUTO else Path(data_root)
    try:
        stream = read_any(root, name=dataset)
    except DataError as error:
        raise DataError(
            f"the embedded dataset is damaged: {error}; or rather delete {path_text(root)} and "
            "run again, which writes it anew"
        ) from error
    if stream.digest != digits.DIGEST:
        raise DataError(
            f"{path_text(root)} is not the embedded dataset as it was written: its digest is "
            f"{stream.digest}, expected {digits.DIGEST}; delete that folder and run again"
        )
    return stream
