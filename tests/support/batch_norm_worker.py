"""One of several processes: a step of batch normalisation in bfloat16, as a program.

``python batch_norm_worker.py FOLDER COUNT...`` under torchrun's variables has COUNT[rank] images
and writes FOLDER/RANK.json: the types of what was exchanged, and the running mean.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from clear_mlflow.core.distributed import place_of_environment
from clear_mlflow.learning.parallel.group import process_group


def main():
    folder, counts = Path(sys.argv[1]), [int(text) for text in sys.argv[2:]]
    place = place_of_environment()
    exchanged: list[str] = []

    def watched(exchange):
        def call(*tensors, **options):
            exchanged.extend(str(tensor.dtype) for tensor in tensors)
            return exchange(*tensors, **options)

        return call

    with process_group(place, "cpu") as group:
        dist.all_gather_into_tensor = watched(dist.all_gather_into_tensor)
        dist.all_reduce = watched(dist.all_reduce)
        images = torch.rand(sum(counts), 3, 4, 4, generator=torch.Generator().manual_seed(0))
        start = sum(counts[: place.rank])
        mine = images[start : start + counts[place.rank]].requires_grad_()
        layers = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
        for n, weight in enumerate(layers.parameters()):
            nn.init.constant_(weight, n + 1.0)
        model = group.synchronize(layers)
        mean = model.get_buffer("1.running_mean")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            answer = model(mine)
        answer.float().square().sum().backward()
    found = {"exchanged": exchanged, "mean": mean.tolist()}
    (folder / f"{place.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
