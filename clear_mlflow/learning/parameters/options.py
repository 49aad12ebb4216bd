"""Options of ``train`` in Python; written by ``python tools/generate.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict


class TrainOptions(TypedDict, total=False):
    """Options of ``clear_mlflow.train``, all of which have a default (docs/parameters.md)."""

    dataset: str
    data_root: str | Path
    dataset_args: Mapping[str, object] | None
    borders: str | None
    protocol: Literal["iid", "streaming"]
    split: int | str
    scenario: Literal["domain", "class", "task"]
    scenario_args: Mapping[str, object] | None
    features: str | None
    damaged: Literal["stop", "leave_out"]
    strategy: str
    strategy_args: Mapping[str, object] | None
    memory: float | Literal["auto"]
    memory_budget: int
    budget: float | str | None
    stream_rate: float | str | None
    time_order: bool
    label_delay: int | None
    model: str
    weights: str | Path | None
    freeze: Literal["none", "backbone"] | None
    image_size: int | Literal["auto"]
    augment: Literal["auto", "random_crop", "random_crop_flip", "none"] | None
    epochs: int | Literal["auto"]
    batch_size: int | Literal["auto", "full"]
    optimizer: Literal["sgd", "adam", "adamw"]
    optimizer_state: Literal["reset", "keep"]
    lr: float | Literal["auto"]
    momentum: float
    weight_decay: float | Literal["auto"]
    schedule: Literal["step", "cosine", "constant"]
    lr_step: int | Literal["auto"]
    lr_gamma: float
    warmup_epochs: int
    label_smoothing: float
    clip_norm: float
    precision: Literal["auto", "off", "tf32", "bf16", "fp16"]
    compile: bool
    predictions: Literal["labels", "none", "probs"] | None
    test_every: int | str | None
    prequential: Sequence[int] | None
    metrics: str | Sequence[str]
    log_models: Literal["none", "last", "all"] | None
    resumable: bool
    seed: int
    seeds: Sequence[int] | None
    device: Literal["auto", "cpu", "cuda"]
