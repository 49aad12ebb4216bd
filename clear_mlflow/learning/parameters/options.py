"""Options of ``train`` as Python gives them; written by ``python tools/generate.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict


class TrainOptions(TypedDict, total=False):
    """Options of ``clear_mlflow.train``, all of which have a default (docs/parameters.md)."""

    dataset: str
    """digits or digits-writers (embedded; nothing to download), clear10, clear100, or a stream of
    your own (docs/own-streams.md)."""
    data_root: str | Path
    """Folder of the dataset, in any of CLEAR's layouts, or of your own stream. auto, of CLEAR: its
    folder below CLEAR_MLFLOW_DATA, downloaded where it is not there; an embedded dataset has
    none."""
    dataset_args: str | Mapping[str, object]
    """How your own stream is read: name=value,name=value; docs/own-streams.md lists what there
    is."""
    protocol: Literal["iid", "streaming"]
    """iid: held-out test images; streaming: a bucket's test set is its training data."""
    split: int | str
    """What protocol iid tests on. A number N: 30 % of each bucket's training images, drawn with
    seed N. auto: the released test set; in the released layout its lack is an error, in the others
    auto is split 0. validation: a tenth of what auto trains on, for choosing parameters; no test
    image is read (validation:N: a tenth of what split N trains on)."""
    features: str
    """Name of stored features to train a linear head on, for example moco_b0."""
    damaged: Literal["stop", "leave_out"]
    """What to do about an image that cannot be decoded: stop, or leave_out, which lists it in the
    record."""
    strategy: str
    """How to learn from the stream, for example replay (docs/strategies.md), or a class of your
    own: package.module:Class."""
    strategy_args: str | Mapping[str, object]
    """The strategy's own numbers: name=value,name=value; docs/strategies.md lists them."""
    memory: float | str
    """What a strategy with a buffer may keep: images, or below 1 a fraction of the stream's
    training images; other strategies ignore it."""
    model: str
    """small_cnn; any torchvision classification model by its name, for example resnet18; or linear,
    which is for features."""
    weights: str | Path
    """What the model starts from: none, DEFAULT (torchvision's best pretrained weights), or a file
    of weights, .safetensors or .pth."""
    freeze: Literal["none", "backbone"]
    """backbone: train the head alone and leave all other weights as they are."""
    image_size: int | str
    """Side of the model's square input, pixels."""
    augment: Literal["auto", "random_crop", "random_crop_flip", "none"]
    """How images are cropped: random_crop, as the CLEAR authors do; random_crop_flip, mirrored too;
    none: the centre."""
    epochs: int | str
    """Passes over each bucket's training data."""
    batch_size: int | str
    """Images in one optimiser step; full: all of an epoch."""
    optimizer: Literal["sgd", "adam", "adamw"]
    """sgd, adam or adamw."""
    optimizer_state: Literal["reset", "keep"]
    """The optimiser's state (momentum, for example) at a new bucket: reset or keep."""
    lr: float | str
    """The learning rate at the start of a bucket."""
    momentum: float
    """SGD's momentum; the other optimisers ignore it."""
    weight_decay: float | str
    """The optimiser's weight decay."""
    schedule: Literal["step", "cosine", "constant"]
    """How the learning rate falls within a bucket: step, cosine (to 0) or constant."""
    lr_step: int | str
    """Under schedule step, epochs after which the learning rate is multiplied by lr_gamma."""
    lr_gamma: float
    """Factor on the learning rate every lr_step epochs."""
    warmup_epochs: int
    """First epochs of each bucket over which the learning rate rises to lr."""
    label_smoothing: float
    """Share of the target spread over all classes."""
    clip_norm: float
    """Largest norm of a step's gradient; 0: not clipped."""
    precision: Literal["auto", "off", "tf32", "bf16"]
    """Arithmetic of passes: off (float32), tf32 or bf16. auto: bf16 where the device has
    instructions for it, else off; off on the embedded datasets and on features."""
    compile: bool | Literal["on", "off"]
    """Compile the model with torch.compile."""
    predictions: Literal["labels", "none", "probs"]
    """What to store of the model's answer for each test image: the predicted class (labels), the
    probabilities too (probs), or nothing (none)."""
    test_every: int | str
    """Test inside each bucket, too: every so many epochs, as 1, or steps, as 200steps; off: after
    each bucket alone."""
    metrics: str | Sequence[str]
    """Families of metrics to log, with commas between, for example clear,gem; docs/metrics.md lists
    them."""
    log_models: Literal["none", "last", "all"]
    """Which buckets' models to store as artifacts: none, last or all."""
    resumable: bool | Literal["on", "off"]
    """Store after each bucket the state that a resume starts from (docs/resume.md); it is removed
    when the last row is stored."""
    seed: int
    """Seed of all that is random."""
    seeds: str | Sequence[int]
    """Seeds of an ensemble, for example [0, 1, 2]; train_ensemble alone takes them."""
    device: Literal["auto", "cpu", "cuda"]
    """cpu, cuda, or auto: cuda where there is one."""
