"""A model of your own, as a function of the number of classes and the image size.

From the folder that contains ``examples``, every strategy trains it:

    clear-mlflow train --model examples.own_model:build --strategy replay

Run as a program, ``python examples/own_model.py`` trains it for one epoch per bucket.
"""

from __future__ import annotations

from torch import nn


def build(num_classes: int, image_size: int) -> nn.Module:
    """Two convolutions and a head. Images are (N, 3, image_size, image_size)."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.LazyLinear(num_classes),  # the head is defined last
    )


if __name__ == "__main__":
    from clear_mlflow import train

    run = train(model="own_model:build", epochs=1)
    print(f"in-domain accuracy {run.metrics['clear/in_domain_accuracy'].text}")
