"""Looking over a stream of one's own: all images that it names, and everything wrong with them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clear_mlflow.core.errors import DataError
from clear_mlflow.core.matrix import TEST
from clear_mlflow.data import own_listing
from clear_mlflow.data.checking.content import stream_of
from clear_mlflow.data.checking.findings import Count, Findings, findings_of
from clear_mlflow.data.checking.look import FoundImage, OnImages, Problem, doubles, look_at
from clear_mlflow.data.sources import stream_name


def check_own(
    dataset: str,
    data_root: str,
    arguments: Mapping[str, Any],
    *,
    cache_dir: Path,
    on_progress: OnImages,
) -> Findings:
    """Look over a stream of one's own; every problem is in the findings, once.

    What its folder, table or function says is read as a training reads it: where that cannot be
    read, there are no images to look at.
    """
    listing = own_listing(dataset, data_root, cache_dir=cache_dir, arguments=arguments)
    parts = {TEST: listing.released_test() if listing.released_test is not None else {}}
    parts = {"train" if parts[TEST] else "all": listing.images, **parts}
    images = [
        FoundImage(part, key, listing.class_names[label], path)
        for part, buckets in parts.items()
        for key, of_bucket in buckets.items()
        for path, label in zip(of_bucket.paths, of_bucket.labels.tolist(), strict=True)
    ]
    seen = look_at(images, listing.root, on_progress)
    problems = [
        Problem("unreadable" if os.path.lexists(image.path) else "missing", image.path, look.wrong)
        for image, look in zip(images, seen, strict=True)
        if look.wrong
    ]
    digest = None
    of_part = {image.path: image.split for image in images}
    try:
        stream = stream_of(listing, name=stream_name(dataset, data_root, arguments))
    except DataError as error:
        if not problems:
            problems.append(Problem("structure", listing.root, str(error)))
    else:
        digest = stream.digest
        for bucket in stream.buckets:
            of_part |= dict.fromkeys(bucket.train.paths, "train")
            of_part |= dict.fromkeys(bucket.test.paths, TEST)
    problems += doubles(images, seen, of_part)
    number = Counter((image.split, image.bucket, image.class_name) for image in images)
    counts = [
        Count(part, key, name, number[part, key, name])
        for part, buckets in parts.items()
        for key in buckets
        for name in listing.class_names
    ]
    problems += [
        Problem(
            "empty-class",
            listing.root,
            f"has no images of class {count.class_name!r} in bucket {count.bucket!r} "
            f"({count.split})",
        )
        for count in counts
        if not count.images
    ]
    return findings_of(
        root=listing.root,
        layout=listing.layout,
        digest=digest,
        buckets=tuple(listing.images),
        class_names=listing.class_names,
        counts=tuple(counts),
        seen=seen,
        problems=problems,
    )
