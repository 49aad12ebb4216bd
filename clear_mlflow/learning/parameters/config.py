"""The parameters of a training run: each one declared once, here.

The command line, MLproject, the logged parameters and ``config.json`` all follow from the fields
of :class:`TrainConfig`. A value arrives as text (MLflow hands over nothing else) and is parsed and
checked by its field; ``auto`` takes the value that the dataset's recipe names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import PROTOCOLS
from clear_mlflow.core.predictions import KEEP_PREDICTIONS
from clear_mlflow.core.text import nearest, safe_repr
from clear_mlflow.data.embedded import EMBEDDED
from clear_mlflow.data.scenarios import SCENARIOS
from clear_mlflow.data.sources import (
    SOURCES,
    VECTOR_DATASETS,
    VECTORS,
    needs_folder,
    stream_name,
)
from clear_mlflow.data.stream import DOMAIN
from clear_mlflow.learning.anytime.schedule import OFF, EvalInterval, parse_interval
from clear_mlflow.learning.parameters.recipes import (
    AUTO,
    FEATURES_RECIPE,
    LINEAR,
    MLP_RECIPE,
    NONE,
    RANDOM_CROP,
    RANDOM_CROP_FLIP,
    RECIPES,
    STREAM_RECIPE,
)
from clear_mlflow.learning.parameters.values import (
    Argument,
    argument_text,
    feature_name,
    is_mlp,
    number,
    parse_arguments,
    parse_batch_size,
    parse_budget,
    parse_dataset,
    parse_families,
    parse_memory,
    parse_path,
    parse_seeds,
    parse_split,
    parse_strategy,
    parse_stream_rate,
    parse_test_every,
    parse_weights,
    whole,
)
from clear_mlflow.learning.registry import WITHOUT_BUFFER, WITHOUT_STEPS, known_strategies
from clear_mlflow.metrics import DEFAULT_FAMILIES

DEFAULT_METRICS = ",".join(DEFAULT_FAMILIES)

DATA, METHOD, MODEL = "Data", "Method", "Model"
OPTIMISATION, HARDWARE, RECORD = "Optimisation of each bucket", "Hardware", "Record"


def _parameter(
    group: str,
    parse: Callable[[str], Any] | tuple[str, ...],
    *,
    help: str,  # noqa: A002
    default: str = AUTO,
    python: str = "",
    unused: Callable[[TrainConfig], bool] = lambda config: False,
    of_machine: bool = False,
    may_move: bool = False,
    path: Literal["", "dir", "file"] = "",
) -> Any:
    """A field that is a training's parameter.

    *parse* may raise ValueError with what was expected, or is the words that there are. *python*:
    its type for Python, where that does not follow from the field's. *unused*: whether it means
    nothing, given the other parameters. *of_machine*: the training process alone knows what
    ``auto`` means. *may_move*: a resume may change it. *path*: a value may be the path of this.
    """
    without = WITHOUT_STEPS if group == OPTIMISATION else ()
    return field(
        metadata={
            "group": group,
            "parse": str if isinstance(parse, tuple) else parse,
            "help": help,
            "default": default,
            "choices": parse if isinstance(parse, tuple) else (),
            "python": python,
            "unused": lambda config: config.strategy in without or unused(config),
            "of_machine": of_machine,
            "may_move": may_move,
            "path": path,
        }
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a run's rows, resolved, but for what the machine decides (auto)."""

    dataset: str = _parameter(
        DATA,
        parse_dataset,
        default="digits",
        help="digits, digits-writers or weather (in the package), clear10, clear100, a stream of "
        f"your own ({', '.join(s for s in SOURCES if s != 'weather')}), or a function of your own "
        "(package.module:function); see docs/own-streams.md.",
    )
    data_root: str = _parameter(
        DATA,
        parse_path,
        may_move=True,
        path="dir",
        python="str | Path",
        help="Folder of the dataset, in any of CLEAR's layouts, or of your own stream, or its "
        "table or file of arrays. auto, of "
        "CLEAR: its folder below CLEAR_MLFLOW_DATA, downloaded where it is not there; an embedded "
        "dataset has none.",
    )
    # As texts; when the dataset has checked them, all of them, as values of their types.
    dataset_args: Mapping[str, Argument] = _parameter(
        DATA,
        parse_arguments,
        default=NONE,
        python="str | Mapping[str, object]",
        help="How your own stream is read: name=value,name=value; docs/own-streams.md lists "
        "what there is.",
    )
    protocol: str = _parameter(
        DATA,
        PROTOCOLS,
        default="iid",
        help="iid: held-out test images; streaming: a bucket's test set is its training data.",
    )
    split: str = _parameter(
        DATA,
        parse_split,
        python="int | str",
        help="What protocol iid tests on. A number N: 30 % of each bucket's training images, drawn "
        "with seed N. auto: the released test set; in the released layout its lack is an error, in "
        "the others auto is split 0. validation: a tenth of what auto trains on, for choosing "
        "parameters; no test image is read (validation:N: a tenth of what split N trains on).",
    )
    scenario: str = _parameter(
        DATA,
        SCENARIOS,
        default=DOMAIN,
        help="domain: buckets of the stream's time. class: each bucket brings classes of its own; "
        "task: likewise, and an answer is one of the tested bucket's classes.",
    )
    scenario_args: Mapping[str, Argument] = _parameter(
        DATA,
        parse_arguments,
        default=NONE,
        unused=lambda config: config.scenario == DOMAIN,
        python="str | Mapping[str, object]",
        help="Of class and task: classes_per_bucket=N, order=labels|seed:N|A:B:..., times=own|all, "
        "with commas alone between; see docs/datasets.md.",
    )
    features: str = _parameter(
        DATA,
        feature_name,
        default=NONE,
        help="Name of stored features to train a linear head on, for example moco_b0; vectors: "
        "what a dataset of vectors is made of, and nothing else.",
    )
    damaged: str = _parameter(
        DATA,
        ("stop", "leave_out"),
        default="stop",
        help="What to do about an image that cannot be decoded: stop, or leave_out, which lists it "
        "in the record.",
    )
    strategy: str = _parameter(
        METHOD,
        parse_strategy,
        default="naive",
        help=f"How to learn from the stream: {', '.join(known_strategies())}, or a class of your "
        "own: package.module:Class.",
    )
    # As texts; when the strategy has checked them, all of them, as values of their types.
    strategy_args: Mapping[str, Argument] = _parameter(
        METHOD,
        parse_arguments,
        default=NONE,
        python="str | Mapping[str, object]",
        help="The strategy's own numbers: name=value,name=value; docs/strategies.md lists them.",
    )
    memory: int | float = _parameter(
        METHOD,
        parse_memory,
        unused=lambda c: c.strategy in WITHOUT_BUFFER or c.memory_budget > 0,
        help="What a strategy with a buffer may keep: images, or below 1 a fraction of the "
        "stream's training images. In a sweep, other strategies ignore it.",
    )
    memory_budget: int = _parameter(
        METHOD,
        whole(least=0),
        default="0",
        help="In the place of memory, bytes for all that the strategy keeps from bucket to bucket; "
        "a buffer has as many images as they have room for. 0: memory says it (docs/cost.md).",
    )
    budget: str = _parameter(
        METHOD,
        parse_budget,
        default=OFF,
        python="float | str",
        help="What the training of a bucket may cost, in the place of epochs: FLOPs, for example "
        "2e15; naive:1, what naive learning takes with the same epochs, or naive:0.5, half of it; "
        "images:N, in steps. off: so many epochs (docs/cost.md).",
    )
    stream_rate: str = _parameter(
        METHOD,
        parse_stream_rate,
        default=OFF,
        python="float | str",
        help="A stream that does not wait for a slow method, and passes once: naive:1, as fast as "
        "naive learning takes its images; naive:2, twice as fast; or images per PFLOP, for example "
        "5e4. off: it waits (docs/cost.md).",
    )
    model: str = _parameter(
        MODEL,
        str,
        help="small_cnn; any torchvision classification model by its name, for example resnet18; "
        "or, for features, linear or a network with hidden layers, as mlp:64 or mlp:256-128.",
    )
    weights: str = _parameter(
        MODEL,
        parse_weights,
        path="file",
        default=NONE,
        python="str | Path",
        help="What the model starts from: none, DEFAULT (torchvision's best pretrained weights), "
        "or a file of weights, .safetensors or .pth.",
    )
    freeze: str = _parameter(
        MODEL,
        (NONE, "backbone"),
        default=NONE,
        help="backbone: train the head alone and leave all other weights as they are.",
    )
    image_size: int = _parameter(
        MODEL,
        whole(least=8),
        unused=lambda config: config.features != NONE,
        help="Side of the model's square input, pixels.",
    )
    augment: str = _parameter(
        MODEL,
        (AUTO, RANDOM_CROP, RANDOM_CROP_FLIP, NONE),
        help="How images are cropped: random_crop, as the CLEAR authors do; random_crop_flip, "
        "mirrored too; none: the centre.",
    )
    epochs: int = _parameter(
        OPTIMISATION, whole(least=1), help="Passes over each bucket's training data."
    )
    batch_size: int | Literal["full"] = _parameter(
        OPTIMISATION, parse_batch_size, help="Images in one optimiser step; full: all of an epoch."
    )
    optimizer: str = _parameter(
        OPTIMISATION, ("sgd", "adam", "adamw"), default="sgd", help="sgd, adam or adamw."
    )
    optimizer_state: str = _parameter(
        OPTIMISATION,
        ("reset", "keep"),
        default="reset",
        help="The optimiser's state (momentum, for example) at a new bucket: reset or keep.",
    )
    lr: float = _parameter(
        OPTIMISATION, number(above=0), help="The learning rate at the start of a bucket."
    )
    momentum: float = _parameter(
        OPTIMISATION,
        number(least=0, below=1),
        unused=lambda config: config.optimizer != "sgd",
        default="0.9",
        help="SGD's momentum; the other optimisers ignore it.",
    )
    weight_decay: float = _parameter(
        OPTIMISATION, number(least=0), help="The optimiser's weight decay."
    )
    schedule: str = _parameter(
        OPTIMISATION,
        ("step", "cosine", "constant"),
        default="step",
        help="How the learning rate falls within a bucket: step, cosine (to 0) or constant.",
    )
    lr_step: int = _parameter(
        OPTIMISATION,
        whole(least=1),
        unused=lambda config: config.schedule != "step",
        help="Under schedule step, epochs after which the learning rate is multiplied by lr_gamma.",
    )
    lr_gamma: float = _parameter(
        OPTIMISATION,
        number(above=0),
        unused=lambda config: config.schedule != "step",
        default="0.1",
        help="Factor on the learning rate every lr_step epochs.",
    )
    warmup_epochs: int = _parameter(
        OPTIMISATION,
        whole(least=0),
        default="0",
        help="First epochs of each bucket over which the learning rate rises to lr.",
    )
    label_smoothing: float = _parameter(
        OPTIMISATION,
        number(least=0, below=1),
        default="0",
        help="Share of the target spread over all classes.",
    )
    clip_norm: float = _parameter(
        OPTIMISATION,
        number(least=0),
        default="0",
        help="Largest norm of a step's gradient; 0: not clipped.",
    )
    precision: str = _parameter(
        HARDWARE,
        (AUTO, "off", "tf32", "bf16", "fp16"),
        of_machine=True,
        help="Arithmetic of passes: off (float32), tf32, bf16, or fp16 with a scaled loss, for "
        "GPUs without bf16 (T4, V100). auto: bf16 where the device has instructions for it, else "
        "off; off on the embedded datasets and on features.",
    )
    compile: str = _parameter(
        HARDWARE,
        ("off", "on", AUTO),
        default="off",
        python='bool | Literal["on", "off", "auto"]',
        of_machine=True,
        help="Compile the model with torch.compile. auto: on for 50 epochs and more of images on a "
        "GPU, where Triton and what it needs are there.",
    )
    predictions: str = _parameter(
        RECORD,
        KEEP_PREDICTIONS,
        default="labels",
        help="What to store of the model's answer for each test image: the predicted class "
        "(labels), the probabilities too (probs), or nothing (none).",
    )
    test_every: str = _parameter(
        RECORD,
        parse_test_every,
        default=OFF,
        python="int | str",
        help="Test inside each bucket, too: every so many epochs, as 1, or steps, as 200steps; "
        "off: after each bucket alone.",
    )
    metrics: str = _parameter(
        RECORD,
        parse_families,
        default=DEFAULT_METRICS,
        python="str | Sequence[str]",
        help="Families of metrics to log, with commas between, for example clear,gem; "
        "docs/metrics.md lists them.",
    )
    log_models: str = _parameter(
        RECORD,
        (NONE, "last", "all"),
        default=NONE,
        help="Which buckets' models to store as artifacts: none, last or all.",
    )
    resumable: str = _parameter(
        RECORD,
        ("on", "off"),
        default="on",
        help="Store after each bucket the state that a resume starts from (docs/resume.md); it is "
        "removed when the last row is stored.",
    )
    seed: int = _parameter(METHOD, whole(least=0), default="0", help="Seed of all that is random.")
    seeds: str = _parameter(
        METHOD,
        parse_seeds,
        default=NONE,
        python="str | Sequence[int]",
        help="Seeds to train one after another on data that is loaded once, for example 0,1,2. "
        "Each seed has its own run, below one parent run.",
    )
    device: str = _parameter(
        HARDWARE,
        (AUTO, "cpu", "cuda"),
        of_machine=True,
        may_move=True,
        help="cpu, cuda, or auto: cuda where there is one.",
    )

    @classmethod
    def resolve(cls, asked: Mapping[str, str]) -> TrainConfig:
        """Check and complete the parameters that a user asked for, name to text."""
        if unknown := sorted(asked.keys() - PARAMETERS.keys()):
            raise ConfigError(
                f"unknown parameter {safe_repr(unknown[0])}; {known_parameters(unknown[0])}"
            )
        texts = {**parameter_defaults(), **asked}
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
        config = cls(**values)
        if config.data_root == AUTO and needs_folder(dataset):
            raise ConfigError(f"dataset {dataset} needs its folder; pass data_root=DIR")
        if config.data_root != AUTO and dataset in EMBEDDED:
            raise ConfigError(
                f"data_root is {config.data_root}, but dataset {dataset} is embedded and reads no "
                "folder; pass the dataset that it is of"
            )
        if config.scenario != DOMAIN and config.protocol == "streaming":
            raise ConfigError(
                f"scenario is {config.scenario}, whose buckets are tested on held-out images; "
                "pass protocol=iid"
            )
        if config.protocol == "streaming" and config.split != AUTO:
            raise ConfigError(
                f"protocol is streaming and split is {config.split}; a bucket's test set is its "
                "training data then: leave split at auto, or pass protocol=iid"
            )
        if (config.features == NONE) == (config.model == LINEAR or is_mlp(config.model)):
            raise ConfigError(
                f"model is {config.model} and features is {config.features}; stored features are "
                "for the models linear and mlp:WIDTH, images for every other: pass model=linear "
                "with features=NAME, or leave both out"
            )
        if config.strategy in WITHOUT_STEPS and (
            is_mlp(config.model) or config.dataset_args.get("standardise") == "past"
        ):
            raise ConfigError(
                f"strategy {config.strategy} sets a linear layer on features that stay as they "
                "are; pass model=linear, and standardise=first or none"
            )
        for name in ("weights", "freeze", "augment", "damaged") if config.features != NONE else ():
            if (given := getattr(config, name)) not in (NONE, "stop"):
                raise ConfigError(
                    f"{name} is {given} and features is {config.features}; stored features are "
                    f"used as they are: leave {name} at {parameter_defaults()[name]}"
                )
        for option, others in {
            "budget": ["test_every"],
            "stream_rate": ["test_every", "budget"],
        }.items():
            for name in others:
                value, other = getattr(config, option), getattr(config, name)
                if OFF not in (value, other):
                    raise ConfigError(
                        f"{option} is {value} and {name} is {other}; how many steps a bucket takes "
                        f"is not known before it is trained: leave {name} at off"
                    )
        if config.stream_rate != OFF and config.dataset_args.get("standardise") == "past":
            raise ConfigError(
                f"stream_rate is {config.stream_rate} and standardise is past, which needs what "
                "passes by, too: pass standardise=first or none"
            )
        return config

    def split_seeds(self) -> list[TrainConfig]:
        """Return one configuration for each of ``seeds``, or [self] if ``seeds`` is none."""
        if self.seeds == NONE:
            return [self]
        return [replace(self, seed=int(seed), seeds=NONE) for seed in self.seeds.split(",")]

    def as_text(self) -> dict[str, str]:
        """Every parameter as the text that :meth:`resolve` reads back to the same value."""
        return {name: _as_text(value) for name, value in self.values().items()}

    def values(self) -> dict[str, Any]:
        """Every parameter as JSON holds it; ``TrainConfig(**values)`` makes the same again."""
        return asdict(self)

    @property
    def stream_name(self) -> str:
        """What records, tags and runs call the dataset."""
        name = stream_name(self.dataset, self.data_root, self.dataset_args)
        return name if self.scenario == DOMAIN else f"{name} ({self.scenario})"

    @property
    def arithmetic(self) -> str:
        """What passes through the model are computed in; ``precision`` is resolved."""
        return "float32" if self.precision == "off" else self.precision

    @property
    def test_interval(self) -> EvalInterval | None:
        """How much is trained from one test inside a bucket to the next; None: there are none."""
        return parse_interval(self.test_every)

    @property
    def without_role(self) -> frozenset[str]:
        """Parameters that mean nothing, given the others; a class of your own may use all."""
        return frozenset(n for n, about in PARAMETERS.items() if about["unused"](self))

    def to_json(self) -> str:
        """The configuration as ``config.json``, which ``--config`` reads back."""
        return json.dumps(self.as_text(), indent=2) + "\n"


# Of each parameter, by its name, what _parameter was told.
PARAMETERS: dict[str, Mapping[str, Any]] = {f.name: f.metadata for f in fields(TrainConfig)}


def parameter_defaults() -> dict[str, str]:
    """Every parameter's name and the text it has when a user says nothing."""
    return {name: about["default"] for name, about in PARAMETERS.items()}


def known_parameters(name: str) -> str:
    """What a user may have meant by a parameter that there is not."""
    return f"{nearest(name, PARAMETERS)}known are {', '.join(PARAMETERS)}"


def parameters_with(trait: Literal["of_machine", "may_move", "path"]) -> dict[str, Any]:
    """What these parameters say of a trait of theirs, by name; see ``TrainConfig``'s fields."""
    return {name: about[trait] for name, about in PARAMETERS.items() if about[trait]}


def result_parameters() -> tuple[str, ...]:
    """Return the parameters that affect results, without strategy, test set and arguments."""
    skipped = {"dataset", "data_root", "protocol", "split", "strategy", "seed", "seeds"}
    skipped |= {"dataset_args", "scenario_args", "strategy_args"}
    names = (name for name in PARAMETERS if name not in skipped)
    return tuple(n for n in names if PARAMETERS[n]["group"] not in (HARDWARE, RECORD))


def is_tuned(name: str) -> bool:
    """Return True if a parameter is usually chosen by its results, such as a learning rate."""
    if name in ("augment", "strategy_args") or name.startswith("strategy/"):
        return True
    return name in PARAMETERS and PARAMETERS[name]["group"] == OPTIMISATION


def check_memory(config: TrainConfig, requested: Mapping[str, str]) -> None:
    """Raise ConfigError if memory was requested for a strategy that has none."""
    memory = requested.get("memory", AUTO)
    if memory != AUTO and config.strategy in WITHOUT_BUFFER:
        raise ConfigError(
            f"memory is {memory}, but strategy {config.strategy} does not use it; leave memory out"
        )


def switches() -> frozenset[str]:
    """Names of the parameters that may be on or off."""
    return frozenset(n for n, about in PARAMETERS.items() if {"on", "off"} <= {*about["choices"]})


def auto_values(name: str) -> dict[str, str]:
    """What ``auto`` means for a parameter: dataset to value, and ``features`` to that on them.

    Parameters without recipes have none; a dataset whose recipe is silent on one is not there.

    >>> auto_values("lr")["digits"]
    '0.02'
    """
    found = {dataset: recipe[name] for dataset, recipe in RECIPES.items() if name in recipe}
    if name in FEATURES_RECIPE:
        found["features"] = FEATURES_RECIPE[name]
    return {where: text for where, text in found.items() if text != AUTO}


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={argument_text(v)}" for name, v in value.items()) or NONE
    return str(value)


def parse_parameter(name: str, text: str) -> Any:
    """The value that a parameter's text is, or ConfigError; ``auto`` is resolved elsewhere."""
    try:
        if (choices := PARAMETERS[name]["choices"]) and text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return PARAMETERS[name]["parse"](text)
    except ValueError as error:
        raise ConfigError(f"{name} is {safe_repr(text, 200)}; {error}") from None
