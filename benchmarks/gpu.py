"""Measure training on a GPU: ``python benchmarks/gpu.py`` prints a table in Markdown.

One process and one GPU, less than ten minutes. ResNet-18 is trained on buckets of random photos in
CLEAR-10's number and shape, for each size, precision and strategy:

- ``bare``: the shortest loop of the same steps and tests, in this file: bytes on the GPU, a crop of
  each image by one gather, channels-last, fused SGD, the strategy written out. EWC computes its
  Fisher information as the package does;
- ``ours``: the rows of ``StreamTraining``, with predictions and states but without a store, which
  ``learning.py --device cuda`` includes.

The first bucket, in which libraries load and tune, is not counted.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import learning
import numpy as np
import torch
import torchvision
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data.decode import DecodedImages
from clear_mlflow.data.stream import Bucket, BucketStream, ImageSet
from clear_mlflow.learning.device import allow_tf32, cudnn_benchmark, resolve_precision
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import StreamTraining, check
from clear_mlflow.learning.strategies.ewc import compute_squared_gradients, count_gradients_at_once

STRATEGIES = ["naive", "replay", "ewc", "derpp"]
CLASSES = len(learning.CLASSES)
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
COUNTS = {
    "buckets": 3,
    "train": 3300,  # images of a bucket
    "test": 1100,
    "epochs": 2,
    "batch": 256,
    "memory": 3300,  # images in a buffer
    "fisher": 100,  # images that EWC measures on
    "seconds": 540,  # after which nothing more is begun
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print each line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs="+", default=[64, 224])
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp16", "off"])
    parser.add_argument("--strategy", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    for name, default in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    print(learning.describe_machine(options.device), end="\n\n")
    print(", ".join(f"{name} {getattr(options, name)}" for name in COUNTS), end="\n\n")
    print("| px | precision | strategy | bare, s | ours, s | ours / bare | images/s | peak, GB |")
    print("|---:|---|---|---:|---:|---:|---:|---:|")
    for size in options.size:
        data = Photos(size, options)
        for precision, strategy in itertools.product(options.precision, options.strategy):
            cells = "no time is left | | | | |"
            if time.perf_counter() - started < options.seconds:
                cell = {**vars(options), "precision": precision, "strategy": strategy}
                cells = measure(data, argparse.Namespace(**cell))
            print(f"| {size} | {precision} | {strategy} | {cells}", flush=True)


def measure(data: Photos, options: argparse.Namespace) -> str:
    """Return the cells of a line: seconds of both, their ratio, images per second, memory."""
    try:
        resolve_precision(
            TrainConfig.resolve({"precision": options.precision}).precision, options.device
        )
    except ConfigError:
        return "not computed in here | | | | |"
    config = build_config(data.size, options)
    seconds: list[float] = []
    costs: list[Any] = []  # of the rows of ours
    cache: Any = data

    def run_package() -> Iterator[None]:
        training = StreamTraining(config, data.stream, "", TrainingProgress(), cache=cache)
        for measured_row in training.rows():
            costs.append(measured_row.row.cost)
            yield

    for side in (lambda: Bare(data, options).rows(), run_package):
        with allow_tf32(options.precision == "tf32"), cudnn_benchmark():  # as ours does for itself
            times = [time.perf_counter() for _ in side()]
        seconds.append(times[-1] - times[1])
    peak = format_peak(costs) if options.device == "cuda" else ""
    images = (options.buckets - 1) * options.train * options.epochs
    outputs = [f"{number:.2f}" for number in (*seconds, seconds[1] / seconds[0])]
    return " | ".join([*outputs, f"{images / seconds[1]:,.0f}", peak]) + " |"


def format_peak(costs: Sequence[Any]) -> str:
    """Return the peak memory of all rows in GB."""
    return f"{max(cost.peak_bytes for cost in costs) / 2**30:.1f}"


class Photos:
    """Random photos in place of a cache of decoded ones, three quarters as high as wide."""

    def __init__(self, size: int, options: argparse.Namespace) -> None:
        draws = np.random.default_rng(0)
        self.size, self.width = size, size * 4 // 3
        self.pixels: dict[Path, np.ndarray] = {}  # a set's first file to its images
        buckets = []
        for bucket in range(options.buckets):
            sets = []
            for split, count in (("train", options.train), ("test", options.test)):
                paths = tuple(Path(split, f"{bucket}-{n}.jpg") for n in range(count))
                shape = (count, size, self.width, 3)
                self.pixels[paths[0]] = draws.integers(0, 256, shape, dtype=np.uint8)
                contents = tuple(f"{bucket:032x}{n:032x}" for n in range(count))
                sets.append(ImageSet(paths, np.arange(count) % CLASSES, contents))
            buckets.append(Bucket(str(bucket + 1), *sets))
        self.stream = BucketStream("random", learning.CLASSES, tuple(buckets), "sha256:0")

    def load(self, images: ImageSet, resize: object) -> DecodedImages:
        """Return images like a cache of decoded photos."""
        pixels = self.pixels[images.paths[0]]
        return DecodedImages(pixels.reshape(-1), np.full((len(pixels), 2), pixels.shape[1:3]))

    def load_split(self, split: str, device: str) -> tuple[Tensor, Tensor]:
        """Return the bytes of all buckets in one tensor, and labels, (N,)."""
        pixels = [images for path, images in self.pixels.items() if path.parts[0] == split]
        labels = np.concatenate([np.arange(len(images)) % CLASSES for images in pixels])
        flat = torch.from_numpy(np.concatenate(pixels).reshape(-1))
        return flat.to(device), torch.from_numpy(labels).to(device)


def build_config(size: int, options: argparse.Namespace) -> TrainConfig:
    """Return the configuration of the package's training."""
    config = {
        "strategy": options.strategy,
        "model": "resnet18",
        "image_size": size,
        "augment": "random_crop",
        "epochs": options.epochs,
        "batch_size": options.batch,
        "memory": options.memory,
        "lr": 0.01,
        "precision": options.precision,
        "device": options.device,
    }
    if options.strategy == "ewc":
        config["strategy_args"] = f"images={options.fisher}"
    return check(TrainConfig.resolve({name: str(value) for name, value in config.items()}))


class Bare:
    """A training loop with four strategies written out."""

    def __init__(self, data: Photos, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.options, self.size = options, data.size
        self.device = device = torch.device(options.device)
        self.train, self.labels = data.load_split("train", options.device)
        self.test, self.test_labels = data.load_split("test", options.device)
        self.line, self.slack = data.width * 3, data.width - data.size  # bytes, pixels
        model = torchvision.models.resnet18(num_classes=CLASSES)
        self.model = model.to(device).to(memory_format=torch.channels_last)
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
            return cross_entropy(self.model(self.crops(batch)), self.labels[batch])
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
