"""All conflicts of parameters that can be found before any data is read.

A new conflict is one row: a condition and a sentence, in which ``{name}`` is a parameter's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data.embedded import EMBEDDED
from clear_mlflow.data.sources import VECTOR_DATASETS, VECTORS, is_custom_function, needs_folder
from clear_mlflow.data.stream import DOMAIN
from clear_mlflow.learning.parameters.recipes import (
    AUTO,
    DEFAULT_WEIGHTS,
    LINEAR,
    NONE,
    SMALL_CNN,
)
from clear_mlflow.learning.parameters.strategy_names import WITHOUT_BUFFER, WITHOUT_STEPS
from clear_mlflow.learning.parameters.values import OFF, is_mlp


class Conflict(NamedTuple):
    """Parameters that do not fit together."""

    parameter: str
    condition: Callable[[Any], bool]  # of an object whose attributes are the parameters
    sentence: str  # a format string: what was passed, why it cannot work, what to pass


def _build_features_conflict(name: str, default: str) -> Conflict:
    """Build the rule that ``features`` excludes *name*. default: value to recommend."""
    return Conflict(
        name,
        lambda c: c.features != NONE and getattr(c, name) not in (NONE, "stop"),
        f"{name} is {{{name}}} and features is {{features}}; stored features are used as they "
        f"are: leave {name} at {default}",
    )


def _build_steps_conflict(first: str, second: str) -> Conflict:
    """Build the rule that *first* excludes *second*, which counts steps."""
    return Conflict(
        first,
        lambda c: OFF not in (getattr(c, first), getattr(c, second)),
        f"{first} is {{{first}}} and {second} is {{{second}}}; the number of steps in a bucket is "
        f"not known before it is trained: leave {second} at off",
    )


def _build_delay_conflict(name: str) -> Conflict:
    return Conflict(
        "label_delay",
        lambda c: OFF not in (c.label_delay, getattr(c, name)),
        f"label_delay is {{label_delay}} and {name} is {{{name}}}, which is defined only while the "
        f"stream is at the bucket that is trained on: leave {name} at off",
    )


# The conditions below need only the parameters. c.passed: names of those passed for this run.
CONFLICTS = (
    Conflict(
        "dataset",
        lambda c: c.data_root == AUTO and needs_folder(c.dataset),
        "dataset {dataset} needs its folder; pass data_root=DIR",
    ),
    Conflict(
        "data_root",
        lambda c: c.data_root != AUTO and c.dataset in EMBEDDED,
        "data_root is {data_root}, but dataset {dataset} is embedded and reads no folder; leave "
        "data_root out, or pass the dataset in that folder",
    ),
    Conflict(
        "scenario",
        lambda c: c.scenario != DOMAIN and c.protocol == "streaming",
        "scenario is {scenario}, whose buckets are tested on held-out images; pass protocol=iid",
    ),
    Conflict(
        "protocol",
        lambda c: c.protocol == "streaming" and c.split != AUTO,
        "protocol is streaming and split is {split}, but with streaming a bucket's test set is its "
        "training data; leave split at auto, or pass protocol=iid",
    ),
    Conflict(
        "dataset",
        lambda c: c.dataset in VECTOR_DATASETS and c.features != VECTORS,
        "dataset {dataset} consists of vectors and features is {features}; pass features=vectors",
    ),
    Conflict(
        "features",
        lambda c: (
            c.features == VECTORS
            and c.dataset not in VECTOR_DATASETS
            and not is_custom_function(c.dataset)
        ),
        "features is vectors, but dataset {dataset} consists of images; pass other features, for "
        "example features=pixels",
    ),
    Conflict(
        "model",
        lambda c: (c.features == NONE) == (c.model == LINEAR or is_mlp(c.model)),
        "model is {model} and features is {features}; stored features are for the models linear "
        "and mlp:WIDTH, images for all others: pass model=linear with features=NAME, or leave both "
        "out",
    ),
    _build_features_conflict("weights", NONE),
    _build_features_conflict("freeze", NONE),
    _build_features_conflict("augment", AUTO),
    _build_features_conflict("damaged", "stop"),
    Conflict(
        "weights",
        lambda c: (
            c.weights == DEFAULT_WEIGHTS and (c.model == SMALL_CNN or is_custom_function(c.model))
        ),
        "weights is DEFAULT, but {model} is not published with weights; pass weights=none",
    ),
    Conflict(
        "strategy",
        lambda c: (
            c.strategy in WITHOUT_STEPS
            and (is_mlp(c.model) or c.dataset_args.get("standardise") == "past")
        ),
        "strategy {strategy} computes a linear layer on features that do not change; pass "
        "model=linear, and standardise=first or none",
    ),
    Conflict(
        "memory",
        lambda c: "memory" in c.passed and c.strategy in WITHOUT_BUFFER,
        "memory is {memory}, but strategy {strategy} does not use it; leave memory out",
    ),
    _build_steps_conflict("budget", "test_every"),
    _build_steps_conflict("stream_rate", "test_every"),
    _build_steps_conflict("stream_rate", "budget"),
    Conflict(
        "stream_rate",
        lambda c: c.stream_rate != OFF and c.dataset_args.get("standardise") == "past",
        "stream_rate is {stream_rate} and standardise is past, which also uses images that are "
        "missed: pass standardise=first or none",
    ),
    _build_steps_conflict("budget", "prequential"),
    _build_steps_conflict("stream_rate", "prequential"),
    Conflict(
        "prequential",
        lambda c: c.prequential != OFF and c.time_order == OFF,
        "prequential is {prequential} and time_order is off; it measures how well a model predicts "
        "what comes next: pass time_order=on",
    ),
    Conflict(
        "prequential",
        lambda c: c.prequential != OFF and c.scenario != DOMAIN,
        "prequential is {prequential} and scenario is {scenario}, whose buckets are not in the "
        "order of time; pass scenario=domain, or leave prequential at off",
    ),
    Conflict(
        "label_delay",
        lambda c: OFF not in (c.label_delay, c.prequential),
        "label_delay is {label_delay} and prequential is {prequential}, whose distances already "
        "are delays of labels, in batches; leave label_delay at off",
    ),
    _build_delay_conflict("test_every"),
    _build_delay_conflict("stream_rate"),
)

# The conditions below need the strategy's class, c.strategy_class, which brings torch.
# c.num_epochs: epochs that the strategy takes in a bucket. c.num_processes: of the training.
STRATEGY_CONFLICTS = (
    Conflict(
        "strategy",
        lambda c: c.num_processes > 1 and not c.strategy_class.supports_distributed,
        "strategy {strategy} trains in one process and this is one of {num_processes}; pass a "
        "built-in strategy, or a class that sets supports_distributed = True",
    ),
    Conflict(
        "memory",
        lambda c: c.strategy_class.needs_memory and c.memory == 0,
        "memory is 0, but strategy {strategy} keeps images in a buffer; pass memory=N images, or a "
        "fraction, for example memory=0.1",
    ),
    Conflict(
        "strategy",
        lambda c: c.strategy_class.needs_features and c.features == NONE,
        "strategy {strategy} learns from stored features and features is none; pass features=NAME, "
        "for example features=pixels, which every dataset has",
    ),
    Conflict(
        "warmup_epochs",
        lambda c: c.warmup_epochs >= c.num_epochs,
        "warmup_epochs is {warmup_epochs} and a bucket takes no more epochs ({num_epochs}), but a "
        "warm-up must end before the training does: pass fewer warmup_epochs",
    ),
    Conflict(
        "test_every",
        lambda c: c.test_every != OFF and not c.strategy_class.steps_in_every_bucket,
        "test_every is {test_every}, but strategy {strategy} does not take optimiser steps in "
        "every bucket: leave test_every at off",
    ),
    Conflict(
        "test_every",
        lambda c: c.test_every.isdecimal() and int(c.test_every) >= c.num_epochs,
        "test_every is {test_every} and a bucket takes no more epochs than that; each bucket is "
        "tested at its end in any case: pass steps, for example test_every=10steps",
    ),
    Conflict(
        "prequential",
        lambda c: c.prequential != OFF and not c.strategy_class.steps_in_every_bucket,
        "prequential is {prequential}, but strategy {strategy} does not take optimiser steps in "
        "every bucket: leave prequential at off",
    ),
    Conflict(
        "prequential",
        lambda c: c.prequential != OFF and c.num_processes > 1,
        "prequential is {prequential} and this is one of {num_processes} processes; batches are "
        "predicted in one process: train in one, or leave prequential at off",
    ),
    Conflict(
        "budget",
        lambda c: (
            c.budget != OFF
            and not (c.strategy_class.steps_in_every_bucket or c.strategy in WITHOUT_STEPS)
        ),
        "budget is {budget}, but strategy {strategy} does not train in each bucket: leave budget "
        "at off",
    ),
    Conflict(
        "stream_rate",
        lambda c: (
            c.stream_rate != OFF
            and not (c.strategy_class.steps_in_every_bucket and c.strategy_class.supports_realtime)
        ),
        "stream_rate is {stream_rate}, but strategy {strategy} does not learn from a bucket while "
        "its images pass: leave stream_rate at off",
    ),
    Conflict(
        "stream_rate",
        lambda c: c.stream_rate != OFF and c.num_epochs > 1,
        "stream_rate is {stream_rate} and a bucket takes {num_epochs} epochs; a stream that does "
        "not wait passes once: pass epochs=1",
    ),
)


def check_conflicts(conflicts: Iterable[Conflict], **values: Any) -> None:
    """Raise ConfigError with the completed sentence of the first conflict that applies.

    values: all parameters, and what else the conditions and sentences need.
    """
    context = SimpleNamespace(**values)
    for conflict in conflicts:
        if conflict.condition(context):
            sentence = conflict.sentence.format_map(values)
            raise ConfigError(sentence, parameter=conflict.parameter)
