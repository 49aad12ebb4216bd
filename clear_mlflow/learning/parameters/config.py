"""The options of a training run, each declared once, here.

The command line, MLproject, the logged parameters and ``config.json`` follow from the fields of
:class:`TrainConfig`. A value arrives as text (MLflow passes nothing else), and its option parses
and checks it; ``auto`` becomes the value in the dataset's recipe.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

from clear_mlflow.core.batch_record import DISTANCES
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import PROTOCOLS
from clear_mlflow.core.predictions import KEEP_PREDICTIONS
from clear_mlflow.core.text import safe_repr, suggest_nearest
from clear_mlflow.data.borders import parse_borders
from clear_mlflow.data.scenarios import SCENARIOS
from clear_mlflow.data.sources import SOURCES, VECTOR_DATASETS, VECTORS, stream_name
from clear_mlflow.data.stream import DOMAIN, parse_split
from clear_mlflow.learning.parameters.conflicts import CONFLICTS, check_conflicts
from clear_mlflow.learning.parameters.option_fields import (
    DATA,
    HARDWARE,
    METHOD,
    MODEL,
    OPTIMISATION,
    RECORD,
    Option,
    declare_option,
)
from clear_mlflow.learning.parameters.recipes import (
    AUTO,
    FEATURES_RECIPE,
    MLP_RECIPE,
    NONE,
    RANDOM_CROP,
    RANDOM_CROP_FLIP,
    RECIPES,
    STREAM_RECIPE,
)
from clear_mlflow.learning.parameters.strategy_names import (
    WITHOUT_BUFFER,
    WITHOUT_STEPS,
    list_strategies,
)
from clear_mlflow.learning.parameters.values import (
    OFF,
    Argument,
    format_argument,
    is_mlp,
    parse_batch_size,
    parse_budget,
    parse_dataset,
    parse_families,
    parse_feature_name,
    parse_float,
    parse_int,
    parse_label_delay,
    parse_memory,
    parse_path,
    parse_prequential,
    parse_seeds,
    parse_strategy,
    parse_stream_rate,
    parse_test_every,
    parse_weights,
    split_arguments,
)
from clear_mlflow.metrics import DEFAULT_FAMILIES

# Before a strategy's name, in what is logged of a parameter that the strategy replaces.
REPLACED = "set by "


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All parameters of a training run.

    Only ``data_root``, ``split`` and values that depend on the machine may be ``auto``.
    """

    dataset: str = declare_option(
        DATA,
        parse_dataset,
        default="digits",
        help="Dataset: digits, digits-writers or weather (in the package), clear10, clear100, your "
        f"own stream ({', '.join(s for s in SOURCES if s != 'weather')}), or your own function "
        "(package.module:function); see docs/own-streams.md.",
    )
    data_root: str = declare_option(
        DATA,
        parse_path,
        is_path=True,
        changeable_on_resume=True,
        python_type="str | Path",
        help="Folder of the dataset: CLEAR in any of its layouts, or your own stream, also as a "
        "table or a file of arrays. auto: for CLEAR, its folder in CLEAR_MLFLOW_DATA, downloaded "
        "if it is missing. Embedded datasets need none.",
    )
    # As texts. Once the dataset has checked them, all arguments as typed values.
    dataset_args: Mapping[str, Argument] = declare_option(
        DATA,
        split_arguments,
        default=NONE,
        python_type="Mapping[str, object]",
        help="How to read your own stream: name=value,name=value; docs/own-streams.md lists the "
        "arguments.",
    )
    borders: str = declare_option(
        DATA,
        parse_borders,
        default=NONE,
        help="How your own dated stream is divided into buckets: year, half, quarter, month, "
        "equal:N, shift:UNIT:F or random:N:SEED (docs/own-streams.md). none: its own buckets.",
    )
    protocol: str = declare_option(
        DATA,
        choices=PROTOCOLS,
        default="iid",
        help="iid: held-out test images; streaming: a bucket's test set is its training data.",
    )
    split: str = declare_option(
        DATA,
        parse_split,
        python_type="int | str",
        help="Images to test on with protocol iid. auto: the test set; without one, split 0, or an "
        "error for the released layout. N: 30 % of each bucket's training images, drawn with seed "
        "N. validation: a tenth of the training images; validation:N: a tenth of split N's.",
    )
    scenario: str = declare_option(
        DATA,
        choices=SCENARIOS,
        default=DOMAIN,
        help="domain: buckets follow the time of the stream. class: each bucket brings new "
        "classes. task: likewise, and predictions are limited to the classes of the tested bucket.",
    )
    scenario_args: Mapping[str, Argument] = declare_option(
        DATA,
        split_arguments,
        default=NONE,
        is_ignored=lambda config: config.scenario == DOMAIN,
        python_type="Mapping[str, object]",
        help="Arguments of the scenarios class and task, separated by commas: "
        "classes_per_bucket=N, order=labels|seed:N|A:B:..., times=own|all; see docs/datasets.md.",
    )
    features: str = declare_option(
        DATA,
        parse_feature_name,
        default=NONE,
        help="Name of stored features to train a linear head on, for example moco_b0. vectors: the "
        "vectors of a dataset that consists of them.",
    )
    damaged: str = declare_option(
        DATA,
        choices=("stop", "leave_out"),
        default="stop",
        help="What to do with an image that cannot be decoded: stop; or leave_out, which skips it "
        "and lists it in the record.",
    )
    strategy: str = declare_option(
        METHOD,
        parse_strategy,
        default="naive",
        help=f"Method of learning from the stream: {', '.join(list_strategies())}, or your own "
        "class: package.module:Class.",
    )
    # As texts. Once the strategy has checked them, all arguments as typed values.
    strategy_args: Mapping[str, Argument] = declare_option(
        METHOD,
        split_arguments,
        default=NONE,
        is_tuned=True,
        python_type="Mapping[str, object]",
        help="Arguments of the strategy: name=value,name=value; docs/strategies.md lists them.",
    )
    memory: int | float = declare_option(
        METHOD,
        parse_memory,
        is_ignored=lambda config: config.strategy in WITHOUT_BUFFER or config.memory_budget > 0,
        help="Size of a strategy's buffer: a number of images, or below 1 a fraction of the "
        "stream's training images. In a sweep, strategies without a buffer ignore it.",
    )
    memory_budget: int = declare_option(
        METHOD,
        partial(parse_int, ge=0),
        default="0",
        help="Bytes for everything that the strategy stores between buckets, instead of memory; "
        "the buffer gets as many images as fit. 0: memory sets the size (docs/cost.md).",
    )
    budget: str = declare_option(
        METHOD,
        parse_budget,
        default=OFF,
        python_type="float | str",
        help="Cost of the training on a bucket, instead of epochs: FLOPs, for example 2e15; "
        "naive:1, the cost of naive learning with the same epochs, or naive:0.5, half of it; "
        "images:N, new and replayed images. off: epochs sets the length (docs/cost.md).",
    )
    stream_rate: str = declare_option(
        METHOD,
        parse_stream_rate,
        default=OFF,
        python_type="float | str",
        help="Speed of a stream that passes once and does not wait for a slow method: naive:1, the "
        "speed of naive learning; naive:2, twice as fast; or images per PFLOP, for example 5e4. "
        "off: the stream waits (docs/cost.md).",
    )
    time_order: str = declare_option(
        METHOD,
        choices=("off", "on"),
        default=OFF,
        is_ignored=lambda config: config.strategy in WITHOUT_STEPS,
        help="on: in the first epoch of a bucket, batches are in the order of time; the dataset "
        "needs a time for each image. off: they are shuffled.",
    )
    label_delay: str = declare_option(
        METHOD,
        parse_label_delay,
        default=OFF,
        python_type="int",
        help="Buckets by which labels arrive late: with 1, the model is trained on a bucket while "
        "the stream is at the next one, and not at all on the last (docs/training.md).",
    )
    model: str = declare_option(
        MODEL,
        help="small_cnn; the name of a torchvision classification model, for example resnet18; "
        "your own function (package.module:function), see docs/models.md; or, for features, linear "
        "or a network with hidden layers, for example mlp:64 or mlp:256-128.",
    )
    weights: str = declare_option(
        MODEL,
        parse_weights,
        is_path=True,
        default=NONE,
        python_type="str | Path",
        help="Initial weights of the model: none, DEFAULT (torchvision's best pretrained weights), "
        "or a file of weights, .safetensors or .pth.",
    )
    freeze: str = declare_option(
        MODEL,
        choices=(NONE, "backbone"),
        default=NONE,
        help="backbone: train only the head and leave all other weights unchanged.",
    )
    image_size: int = declare_option(
        MODEL,
        partial(parse_int, ge=8),
        is_ignored=lambda config: config.features != NONE,
        help="Side of the model's square input, in pixels.",
    )
    augment: str = declare_option(
        MODEL,
        choices=(AUTO, RANDOM_CROP, RANDOM_CROP_FLIP, NONE),
        is_tuned=True,
        help="How training images are cropped: random_crop, like the CLEAR authors; "
        "random_crop_flip, also mirrored; none: the centre.",
    )
    epochs: int = declare_option(
        OPTIMISATION,
        partial(parse_int, ge=1),
        help="Passes over each bucket's training data.",
    )
    batch_size: int | Literal["full"] = declare_option(
        OPTIMISATION,
        parse_batch_size,
        help="Images in one optimiser step; full: all images of an epoch.",
    )
    optimizer: str = declare_option(
        OPTIMISATION, choices=("sgd", "adam", "adamw"), default="sgd", help="sgd, adam or adamw."
    )
    optimizer_state: str = declare_option(
        OPTIMISATION,
        choices=("reset", "keep"),
        default="reset",
        help="What happens to the optimiser's state, for example momentum, at a new bucket: reset "
        "or keep.",
    )
    lr: float = declare_option(
        OPTIMISATION,
        partial(parse_float, gt=0),
        help="Learning rate at the start of a bucket.",
    )
    momentum: float = declare_option(
        OPTIMISATION,
        partial(parse_float, ge=0, lt=1),
        is_ignored=lambda config: config.optimizer != "sgd",
        default="0.9",
        help="Momentum of SGD; the other optimisers ignore it.",
    )
    weight_decay: float = declare_option(
        OPTIMISATION, partial(parse_float, ge=0), help="Weight decay of the optimiser."
    )
    schedule: str = declare_option(
        OPTIMISATION,
        choices=("step", "cosine", "constant"),
        default="step",
        help="How the learning rate falls within a bucket: step, cosine (to 0) or constant.",
    )
    lr_step: int = declare_option(
        OPTIMISATION,
        partial(parse_int, ge=1),
        is_ignored=lambda config: config.schedule != "step",
        help="With schedule step, epochs after which the learning rate is multiplied by lr_gamma.",
    )
    lr_gamma: float = declare_option(
        OPTIMISATION,
        partial(parse_float, gt=0),
        is_ignored=lambda config: config.schedule != "step",
        default="0.1",
        help="Factor on the learning rate every lr_step epochs.",
    )
    warmup_epochs: int = declare_option(
        OPTIMISATION,
        partial(parse_int, ge=0),
        default="0",
        help="First epochs of each bucket, during which the learning rate rises to lr.",
    )
    label_smoothing: float = declare_option(
        OPTIMISATION,
        partial(parse_float, ge=0, lt=1),
        default="0",
        help="Share of the target that is spread evenly over all classes.",
    )
    clip_norm: float = declare_option(
        OPTIMISATION,
        partial(parse_float, ge=0),
        default="0",
        help="Largest norm of a step's gradient; 0: gradients are not clipped.",
    )
    precision: str = declare_option(
        HARDWARE,
        choices=(AUTO, "off", "tf32", "bf16", "fp16"),
        resolved_by_process=True,
        help="Arithmetic of the model: off (float32), tf32, bf16, or fp16 with a scaled loss, for "
        "GPUs without bf16 (T4, V100). auto: bf16 on a GPU with bf16 or a CPU with AMX, else off; "
        "off on the embedded datasets and on features.",
    )
    compile: str = declare_option(
        HARDWARE,
        choices=("off", "on"),
        default="off",
        help="Compile the model with torch.compile, which takes about a minute.",
    )
    predictions: str = declare_option(
        RECORD,
        choices=KEEP_PREDICTIONS,
        default="labels",
        help="What to store of the model's output for each test image: the predicted class "
        "(labels), also the probabilities (probs), or nothing (none).",
    )
    test_every: str = declare_option(
        RECORD,
        parse_test_every,
        default=OFF,
        python_type="int | str",
        help="Interval of additional tests within each bucket: in epochs, for example 1, or in "
        "steps, for example 200steps. off: test only after each bucket.",
    )
    prequential: str = declare_option(
        RECORD,
        parse_prequential,
        default=OFF,
        python_type="Sequence[int]",
        help="Predict batches before the model is trained on them: the next batch (0), and the one "
        f"that many batches later; some of {', '.join(map(str, DISTANCES))}, separated by commas. "
        "Needs time_order=on (docs/training.md).",
    )
    metrics: str = declare_option(
        RECORD,
        parse_families,
        default=",".join(DEFAULT_FAMILIES),
        python_type="str | Sequence[str]",
        help="Families of metrics to log, separated by commas, for example clear,gem; "
        "docs/metrics.md lists them.",
    )
    log_models: str = declare_option(
        RECORD,
        choices=(NONE, "last", "all"),
        default=NONE,
        help="Which buckets' models to store as artifacts: none, last or all.",
    )
    resumable: str = declare_option(
        RECORD,
        choices=("on", "off"),
        default="on",
        help="Store the training state after each bucket, for a resume (docs/resume.md); it is "
        "deleted when the last row is stored.",
    )
    seed: int = declare_option(
        METHOD, partial(parse_int, ge=0), default="0", help="Seed of all random numbers."
    )
    seeds: str = declare_option(
        METHOD,
        parse_seeds,
        default=NONE,
        python_type="Sequence[int]",
        help="Seeds to train one after another on data that is loaded once, for example 0,1,2. "
        "Each seed has its own run, below one parent run.",
    )
    device: str = declare_option(
        HARDWARE,
        choices=(AUTO, "cpu", "cuda"),
        resolved_by_process=True,
        changeable_on_resume=True,
        help="cpu, cuda, or auto: cuda if there is a usable GPU.",
    )
    # Names of parameters that the strategy's hooks replace. Empty until its class was imported.
    replaced: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def resolve(cls, requested: Mapping[str, str], *, passed: Collection[str] = ()) -> TrainConfig:
        """Parse parameters, and replace ``auto`` by the recipe's values.

        ``data_root``, ``split`` and parameters that depend on the machine stay ``auto``. A missing
        parameter gets its default. Raises ConfigError if a name is unknown, if a value is invalid,
        or if two parameters are in conflict.

        passed: names of those that the user passed for this run. Some conflicts count only if the
        parameter is among them: ``memory`` with a strategy that does not use it.
        """
        if unknown := sorted(requested.keys() - PARAMETERS.keys()):
            raise ConfigError(
                f"unknown parameter {safe_repr(unknown[0])}; {suggest_parameters(unknown[0])}"
            )
        texts = {**list_parameter_defaults(), **requested}
        dataset = parse_parameter("dataset", texts["dataset"])
        recipe = RECIPES.get(dataset, STREAM_RECIPE)
        if dataset in VECTOR_DATASETS and texts["features"] == NONE:
            texts["features"] = VECTORS
        if texts["features"] != NONE:
            recipe = {**recipe, **FEATURES_RECIPE}
        if is_mlp(texts["model"]):
            recipe = {**recipe, **MLP_RECIPE}
        values = {
            name: parse_parameter(name, recipe.get(name, text) if text == AUTO else text)
            for name, text in texts.items()
        }
        passed_values = {name for name in passed if texts[name] != AUTO}
        check_conflicts(CONFLICTS, **values, passed=passed_values)
        return cls(**values)

    def split_seeds(self) -> list[TrainConfig]:
        """Return a configuration for each of ``seeds``, or [self]."""
        if self.seeds == NONE:
            return [self]
        return [replace(self, seed=int(seed), seeds=NONE) for seed in self.seeds.split(",")]

    def as_text(self) -> dict[str, str]:
        """Return every parameter as text that :meth:`resolve` parses back."""
        return {name: _format_value(value) for name, value in self.values().items()}

    def format_record(self) -> dict[str, str]:
        """Return every parameter as text, and the strategy for replaced ones."""
        return {**self.as_text(), **dict.fromkeys(self.replaced, REPLACED + self.strategy)}

    def values(self) -> dict[str, Any]:
        """Return all values as JSON data. ``TrainConfig(**values)`` equals this."""
        return {name: value for name, value in asdict(self).items() if name in PARAMETERS}

    def to_json(self) -> str:
        """Return the content of ``config.json``, which ``--config`` reads."""
        return json.dumps(self.as_text(), indent=2) + "\n"

    @property
    def stream_name(self) -> str:
        """Name of the dataset in records, tags and the names of runs."""
        name = stream_name(self.dataset, self.data_root, self.dataset_args)
        return name if self.scenario == DOMAIN else f"{name} ({self.scenario})"

    @property
    def arithmetic(self) -> str:
        """Arithmetic of the model, once ``precision`` is resolved."""
        return "float32" if self.precision == "off" else self.precision

    @property
    def ignored_parameters(self) -> frozenset[str]:
        """Names of parameters without effect, such as momentum with Adam.

        With a user's own strategy, ``memory`` is left out: it may use it.
        """
        has_no_steps = self.strategy in WITHOUT_STEPS
        return self.replaced | frozenset(
            name
            for name, option in PARAMETERS.items()
            if option.is_ignored(self) or (has_no_steps and option.group == OPTIMISATION)
        )


PARAMETERS: dict[str, Option] = {
    f.name: f.metadata["option"] for f in fields(TrainConfig) if f.metadata
}


def list_parameter_defaults() -> dict[str, str]:
    """Return the text of every parameter's default, by name."""
    return {name: option.default for name, option in PARAMETERS.items()}


def suggest_parameters(name: str) -> str:
    """Return similar names and all names, to end a message.

    >>> suggest_parameters("epoch")[:35]
    'did you mean epochs? known are data'
    """
    return f"{suggest_nearest(name, PARAMETERS)}known are {', '.join(PARAMETERS)}"


def list_result_parameters() -> tuple[str, ...]:
    """Return the names of parameters that affect results.

    Leaves out dataset, test set, strategy and seeds, and the arguments of dataset, scenario and
    strategy.
    """
    skipped = {"dataset", "data_root", "protocol", "split", "strategy", "seed", "seeds"}
    skipped |= {"dataset_args", "scenario_args", "strategy_args"}
    return tuple(
        name
        for name, option in PARAMETERS.items()
        if name not in skipped and option.group not in (HARDWARE, RECORD)
    )


def is_tuned(name: str) -> bool:
    """Return True for optimisation options, strategy/NAME, and others chosen by results.

    name: an option, or ``strategy/NAME`` for an argument of the strategy. Other names are False.
    """
    if name not in PARAMETERS:
        return name.startswith("strategy/")
    return PARAMETERS[name].is_tuned or PARAMETERS[name].group == OPTIMISATION


def list_auto_values(name: str) -> dict[str, str]:
    """Return what ``auto`` means for a parameter, by dataset, and for ``features``.

    Leaves out datasets whose recipe does not contain it, or leaves it to the device.

    >>> list_auto_values("lr")["digits"]
    '0.02'
    """
    recipes = {**RECIPES, "features": FEATURES_RECIPE}
    return {key: recipe[name] for key, recipe in recipes.items() if recipe.get(name, AUTO) != AUTO}


def parse_parameter(name: str, text: str) -> Any:
    """Return the value of a parameter's text, else raise ConfigError.

    ``auto`` is invalid too where only a recipe can replace it, as for ``lr``.
    """
    option = PARAMETERS[name]
    try:
        if option.choices and text not in option.choices:
            raise ValueError(f"expected one of {', '.join(option.choices)}")
        return option.parse(text)
    except ValueError as error:
        message = f"{name} is {safe_repr(text, 200)}; {error}"
        raise ConfigError(message, parameter=name) from None


def _format_value(value: Any) -> str:
    """Format a value, or arguments as ``name=value,name=value`` or ``none``."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={format_argument(v)}" for name, v in value.items()) or NONE
    return str(value)
