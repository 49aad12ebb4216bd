"""Writes and loads a small custom stream: a folder for each year, and a table."""

import csv
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from released_layout import write_image

from clear_mlflow.data import load_stream
from clear_mlflow.data.stream import BucketStream

YEARS = ("2004", "2005", "2006")
CLASSES = ("bus", "camera")


def load_source(
    dataset: str,
    root: Path,
    *,
    cache: Path | None = None,
    protocol: str = "iid",
    split: str = "auto",
    borders: str = "none",
    **arguments: Any,
) -> BucketStream:
    """Load a custom stream from a folder, by default with a cache next to it."""
    cache_dir = cache or root.parent / "cache"
    options: dict[str, Any] = {"arguments": arguments, "protocol": protocol, "split": split}
    options["borders"] = borders
    return load_stream(dataset, str(root), cache_dir=cache_dir, **options)


class Row(NamedTuple):
    """An image as a row of a table."""

    path: str
    label: str
    time: str
    bucket: str
    split: str


def write_years(
    root: Path,
    *,
    buckets: Iterable[str] = YEARS,
    classes: Iterable[str] = CLASSES,
    train: int = 8,
    test: int = 0,
    side: int = 12,
) -> list[Row]:
    """Write ``BUCKET/CLASS/*.png``, below train/ and test/ if there are test images."""
    rows = []
    classes = list(classes)
    for bucket in buckets:
        for class_name in classes:
            for split, number in (("train", train), ("test", test)):
                for i in range(number):
                    name = f"{bucket}-{class_name}-{split}-{i}"
                    path = f"{f'{split}/' if test else ''}{bucket}/{class_name}/{name}.png"
                    write_image(root / path, size=(side, side), seed=name)
                    time = f"{bucket[:4]}-{1 + i % 12:02d}-{1 + i % 28:02d}"
                    rows.append(Row(path, class_name, time, bucket, split))
    return rows


def write_csv(file: Path, rows: Iterable[Row]) -> None:
    with file.open("w", encoding="utf-8", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(Row._fields)
        writer.writerows(rows)


def write_parquet(file: Path, rows: Iterable[Row]) -> None:
    """Write the rows as a Parquet file, with times and numbers as such."""
    table = pa.Table.from_pylist(
        [
            {**row._asdict(), "time": datetime.fromisoformat(row.time), "bucket": int(row.bucket)}
            for row in rows
        ]
    )
    pq.write_table(table, file)
