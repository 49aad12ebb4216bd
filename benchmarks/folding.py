"""What folding batch normalisation into convolutions gains: ``python benchmarks/folding.py``.

ResNet-18 in evaluation mode on batches as tests take them, as it is and folded by torch.fx, in
turn; medians. One thread, and CPU time: what else the machine does shows least there.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time

import torch
import torchvision
from torch.fx.experimental.optimization import fuse

from clear_mlflow.learning.device import autocast

BATCH = 64


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", default="64,224")
    options.add_argument("--turns", type=int, default=5)
    asked = options.parse_args()
    torch.set_num_threads(1)
    model = torchvision.models.resnet18(num_classes=11).eval()
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):  # as after a training: no 0 and 1
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    sides = {"as it is": model, "folded": fuse(copy.deepcopy(model))}
    sides = {name: side.to(memory_format=torch.channels_last) for name, side in sides.items()}
    print("| pixels | precision | as it is, ms an image | folded | ratio | same class | load |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for size in map(int, asked.sizes.split(",")):
        images = torch.randn(BATCH, 3, size, size).to(memory_format=torch.channels_last)
        for precision in ("off", "bf16"):
            found: dict[str, list[float]] = {name: [] for name in sides}
            classes = {}
            for turn in range(asked.turns + 1):
                for name, side in sides.items():
                    begin = time.process_time()
                    with torch.inference_mode(), autocast(torch.device("cpu"), precision):
                        classes[name] = side(images).argmax(dim=1)
                    if turn:  # the first one loads
                        found[name].append(1e3 * (time.process_time() - begin) / BATCH)
            plain, folded = (statistics.median(times) for times in found.values())
            same = (classes["as it is"] == classes["folded"]).float().mean().item()
            print(
                f"| {size} | {precision} | {plain:.2f} | {folded:.2f} | {plain / folded:.3f} | "
                f"{100 * same:.0f} % | {os.getloadavg()[0]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
