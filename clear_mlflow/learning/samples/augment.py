"""What a training sees of an image: how it is scaled, where it is cropped, whether it is mirrored.

Source of ``random_crop``: the CLEAR authors' example in Avalanche (examples/clear.py), the starter
kit of their challenge and Renate's CLEAR benchmark, which agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from clear_mlflow.data.decoding.decode import Resize
from clear_mlflow.learning.parameters.recipes import NONE, RANDOM_CROP, RANDOM_CROP_FLIP


@dataclass(frozen=True)
class Augmentation:
    """What is done to an image; a test sees the centre of what a training may see."""

    resize: Resize  # what is decoded and kept of the image
    size: int  # side of the crops, pixels: of the model's input
    crop: bool  # training crops lie anywhere, each place as likely as any other; else at the centre
    flip: bool  # half of the training crops are mirrored, left to right


def augmentation(name: str, image_size: int) -> Augmentation:
    """The augmentation of a name, for a model's input of *image_size* pixels a side.

    ``random_crop`` is torchvision's ``Resize(image_size)`` and ``RandomCrop(image_size)`` to train
    on, ``Resize(image_size)`` and ``CenterCrop(image_size)`` to test on; ``random_crop_flip`` adds
    ``RandomHorizontalFlip()``; ``none`` trains on what is tested.
    """
    if name not in (RANDOM_CROP, RANDOM_CROP_FLIP, NONE):
        raise ValueError(f"no augmentation is called {name!r}")
    return Augmentation(
        Resize(image_size), image_size, crop=name != NONE, flip=name == RANDOM_CROP_FLIP
    )
