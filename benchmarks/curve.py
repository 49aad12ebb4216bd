"""What the curve inside a bucket costs: ``python benchmarks/curve.py`` prints it in Markdown.

One process trains on the same bucket again and again, with the curve and without, in turn: the load
of the machine is the same for both. Without it a step adds its loss to a sum and nothing else is
done, as it was before there was a curve. What is compared are pairs of neighbours.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections import deque

import torch

from clear_mlflow.learning.curve import MOST_POINTS, LossCurve, num_points
from clear_mlflow.learning.ensembles.heads import descent_for
from clear_mlflow.learning.models import build_model, linear_head
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import CollectingProgress, TrainingProgress
from clear_mlflow.learning.samples.decoded import Samples
from clear_mlflow.learning.strategies.naive import Naive


class OnlyCounts(LossCurve):
    """Sums, and ends no window."""

    def begin(self, num_steps: int) -> None:
        """Without an end in sight."""
        super().begin(num_steps)
        self._ends = deque([math.inf])


def bucket(kind: str, device: torch.device, images: int, batch: int, epochs: int):
    """Something to be called for one bucket, with the curve or without."""
    asked = {"epochs": str(epochs), "batch_size": str(batch), "lr": "0.01", "device": device.type}
    labels = torch.arange(images, device=device) % 10
    if kind == "linear head":
        config = TrainConfig.resolve({**asked, "features": "made_up"})
        model = linear_head(2048, num_classes=10)
        samples = Samples(torch.randn(images, 2048, device=device), labels)
    else:
        config = TrainConfig.resolve({**asked, "model": "small_cnn", "image_size": "16"})
        model = build_model("small_cnn", num_classes=10, image_size=16)
        pixels = torch.randint(0, 256, (images, 16, 16, 3), dtype=torch.uint8, device=device)
        samples = Samples(pixels, labels)
    model = model.to(device)
    strategy = Naive(config, None, model, None)
    progress = CollectingProgress(TrainingProgress(), lambda points: None)
    descent = descent_for(strategy, model, config, keys=("1",), progress=progress)
    owner = getattr(descent, "_heads", descent)
    heads = None if owner is descent else 1
    curves = {
        True: LossCurve(progress, device, num_models=heads),
        False: OnlyCounts(progress, device, num_models=heads),
    }

    def run(with_curve: bool) -> float:
        owner.curve = curves[with_curve]
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        descent.run(samples, position=0, hooks=strategy)
        if device.type == "cuda":
            torch.cuda.synchronize()
        progress.take()
        return time.perf_counter() - started

    return run, epochs * math.ceil(images / batch)


def alone(device: torch.device) -> tuple[float, float]:
    """Microseconds of this thread that a step and a point take, without any training: the best."""

    def per_step(kind: type[LossCurve], steps: int) -> float:
        taken = []
        for _ in range(200):
            curve = kind(TrainingProgress(), device)
            curve.begin(steps)
            curve.begin_epoch(0.1)
            started = time.thread_time()
            for _ in range(steps):
                curve.step_done(32)
            taken.append((time.thread_time() - started) / steps * 1e6)
            curve.end_epoch()
        return min(taken)

    step = per_step(OnlyCounts, MOST_POINTS)
    return step, (per_step(LossCurve, MOST_POINTS) - step) * MOST_POINTS / num_points(MOST_POINTS)


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=40)
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    asked = options.parse_args()
    device = torch.device(asked.device)
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}, {asked.device}; {asked.pairs} pairs;"
    )
    print(f"load average {os.getloadavg()[0]:.1f}; {MOST_POINTS} points a bucket at most.\n")
    print("| a bucket of | steps | without, µs a step | with: more, µs a step | % |")
    print("|---|---:|---:|---:|---:|")
    for kind, images, batch, epochs in (
        ("linear head", 3300, 512, 10),
        ("linear head", 3300, 64, 10),
        ("small CNN, 16 px", 640, 32, 5),
        ("small CNN, 16 px", 6400, 32, 5),
    ):
        run, steps = bucket(kind, device, images, batch, epochs)
        for with_curve in (True, False, True, False):
            run(with_curve)
        without, more = [], []
        for number in range(asked.pairs):
            order = (True, False) if number % 2 else (False, True)
            taken = {with_curve: run(with_curve) for with_curve in order}
            without.append(taken[False] / steps * 1e6)
            more.append((taken[True] - taken[False]) / steps * 1e6)
        base, extra = statistics.median(without), statistics.median(more)
        print(f"| {kind} | {steps} | {base:.0f} | {extra:.1f} | {100 * extra / base:.1f} |")
    step, point = alone(device)
    print(f"\nBy itself: {step:.2f} µs a step, {point:.0f} µs a point.")
    print(f"Load average at the end: {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
