"""What decoding once is worth: ``python benchmarks/data.py`` prints it as a table in Markdown.

Every measurement runs in a process of its own, which says how long it took and how much memory it
had at most; the two sides of a ratio take turns, and the best of each side's turns counts. Peak
memory is that of the process and, where it has workers, of the largest one. Photos
are made up: 500 x 375 pixels, JPEG of quality 90, gradients and noise, as large as CLEAR's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SIZE, BATCH, WORKERS = 224, 256, 2
CLASSES = 4
SMALL = 32


def main() -> None:
    """Measure, or be one of the measuring processes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--images", type=int, default=1000, help="photos to decode")
    options.add_argument("--turns", type=int, default=3, help="of which the best counts")
    options.add_argument("--up-to", type=int, default=30_000, help="small images, for the cost")
    options.add_argument("--one", nargs=2, metavar=("WHAT", "FOLDER"), help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.one:
        one(asked.one[0], Path(asked.one[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_photos(folder / "photos", asked.images)
        print(machine(), end="\n\n")
        print("| work | images/s | ratio | peak memory, MB |\n|---|---:|---:|---:|")
        compare("building the cache", "loop", "build", folder, asked.turns)
        for augment in ("random_crop", "square"):
            for work, epoch in (("the first epoch", 1), ("a later epoch", 2)):
                sides = f"loader:{epoch}:{augment}", f"epoch:{epoch}:{augment}"
                compare(f"{work}, {augment}", *sides, folder, asked.turns)
        print(f"\n| images of {SMALL} x {SMALL} pixels | build, us/image | epoch, us/image |")
        print("|---:|---:|---:|")
        counts = [n for n in (1_000, 3_000, 10_000, 30_000) if n <= asked.up_to]
        write_small(folder / "small", counts[-1])
        for count in counts:
            build, epoch = (
                min(measure(f"{what}:{count}", folder)["seconds"] for _ in range(asked.turns))
                for what in ("small-build", "small-epoch")
            )
            print(f"| {count:,} | {1e6 * build / count:.0f} | {1e6 * epoch / count:.1f} |")
        print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


def machine() -> str:
    """What the figures were measured on."""
    import PIL
    import torch

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return (
        f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, "
        f"torch {torch.__version__}, Pillow {PIL.__version__}; load average at the start: "
        f"{os.getloadavg()[0]:.1f}."
    )


def compare(work: str, plain: str, ours: str, folder: Path, turns: int) -> None:
    """Print two rows: the plain way, and ours with the ratio."""
    found = [(measure(plain, folder), measure(ours, folder)) for _ in range(turns)]
    sides = list(zip(*found, strict=True))
    rates = [max(turn["images"] / turn["seconds"] for turn in side) for side in sides]
    peaks = [max(turn["peak_mb"] for turn in side) for side in sides]
    names = (PLAIN[plain.split(":")[0]], "clear_mlflow")
    for name, rate, peak in zip(names, rates, peaks, strict=True):
        print(f"| {work}: {name} | {rate:,.0f} | {rate / rates[0]:.2f} | {peak:,.0f} |", flush=True)


PLAIN = {
    "loop": "plain PIL loop, one process",
    "loader": f"ImageFolder and DataLoader, {WORKERS} workers",
}


def measure(what: str, folder: Path) -> dict[str, float]:
    """One measurement in a process of its own."""
    answer = subprocess.run(
        [sys.executable, __file__, "--one", what, str(folder)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(answer.stdout)


def one(what: str, folder: Path) -> None:
    """Measure one thing and say so in JSON."""
    name, count, augment = (*what.split(":"), "0", "none")[:3]
    images, seconds = MEASURED[name](folder, int(count), augment)
    # Not ru_maxrss of this process: Linux hands a parent's peak on to what it starts.
    status = Path("/proc/self/status").read_text()
    own = int(status.split("VmHWM:")[1].split()[0])
    largest_worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    peak = (own + largest_worker) / 1024
    print(json.dumps({"images": images, "seconds": seconds, "peak_mb": peak}))


def plain_loop(folder: Path, _: int, augment: str) -> tuple[int, float]:
    """Decode, scale and crop one image after another into memory."""
    from PIL import Image

    paths = sorted((folder / "photos").rglob("*.jpg"))
    side = SIZE + 32
    started = time.perf_counter()
    pixels = np.empty((len(paths), side, side, 3), np.uint8)
    for i, path in enumerate(paths):
        with Image.open(path) as image:
            rgb = image.convert("RGB")
        scale = side / min(rgb.size)
        rgb = rgb.resize((round(rgb.width * scale), round(rgb.height * scale)), Image.BILINEAR)
        left, top = (rgb.width - side) // 2, (rgb.height - side) // 2
        pixels[i] = np.asarray(rgb.crop((left, top, left + side, top + side)))
    return len(paths), time.perf_counter() - started


def build(folder: Path, _: int, augment: str) -> tuple[int, float]:
    """Decode into a new cache, contents checked and flushed to the disk."""
    from clear_mlflow.data.decoding.decode import Resize
    from clear_mlflow.data.decoding.decoded_cache import DecodedCache

    images = image_set(folder / "photos")
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        started = time.perf_counter()
        DecodedCache(Path(cache)).images(images, Resize(SIZE))
        return len(images), time.perf_counter() - started


def loader_epoch(folder: Path, number: int, augment: str) -> tuple[int, float]:
    """The epoch of this number, from 1, as torchvision's users write it."""
    import torch
    from torchvision import datasets, transforms

    flip = [transforms.RandomHorizontalFlip()] if augment == "square" else []
    photo = transforms.Compose(
        [
            transforms.Resize(SIZE + 32 if augment == "square" else SIZE),
            transforms.RandomCrop(SIZE),
            *flip,
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    dataset = datasets.ImageFolder(folder / "photos", photo)
    loader = torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    for _ in range(number):
        started = time.perf_counter()
        images = sum(len(labels) for _, labels in loader)
    return images, time.perf_counter() - started


def cached_epoch(folder: Path, number: int, augment: str) -> tuple[int, float]:
    """The epoch of this number, from 1, from a cache that is there already."""
    return _epoch(image_set(folder / "photos"), folder / "cache", SIZE, augment, number)


def _epoch(images, cache_folder: Path, size: int, augment: str, number: int) -> tuple[int, float]:
    import torch

    from clear_mlflow.data.decoding.decoded_cache import DecodedCache
    from clear_mlflow.data.stream import Bucket, BucketStream
    from clear_mlflow.learning.samples.decoded import DecodedStream, training_batches

    stream = BucketStream("photos", ("a",) * CLASSES, (Bucket("1", images, images),), "sha256:0")
    cache, cpu = DecodedCache(cache_folder), torch.device("cpu")
    samples = DecodedStream(
        stream, image_size=size, augment=augment, device=cpu, cache=cache
    ).train(0)
    for epoch in range(number):
        started = time.perf_counter()
        batches = training_batches(
            samples,
            image_size=size,
            batch_size=BATCH,
            device=torch.device("cpu"),
            seed=0,
            position=0,
            epoch=epoch,
        )
        count = sum(len(batch.labels) for batch in batches)
    return count, time.perf_counter() - started


def small_build(folder: Path, count: int, augment: str) -> tuple[int, float]:
    """Build a cache of the first *count* small images."""
    from clear_mlflow.data.decoding.decode import Resize
    from clear_mlflow.data.decoding.decoded_cache import DecodedCache

    images = image_set(folder / "small", count)
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        started = time.perf_counter()
        DecodedCache(Path(cache)).images(images, Resize(SMALL))
        return count, time.perf_counter() - started


def small_epoch(folder: Path, count: int, augment: str) -> tuple[int, float]:
    """An epoch of the first *count* small images."""
    return _epoch(image_set(folder / "small", count), folder / "cache", SMALL, augment, 1)


MEASURED = {
    "loop": plain_loop,
    "build": build,
    "loader": loader_epoch,
    "epoch": cached_epoch,
    "small-build": small_build,
    "small-epoch": small_epoch,
}


def image_set(folder: Path, count: int | None = None):
    """The images of a folder, hashed, as a dataset's reader gives them."""
    from clear_mlflow.data.stream import ImageSet

    paths = tuple(sorted(folder.rglob("*.jpg")))[:count]
    contents = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    return ImageSet(paths, np.arange(len(paths)) % CLASSES, contents)


def write_photos(folder: Path, count: int) -> None:
    """Made-up photos: smooth colours, edges and grain, about 100 kB each."""
    from PIL import Image

    random = np.random.default_rng(0)
    y, x = np.mgrid[0:375, 0:500].astype(np.float32)
    for i in range(count):
        waves = random.uniform(0.002, 0.05, (3, 2))
        smooth = np.stack([np.sin(a * x + b * y + i) for a, b in waves], axis=-1)
        edges = np.sign(np.sin(x / random.uniform(5, 60)) * np.sin(y / random.uniform(5, 60)))
        grain = random.standard_normal((375, 500, 3), dtype=np.float32)
        pixels = 128 + 70 * smooth + 20 * edges[..., None] + 6 * grain
        path = folder / f"class{i % CLASSES}" / f"{i:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def write_small(folder: Path, count: int) -> None:
    """Small images, for counts at which large ones would take long."""
    from PIL import Image

    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(count):
        pixels = random.integers(0, 256, (SMALL + 8, SMALL + 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:06d}.jpg")


if __name__ == "__main__":
    main()
