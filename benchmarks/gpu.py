"""Run everything that only a GPU shows: ``python benchmarks/gpu.py`` prints tables in Markdown.

One process and one GPU, about 15 minutes; ``--part`` selects parts. What fails is reported and the
next part begins. Images are random photos in CLEAR-10's number and shape.

- ``loop``: ResNet-18 for each size, precision, strategy and variant, next to ``bare``: the shortest
  loop of the same steps and tests, in this file: bytes on the GPU, a crop of each image by one
  gather, channels-last, fused SGD, the strategy written out. EWC computes its Fisher information as
  the package does. ``ours``: the rows of ``StreamTraining``, with predictions and states but
  without a store, which ``learning.py --device cuda`` includes. The first bucket, in which
  libraries load and tune, is not counted. The variant ``compile`` compiles both, and with
  ``contiguous`` the bare loop's weights are not channels-last, as in the package.
- ``strategies``: all of them on two buckets, and how often, and where most, the host waited.
- ``resume``: whether a resumed run equals a complete one, next to a second complete run.
- ``memory``: whether each way to run out of memory is reported in one line.
- ``features``: images per second of ResNet-50, of its model alone, and of decoding alone.
- ``shared``: images per second of several runs on one GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import learning
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from clear_mlflow.core.dataset import DatasetDescription
from clear_mlflow.core.errors import ClearError, ConfigError
from clear_mlflow.data.decode import DecodedImages, iter_decoded
from clear_mlflow.data.features import StoredFeatures
from clear_mlflow.data.images import ImageTable
from clear_mlflow.data.stream import BucketStream
from clear_mlflow.learning.device import (
    allow_tf32,
    cudnn_benchmark,
    is_memory_error,
    resolve_precision,
)
from clear_mlflow.learning.inference.backbones import compute_features, load_backbone
from clear_mlflow.learning.measured import Measurement
from clear_mlflow.learning.models import build_model
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import StreamTraining, resolve_config
from clear_mlflow.learning.strategies import list_strategies, load_strategy
from clear_mlflow.learning.strategies.ewc import compute_squared_gradients, count_gradients_at_once

STRATEGIES = ["naive", "replay", "ewc", "derpp"]
CLASSES = len(learning.CLASSES)
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WIDTH = 2048  # of the vectors for strategies on features
COUNTS = {
    "buckets": 3,
    "train": 3300,  # images of a bucket
    "test": 1100,
    "epochs": 2,
    "batch": 256,
    "memory": 3300,  # images in a buffer
    "fisher": 100,  # images that EWC measures on
    "photos": 1024,  # JPEG files for features
    "seconds": 840,  # after which nothing more is begun
}
LOOP_SHARE = 0.6  # of these seconds, at most


def main(arguments: Sequence[str] | None = None) -> None:
    """Run each part, and print each line as soon as it is known. Exits with 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", nargs="+", default=[*PARTS], choices=[*PARTS, "one"])
    parser.add_argument("--size", type=int, nargs="+", default=[64, 224])
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp16", "off", "tf32"])
    parser.add_argument("--strategy", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    parser.add_argument("--variant", nargs="*", default=["compile", "contiguous"])
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2, 4], help="at once")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--provoke", help=argparse.SUPPRESS)
    for name, default in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    options.started = time.perf_counter()
    if options.provoke:
        print(provoke_error(options.provoke, options.device))
        return
    if options.part == ["one"]:
        print(f"{measure_speed(options):.1f}")
        return
    print(learning.describe_machine(options.device), f"cuDNN {torch.backends.cudnn.version()}.")
    print(", ".join(f"{name} {getattr(options, name)}" for name in COUNTS))
    options.failed = []
    for part in options.part:
        run_part(part, options)
    if options.failed:
        sys.exit(f"failed: {', '.join(options.failed)}")


def run_part(part: str, options: argparse.Namespace) -> None:
    """Run a part, unless no time is left."""
    print(f"\n## {part}\n", flush=True)
    if count_seconds_left(options) <= 0:
        print("no time is left")
        return
    try:
        PARTS[part](options)
    except Exception as error:
        print(f"\nfailed: {report_error(error, part, options)}", flush=True)


def report_error(error: Exception, name: str, options: argparse.Namespace) -> str:
    """Print a traceback, and return the error in one line. The program then exits with 1."""
    traceback.print_exception(error)
    options.failed.append(name)
    return describe_error(error)


def count_seconds_left(options: argparse.Namespace, share: float = 1.0) -> float:
    """Return the seconds in which a share of the time may still begin something."""
    return float(share * options.seconds - (time.perf_counter() - options.started))


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"


def print_head(*columns: str) -> None:
    """Print the head of a table."""
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def measure_loops(options: argparse.Namespace) -> None:
    """Print the loop next to the bare one: all precisions, then variants and other strategies."""
    print_head(
        "px",
        "precision",
        "strategy",
        "variant",
        *["bare, s", "ours, s", "ours / bare"],
        "images/s",
        "peak, GB",
    )
    (first, *others), precision = options.strategy, options.precision[0]
    cells = [(name, first, "") for name in options.precision]
    cells += [(precision, first, variant) for variant in options.variant]
    cells += [(precision, strategy, "") for strategy in others]
    for size in options.size:
        data = Photos(size, options)
        for cell in cells:
            columns = "no time is left | | | | |"
            if count_seconds_left(options, LOOP_SHARE) > 0:
                columns = measure_cell(data, set_cell(options, *cell))
            print(f"| {size} | {' | '.join(cell)} | {columns}", flush=True)


def set_cell(
    options: argparse.Namespace, precision: str, strategy: str, variant: str = ""
) -> argparse.Namespace:
    """Return the options of one training."""
    cell = {"precision": precision, "strategy": strategy, "variant": variant}
    return argparse.Namespace(**(vars(options) | cell))


def measure_cell(data: Photos, options: argparse.Namespace) -> str:
    """Return the columns of a line: seconds of both, their ratio, images per second, memory."""
    try:
        training = build_training(data, options)
    except ConfigError:
        return "not computed in here | | | | |"
    costs: list[Any] = []
    try:
        with allow_tf32(options.precision == "tf32"), cudnn_benchmark():  # as ours does for itself
            bare = measure_seconds(Bare(data, options).rows())
        ours = measure_seconds(costs.append(row.row.cost) for row in training.rows())
    except Exception as error:
        return f"{report_error(error, 'loop', options)} | | | | |"
    peak = f"{max(cost.peak_bytes for cost in costs) / 2**30:.1f}"
    numbers = [f"{number:.2f}" for number in (bare, ours, ours / bare)]
    return " | ".join([*numbers, f"{count_images(options) / ours:,.0f}", peak]) + " |"


def measure_seconds(rows: Iterable[Any]) -> float:
    """Return the seconds of all buckets but the first."""
    times = [time.perf_counter() for _ in rows]
    return times[-1] - times[1]


def count_images(options: argparse.Namespace) -> int:
    """Return the number of training images that :func:`measure_seconds` covers."""
    return int((options.buckets - 1) * options.train * options.epochs)


def measure_speed(options: argparse.Namespace) -> float:
    """Return the training images per second of a run by this package, tests included."""
    cell = set_cell(options, options.precision[0], options.strategy[0])
    training = build_training(Photos(options.size[0], options), cell)
    return count_images(options) / measure_seconds(training.rows())


def measure_strategies(options: argparse.Namespace) -> None:
    """Train all strategies on two buckets, and print how often the host waited, and where most."""
    two = argparse.Namespace(**(vars(options) | {"buckets": 2}))
    data = Photos(options.size[0], two)
    print_head("strategy", "s", "accuracy, %", "waits", "most frequent place")
    for strategy in list_strategies():
        started = time.perf_counter()
        try:
            training = build_training(data, set_cell(two, options.precision[0], strategy))
            with count_waits(options.device) as waits:
                *_, last = training.rows()
        except Exception as error:
            print(f"| {strategy} | {report_error(error, strategy, options)} | | | |", flush=True)
            continue
        place = waits.most_common(1)[0] if waits else ""
        accuracy = 100 * sum(last.row.correct) / sum(last.row.num_instances)
        seconds = time.perf_counter() - started
        print(
            f"| {strategy} | {seconds:.1f} | {accuracy:.0f} | {waits.total()} | {place} |",
            flush=True,
        )


@contextlib.contextmanager
def count_waits(device: str) -> Iterator[Counter[str]]:
    """Count how often the host waits for a GPU in the block, by place."""
    waits: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if "synchronizing CUDA operation" in str(warning.message):
            waits[f"{Path(warning.filename).name}:{warning.lineno}"] += 1


def compare_resumed(options: argparse.Namespace) -> None:
    """Print how far a run that is resumed after its first bucket is from one that was not."""
    data = Photos(options.size[0], options)
    print_head("strategy", "run", "equal rows", "largest difference of a weight")
    for strategy in options.strategy:
        cell = set_cell(options, options.precision[0], strategy)
        training = build_training(data, cell, optimizer_state="keep", log_models="last")
        states: list[bytes | None] = []
        rows = [*training.rows(lambda message, s=states: s.append(message.state))]
        state = [content for content in states if content][min(1, options.buckets - 1)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "state")
            path.write_bytes(state)
            resumed = replace(training, saved=path)
            for name, again in (("a second one", training), ("resumed", resumed)):
                print(
                    f"| {strategy} | {name} | {compare_runs(rows, [*again.rows()])} |", flush=True
                )


def compare_runs(rows: Sequence[Measurement], again: Sequence[Measurement]) -> str:
    """Return the number of equal rows, and how far the last models are from each other."""
    pairs = list(zip(reversed(rows), reversed(again), strict=False))
    equal = sum(a.predictions == b.predictions for a, b in pairs)
    weights, others = (load(run[-1].model or b"") for run in (rows, again))
    difference = max((weights[k].float() - others[k].float()).abs().max().item() for k in weights)
    return f"{equal} of {len(pairs)} | {difference:.2g}"


def exhaust_memory(options: argparse.Namespace) -> None:
    """Print torch's error for each way to run out of memory, and what the package reports."""
    print_head("what", "error", "recognised")
    for name in PROVOCATIONS if options.device == "cuda" else ["allocation"]:
        command = [sys.executable, __file__, "--device", options.device, "--provoke", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = (done.stdout or done.stderr).splitlines() or ["no output"]
        print(f"| {name} | {lines[-1]} |", flush=True)
    size, precision = options.size[-1], options.precision[0]
    data = Photos(size, options)
    print()
    print_head(f"training at {size} px with 4 GB", "result")
    for name, batch in (("a large batch", options.train), ("large tests", 16)):
        cell = set_cell(options, precision, "naive")
        cell.batch, result = batch, "all rows"
        with limit_memory(options.device):
            try:
                list(islice(build_training(data, cell).rows(), 2))
            except ClearError as error:
                result = describe_error(error)
        print(f"| {name} | {result} |", flush=True)


@contextlib.contextmanager
def limit_memory(device: str) -> Iterator[None]:
    """Let torch use at most 4 GB of a GPU in the block."""
    if device == "cpu":
        yield
        return
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(4 * 2**30 / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def provoke_error(name: str, device: str) -> str:
    """Run out of memory, and return the error and whether the package recognises it."""
    try:
        provoke, megabytes_left = PROVOCATIONS[name]
        others = fill_gpu(megabytes_left) if megabytes_left else None
        provoke(device)
        del others
    except Exception as error:
        is_recognised = isinstance(error, RuntimeError) and is_memory_error(error)
        return f"{describe_error(error)} | {'yes' if is_recognised else 'NO'}"
    return "none | "


def fill_gpu(megabytes_left: int) -> Tensor:
    """Return a tensor that leaves so much of a GPU's memory."""
    torch.cuda.init()
    free, _ = torch.cuda.mem_get_info()
    return torch.empty(free - megabytes_left * 2**20, dtype=torch.uint8, device="cuda")


def convolve(device: str) -> None:
    """Convolve images, forward and backward."""
    images = torch.empty(8, 64, 128, 128, device=device, requires_grad=True)
    with cudnn_benchmark():
        torch.nn.Conv2d(64, 256, 7, padding=3, device=device)(images).sum().backward()


def multiply(device: str) -> None:
    """Multiply matrices, and decompose the product."""
    matrix = torch.eye(5000, device=device)
    torch.linalg.cholesky(matrix @ matrix)


PROVOCATIONS: dict[str, tuple[Callable[[str], object], int]] = {
    "allocation": (lambda device: torch.empty(2**50, device=device), 0),
    "pinned memory": (lambda device: torch.empty(2**46, pin_memory=True), 0),
    **{f"cuDNN, {left} MB left": (convolve, left) for left in (60, 300, 500)},
    **{f"cuBLAS and cuSOLVER, {left} MB left": (multiply, left) for left in (60, 220, 330)},
}


def measure_features(options: argparse.Namespace) -> None:
    """Print the speed of extraction, of its model alone, and of decoding alone."""
    backbone, device = load_backbone(options.backbone, "none"), torch.device(options.device)
    model = backbone.model.to(device).to(memory_format=torch.channels_last)
    print_head(f"features of {options.backbone}", "images/s")
    with tempfile.TemporaryDirectory() as folder:
        images = write_photos(Path(folder), options.photos)
        for name, run in {
            "decoding": lambda: [*iter_decoded(images, backbone.geometry)],
            "extraction": lambda: compute_features(
                model, images, geometry=backbone.geometry, device=device
            ),
            "model": lambda: run_model(model, options.photos, device),
        }.items():
            run()  # libraries load
            started = time.perf_counter()
            run()
            speed = options.photos / (time.perf_counter() - started)
            print(f"| {name} | {speed:,.0f} |", flush=True)


@torch.inference_mode()
def run_model(model: torch.nn.Module, count: int, device: torch.device) -> None:
    """Compute the features of so many images that are on the device."""
    batch = min(count, 128)
    images = torch.zeros(batch, 3, 224, 224, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    with allow_tf32(False):
        outputs = [model(images).sum() for _ in range(count // batch)]
    torch.stack(outputs).cpu()


def write_photos(folder: Path, count: int) -> ImageTable:
    """Write JPEG photos of 500 x 375 pixels."""
    draws, files = np.random.default_rng(0), []
    for number in range(count):
        coarse = draws.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        files.append(str(folder / f"{number}.jpg"))
        Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(files[-1])
    zeros = np.zeros(count, dtype=np.int64)
    return ImageTable(tuple(files), zeros, zeros, zeros == 1)


def measure_shared(options: argparse.Namespace) -> None:
    """Print the images per second of several runs at once, at the smallest size."""
    arguments = [f"--{name}={getattr(options, name)}" for name in ("device", "model", *COUNTS)]
    arguments += ["--size", str(options.size[0]), "--precision", options.precision[0]]
    print_head("runs at once", "images/s of each", "of all")
    for number in options.runs:
        if count_seconds_left(options) <= 0:
            print(f"| {number} | no time is left | |")
            continue
        command = [sys.executable, __file__, "--part", "one", *arguments]
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(number)]
        speeds = [float(run.communicate()[0].splitlines()[-1]) for run in runs]
        print(f"| {number} | {sum(speeds) / number:,.0f} | {sum(speeds):,.0f} |", flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "memory": exhaust_memory,
    "strategies": measure_strategies,
    "resume": compare_resumed,
    "loop": measure_loops,
    "features": measure_features,
    "shared": measure_shared,
}


class Photos:
    """Random photos in place of a cache of decoded ones, three quarters as high as wide."""

    def __init__(self, size: int, options: argparse.Namespace) -> None:
        draws = np.random.default_rng(0)
        self.size, self.width = size, size * 4 // 3
        counts = {"train": options.train, "test": options.test}
        names = [(split, b) for b in range(options.buckets) for split in counts]
        # The pixels of each set, and the rows of all sets.
        shape = (size, self.width, 3)
        self.pixels = {
            name: draws.integers(0, 256, (counts[name[0]], *shape), dtype=np.uint8)
            for name in names
        }
        rows = [(split, b, n) for split, b in names for n in range(counts[split])]
        images = ImageTable(
            files=tuple(f"{split}/{b}/{n}.jpg" for split, b, n in rows),
            labels=np.array([n % CLASSES for _, _, n in rows]),
            buckets=np.array([b for _, b, _ in rows]),
            is_test=np.array([split == "test" for split, _, _ in rows]),
            contents=tuple(f"{number:064x}" for number in range(len(rows))),
        )
        keys = tuple(str(b + 1) for b in range(options.buckets))
        class_names = tuple(learning.CLASSES)
        self.stream = BucketStream(
            DatasetDescription(name="random", buckets=keys, class_names=class_names), images
        )

    def load(self, images: ImageTable, resize: object) -> DecodedImages:
        """Return images like a cache of decoded photos."""
        split, bucket, _ = images.files[0].split("/")
        pixels = self.pixels[split, int(bucket)]
        return DecodedImages(pixels.reshape(-1), np.full((len(pixels), 2), pixels.shape[1:3]))

    def load_split(self, split: str, device: str) -> tuple[Tensor, Tensor]:
        """Return the bytes of all buckets in one tensor, and labels, (N,)."""
        pixels = [images for name, images in self.pixels.items() if name[0] == split]
        labels = np.concatenate([np.arange(len(images)) % CLASSES for images in pixels])
        flat = torch.from_numpy(np.concatenate(pixels).reshape(-1))
        return flat.to(device), torch.from_numpy(labels).to(device)

    def build_vectors(self) -> StoredFeatures:
        """Return random vectors instead of the images."""
        draws = np.random.default_rng(0)
        sets = {
            name: draws.standard_normal((len(images), WIDTH), dtype=np.float32)
            for name, images in self.pixels.items()
        }
        train, test = (
            tuple(vectors for name, vectors in sets.items() if name[0] == split)
            for split in ("train", "test")
        )
        return StoredFeatures("random", "sha256:1", WIDTH, train, test)


def build_training(data: Photos, options: argparse.Namespace, **changes: str) -> StreamTraining:
    """Return the package's training. Raises ConfigError if the device lacks the precision."""
    resolve_precision(options.precision, options.device)
    needs_features = load_strategy(options.strategy).needs_features
    config = {
        "strategy": options.strategy,
        "model": options.model,
        "image_size": data.size,
        "augment": "auto" if needs_features else "random_crop",
        "epochs": options.epochs,
        "batch_size": options.batch,
        "memory": options.memory,
        "lr": 0.01,
        "precision": options.precision,
        "device": options.device,
        "compile": "on" if options.variant == "compile" else "off",
    }
    if options.strategy == "ewc":
        config["strategy_args"] = f"images={options.fisher}"
    if needs_features:
        config |= {"features": "random", "model": "linear"}
    features = data.build_vectors() if needs_features else None
    config = TrainConfig.resolve({name: str(value) for name, value in (config | changes).items()})
    cache: Any = data
    return StreamTraining(
        resolve_config(config), data.stream, TrainingProgress(), features=features, cache=cache
    )


class Bare:
    """A training loop with four strategies written out."""

    def __init__(self, data: Photos, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.options, self.size = options, data.size
        self.device = device = torch.device(options.device)
        self.train, self.labels = data.load_split("train", options.device)
        self.test, self.test_labels = data.load_split("test", options.device)
        self.line, self.slack = data.width * 3, data.width - data.size  # bytes, pixels
        model: Any = build_model(options.model, num_classes=CLASSES, image_size=data.size)
        model = model.to(device)
        if options.variant != "contiguous":
            model = model.to(memory_format=torch.channels_last)
        self.model = self.compiled = model
        if options.variant == "compile":
            self.compiled = torch.compile(model, dynamic=False)
        self.weights = list(model.parameters())
        dtype = HALVES.get(options.precision)
        self.half = torch.autocast(
            options.device, dtype or torch.bfloat16, enabled=dtype is not None
        )
        self.scaler = torch.amp.GradScaler(options.device, enabled=options.precision == "fp16")
        self.scale = torch.tensor([1 / (255 * s) for s in STD], device=device).repeat(self.size)
        shift = [-m / s for m, s in zip(MEAN, STD, strict=True)]
        self.shift = torch.tensor(shift, device=device).repeat(self.size)
        self.memory = torch.empty(0, dtype=torch.int64, device=device)
        self.new_logits = self.logits = torch.empty(0, CLASSES, device=device)
        self.importance = [torch.zeros_like(weight) for weight in self.weights]
        self.vertex = self.weights

    def rows(self) -> Iterator[list[int]]:
        """Yield the number of correct images in each bucket, before and after each bucket."""
        yield self.count_correct()
        for position in range(self.options.buckets):
            first, end = position * self.options.train, (position + 1) * self.options.train
            new = torch.arange(first, end, device=self.device)
            self.learn(new, position)
            if self.options.strategy in ("replay", "derpp"):
                self.fill(new)
            elif self.options.strategy == "ewc":
                self.consolidate(new)
            yield self.count_correct()

    def inputs(self, pixels: Tensor, chosen: Tensor, offset: Tensor) -> Tensor:
        """Return images, (B, 3, size, size), by one gather of lines."""
        along = torch.arange(self.size, device=self.device) * self.line
        first = (chosen * (self.line * self.size) + offset * 3)[:, None] + along
        lines = pixels.unfold(0, self.size * 3, 1).index_select(0, first.view(-1))
        lines = torch.addcmul(self.shift, lines, self.scale)
        return lines.view(-1, self.size, self.size, 3).permute(0, 3, 1, 2)

    def crops(self, chosen: Tensor) -> Tensor:
        """Return training images with a random crop of each."""
        offset = torch.randint(0, self.slack + 1, chosen.shape, device=self.device)
        return self.inputs(self.train, chosen, offset)

    def count_correct(self) -> list[int]:
        """Return the number of correct images in each bucket."""
        self.model.eval()
        every = torch.arange(len(self.test_labels), device=self.device)
        with torch.inference_mode(), self.half:
            outputs = [
                self.model(self.inputs(self.test, part, torch.full_like(part, self.slack // 2)))
                for part in every.split(64 if self.device.type == "cpu" else 512)
            ]
        right = torch.cat(outputs).argmax(1) == self.test_labels
        counts: list[int] = right.view(self.options.buckets, -1).sum(1).tolist()
        return counts

    def learn(self, new: Tensor, position: int) -> None:
        """Train on a bucket."""
        fused = self.device.type == "cuda"
        optimizer = torch.optim.SGD(self.weights, 0.01, 0.9, weight_decay=1e-5, fused=fused)
        for weight in self.weights:  # the fused one would not initialise it if float16 overflows
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        self.new_logits = torch.empty(len(new), CLASSES, device=self.device)
        strength = [(3.0 * importance).clamp_(max=100.0) for importance in self.importance]
        chosen = torch.cat([new, self.memory]) if self.options.strategy == "replay" else new
        self.model.train()
        for _ in range(self.options.epochs):
            order = chosen[torch.randperm(len(chosen), device=self.device)]
            for batch in order.split(self.options.batch):
                with self.half:
                    loss = self.loss(batch, batch - position * self.options.train)
                optimizer.zero_grad(set_to_none=True)
                self.scaler.scale(loss).backward()
                if self.options.strategy == "ewc" and position > 0:
                    self.scaler.unscale_(optimizer)
                    with torch.no_grad():
                        back = torch._foreach_sub(self.weights, self.vertex)
                        torch._foreach_mul_(back, strength)
                        torch._foreach_add_([weight.grad for weight in self.weights], back)
                self.scaler.step(optimizer)
                self.scaler.update()

    def loss(self, batch: Tensor, indices: Tensor) -> Tensor:
        """Return the loss of one step, for DER++ with two buffer batches in one pass."""
        if self.options.strategy != "derpp":
            model = self.compiled if len(batch) == self.options.batch else self.model
            return cross_entropy(model(self.crops(batch)), self.labels[batch])
        count = min(self.options.batch, len(self.memory))
        samples = torch.rand(2, count, device=self.device).mul_(len(self.memory)).long()
        imitated, repeated = samples
        again = self.memory[repeated]
        logits = self.model(self.crops(torch.cat([batch, self.memory[imitated], again])))
        new, imitation, repetition = logits.split([len(batch), count, count])
        self.new_logits[indices] = new.detach().float()
        loss = cross_entropy(new, self.labels[batch])
        if count:
            loss = loss + 0.5 * mse_loss(imitation.float(), self.logits[imitated])
            loss = loss + 0.5 * cross_entropy(repetition, self.labels[again])
        return loss

    def fill(self, new: Tensor) -> None:
        """Add the bucket's images to the buffer."""
        memory, logits = torch.cat([self.memory, new]), torch.cat([self.logits, self.new_logits])
        sample = torch.randperm(len(memory), device=self.device)[: self.options.memory]
        self.memory, self.logits = memory[sample], logits[sample]

    def consolidate(self, new: Tensor) -> None:
        """Add the penalty of a bucket to EWC's quadratic penalty."""
        self.model.eval()
        fisher = [torch.zeros_like(weight) for weight in self.weights]
        chosen = new[torch.randperm(len(new), device=self.device)[: self.options.fisher]]
        at_once = count_gradients_at_once(sum(map(Tensor.numel, self.weights)), self.device)
        for some in chosen.split(max(1, at_once // CLASSES)):
            images = self.crops(some)
            with torch.no_grad():
                share = self.model(images).softmax(1) / len(chosen)
            labels = torch.arange(CLASSES, device=self.device).expand(len(some), -1)
            torch._foreach_add_(
                fisher, compute_squared_gradients(self.model, images, labels, share)
            )
        torch._foreach_add_(self.importance, fisher)
        importance = torch._foreach_clamp_min(self.importance, torch.finfo(torch.float32).tiny)
        here = [weight.detach().clone() for weight in self.weights]
        vertex = [weight.detach() for weight in self.vertex]
        self.vertex = torch._foreach_lerp(vertex, here, torch._foreach_div(fisher, importance))


if __name__ == "__main__":
    main()
