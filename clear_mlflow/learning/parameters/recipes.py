"""Recipes: the value of ``auto`` for each parameter, by dataset, with the source of each number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from clear_mlflow.data.sources import CLEAR

AUTO = "auto"
NONE = "none"
FULL: Literal["full"] = "full"
DEFAULT_WEIGHTS = "DEFAULT"
SMALL_CNN = "small_cnn"
LINEAR = "linear"  # a model only for stored features, like mlp:WIDTH

RANDOM_CROP = "random_crop"
RANDOM_CROP_FLIP = "random_crop_flip"

# The recipe of the CLEAR authors' own examples: ResNet-18 from scratch at 224 pixels, cropped at
# random and not mirrored.
# Source: Avalanche's examples/clear.py, the challenge's starter kit, Renate's CLEAR benchmark.
_CLEAR_RECIPE: Mapping[str, str] = {
    "model": "resnet18",
    "image_size": "224",
    "augment": RANDOM_CROP,
    "epochs": "100",
    "batch_size": "256",
    "lr": "0.01",
    "weight_decay": "0.00001",
    "lr_step": "30",
    "memory": "3300",
    "precision": AUTO,
    "device": AUTO,
}

# Chosen so that a run of the embedded dataset takes less than a minute on two cores, and naive
# learning shows what CLEAR shows: in-domain > next-domain > forward transfer, and forgetting.
_DIGITS_RECIPE: Mapping[str, str] = {
    "model": SMALL_CNN,
    "image_size": "32",
    "augment": NONE,  # the mirror image of a digit is not a digit
    "epochs": "24",
    "batch_size": "32",
    "lr": "0.02",
    "weight_decay": "0.00001",
    "lr_step": "30",
    "memory": "120",  # as many images as a bucket has, like CLEAR's
    # The tensors are so small that converting them costs more time than it saves.
    "precision": "off",
    "device": AUTO,
}

# The scans are 8 pixels wide, and a bucket has 1.5 times as many images as one of digits.
_WRITERS_RECIPE: Mapping[str, str] = {
    **_DIGITS_RECIPE,
    "image_size": "16",
    "epochs": "18",
    "memory": "300",
}

# On stored features of any dataset: a linear head by the protocol of CLEAR's paper, which states
# batch size, lr and momentum. The 100 epochs, the lr step after 60 and no weight decay are from the
# authors' clear100_feature_*.yaml. A head costs minutes, not hours.
# Source: Lin et al., arXiv:2201.06289; ElvishElvis/CLEAR-Continual_Learning_Benchmark, 75d5d2e.
FEATURES_RECIPE: Mapping[str, str] = {
    "model": LINEAR,
    "augment": NONE,
    "epochs": "100",
    "batch_size": "512",
    "lr": "1",
    "weight_decay": "0",
    "lr_step": "60",
    "precision": "off",  # a layer with eleven outputs is limited by memory, not by arithmetic
}

# A network with hidden layers needs a lower learning rate than a single layer.
MLP_RECIPE: Mapping[str, str] = {"lr": "0.1"}

# For other streams of photographs: CLEAR's recipe, with a memory that depends on their size.
STREAM_RECIPE: Mapping[str, str] = {**_CLEAR_RECIPE, "memory": "0.1"}

RECIPES: Mapping[str, Mapping[str, str]] = {
    "digits": _DIGITS_RECIPE,
    "digits-writers": _WRITERS_RECIPE,
    **dict.fromkeys(CLEAR, _CLEAR_RECIPE),
    "own streams": STREAM_RECIPE,
}
