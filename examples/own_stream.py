"""A stream of your own, three ways: a folder for each year, a table of dates, and a function.

The images are made here, shapes whose colours drift from 2004 to 2008, and written to a folder. A
training on that folder, on a Parquet table of the same images, and on what the function below gives
are one stream: the same digest, and the same accuracy matrix. From the folder that holds
``examples``, a stream of a function is trained on like any other:

    clear-mlflow train --dataset examples.own_stream:shapes --data-root DIR

Run as a program, ``python examples/own_stream.py`` makes a folder that goes when it ends.
"""

from __future__ import annotations

import tempfile
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

import clear_mlflow
from clear_mlflow.data import Entry, ImageIndex, build_index

YEARS = range(2004, 2009)


def shapes(root: Path, *, first: int = YEARS[0]) -> ImageIndex:
    """The stream in a folder, from the year ``first`` on: what ``dataset_args`` may say."""
    images = sorted(root.glob("20??/*/*.png"))
    return build_index(
        (
            Entry(path, class_name=path.parent.name, bucket=path.parent.parent.name)
            for path in images
            if int(path.parent.parent.name) >= first
        ),
        root=root,
    )


def write(root: Path) -> None:
    """Make DIR/YEAR/CLASS/*.png, and photos.parquet, which says the same with dates."""
    draws = np.random.default_rng(0)
    rows = []
    for year in YEARS:
        for label in ("circle", "square"):
            (root / str(year) / label).mkdir(parents=True)
            for number in range(20):
                paint, ground = draws.integers(0, 90, 3), draws.integers(120, 256, 3)
                drift = (year - YEARS[0]) / len(YEARS)
                ink = tuple((paint + drift * (ground - paint)).astype(int).tolist())
                image = Image.new("RGB", (16, 16), tuple(ground.tolist()))
                x, y = draws.integers(0, 4, 2).tolist()
                pen = ImageDraw.Draw(image)
                (pen.ellipse if label == "circle" else pen.rectangle)((x, y, x + 11, y + 11), ink)
                path = f"{year}/{label}/{year}-{label}-{number}.png"
                image.save(root / path)
                taken = date(year, 1 + number // 2, 1 + number)
                rows.append({"path": path, "label": label, "time": taken})
    pq.write_table(pa.Table.from_pylist(rows), root / "photos.parquet")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "shapes")
        write(root)
        few = {"data_root": root, "features": "pixels", "epochs": 30, "lr": 0.1}
        ways = {
            "folder": clear_mlflow.train(dataset="folder", **few),
            "table": clear_mlflow.train(dataset="table", borders="year", **few),
            "function": clear_mlflow.train(
                dataset="own_stream:shapes", dataset_args={"name": "shapes"}, **few
            ),
        }
    for way, run in ways.items():
        assert run.matrix.values.tolist() == ways["folder"].matrix.values.tolist()
        print(f"{way:9} next-domain accuracy {run.metrics['clear/next_domain_accuracy'].text}")
