"""Frozen digests and orders of images: stored runs name them, so they may not change.

Images are a few bytes that no decoder reads, so no version of a library changes their hashes.
"""

import csv
import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from layout_trees import LAYOUTS, Photos, list_buckets
from safetensors.numpy import save_file

import clear_mlflow
from clear_mlflow.data import Entry, ImageIndex, build_index, load_stream
from clear_mlflow.data.scenarios import apply_scenario
from clear_mlflow.data.stream import BucketStream

FROZEN = Path(__file__).parents[1] / "support" / "stream_digests.json"
PACKAGE = str(Path(clear_mlflow.__file__).parent)
SPLITS = ("auto", "0", "3", "7", "validation", "validation:1")
SCENARIOS = (
    ("class", {"classes_per_bucket": 2}),
    ("task", {"classes_per_bucket": 2, "times": "all", "order": "seed:5"}),
)
CLASSES = ("bus", "cab", "10", "9")


def write_tree(root: Path) -> list[tuple[str, str, str, str]]:
    rows = []
    for month in range(24):
        for n, name in enumerate(CLASSES):
            for copy in range(6):
                time = f"{2004 + month // 12}-{1 + month % 12:02d}-{1 + (7 * copy + n) % 28:02d}"
                path = f"{time[:4]}/{name}/{month}-{copy * 3}.jpg"
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(f"image {month} {name} {copy}".encode())
                rows.append((path, name, time, "test" if copy == 4 else "train"))
    return rows


def write_rows(file: Path, rows: list[tuple[str, ...]], names: tuple[str, ...]) -> None:
    with file.open("w", encoding="utf-8", newline="") as text:
        csv.writer(text).writerows([names, *rows])


def photos_by_half(root: Path) -> ImageIndex:
    """A function of a user: two buckets a year, without a test set."""
    paths = sorted((root / "tree").glob("*/*/*.jpg"))
    entries = [
        Entry(path, path.parent.name, f"{path.parts[-3]}-H{1 + int(path.stem.split('-')[0]) % 2}")
        for path in paths
    ]
    return build_index(entries, root=root, layout="mine")


def write_sources(root: Path) -> Iterator[tuple[str, str, str, dict[str, object]]]:
    rows = write_tree(root / "tree")
    yield "folder", "folder", str(root / "tree"), {}
    yield "folder, order", "folder", str(root / "tree"), {"order": "2005:2004"}
    for path, name, _, split in rows:
        (root / "split" / split / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "split" / split / path).write_bytes((root / "tree" / path).read_bytes() + b"2")
        assert name in path
    yield "folder, split", "folder", str(root / "split"), {}
    write_rows(root / "tree" / "a.csv", rows, ("path", "label", "time", "part"))
    frame = pd.DataFrame(rows, columns=["path", "label", "time", "part"])
    frame["time"] = pd.to_datetime(frame["time"])
    frame.sample(frac=1, random_state=0).to_parquet(root / "tree" / "a.parquet")
    for ending in ("csv", "parquet"):
        table = {"table": f"a.{ending}"}
        for buckets in ("year", "half", "quarter", "month", "equal:5"):
            yield f"{ending}, {buckets}", "table", str(root / "tree"), {**table, "borders": buckets}
        split = {**table, "split": "part", "borders": "half"}
        yield f"{ending}, split", "table", str(root / "tree"), split
    draws = np.random.default_rng(np.random.PCG64(3))
    numbers = draws.integers(-(2**20), 2**20, (len(rows), 3))
    arrays = {
        "vectors": (numbers / 2**10).astype(np.float64),
        "label": np.array([row[1] for row in rows]),
        "time": np.array([row[2] for row in rows]),
        "bucket": np.array([str(int(row[2][:4]) - 2000) for row in rows]),
        "split": np.array([row[3] for row in rows]),
    }
    np.savez(root / "v.npz", **arrays)
    columns = {"a": arrays["vectors"][:, 0], "b": arrays["vectors"][:, 1]}
    frame = pd.DataFrame({**columns, **{k: v for k, v in arrays.items() if v.ndim == 1}})
    frame.to_csv(root / "v.csv", index=False)
    frame.to_parquet(root / "v.parquet", index=False)
    codes = {name: np.unique(arrays[name], return_inverse=True)[1] for name in ("label", "bucket")}
    save_file({"vectors": arrays["vectors"], **codes}, root / "v.safetensors")
    for ending in ("npz", "csv", "parquet"):
        yield f"vectors, {ending}", "vectors", str(root / f"v.{ending}"), {}
        by_quarter = {"borders": "quarter"}
        yield f"vectors, {ending}, quarter", "vectors", str(root / f"v.{ending}"), by_quarter
    yield "vectors, safetensors", "vectors", str(root / "v.safetensors"), {"standardise": "past"}
    yield "weather", "weather", "auto", {}
    yield "weather, year", "weather", "auto", {"borders": "year", "standardise": "none"}
    yield "digits", "digits", "auto", {}
    yield "digits-writers", "digits-writers", "auto", {}
    yield "function", f"{__name__}:photos_by_half", str(root), {}
    yield from write_hugging_face(root, rows, arrays["vectors"])


def write_hugging_face(
    root: Path, rows: list[tuple[str, str, str, str]], vectors: np.ndarray
) -> Iterator[tuple[str, str, str, dict[str, object]]]:
    import datasets

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["nobody", *CLASSES]),
            "time": datasets.Value("timestamp[s]"),
            "vector": datasets.List(datasets.Value("float32")),
        }
    )
    parts = {}
    for split in ("train", "test"):
        of_split = [n for n, row in enumerate(rows) if row[3] == split]
        table = {
            "image": [{"bytes": (root / "tree" / rows[n][0]).read_bytes(), "path": rows[n][0]}
                      for n in of_split],
            "label": [rows[n][1] for n in of_split],
            "time": [f"{rows[n][2]}T12:00:00" for n in of_split],
            "vector": [vectors[n].tolist() for n in of_split],
        }  # fmt: skip
        parts[split] = datasets.Dataset.from_dict(table, features=features)
    datasets.DatasetDict(parts).save_to_disk(str(root / "saved"))
    yield "huggingface", "huggingface", str(root / "saved"), {"borders": "half"}
    of_vectors = {"borders": "half", "vector": "vector"}
    yield "huggingface, vectors", "huggingface", str(root / "saved"), of_vectors


def write_layouts(root: Path) -> Iterator[tuple[str, str, str, dict[str, object]]]:
    photos = Photos(buckets=("2", "10", "1"), classes=("bus", "cab", "tram"), train=23, test=4)
    for name, write in LAYOUTS.items():
        options = {"seeds": range(4)} if name == "older" else {}
        tree = write(root / name, photos, **options)
        for path in tree.rglob("*.jpg"):
            path.write_bytes(path.stem.encode())
        yield name, "clear10", str(tree), {}
    tree = LAYOUTS["older"](root / "reversed", photos, order=reversed)
    for path in tree.rglob("*.jpg"):
        path.write_bytes(path.stem.encode())
    yield "older, lists reversed", "clear10", str(tree), {}


def summarise(stream: BucketStream, roots: dict[str, str]) -> str:
    digest = hashlib.sha256()

    def add(*values: object) -> None:
        for value in values:
            text = str(value)
            for root, name in roots.items():
                text = text.replace(root, name)
            digest.update(f"{text}\0".encode())

    dataset = stream.dataset
    days, scenario = tuple(map(str, dataset.times)), dataset.scenario
    classes = tuple(map(tuple, scenario.get("classes", ())))
    add(dataset.class_names, dataset.warnings, dataset.division, dataset.split, days)
    add(stream.layout, stream.standardise, scenario.get("name", "domain"), classes, dataset.name)
    for bucket in list_buckets(stream):
        for images in (bucket.train, bucket.test):
            add(bucket.key, images.labels.tolist(), *images.contents, *images.paths)
            if images.vectors is not None:
                digest.update(np.ascontiguousarray(images.vectors[:], "<f4").tobytes())
    return f"{stream.dataset.digest[7:23]} {digest.hexdigest()[:16]}"


def list_streams(
    name: str, load: Callable[..., BucketStream], roots: dict[str, str]
) -> Iterator[tuple[str, str]]:
    for protocol, split in [*(("iid", split) for split in SPLITS), ("streaming", "auto")]:
        stream = load(protocol=protocol, split=split)
        yield f"{name}, {protocol}, {split}", summarise(stream, roots)
        if split in ("auto", "validation"):
            for scenario, arguments in SCENARIOS:
                try:
                    made = summarise(apply_scenario(stream, scenario, arguments), roots)
                except Exception as error:
                    made = str(error)
                yield f"{name}, {protocol}, {split}, {scenario}", made


@pytest.mark.parametrize(
    "write", [write_layouts, pytest.param(write_sources, marks=pytest.mark.slow)]
)
def test_digests_and_orders_stay_as_they_are(tmp_path, write):
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    roots = {str(tmp_path / "data"): "ROOT", str(tmp_path): "TMP", PACKAGE: "PACKAGE"}
    (tmp_path / "data").mkdir()
    streams: dict[str, str] = {}
    for name, *where, options in write(tmp_path / "data"):
        borders = options.pop("borders", "none")
        options = {"arguments": options, "borders": borders, "cache_dir": tmp_path / "cache"}
        load = partial(load_stream, *where, **options)
        streams |= list_streams(name, load, roots)
    assert len(streams) > 50
    assert {name: line for name, line in streams.items() if frozen.get(name) != line} == {}
