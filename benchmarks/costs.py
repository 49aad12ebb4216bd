"""What counting costs takes, and what strategies take: ``python benchmarks/costs.py``.

The first table: CPU seconds of a training step as it is, counted (as the first of its shape is),
and of what every other step does to be counted, in turn in one process. The second one is that of
docs/cost.md: computed from what the counter has for one image, forward and in a step, on tensors
without numbers; nothing is trained.
"""

from __future__ import annotations

import math
import os
import statistics
import time
import timeit
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from clear_mlflow.learning.models import build_model
from clear_mlflow.learning.spending.meter import CostMeter, FlopCounter

CPU = torch.device("cpu")
TURNS = 15
# CLEAR-10's recipe: images of a bucket and of the memory, buckets, epochs, pixels, classes, batch.
IMAGES, BUCKETS, EPOCHS, SIDE, CLASSES, BATCH = 3300, 10, 100, 224, 11, 256
# Of features of a ResNet-50; images whose gradients EWC squares.
WIDTH, FISHER = 2048, 100


def main() -> None:
    """Print both tables."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {load()}\n")
    print(
        "| step | ms | counted, ms | bookkeeping of any other step, us | of the step | "
        "of a bucket of 100 steps | a test's pass, counted / plain |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, model, inputs in (
        ("linear head on 2,048 features, 512 images", nn.Linear(WIDTH, CLASSES), (512, WIDTH)),
        ("small_cnn at 32 px, 32 images", build_model("small_cnn", **of(32)), (32, 3, 32, 32)),
        ("ResNet-18 at 64 px, 32 images", build_model("resnet18", **of(64)), (32, 3, 64, 64)),
    ):
        print(f"| {name} | {counting(model, torch.rand(inputs))} |", flush=True)
    print(f"\nload {load()}\n")
    for line in strategies():
        print(line)


def of(side: int) -> dict[str, int]:
    """What a model of images of a side is built from."""
    return {"num_classes": CLASSES, "image_size": side}


def load() -> str:
    """Of the machine, over the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def counting(model: nn.Module, inputs: torch.Tensor) -> str:
    """The cells of one model."""
    labels = torch.arange(len(inputs)) % CLASSES
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    costs, shape = CostMeter(CPU), (True, 62, len(inputs))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(cross_entropy(model(inputs), labels))
        optimizer.step()

    def counted_step() -> None:
        with costs.step(shape):
            step()

    def test() -> None:
        with torch.no_grad():
            model(inputs)

    def counted_test() -> None:
        with costs.counted():
            test()

    def bookkeeping() -> None:  # as GradientDescent.run does it
        known = (True, 62, len(inputs))
        flops = costs.flops_of.get(known)
        costs.flops += flops or 0
        costs.seen += len(inputs) + sum([])

    plain, counted = side_by_side(step, counted_step)
    passed, counted_pass = side_by_side(test, counted_test)
    beside = min(timeit.repeat(bookkeeping, number=10_000, repeat=5)) / 10_000
    of_bucket = (99 * beside + max(0.0, counted - plain)) / (100 * plain)
    return (
        f"{1e3 * plain:.2f} | {1e3 * counted:.2f} | {1e6 * beside:.2f} | {beside / plain:.3%} | "
        f"{of_bucket:.3%} | {counted_pass / passed:.3f}"
    )


def side_by_side(*sides: Callable[[], None]) -> list[float]:
    """Median CPU seconds of each, in turn; the first turn warms up."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(TURNS + 1):
        for side, of_side in zip(sides, taken, strict=True):
            began = time.process_time()
            side()
            of_side.append(time.process_time() - began)
    return [statistics.median(of_side[1:]) for of_side in taken]


def strategies() -> list[str]:
    """The table of docs/cost.md, by what each takes for an image of a bucket but the first."""
    model = build_model("resnet18", **of(SIDE)).to("meta")
    labels = torch.zeros(1, dtype=torch.int64, device="meta")
    image = torch.empty(1, 3, SIDE, SIDE, device="meta")
    with FlopCounter() as passed:
        model(image)
    with FlopCounter() as stepped:
        torch.autograd.backward(cross_entropy(model(image), labels))
    forward, step = passed.flops, stepped.flops
    naive, rest = IMAGES * EPOCHS * step * BUCKETS, IMAGES * EPOCHS * (BUCKETS - 1)
    # Whole batches of the memory beside each batch of the bucket, its last, smaller one, too.
    drawn = math.ceil(IMAGES / BATCH) * BATCH * EPOCHS * (BUCKETS - 1)
    head = 2 * model.fc.weight.numel()
    parts = sum(range(1, BUCKETS + 1)) / BUCKETS
    pass_over = BUCKETS * (2 * IMAGES * WIDTH + 2 * CLASSES * WIDTH)
    square = BUCKETS * (2 * IMAGES * WIDTH**2 + WIDTH**3 // 3 + 2 * CLASSES * WIDTH**2)
    fisher = FISHER * (2 * forward + CLASSES * (step - forward))
    found = {
        f"`ncm` on {WIDTH:,} features": pass_over,
        f"`linear` on {WIDTH:,} features": BUCKETS * EPOCHS * IMAGES * 4 * WIDTH * CLASSES,
        f"`slda` on {WIDTH:,} features": pass_over + square,
        "`cwr`": naive // BUCKETS + rest * (forward + head),
        "`naive`, `from_scratch`, `si`, `gdumb`, `joint`": naive,
        "`ewc`": naive + BUCKETS * fisher,
        "`lwf`": naive + rest * forward,
        "`replay`": naive + rest * step,
        "`er_ace`, `agem`": naive + drawn * step,
        "`derpp`": naive + 2 * drawn * step,
        "`cumulative`": parts * naive,
    }
    return [
        f"{forward / 1e9:.2f} GFLOPs forward and {step / 1e9:.2f} in a step for each image.\n",
        "| strategy | training FLOPs of the stream | of naive's |",
        "|---|---|---|",
        *(
            f"| {name} | {flops:.2e} | {flops / naive:{'.2f' if flops > 0.01 * naive else '.0e'}} |"
            for name, flops in found.items()
        ),
    ]


if __name__ == "__main__":
    main()
