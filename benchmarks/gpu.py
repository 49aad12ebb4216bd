"""What training on a GPU costs: ``python benchmarks/gpu.py`` prints it as a table in Markdown.

One process and one GPU, less than ten minutes. ResNet-18 through buckets of random photos of
CLEAR-10's number and shape (time does not depend on what they show), for each size, precision and
strategy:

- ``bare``: the shortest loop of the same steps and tests, in this file: bytes on the GPU, a crop of
  each image by one gather, channels-last, fused SGD, the strategy written out. EWC measures its
  Fisher information as ours does;
- ``ours``: the rows of ``StreamTraining`` as the training process gives them, predictions and
  states among them. What a store takes is not in it: ``learning.py --device cuda`` has that.

Counted are the buckets after the first one, in which libraries load and choose, and their tests.
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
from clear_mlflow.data.decoding.decode import DecodedImages
from clear_mlflow.data.stream import Bucket, BucketStream, ImageSet
from clear_mlflow.learning.device import fixed_sizes, resolve_precision, tf32
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import StreamTraining, check
from clear_mlflow.learning.strategies.ewc import gradients_at_once, squared_gradients

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
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", type=int, nargs="+", default=[64, 224])
    options.add_argument("--precision", nargs="+", default=["bf16", "fp16", "off"])
    options.add_argument("--strategy", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    options.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    for name, default in COUNTS.items():
        options.add_argument(f"--{name}", type=int, default=default)
    asked = options.parse_args(arguments)
    started = time.perf_counter()
    print(learning.machine(asked.device), end="\n\n")
    print(", ".join(f"{name} {getattr(asked, name)}" for name in COUNTS), end="\n\n")
    print("| px | precision | strategy | bare, s | ours, s | ours / bare | images/s | peak, GB |")
    print("|---:|---|---|---:|---:|---:|---:|---:|")
    for size in asked.size:
        data = Photos(size, asked)
        for precision, strategy in itertools.product(asked.precision, asked.strategy):
            told = "no time is left | | | | |"
            if time.perf_counter() - started < asked.seconds:
                cell = {**vars(asked), "precision": precision, "strategy": strategy}
                told = measured(data, argparse.Namespace(**cell))
            print(f"| {size} | {precision} | {strategy} | {told}", flush=True)


def measured(data: Photos, asked: argparse.Namespace) -> str:
    """The rest of a line: seconds of both, their ratio, and what ours trains on and takes."""
    try:
        resolve_precision(
            TrainConfig.resolve({"precision": asked.precision}).precision, asked.device
        )
    except ConfigError:
        return "not computed in here | | | | |"
    config = config_of(data.size, asked)
    seconds: list[float] = []
    costs: list[Any] = []  # of the rows of ours
    cache: Any = data

    def ours() -> Iterator[None]:
        training = StreamTraining(config, data.stream, "", TrainingProgress(), cache=cache)
        for measured_row in training.rows():
            costs.append(measured_row.row.cost)
            yield

    for side in (lambda: Bare(data, asked).rows(), ours):
        with tf32(asked.precision == "tf32"), fixed_sizes():  # as ours does for itself
            times = [time.perf_counter() for _ in side()]
        seconds.append(times[-1] - times[1])
    peak = highest(costs) if asked.device == "cuda" else ""
    images = (asked.buckets - 1) * asked.train * asked.epochs
    found = [f"{number:.2f}" for number in (*seconds, seconds[1] / seconds[0])]
    return " | ".join([*found, f"{images / seconds[1]:,.0f}", peak]) + " |"


def highest(costs: Sequence[Any]) -> str:
    """GB at the peak: a row has that of its own bucket."""
    return f"{max(cost.peak_bytes for cost in costs) / 2**30:.1f}"


class Photos:
    """Random photos, three quarters as high as wide, in the place of a cache of decoded ones."""

    def __init__(self, size: int, asked: argparse.Namespace) -> None:
        draws = np.random.default_rng(0)
        self.size, self.width = size, size * 4 // 3
        self.pixels: dict[Path, np.ndarray] = {}  # a set's first file to its images
        buckets = []
        for bucket in range(asked.buckets):
            sets = []
            for split, count in (("train", asked.train), ("test", asked.test)):
                paths = tuple(Path(split, f"{bucket}-{n}.jpg") for n in range(count))
                shape = (count, size, self.width, 3)
                self.pixels[paths[0]] = draws.integers(0, 256, shape, dtype=np.uint8)
                contents = tuple(f"{bucket:032x}{n:032x}" for n in range(count))
                sets.append(ImageSet(paths, np.arange(count) % CLASSES, contents))
            buckets.append(Bucket(str(bucket + 1), *sets))
        self.stream = BucketStream("random", learning.CLASSES, tuple(buckets), "sha256:0")

    def images(self, images: ImageSet, resize: object) -> DecodedImages:
        """As a cache gives them."""
        pixels = self.pixels[images.paths[0]]
        return DecodedImages(pixels.reshape(-1), np.full((len(pixels), 2), pixels.shape[1:3]))

    def placed(self, split: str, device: str) -> tuple[Tensor, Tensor]:
        """All buckets' bytes, end to end, and (N,) labels."""
        pixels = [images for path, images in self.pixels.items() if path.parts[0] == split]
        labels = np.concatenate([np.arange(len(images)) % CLASSES for images in pixels])
        flat = torch.from_numpy(np.concatenate(pixels).reshape(-1))
        return flat.to(device), torch.from_numpy(labels).to(device)


def config_of(size: int, asked: argparse.Namespace) -> TrainConfig:
    """What ours trains with."""
    config = {
        "strategy": asked.strategy,
        "model": "resnet18",
        "image_size": size,
        "augment": "random_crop",
        "epochs": asked.epochs,
        "batch_size": asked.batch,
        "memory": asked.memory,
        "lr": 0.01,
        "precision": asked.precision,
        "device": asked.device,
    }
    if asked.strategy == "ewc":
        config["strategy_args"] = f"images={asked.fisher}"
    return check(TrainConfig.resolve({name: str(value) for name, value in config.items()}))


class Bare:
    """A loop with four strategies written out."""

    def __init__(self, data: Photos, asked: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.asked, self.size = asked, data.size
        self.device = device = torch.device(asked.device)
        self.train, self.labels = data.placed("train", asked.device)
        self.test, self.test_labels = data.placed("test", asked.device)
        self.line, self.slack = data.width * 3, data.width - data.size  # bytes, pixels
        model = torchvision.models.resnet18(num_classes=CLASSES)
        self.model = model.to(device).to(memory_format=torch.channels_last)
        self.weights = list(model.parameters())
        kind = HALVES.get(asked.precision)
        self.half = torch.autocast(asked.device, kind or torch.bfloat16, enabled=kind is not None)
        self.scaler = torch.amp.GradScaler(asked.device, enabled=asked.precision == "fp16")
        self.scale = torch.tensor([1 / (255 * s) for s in STD], device=device).repeat(self.size)
        shift = [-m / s for m, s in zip(MEAN, STD, strict=True)]
        self.shift = torch.tensor(shift, device=device).repeat(self.size)
        self.memory = torch.empty(0, dtype=torch.int64, device=device)
        self.answers = self.logits = torch.empty(0, CLASSES, device=device)
        self.importance = [torch.zeros_like(weight) for weight in self.weights]
        self.vertex = self.weights

    def rows(self) -> Iterator[list[int]]:
        """Images right in each bucket, after each."""
        yield self.tested()
        for position in range(self.asked.buckets):
            first, end = position * self.asked.train, (position + 1) * self.asked.train
            new = torch.arange(first, end, device=self.device)
            self.learn(new, position)
            if self.asked.strategy in ("replay", "derpp"):
                self.fill(new)
            elif self.asked.strategy == "ewc":
                self.hold(new)
            yield self.tested()

    def inputs(self, pixels: Tensor, chosen: Tensor, left: Tensor) -> Tensor:
        """(B, 3, size, size): one gather of lines, each from a byte on."""
        along = torch.arange(self.size, device=self.device) * self.line
        first = (chosen * (self.line * self.size) + left * 3)[:, None] + along
        lines = pixels.unfold(0, self.size * 3, 1).index_select(0, first.view(-1))
        lines = torch.addcmul(self.shift, lines, self.scale)
        return lines.view(-1, self.size, self.size, 3).permute(0, 3, 1, 2)

    def crops(self, chosen: Tensor) -> Tensor:
        """Training images, each cropped somewhere."""
        left = torch.randint(0, self.slack + 1, chosen.shape, device=self.device)
        return self.inputs(self.train, chosen, left)

    def tested(self) -> list[int]:
        """Images right in each bucket."""
        self.model.eval()
        every = torch.arange(len(self.test_labels), device=self.device)
        with torch.inference_mode(), self.half:
            found = [
                self.model(self.inputs(self.test, part, torch.full_like(part, self.slack // 2)))
                for part in every.split(64 if self.device.type == "cpu" else 512)
            ]
        right = torch.cat(found).argmax(1) == self.test_labels
        counts: list[int] = right.view(self.asked.buckets, -1).sum(1).tolist()
        return counts

    def learn(self, new: Tensor, position: int) -> None:
        """A bucket's epochs."""
        fused = self.device.type == "cuda"
        optimizer = torch.optim.SGD(self.weights, 0.01, 0.9, weight_decay=1e-5, fused=fused)
        self.answers = torch.empty(len(new), CLASSES, device=self.device)
        stiffness = [(3.0 * known).clamp_(max=100.0) for known in self.importance]
        chosen = torch.cat([new, self.memory]) if self.asked.strategy == "replay" else new
        self.model.train()
        for _ in range(self.asked.epochs):
            order = chosen[torch.randperm(len(chosen), device=self.device)]
            for batch in order.split(self.asked.batch):
                with self.half:
                    loss = self.loss(batch, batch - position * self.asked.train)
                optimizer.zero_grad(set_to_none=True)
                self.scaler.scale(loss).backward()
                if self.asked.strategy == "ewc" and position > 0:
                    self.scaler.unscale_(optimizer)
                    with torch.no_grad():
                        back = torch._foreach_sub(self.weights, self.vertex)
                        torch._foreach_mul_(back, stiffness)
                        torch._foreach_add_([weight.grad for weight in self.weights], back)
                self.scaler.step(optimizer)
                self.scaler.update()

    def loss(self, batch: Tensor, places: Tensor) -> Tensor:
        """Of one step; DER++'s with two batches of the buffer in one pass."""
        if self.asked.strategy != "derpp":
            return cross_entropy(self.model(self.crops(batch)), self.labels[batch])
        count = min(self.asked.batch, len(self.memory))
        drawn = torch.rand(2, count, device=self.device).mul_(len(self.memory)).long()
        imitated, repeated = drawn
        again = self.memory[repeated]
        logits = self.model(self.crops(torch.cat([batch, self.memory[imitated], again])))
        new, imitation, repetition = logits.split([len(batch), count, count])
        self.answers[places] = new.detach().float()
        loss = cross_entropy(new, self.labels[batch])
        if count:
            loss = loss + 0.5 * mse_loss(imitation.float(), self.logits[imitated])
            loss = loss + 0.5 * cross_entropy(repetition, self.labels[again])
        return loss

    def fill(self, new: Tensor) -> None:
        """Let the bucket's images compete for the buffer."""
        memory, logits = torch.cat([self.memory, new]), torch.cat([self.logits, self.answers])
        kept = torch.randperm(len(memory), device=self.device)[: self.asked.memory]
        self.memory, self.logits = memory[kept], logits[kept]

    def hold(self, new: Tensor) -> None:
        """Add the parabola of what the bucket depends on."""
        self.model.eval()
        fisher = [torch.zeros_like(weight) for weight in self.weights]
        chosen = new[torch.randperm(len(new), device=self.device)[: self.asked.fisher]]
        at_once = gradients_at_once(sum(map(Tensor.numel, self.weights)), self.device)
        for some in chosen.split(max(1, at_once // CLASSES)):
            images = self.crops(some)
            with torch.no_grad():
                share = self.model(images).softmax(1) / len(chosen)
            labels = torch.arange(CLASSES, device=self.device).expand(len(some), -1)
            torch._foreach_add_(fisher, squared_gradients(self.model, images, labels, share))
        torch._foreach_add_(self.importance, fisher)
        known = torch._foreach_clamp_min(self.importance, torch.finfo(torch.float32).tiny)
        here = [weight.detach().clone() for weight in self.weights]
        vertex = [weight.detach() for weight in self.vertex]
        self.vertex = torch._foreach_lerp(vertex, here, torch._foreach_div(fisher, known))


if __name__ == "__main__":
    main()
