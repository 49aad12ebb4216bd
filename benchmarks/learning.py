"""Measure what training costs: ``python benchmarks/learning.py`` prints a table in Markdown.

ResNet-18 through ten buckets of JPEG photos, tested on all ten test sets after each. Every side of
a comparison is a separate process; the sides take turns, and the best of each side's turns counts.
The sides:

- ``bare``: the shortest loop that does the same arithmetic, in this file: pre-decoded bytes in
  memory, the same steps and precision, channels-last, the allocator setting, the same test passes;
- ``ours``: ``clear-mlflow train`` as a user types it, with supervisor, MLflow store and its cache
  of decoded images already built (``ours, first run`` builds it);
- ``avalanche``: avalanche-lib on the same files with its CLEAR example's settings (transforms,
  metrics, text logger; its CLEAR loader puts all images into every bucket, so the buckets are made
  with its ``benchmark_from_datasets``). Pass ``--avalanche`` a Python with avalanche-lib 0.6.0,
  torch and torchvision.

A loop's time runs from the row of the untrained model to the last row; start-up is the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import numpy as np

CLASSES = ("BACKGROUND", "baseball", "bus", "camera", "cosplay", "dress")
CLASSES += ("hockey", "laptop", "racing", "soccer", "sweater")
BUCKETS = 10
# Images per class and bucket (train, test), and batch: large enough that arithmetic is what counts.
SIZES = {64: (30, 15, 32), 224: (15, 8, 32)}
EPOCHS = 1


def main() -> None:
    """Measure, or be one of the measured processes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", type=int, nargs="+", default=[64, 224], choices=SIZES)
    options.add_argument("--turns", type=int, default=3, help="of which the best counts")
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options.add_argument("--avalanche", metavar="PYTHON", help="a Python with avalanche-lib")
    options.add_argument(
        "--images",
        type=int,
        nargs=2,
        metavar=("TRAIN", "TEST"),
        help="per class and bucket, instead of few; CLEAR-10 has 300 and 500",
    )
    options.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.side:
        side, folder, size, device = arguments.side
        sides = {"bare": measure_bare, "ours": measure_train, "avalanche": measure_avalanche}
        name, _, precision = side.partition(":")
        print(json.dumps(sides[name](Path(folder), int(size), device, precision or "off")))
        return
    print(describe_machine(arguments.device), end="\n\n")
    for size in arguments.size:
        with tempfile.TemporaryDirectory() as folder:
            print_table(Path(folder), size, arguments)


def print_table(folder: Path, size: int, arguments: argparse.Namespace) -> None:
    """Print the table of one image size."""
    train, test, batch = SIZES[size]
    train, test = arguments.images or (train, test)
    write_dataset(folder / "clear10", train, test)
    print(
        f"ResNet-18 at {size} px, batch {batch}, {EPOCHS} epoch; 10 buckets of {train * 11} "
        f"training and {test * 11} test images.\n"
    )
    print("| side | total, s | start-up, s | loop, s | x bare loop | peak memory, MB |")
    print("|---|---:|---:|---:|---:|---:|")
    measured: dict[str, dict[str, float]] = {}
    sides = ["bare:off", "ours:off", "bare:bf16", "ours:bf16"]
    if arguments.avalanche:
        sides.append("avalanche")
    first = measure_separately(
        sys.executable, "ours:off", folder, size, arguments.device
    )  # builds the cache
    for _ in range(arguments.turns):
        for side in sides:
            python = arguments.avalanche if side == "avalanche" else sys.executable
            result = measure_separately(python, side, folder, size, arguments.device)
            if side not in measured or result["total"] < measured[side]["total"]:
                measured[side] = result
    measured["ours:off, first run"] = first
    for side, result in measured.items():
        base = measured["bare:bf16" if "bf16" in side else "bare:off"]
        ratio = result["loop"] / base["loop"]
        print(
            f"| {side} | {result['total']:.1f} | {result['total'] - result['loop']:.1f} | "
            f"{result['loop']:.1f} | {ratio:.2f} | {result['memory']:.0f} |"
        )
    if "avalanche" in measured:
        avalanche_total = measured["avalanche"]["total"]
        extra = max(0.0, first["total"] - measured["ours:off"]["total"])  # building the cache
        print(
            f"\nWhole runs, Avalanche over ours with the cache built in the same run: float32 "
            f"{avalanche_total / first['total']:.2f}x, bf16 "
            f"{avalanche_total / (measured['ours:bf16']['total'] + extra):.2f}x."
        )
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.\n")


def describe_machine(device: str) -> str:
    """Return the hardware and versions of the measurement."""
    import torch

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    gpu = f", {torch.cuda.get_device_name()}" if device == "cuda" else ""
    return (
        f"{os.cpu_count()} cores ({model}){gpu}, Python {platform.python_version()}, torch "
        f"{torch.__version__}; load average at the start: {os.getloadavg()[0]:.1f}."
    )


def write_dataset(root: Path, train: int, test: int) -> None:
    """Write CLEAR's released layout with JPEG photos of 500 x 375 pixels, quality 90."""
    from PIL import Image

    random = np.random.default_rng(0)
    y, x = np.mgrid[0:375, 0:500]
    for split, count in (("train", train), ("test", test)):
        top: dict[str, dict[str, str]] = {}
        for bucket in range(1, BUCKETS + 1):
            for label, name in enumerate(CLASSES):
                folder = root / split / "labeled_images" / str(bucket) / name
                folder.mkdir(parents=True)
                described = {}
                for i in range(count):
                    waves = np.sin(x / (9 + 3 * label) + random.uniform(0, 6)) * 60
                    tint = random.uniform(60, 190, 3)
                    pixels = tint + waves[..., None] + y[..., None] / 8
                    pixels = pixels + random.normal(0, 20, (375, 500, 1))
                    identity = f"{bucket}{label:02d}{i:05d}{0 if split == 'train' else 1}"
                    file = folder / f"{identity}.jpg"
                    photo = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                    photo.save(file, quality=90)
                    described[identity] = {
                        "ID": identity,
                        "EXT": "jpg",
                        "IMG_DIR": f"labeled_images/{bucket}/{name}",
                        "IMG_PATH": f"labeled_images/{bucket}/{name}/{identity}.jpg",
                    }
                index = f"labeled_metadata/{bucket}/{name}.json"
                path = root / split / index
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(described))
                top.setdefault(str(bucket), {})[name] = index
        (root / split / "labeled_metadata.json").write_text(json.dumps(top))
        (root / split / "class_names.txt").write_text("\n".join(CLASSES) + "\n")


def measure_separately(
    python: str, side: str, folder: Path, size: int, device: str
) -> dict[str, float]:
    """Measure one side in a separate process."""
    started = time.perf_counter()
    command = [python, __file__, "--side", side, str(folder), str(size), device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side}: {done.stderr}")
    total = time.perf_counter() - started
    return {"total": total, **json.loads(done.stdout.splitlines()[-1])}


def measure_train(folder: Path, size: int, device: str, precision: str) -> dict[str, float]:
    """Measure the command line with a new store and a separate cache."""
    work = folder / "ours"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    command, environment = build_command(folder, work, size, device, precision)
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    total = time.perf_counter() - started
    rows = sorted(work.glob("mlruns/**/row_*.json"))
    times = [datetime.fromisoformat(json.loads(row.read_text())["written_at"]) for row in rows]
    return {
        "total": total,
        "loop": (times[-1] - times[0]).total_seconds(),
        "memory": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }


def build_command(
    folder: Path, work: Path, size: int, device: str, precision: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and its environment variables."""
    environment = {
        **os.environ,
        "CLEAR_MLFLOW_CACHE": str(folder / "cache"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{work}/mlflow.db",
    }
    arguments = {
        "dataset": "clear10",
        "data_root": str(folder / "clear10"),
        "image_size": str(size),
        "epochs": str(EPOCHS),
        "batch_size": str(SIZES[size][2]),
        "precision": precision,
        "device": device,
    }
    arguments = [f"--{k.replace('_', '-')}={v}" for k, v in arguments.items()]
    return [sys.executable, "-m", "clear_mlflow", "train", *arguments], environment


def measure_bare(folder: Path, size: int, device: str, precision: str) -> dict[str, float]:
    """Run the same arithmetic and nothing else."""
    import ctypes

    import torch
    import torchvision
    from PIL import Image
    from torch.nn.functional import cross_entropy

    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)
    libc.mallopt(-1, 2**31 - 1)
    torch.manual_seed(0)
    batch = SIZES[size][2]
    margin = size // 7

    def load_images(split: str, bucket: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
        cached = folder / f"bare-{split}-{bucket}-{side}.npy"
        if not cached.is_file():
            pixels = []
            for name in CLASSES:
                files = sorted(
                    (folder / "clear10" / split / "labeled_images").glob(f"{bucket}/{name}/*")
                )
                for file in files:
                    photo = Image.open(file).convert("RGB")
                    scale = side / min(photo.size)
                    photo = photo.resize([round(n * scale) for n in photo.size])
                    left, top = ((n - side) // 2 for n in photo.size)
                    pixels.append(np.asarray(photo.crop((left, top, left + side, top + side))))
            np.save(cached, np.stack(pixels))
        images = torch.from_numpy(np.load(cached)).to(device)
        labels = torch.arange(len(CLASSES), device=device)
        return images, labels.repeat_interleave(len(images) // len(CLASSES))

    data = [load_images("train", b, size + margin) for b in range(1, BUCKETS + 1)]
    tests = [load_images("test", b, size) for b in range(1, BUCKETS + 1)]
    test_pixels = torch.cat([pixels for pixels, _ in tests])
    test_labels = torch.cat([labels for _, labels in tests])
    test_bucket = torch.arange(BUCKETS, device=device)
    test_bucket = test_bucket.repeat_interleave(len(test_labels) // BUCKETS)
    model = torchvision.models.resnet18(num_classes=len(CLASSES)).to(device)
    model = model.to(memory_format=torch.channels_last)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device) * 255
    std = torch.tensor([0.229, 0.224, 0.225], device=device) * 255
    scale, shift = (1 / std).repeat(size), (-mean / std).repeat(size)

    def inputs(pixels: torch.Tensor) -> torch.Tensor:
        lines = pixels.reshape(len(pixels), size, size * 3).float()
        return lines.mul_(scale).add_(shift).view(-1, size, size, 3).permute(0, 3, 1, 2)

    half = torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16")
    step = 64 if device == "cpu" else 512

    def count_correct() -> list[int]:
        model.eval()
        hits = []
        with torch.inference_mode(), half:
            for i in range(0, len(test_pixels), step):
                hits.append(model(inputs(test_pixels[i : i + step])).argmax(1))
        right = (torch.cat(hits) == test_labels).long()
        counts = torch.zeros(BUCKETS, dtype=torch.int64, device=device)
        return counts.index_add_(0, test_bucket, right).tolist()

    count_correct()
    started = time.perf_counter()
    for pixels, labels in data:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
        model.train()
        for _ in range(EPOCHS):
            order = torch.randperm(len(labels), device=device)
            top, left = torch.randint(0, margin + 1, (2,)).tolist()
            for i in range(0, len(labels), batch):
                chosen = order[i : i + batch]
                crops = pixels[:, top : top + size, left : left + size].index_select(0, chosen)
                with half:
                    loss = cross_entropy(model(inputs(crops)), labels[chosen])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        count_correct()
    loop = time.perf_counter() - started
    return {"loop": loop, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure_avalanche(folder: Path, size: int, device: str, precision: str) -> dict[str, float]:
    """Run avalanche-lib with the settings of its CLEAR example."""
    import torch
    import torchvision
    from measure_avalanche.benchmarks import benchmark_from_datasets
    from measure_avalanche.benchmarks.utils import as_classification_dataset
    from measure_avalanche.evaluation import metrics
    from measure_avalanche.logging import TextLogger
    from measure_avalanche.training.plugins import EvaluationPlugin, LRSchedulerPlugin
    from measure_avalanche.training.supervised import Naive
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    normal = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    to_train = transforms.Compose(
        [transforms.Resize(size), transforms.RandomCrop(size), transforms.ToTensor(), normal]
    )
    to_test = transforms.Compose(
        [transforms.Resize(size), transforms.CenterCrop(size), transforms.ToTensor(), normal]
    )

    def stream(split: str, transform: object) -> list[object]:
        images = folder / "clear10" / split / "labeled_images"
        return [
            as_classification_dataset(ImageFolder(images / str(b), transform=transform))
            for b in range(1, BUCKETS + 1)
        ]

    scenario = benchmark_from_datasets(
        train=stream("train", to_train), test=stream("test", to_test)
    )
    model = torchvision.models.resnet18(num_classes=len(CLASSES)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=1e-5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    with (folder / "avalanche.txt").open("w") as log:
        evaluator = EvaluationPlugin(
            metrics.accuracy_metrics(minibatch=True, epoch=True, experience=True, stream=True),
            metrics.loss_metrics(minibatch=True, epoch=True, experience=True, stream=True),
            metrics.timing_metrics(epoch=True, epoch_running=True),
            metrics.forgetting_metrics(experience=True, stream=True),
            metrics.cpu_usage_metrics(experience=True),
            metrics.confusion_matrix_metrics(
                num_classes=len(CLASSES), save_image=False, stream=True
            ),
            metrics.disk_usage_metrics(minibatch=True, epoch=True, experience=True, stream=True),
            loggers=[TextLogger(log)],
        )
        strategy = Naive(
            model=model,
            optimizer=optimizer,
            criterion=torch.nn.CrossEntropyLoss(),
            train_mb_size=SIZES[size][2],
            train_epochs=EPOCHS,
            eval_mb_size=SIZES[size][2],
            evaluator=evaluator,
            device=torch.device(device),
            plugins=[LRSchedulerPlugin(scheduler)],
        )
        started = time.perf_counter()
        for experience in scenario.train_stream:
            strategy.train(experience)
            strategy.eval(scenario.test_stream)
    loop = time.perf_counter() - started
    return {"loop": loop, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    main()
