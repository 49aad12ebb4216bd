"""Datasets: read files from disk as a stream of buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import ConfigError, DataError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.data.borders import regroup_buckets
from clear_mlflow.data.download import fetch_clear
from clear_mlflow.data.embedded import EMBEDDED, LICENCE, get_embedded_digest, write_embedded
from clear_mlflow.data.files import path_text
from clear_mlflow.data.images import NONE
from clear_mlflow.data.images import Entry as Entry
from clear_mlflow.data.images import ImageIndex as ImageIndex
from clear_mlflow.data.images import build_index as build_index
from clear_mlflow.data.layouts import read_layout
from clear_mlflow.data.sources import CLEAR, is_custom_stream, load_source, stream_name
from clear_mlflow.data.stream import AUTO, IID, BucketStream, OnImage, build_stream, check_split
from clear_mlflow.data.times import CLEAR10_TIMES


def load_stream(
    dataset: str,
    data_root: str,
    *,
    cache_dir: Path,
    arguments: Mapping[str, Any] | None = None,
    borders: str = NONE,
    protocol: str = IID,
    split: str = AUTO,
    on_image: OnImage = lambda done, total: None,
) -> BucketStream:
    """Load a dataset as a stream: files are hashed, none is decoded.

    With the data root ``auto``, a missing CLEAR dataset is downloaded, and an embedded dataset is
    written to *cache_dir*, which also keeps the hashes of files.
    arguments, borders: ``dataset_args`` of a custom stream, and where it is divided; see
    :mod:`.borders`. Raises ConfigError if one is invalid, and DataError if the dataset cannot be
    read.
    """
    check_split(protocol, split)
    if borders != NONE and not is_custom_stream(dataset):
        raise ConfigError(
            f"borders is {borders}, but dataset {dataset} has the buckets of its authors; pass "
            "borders=none, or a stream whose images have dates (dataset=table)",
            parameter="borders",
        )
    if data_root == AUTO and dataset in CLEAR:
        data_root = str(fetch_clear(dataset))
    if dataset in EMBEDDED:
        return _load_embedded(dataset, data_root, cache_dir, protocol, split)
    index = read_stream_index(
        dataset, data_root, cache_dir=cache_dir, arguments=arguments, borders=borders
    )
    name = stream_name(dataset, data_root, arguments or {})
    stream = build_stream(
        index,
        name=name,
        protocol=protocol,
        split=split,
        hash_folder=cache_dir,
        on_image=on_image,
    )
    keys, licence = stream.dataset.buckets, str((arguments or {}).get("licence", "none"))
    stream = stream.with_metadata(licence="" if licence == "none" else licence)
    if dataset == "clear10" and CLEAR10_TIMES.keys() >= {*keys}:
        return stream.with_metadata(times=tuple(CLEAR10_TIMES[key] for key in keys))
    return stream


def _load_embedded(
    dataset: str, data_root: str, cache_dir: Path, protocol: str, split: str
) -> BucketStream:
    if data_root != AUTO:  # the messages below advise to delete the folder: never a user's own
        raise ConfigError(
            f"dataset {dataset} is embedded and reads no folder, but data_root is "
            f"{safe_repr(data_root)}; leave it out"
        )
    root = write_embedded(dataset, cache_dir)
    try:
        index = read_stream_index("folder", str(root), cache_dir=cache_dir)
        stream = build_stream(index, name=dataset)
    except DataError as error:
        raise DataError(
            f"the embedded dataset is damaged: {error}; or delete {path_text(root)} and run again, "
            "which writes it again"
        ) from error
    expected = get_embedded_digest(dataset)
    if stream.dataset.digest != expected:
        raise DataError(
            f"{path_text(root)} is not the embedded dataset as it was written: its digest is "
            f"{stream.dataset.digest}, expected {expected}; delete that folder and run again"
        )
    if (protocol, split) != (IID, AUTO):
        # The digest is right; split the images, which are hashed already, in another way.
        hashed = replace(index, images=stream.images)
        stream = build_stream(hashed, name=dataset, protocol=protocol, split=split)
    return stream.with_metadata(source="embedded", licence=LICENCE)


def read_stream_index(
    dataset: str,
    data_root: str,
    *,
    cache_dir: Path,
    arguments: Mapping[str, Any] | None = None,
    borders: str = NONE,
) -> ImageIndex:
    """Read the index of a dataset on disk, without hashing its images.

    dataset: ``auto`` for any dataset in one of CLEAR's layouts. See :func:`load_stream`.
    """
    if not is_custom_stream(dataset):
        index = read_layout(Path(data_root), names=CLEAR if dataset == AUTO else (dataset,))
        return replace(index, source=data_root)
    source = load_source(dataset)
    root = None if data_root == AUTO else Path(data_root)
    checked = source.Arguments(**(arguments or {}))
    result: ImageIndex
    if source.HAS_TIMES:
        result = source.read_index(root, checked, cache_dir=cache_dir, borders=borders)
    else:
        result = source.read_index(root, checked, cache_dir=cache_dir)
        result = result if borders == NONE else regroup_buckets(result, borders)
    return result
