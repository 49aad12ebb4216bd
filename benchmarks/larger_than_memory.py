"""A stream larger than memory: ``python benchmarks/larger_than_memory.py`` prints a table.

A stream in CLEAR's layout is trained through by ``clear-mlflow train`` in a control group of
Linux that may hold so much memory and no more, page cache included; and in one without a bound.
Each runs twice: the first decodes the images into the cache, the second finds them there. More than
half of the images are test images, all of which are gone through after each bucket.

Needs root and a control group of its own, of either version (in containers often neither is there).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parents[1]
CLASSES = ("BACKGROUND", "baseball", "bus", "camera", "cosplay", "dress")
CLASSES += ("hockey", "laptop", "racing", "soccer", "sweater")
HIERARCHY = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Group:
    """A control group that processes can be put into."""

    folder: Path
    limit: str  # names of its files
    peak: str

    @classmethod
    def make(cls, megabytes: int | None) -> Group:
        """One with a bound, or without one."""
        name = f"clear_mlflow_{os.getpid()}_{megabytes}"
        if (HIERARCHY / "cgroup.controllers").is_file():
            group = cls(HIERARCHY / name, "memory.max", "memory.peak")
        else:
            limit, peak = "memory.limit_in_bytes", "memory.max_usage_in_bytes"
            group = cls(HIERARCHY / "memory" / name, limit, peak)
        group.folder.mkdir()
        if megabytes is not None:
            (group.folder / group.limit).write_text(str(megabytes << 20))
        return group

    def enter(self) -> None:
        """Put this process, and those that it starts, into it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def most(self) -> float:
        """Megabytes that it held at once, page cache included."""
        return int((self.folder / self.peak).read_text()) / (1 << 20)


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--limit", type=int, default=1200, metavar="MB")
    options.add_argument("--buckets", type=int, default=5)
    options.add_argument("--train", type=int, default=100, help="images per class and bucket")
    options.add_argument("--test", type=int, default=120, help="images per class and bucket")
    options.add_argument("--program", type=Path, default=HERE, help="another checkout")
    options.add_argument("--data", type=Path, help="of an earlier call, to be kept")
    options.add_argument("given", nargs="*", help="options of train")
    asked = options.parse_args()
    # A model of small activations: at 224 pixels others need more than a stream of this size.
    usual = ["--model", "shufflenet_v2_x0_5", "--batch-size", "16", "--epochs", "1"]
    given = asked.given or [*usual, "--device", "cpu"]
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}; `train {' '.join(given)}`; "
        f"load average at the start: {os.getloadavg()[0]:.1f}."
    )
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        data = asked.data or at / "clear10"
        if not data.is_dir():
            write_stream(data, asked.buckets, asked.train, asked.test)
        print("\n| memory, MB | decoded images, MB | run | s | most memory at once, MB | |")
        print("|---:|---:|---|---:|---:|---|")
        for limit in (asked.limit, None):
            group = Group.make(limit)
            try:
                cache = at / f"cache_{limit}"
                for which in ("first", "again"):
                    seconds, end = train(asked.program, data, cache, group, given)
                    decoded = sum(file.stat().st_size for file in cache.rglob("*.npy")) >> 20
                    print(
                        f"| {limit or 'no bound'} | {decoded} | {which} | {seconds:.0f} | "
                        f"{group.most():.0f} | {end} |",
                        flush=True,
                    )
                shutil.rmtree(cache)
            finally:
                group.folder.rmdir()
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


def train(
    program: Path, data: Path, cache: Path, group: Group, given: list[str]
) -> tuple[float, str]:
    """One run in a group: seconds, and how it ended."""
    work = cache.parent / "work"
    work.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(program),
        "CLEAR_MLFLOW_CACHE": str(cache),
        "MLFLOW_TRACKING_URI": f"sqlite:///{work / 'mlflow.db'}",
    }
    command = [sys.executable, "-m", "clear_mlflow", "train", "--dataset", "clear10"]
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "--data-root", str(data), *given],
        cwd=work,
        env=environment,
        preexec_fn=group.enter,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    shutil.rmtree(work)
    if done.returncode == 0:
        return seconds, "trained"
    return seconds, f"exit code {done.returncode}: {done.stderr.splitlines()[-1][:200]}"


def write_stream(root: Path, buckets: int, train: int, test: int) -> None:
    """CLEAR's released layout: JPEGs of 500 x 375 pixels, windows into a texture of each class."""
    random = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        top: dict[str, dict[str, str]] = {}
        for bucket in range(1, buckets + 1):
            for label, name in enumerate(CLASSES):
                coarse = random.integers(0, 256, (20, 25, 3), dtype=np.uint8)
                texture = Image.fromarray(coarse).resize((1000, 800), Image.Resampling.BICUBIC)
                folder = f"labeled_images/{bucket}/{name}"
                (root / split / folder).mkdir(parents=True)
                described = {}
                for i in range(count):
                    identity = f"{bucket}{label:02d}{i:05d}{split == 'test':d}"
                    left, up = (int(random.integers(0, n)) for n in (500, 425))
                    photo = texture.crop((left, up, left + 500, up + 375))
                    photo.save(root / split / folder / f"{identity}.jpg", quality=90)
                    described[identity] = {
                        "ID": identity,
                        "EXT": "jpg",
                        "IMG_DIR": folder,
                        "IMG_PATH": f"{folder}/{identity}.jpg",
                    }
                index = f"labeled_metadata/{bucket}/{name}.json"
                file = root / split / index
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(described))
                top.setdefault(str(bucket), {})[name] = index
        (root / split / "labeled_metadata.json").write_text(json.dumps(top))
        (root / split / "class_names.txt").write_text("\n".join(CLASSES) + "\n")


if __name__ == "__main__":
    main()
