"""Options of ``train`` in Python; written by ``python tools/generate.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict


class TrainOptions(TypedDict, total=False):
    """Options of ``clear_mlflow.train``, all of which have a default (docs/parameters.md)."""

    dataset: str
    data_root: str | Path
    dataset_args: str | Mapping[str, object]
    protocol: Literal["iid", "streaming"]
    split: int | str
    scenario: Literal["domain", "class", "task"]
    scenario_args: str | Mapping[str, object]
    features: str
    damaged: Literal["stop", "leave_out"]
    strategy: str
    strategy_args: str | Mapping[str, object]
    memory: float | str
    memory_budget: int
    budget: float | str
    stream_rate: float | str
    model: str
    weights: str | Path
    freeze: Literal["none", "backbone"]
    image_size: int | str
    augment: Literal["auto", "random_crop", "random_crop_flip", "none"]
    epochs: int | str
    batch_size: int | str
    optimizer: Literal["sgd", "adam", "adamw"]
    optimizer_state: Literal["reset", "keep"]
    lr: float | str
    momentum: float
    weight_decay: float | str
    schedule: Literal["step", "cosine", "constant"]
    lr_step: int | str
    lr_gamma: float
    warmup_epochs: int
    label_smoothing: float
    clip_norm: float
    precision: Literal["auto", "off", "tf32", "bf16", "fp16"]
    compile: bool | Literal["on", "off"]
    predictions: Literal["labels", "none", "probs"]
    test_every: int | str
    metrics: str | Sequence[str]
    log_models: Literal["none", "last", "all"]
    resumable: bool | Literal["on", "off"]
    seed: int
    seeds: str | Sequence[int]
    device: Literal["auto", "cpu", "cuda"]
