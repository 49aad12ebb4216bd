"""Datasets: files on disk in, a stream of buckets out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import shown
from clear_mlflow.data.checking.content import stream_of
from clear_mlflow.data.embedded import EMBEDDED, LICENCE, embedded_digest, embedded_root
from clear_mlflow.data.fetching.download import clear_folder
from clear_mlflow.data.files import path_text
from clear_mlflow.data.layouts import find_listing, read_any
from clear_mlflow.data.sources import CLEAR, is_own_stream, source_of, stream_name
from clear_mlflow.data.sources._entries import Entry as Entry
from clear_mlflow.data.sources._entries import listing_of as listing_of
from clear_mlflow.data.splits import AUTO, IID, check_protocol
from clear_mlflow.data.splits import Listing as Listing
from clear_mlflow.data.stream import BucketStream


def load_stream(
    dataset: str,
    data_root: str,
    *,
    cache_dir: Path,
    arguments: Mapping[str, Any] | None = None,
    protocol: str = IID,
    split: str = AUTO,
) -> BucketStream:
    """The stream of a dataset under a protocol: every file hashed, nothing decoded.

    Args:
        dataset: the name of an embedded dataset, as ``digits``; a kind of stream of one's own, as
            ``folder``, or the ``package.module:function`` that gives one; any other name is that of
            the dataset that lies at *data_root*, in one of CLEAR's layouts.
        data_root: the dataset's folder; ``auto`` for an embedded one, and for CLEAR's folder below
            ``CLEAR_MLFLOW_DATA``, which is downloaded where it is not there.
        cache_dir: where an embedded dataset is written on first use, and where the hashes of
            files that do not change stay from run to run.
        arguments: values of a stream's own arguments, by name; each other one has its default.
        protocol: ``iid`` or ``streaming``; see :func:`~clear_mlflow.data.splits.choose`.
        split: ``auto``, the number of a 70/30 split, or ``validation``; likewise.

    Raises:
        ConfigError: the protocol or the split is unknown, or an embedded dataset is asked for
            from a folder.
        DataError: the dataset is missing, damaged, or of no known layout.
    """
    check_protocol(protocol, split)
    if data_root == AUTO and dataset in CLEAR:
        data_root = str(clear_folder(dataset))
    if is_own_stream(dataset):
        listing = own_listing(dataset, data_root, cache_dir=cache_dir, arguments=arguments)
        stream = stream_of(
            listing,
            name=stream_name(dataset, data_root, arguments or {}),
            protocol=protocol,
            split=split,
            hashes_in=cache_dir,
        )
        licence = str((arguments or {}).get("licence", "none"))
        return replace(
            stream,
            source=listing.source or path_text(listing.root),
            licence="" if licence == "none" else licence,
        )
    if dataset not in EMBEDDED:
        stream = read_any(
            Path(data_root), name=dataset, protocol=protocol, split=split, hashes_in=cache_dir
        )
        return replace(stream, source=data_root)
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
    # A name is the number of a scan.
    return replace(stream, names_are_clusters=True, source="embedded", licence=LICENCE)


def own_listing(
    dataset: str,
    data_root: str,
    *,
    cache_dir: Path,
    arguments: Mapping[str, Any] | None = None,
) -> Listing:
    """The images of a stream of one's own; nothing is hashed. See :func:`load_stream`.

    Raises:
        ConfigError: an argument is wrong, or a function of the user's own cannot be loaded.
        DataError: the stream is missing, damaged, or is not what its arguments say.
    """
    source = source_of(dataset)
    root = None if data_root == AUTO else Path(data_root)
    listing: Listing = source.listing(
        root, source.Arguments(**(arguments or {})), cache_dir=cache_dir
    )
    return listing
