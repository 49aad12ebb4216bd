"""Datasets: files on disk in, a stream of buckets out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import shown
from clear_mlflow.data.checking.content import stream_of
from clear_mlflow.data.embedded import EMBEDDED, embedded_digest, embedded_root
from clear_mlflow.data.files import path_text
from clear_mlflow.data.layouts import find_listing, read_any
from clear_mlflow.data.splits import AUTO, IID, check_protocol
from clear_mlflow.data.stream import BucketStream


def load_stream(
    dataset: str, data_root: str, *, cache_dir: Path, protocol: str = IID, split: str = AUTO
) -> BucketStream:
    """The stream of a dataset under a protocol: every file hashed, nothing decoded.

    Args:
        dataset: the name of an embedded dataset, as ``digits``; any other name is that of the
            dataset that lies at *data_root*.
        data_root: the dataset's folder; ``auto``, and nothing else, for an embedded one.
        cache_dir: where an embedded dataset is written on first use, and where the hashes of
            files that do not change stay from run to run.
        protocol: ``iid`` or ``streaming``; see :func:`~clear_mlflow.data.splits.choose`.
        split: ``auto``, the number of a 70/30 split, or ``validation``; likewise.

    Raises:
        ConfigError: the protocol or the split is unknown, or an embedded dataset is asked for
            from a folder.
        DataError: the dataset is missing, damaged, or of no known layout.
    """
    check_protocol(protocol, split)
    if dataset not in EMBEDDED:
        if data_root == AUTO:
            raise DataError(f"dataset {dataset} needs its folder; pass data_root=DIR")
        return read_any(
            Path(data_root), name=dataset, protocol=protocol, split=split, hashes_in=cache_dir
        )
    if data_root != AUTO:  # what is damaged is to be deleted: never a user's own folder
        raise ConfigError(
            f"dataset {dataset} is embedded and reads no folder, but {shown(data_root)} was given; "
            "leave it out"
        )
    root = embedded_root(dataset, cache_dir)
    try:
        listing = find_listing(root, name=dataset)
        stream = stream_of(listing, name=dataset)
    except DataError as error:
        raise DataError(
            f"the embedded dataset is damaged: {error}; or rather delete {path_text(root)} and "
            "run again, which writes it anew"
        ) from error
    expected = embedded_digest(dataset)
    if stream.digest != expected:
        raise DataError(
            f"{path_text(root)} is not the embedded dataset as it was written: its digest is "
            f"{stream.digest}, expected {expected}; delete that folder and run again"
        )
    if (protocol, split) != (IID, AUTO):
        # It is what it should be; its training images, hashed already, are divided another way.
        hashed = replace(listing, images={bucket.key: bucket.train for bucket in stream.buckets})
        stream = stream_of(hashed, name=dataset, protocol=protocol, split=split)
    return replace(stream, names_are_clusters=True)  # a name is the number of a scan
