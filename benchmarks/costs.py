"""Measure what counting FLOPs costs, and compute what strategies cost.

``python benchmarks/costs.py`` prints two tables. First, CPU seconds of a training step, of a
counted step (the first of its shape), and of the bookkeeping in all other steps, in turn in one
process. Second, for docs/cost.md, the FLOPs of strategies: computed from the counts for one image
on tensors without numbers; nothing is trained.
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
from clear_mlflow.learning.training.costs import CostMeter, FlopCounter

CPU = torch.device("cpu")
TURNS = 15
TEST_BATCHES = 10  # of a row; CLEAR-10 has more
# CLEAR-10's recipe: images of a bucket and of the memory, buckets, epochs, pixels, classes, batch.
IMAGES, BUCKETS, EPOCHS, SIDE, CLASSES, BATCH = 3300, 10, 100, 224, 11, 256
# Of features of a ResNet-50; images whose gradients EWC squares.
WIDTH, FISHER = 2048, 100


def main() -> None:
    """Print both tables."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {get_load()}\n")
    print(
        "| step | ms | counted, ms | bookkeeping of any other step, us | of the step | "
        "of a bucket of 100 steps | a test of 10 batches, counted / plain |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, model, inputs in (
        ("linear head on 2,048 features, 512 images", nn.Linear(WIDTH, CLASSES), (512, WIDTH)),
        (
            "small_cnn at 32 px, 32 images",
            build_model("small_cnn", **build_options(32)),
            (32, 3, 32, 32),
        ),
        (
            "ResNet-18 at 64 px, 32 images",
            build_model("resnet18", **build_options(64)),
            (32, 3, 64, 64),
        ),
    ):
        print(f"| {name} | {format_counting(model, torch.rand(inputs))} |", flush=True)
    print(f"\nload {get_load()}\n")
    for line in list_strategies():
        print(line)


def build_options(side: int) -> dict[str, int]:
    """Return the options of a model for square images."""
    return {"num_classes": CLASSES, "image_size": side}


def get_load() -> str:
    """Return the machine's load average over the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def format_counting(model: nn.Module, inputs: torch.Tensor) -> str:
    """Return the cells of one model's row."""
    labels = torch.arange(len(inputs)) % CLASSES
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    costs, shape = CostMeter(CPU), (True, 62, len(inputs))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(cross_entropy(model(inputs), labels))
        optimizer.step()

    def counted_step() -> None:
        with costs.count_step(shape):
            step()

    def test() -> None:
        with torch.no_grad():
            for _ in range(TEST_BATCHES):
                model(inputs)

    def counted_test() -> None:  # as learning.loop.measure does it
        with costs.count_test() as count_batch, torch.no_grad():
            for _ in range(TEST_BATCHES):
                with count_batch(inputs.shape):
                    model(inputs)

    def bookkeeping() -> None:  # as Trainer.train_bucket does it
        with costs.count_step((True, 62, len(inputs))):
            pass
        costs.images_in_steps += len(inputs) + sum([])

    uncounted, counted = time_in_turn(step, counted_step)
    passed, counted_pass = time_in_turn(test, counted_test)
    lookup = min(timeit.repeat(bookkeeping, number=10_000, repeat=5)) / 10_000
    of_bucket = (99 * lookup + max(0.0, counted - uncounted)) / (100 * uncounted)
    return (
        f"{1e3 * uncounted:.2f} | {1e3 * counted:.2f} | {1e6 * lookup:.2f} | "
        f"{lookup / uncounted:.3%} | {of_bucket:.3%} | {counted_pass / passed:.3f}"
    )


def time_in_turn(*sides: Callable[[], None]) -> list[float]:
    """Return median CPU seconds of functions that take turns, without the first turn."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(TURNS + 1):
        for side, of_side in zip(sides, taken, strict=True):
            began = time.process_time()
            side()
            of_side.append(time.process_time() - began)
    return [statistics.median(of_side[1:]) for of_side in taken]


def list_strategies() -> list[str]:
    """Return the lines of the table in docs/cost.md."""
    model = build_model("resnet18", **build_options(SIDE)).to("meta")
    labels = torch.zeros(1, dtype=torch.int64, device="meta")
    image = torch.empty(1, 3, SIDE, SIDE, device="meta")
    with FlopCounter() as passed:
        model(image)
    with FlopCounter() as stepped:
        torch.autograd.backward(cross_entropy(model(image), labels))
    forward, step = passed.flops, stepped.flops
    naive, rest = IMAGES * EPOCHS * step * BUCKETS, IMAGES * EPOCHS * (BUCKETS - 1)
    # Whole batches of the memory with each batch of the bucket, also with its smaller last batch.
    num_replayed = math.ceil(IMAGES / BATCH) * BATCH * EPOCHS * (BUCKETS - 1)
    head = 2 * model.fc.weight.numel()
    parts = sum(range(1, BUCKETS + 1)) / BUCKETS
    iter_bucket_blocks = BUCKETS * (2 * IMAGES * WIDTH + 2 * CLASSES * WIDTH)
    square = BUCKETS * (2 * IMAGES * WIDTH**2 + WIDTH**3 // 3 + 2 * CLASSES * WIDTH**2)
    fisher = FISHER * (2 * forward + CLASSES * (step - forward))
    flops_by_strategy = {
        f"`ncm` on {WIDTH:,} features": iter_bucket_blocks,
        f"`linear` on {WIDTH:,} features": BUCKETS * EPOCHS * IMAGES * 4 * WIDTH * CLASSES,
        f"`slda` on {WIDTH:,} features": iter_bucket_blocks + square,
        "`cwr`": naive // BUCKETS + rest * (forward + head),
        "`naive`, `from_scratch`, `si`, `gdumb`, `joint`": naive,
        "`ewc`": naive + BUCKETS * fisher,
        "`lwf`": naive + rest * forward,
        "`replay`": naive + rest * step,
        "`er_ace`, `agem`": naive + num_replayed * step,
        "`derpp`": naive + 2 * num_replayed * step,
        "`cumulative`": parts * naive,
    }
    return [
        f"{forward / 1e9:.2f} GFLOPs forward and {step / 1e9:.2f} in a step for each image.\n",
        "| strategy | training FLOPs | relative to naive |",
        "|---|---|---|",
        *(
            f"| {name} | {flops:.2e} | {flops / naive:{'.2f' if flops > 0.01 * naive else '.0e'}} |"
            for name, flops in flops_by_strategy.items()
        ),
    ]


if __name__ == "__main__":
    main()
