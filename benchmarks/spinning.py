"""What threads that spin or sleep cost, beside other programs: ``python benchmarks/spinning.py``.

A training step of the small CNN on digits and of ResNet-18 at 64 pixels, batch 32, while other
programs want the cores for a share of the time. In one process, in turn, for some tenths of a
second each: spinning as libgomp does by default, and sleeping, as ``clear_mlflow.process.spinning``
makes it; and in a process of its own spinning for 3,000 rounds. Medians. The delay is what the
training process looks at: seconds in a second in which threads had no core, added up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
TURNS, TURN_SECONDS = 6, 0.8
BUSY = """
import sys, time
share = float(sys.argv[1])
while True:
    until = time.perf_counter() + 0.02 * share
    while time.perf_counter() < until: pass
    if share < 1: time.sleep(0.02 * (1 - share))
"""


def main() -> None:
    """Measure, or be one of the processes that train."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--beside", nargs="+", default=["", "0.1", "0.3", "0.6", "1", "1,1", "1,1,1,1"]
    )
    options.add_argument("--one", choices=["small_cnn", "resnet18"], help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one)))
        return
    print(f"{os.cpu_count()} cores; load average at the start: {os.getloadavg()[0]:.1f}.\n")
    print("| beside | model | spin, ms | sleep, ms | 3000, ms | delay when they spin, sleep |")
    print("|---|---|---:|---:|---:|---:|")
    for beside in asked.beside:
        shares = beside.split(",") if beside else []
        others = [subprocess.Popen([sys.executable, "-c", BUSY, share]) for share in shares]
        try:
            for model in ("small_cnn", "resnet18"):
                found, short = separately(model), separately(model, GOMP_SPINCOUNT="3000")
                spin, sleep = found["spin"], found["sleep"]
                print(
                    f"| {beside or 'nothing'} | {model} | {spin[0]:.1f} | {sleep[0]:.1f} | "
                    f"{short['spin'][0]:.1f} | {spin[1]:.2f}, {sleep[1]:.2f} |",
                    flush=True,
                )
        finally:
            for other in others:
                other.kill()
                other.wait()


def separately(model: str, **environment: str) -> dict[str, list[float]]:
    """In a process of its own."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--one", model]
    done = subprocess.run(
        command, env={**inherited, **environment}, check=True, capture_output=True
    )
    return dict(json.loads(done.stdout))


def measure(model: str) -> dict[str, tuple[float, float]]:
    """Milliseconds of a step and the delay, spinning and sleeping."""
    import torch

    from clear_mlflow.process.allocator import keep_freed_memory
    from clear_mlflow.process.spinning import IdleTeams

    keep_freed_memory()
    step = stepper(model)
    teams = IdleTeams(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    timed(step)
    found: dict[str, list[tuple[float, float]]] = {"spin": [], "sleep": []}
    for _ in range(TURNS):
        for how in found:
            teams.want(how == "sleep")
            found[how].append(timed(step))
    return {
        how: (statistics.median(ms for ms, _ in seen), statistics.median(d for _, d in seen))
        for how, seen in found.items()
    }


def stepper(model: str) -> Callable[[], object]:
    """A training step on made-up images."""
    import torch
    from torch.nn.functional import cross_entropy

    from clear_mlflow.learning.models import build_model

    side = 8 if model == "small_cnn" else 64
    network = build_model(model, num_classes=10, image_size=side)
    network = network.to(memory_format=torch.channels_last)
    images = torch.rand(32, 3, side, side).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (32,))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(network(images), labels).backward()
        optimizer.step()

    return step


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of a step, and the delay of each second."""
    from clear_mlflow.process.spinning import run_delays

    for _ in range(2):
        step()
    before, began, steps = run_delays(), time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < TURN_SECONDS:
        step()
        steps += 1
    now = run_delays()
    delay = sum(now[thread] - before[thread] for thread in now.keys() & before.keys())
    return 1e3 * passed / steps, delay / passed


if __name__ == "__main__":
    main()
