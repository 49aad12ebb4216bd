"""Datasets: files on disk in, a stream of buckets out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.checking.content import stream_of
from clear_mlflow.data.embedded import EMBEDDED, LICENCE, embedded_digest, embedded_root
from clear_mlflow.data.fetching.download import clear_folder
from clear_mlflow.data.files import path_text
from clear_mlflow.data.layouts import find_listing
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
    """The stream of a dataset, as ``train`` names one: every file hashed, nothing decoded."""
    check_protocol(protocol, split)
    if data_root == AUTO and dataset in CLEAR:
        data_root = str(clear_folder(dataset))
    if dataset in EMBEDDED:
        return _embedded(dataset, data_root, cache_dir, protocol, split)
    if is_own_stream(dataset):
        listing = own_listing(dataset, data_root, cache_dir=cache_dir, arguments=arguments)
        source = listing.source or path_text(listing.root)
    else:
        listing, source = find_listing(Path(data_root), name=dataset), data_root
    given = arguments or {}
    name = stream_name(dataset, data_root, given)
    stream = stream_of(listing, name=name, protocol=protocol, split=split, hashes_in=cache_dir)
    licence = str(given.get("licence", "none"))
    return replace(stream, source=source, licence="" if licence == "none" else licence)


def _embedded(
    dataset: str, data_root: str, cache_dir: Path, protocol: str, split: str
) -> BucketStream:
    if data_root != AUTO:  # what is damaged is to be deleted: never a user's own folder
        raise ConfigError(
            f"dataset {dataset} is embedded and reads no folder, but {safe_repr(data_root)} was "
            "given; leave it out"
        )
    root = embedded_root(dataset, cache_dir)
    try:
        listing = own_listing("folder", str(root), cache_dir=cache_dir)
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
    return replace(stream, source="embedded", licence=LICENCE)


def own_listing(
    dataset: str,
    data_root: str,
    *,
    cache_dir: Path,
    arguments: Mapping[str, Any] | None = None,
) -> Listing:
    """The images of a stream of one's own; nothing is hashed. See :func:`load_stream`."""
    source = source_of(dataset)
    root = None if data_root == AUTO else Path(data_root)
    listing: Listing = source.listing(
        root, source.Arguments(**(arguments or {})), cache_dir=cache_dir
    )
    return listing
