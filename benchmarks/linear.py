"""Measure what a linear head costs: ``python benchmarks/linear.py`` prints a table.

CLEAR-10's size: ten buckets of 3,300 training and 550 test images, features of 2,048 numbers,
eleven classes, ten epochs of batches of 512. Random features are stored as ``clear-mlflow data
features`` stores them, with 38,500 files in place of images. Every side of a comparison is a
separate process; the sides take turns, and the best of each side's turns counts.

- ``bare``: the shortest loop in plain torch that does the same steps and the same tests under the
  same allocator setting, its features in memory beforehand;
- ``one``: ``clear-mlflow train`` as a user types it, with supervisor and MLflow store;
- ``ensemble``: the same with ``--seeds``, a run for each seed, one after another.

A loop's time runs from the row of the untrained model to the last row (of the last member); what
comes before is start-up, what comes after is scoring and closing the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from learning import describe_machine

BUCKETS, CLASSES, WIDTH = 10, 11, 2048
BATCH, LR, LR_STEP = 512, 1.0, 60
NAME = "made_up"


def main() -> None:
    """Measure, or be one of the measured processes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--train", type=int, default=300, help="per class and bucket")
    options.add_argument("--test", type=int, default=50, help="per class and bucket")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--members", type=int, default=16, help="of the ensemble; 0 for none")
    options.add_argument("--turns", type=int, default=3, help="of which the best counts")
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options.add_argument("--folder", type=Path, help="where the data is kept from call to call")
    options.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.side:
        side_name, folder, epochs, device = arguments.side
        name, _, members = side_name.partition(":")
        side = {"bare": measure_bare, "one": measure_train, "ensemble": measure_train}[name]
        print(json.dumps(side(Path(folder), int(epochs), int(members or 0), device)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if not (folder / "data").is_dir():
            write_dataset(folder, arguments.train, arguments.test)
        print(describe_machine(arguments.device), end="\n\n")
        print(
            f"{BUCKETS} buckets of {arguments.train * CLASSES:,} and "
            f"{arguments.test * CLASSES:,} images, {WIDTH:,} numbers each, "
            f"{arguments.epochs} epochs.\n"
        )
        sides = ["bare", "one", *([f"ensemble:{arguments.members}"] if arguments.members else [])]
        turns: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(arguments.turns):
            for side in sides:
                turns[side].append(measure(side, folder, arguments.epochs, arguments.device))
        print_table(turns)
        print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


def print_table(turns: dict[str, list[dict[str, float]]]) -> None:
    """Print a line for each side with seconds, ratios and memory."""
    best = {
        side: {key: min(turn[key] for turn in of_side) for key in of_side[0]}
        for side, of_side in turns.items()
    }
    heads = ("side", "start-up, s", "loop, s", "closing, s", "in all, s", "loop / bare")
    heads += ("loop / one", "in all / one", "peak memory, MB")
    print(f"| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}")
    for side, values in best.items():
        total, single = values["all"], best["one"]
        cells = [f"{values[key]:.2f}" for key in ("start", "loop", "close")]
        cells += [f"{total:.2f}", f"{values['loop'] / best['bare']['loop']:.2f}"]
        cells += [f"{values['loop'] / single['loop']:.2f}", f"{total / single['all']:.2f}"]
        print(f"| {side} | {' | '.join(cells)} | {values['peak_mb']:,.0f} |")


def measure(side_name: str, folder: Path, epochs: int, device: str) -> dict[str, float]:
    """Return one measurement, made in a separate process."""
    process = subprocess.run(
        [sys.executable, __file__, "--side", side_name, str(folder), str(epochs), device],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def write_dataset(folder: Path, train: int, test: int) -> None:
    """Write files in place of images, in CLEAR's released layout, and their features."""
    from clear_mlflow.data import load_stream
    from clear_mlflow.data.features.extracted import Extraction, get_array_path

    root = folder / "data"
    names = [f"class{label:02d}" for label in range(CLASSES)]
    for split, count in (("train", train), ("test", test)):
        metadata: dict[str, dict[str, str]] = {}
        for bucket in map(str, range(1, BUCKETS + 1)):
            metadata[bucket] = {}
            for name in names:
                images_folder = f"labeled_images/{bucket}/{name}"
                (root / split / images_folder).mkdir(parents=True)
                entries = {}
                for number in range(count):
                    path = f"{images_folder}/{number}.jpg"
                    (root / split / path).write_text(f"{split} {path}")
                    entries[str(number)] = {"ID": str(number), "EXT": "jpg", "IMG_PATH": path}
                file = root / split / "labeled_metadata" / bucket / f"{name}.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(entries))
                metadata[bucket][name] = f"labeled_metadata/{bucket}/{name}.json"
        (root / split / "labeled_metadata.json").write_text(json.dumps(metadata))
        (root / split / "class_names.txt").write_text("\n".join(names) + "\n")

    cache = folder / "cache"
    stream = load_stream("clear10", str(root), cache_dir=cache, protocol="iid", split="auto")
    extraction = Extraction(NAME, "made up", "random:0", "none")
    feature_folder = extraction.folder(stream, cache_dir=cache)
    draws = np.random.default_rng(0)
    # Of a length at which CLEAR's learning rate learns, and so close that heads make mistakes.
    centres = draws.normal(size=(CLASSES, WIDTH)).astype(np.float32) * 0.006
    for number, images in enumerate(stream.image_sets):
        noise = draws.standard_normal((len(images), WIDTH), dtype=np.float32) * 0.05
        features = centres[images.labels] + noise
        extraction.write(get_array_path(feature_folder, number), images, features)


def measure_bare(folder: Path, epochs: int, _: int, device: str) -> dict[str, float]:
    """Run the same steps and tests in plain torch."""
    began = time.perf_counter()
    import torch
    from torch.nn.functional import cross_entropy, linear

    buckets = [[part.to(device) for part in bucket] for bucket in load_arrays(folder)]
    train, labels = [b[0] for b in buckets], [b[1] for b in buckets]
    test, truth = (torch.cat([b[part] for b in buckets]) for part in (2, 3))
    of_bucket = torch.arange(BUCKETS, device=device).repeat_interleave(len(truth) // BUCKETS)
    head = torch.nn.Linear(WIDTH, CLASSES, device=device)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    rows = []

    def measure_row() -> None:
        with torch.inference_mode():
            predictions = [head(test[k : k + 8192]).argmax(1) for k in range(0, len(test), 8192)]
            right = (torch.cat(predictions) == truth).long()
            counts = torch.zeros(BUCKETS, dtype=torch.int64, device=device)
            rows.append(counts.index_add_(0, of_bucket, right).tolist())

    measure_row()
    started = time.perf_counter()
    for features, bucket_labels in zip(train, labels, strict=True):
        optimizer = torch.optim.SGD(
            head.parameters(), lr=LR, momentum=0.9, weight_decay=1e-5, foreach=True
        )
        for epoch in range(epochs):
            optimizer.param_groups[0]["lr"] = LR * 0.1 ** (epoch // LR_STEP)
            order = torch.randperm(len(features)).to(device)
            for k in range(0, len(order), BATCH):
                chosen = order[k : k + BATCH]
                logits = linear(features.index_select(0, chosen), head.weight, head.bias)
                loss = cross_entropy(logits, bucket_labels.index_select(0, chosen))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        measure_row()
    finished = time.perf_counter()
    return {
        "start": started - began,
        "loop": finished - started,
        "close": 0.0,
        "all": finished - began,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def load_arrays(folder: Path) -> list[tuple[Any, Any, Any, Any]]:
    """Return the training features and labels and the test features and labels of each bucket."""
    import torch

    from clear_mlflow.data import load_stream

    stream = load_stream(
        "clear10", str(folder / "data"), cache_dir=folder / "cache", protocol="iid", split="auto"
    )
    (feature_folder,) = (folder / "cache" / "features" / NAME).iterdir()
    arrays = [torch.from_numpy(np.load(file)) for file in sorted(feature_folder.glob("*.npy"))]
    return [
        (train, torch.tensor(images.labels), test, torch.tensor(test_images.labels))
        for train, test, images, test_images in zip(
            arrays[:BUCKETS], arrays[BUCKETS:], stream.train, stream.test, strict=True
        )
    ]


def measure_train(folder: Path, epochs: int, members: int, device: str) -> dict[str, float]:
    """Run ``clear-mlflow train`` with a new store, timed by its rows."""
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary)
        environment = {
            **os.environ,
            "CLEAR_MLFLOW_CACHE": str(folder / "cache"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{store}/mlflow.db",
        }
        command = [sys.executable, "-m", "clear_mlflow", "train", "--dataset", "clear10"]
        command += ["--data-root", str(folder / "data"), "--features", NAME, "--device", device]
        command += ["--epochs", str(epochs), "--batch-size", str(BATCH), "--lr", str(LR)]
        if members:
            command += ["--seeds", ",".join(map(str, range(members)))]
        # The tables of a new store take seconds, once in its life.
        prepare = "import mlflow; mlflow.MlflowClient().search_experiments()"
        subprocess.run([sys.executable, "-c", prepare], env=environment, check=True, cwd=store)
        began = time.time()
        subprocess.run(command, env=environment, check=True, cwd=store, stdout=sys.stderr)
        finished = time.time()
        times: dict[int, list[float]] = {}
        for file in store.rglob("accuracy_matrix/rows/row_*.json"):
            row = json.loads(file.read_text())
            written = datetime.fromisoformat(row["written_at"]).timestamp()
            times.setdefault(int(file.stem.removeprefix("row_")), []).append(written)
        if len(times) != BUCKETS + 1 or len(times[BUCKETS]) != max(members, 1):
            raise SystemExit(f"expected {BUCKETS + 1} rows of each run, found {times}")
        started, last = min(times[0]), max(times[BUCKETS])
    return {
        "start": started - began,
        "loop": last - started,
        "close": finished - last,
        "all": finished - began,
        # The largest of the supervisor and its training process.
        "peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
