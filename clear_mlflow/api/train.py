"""Training from Python: the command line's work in one call, inside the caller's own process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import (
    TrainConfig,
    check_memory,
    known_parameters,
    parameter_defaults,
    switches,
)
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.parameters.values import argument_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clear_mlflow.api.load import Run
    from clear_mlflow.learning.parameters.options import TrainOptions
    from clear_mlflow.learning.session import StreamTraining
    from clear_mlflow.scoring import Scores
    from clear_mlflow.store.client import MlflowClient

_Function = TypeVar("_Function", bound=Callable[..., object])


def _with_options(function: _Function) -> _Function:
    """Show each option of TrainConfig to help() and to a notebook's completion."""
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=text)
        for name, text in parameter_defaults().items()
    ]
    function.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return function


@_with_options
def train(**options: Unpack[TrainOptions]) -> Run:
    """Train on a stream of buckets, tracked in MLflow, and give the run as it was stored.

    An active MLflow run is joined and left open; without one, a run is opened and closed. The
    options are the parameters of ``clear-mlflow train``; ``auto`` is what the dataset's recipe
    names. On and off are True and False; several values are a list, arguments a dictionary.

    Args:
        **options: the parameters; docs/parameters.md lists them.

    Returns:
        The run, with its matrix rebuilt from the rows that its artifact store holds; a notebook
        shows it as a heat map.

    Raises:
        ConfigError: a parameter has a value that it cannot have.
        DataError: the dataset or its features are missing or damaged.
        TrackingError: MLflow cannot keep the run.
        TrainingError: training cannot continue; the rows so far are stored and scored.
    """
    asked, config = _resolved(train, options)
    if config.seeds != NONE:
        raise ConfigError(
            f"seeds is {config.seeds}, which trains an ensemble and gives a matrix for each seed; "
            "call train_ensemble, or pass seed=N"
        )
    client, training = _prepared(config)
    # Imported here, as in _prepared: the pure core loads neither torch nor mlflow.
    from clear_mlflow.tracking.tracked_training import train_in_process

    return _run_of(client, train_in_process(client, training, asked))


@_with_options
def train_ensemble(**options: Unpack[TrainOptions]) -> dict[int, Run]:
    """Train runs together that differ only in their seed, each tracked as its own run.

    They are nested below one run in MLflow, which holds the means of their metrics: the active run,
    which is left open, or one that is opened and closed.

    Args:
        **options: those of :func:`train`, and ``seeds=[0, 1, 2]``.

    Returns:
        Seed to run, as :func:`train` gives it.

    Raises:
        ConfigError: a parameter has a value that it cannot have, or there are no ``seeds``.
        DataError: the dataset or its features are missing or damaged.
        TrackingError: MLflow cannot keep the runs.
        TrainingError: training cannot continue; the rows so far are stored and scored.
    """
    asked, config = _resolved(train_ensemble, options)
    if config.seeds == NONE:
        raise ConfigError("seeds is none; an ensemble needs some: pass seeds=0,1,2, or call train")
    client, training = _prepared(config)
    from clear_mlflow.tracking.tracked_training import train_ensemble_in_process

    scores = train_ensemble_in_process(client, training, asked)
    return {seed: _run_of(client, of_member) for seed, of_member in scores.items()}


def _run_of(client: MlflowClient, scores: Scores) -> Run:
    from clear_mlflow.api.load import Run
    from clear_mlflow.store.client import mlflow_errors

    with mlflow_errors(f"look at run {scores.stored.run_id}"):
        return Run(client, client.get_run(scores.stored.run_id), scores=scores)


def _resolved(
    function: Callable[..., object], options: Mapping[str, object]
) -> tuple[dict[str, str], TrainConfig]:
    """What a caller asked for: texts of the parameters that are not at their defaults; resolved."""
    for name in options.keys() - parameter_defaults().keys():  # as Python itself does
        raise TypeError(f"{function.__name__}() has no option {name!r}; {known_parameters(name)}")
    asked = _texts(options)
    config = TrainConfig.resolve(asked)
    check_memory(config, asked)
    return asked, config


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Options as the texts that the command line takes; those at their defaults are left out."""
    texts = {name: _text_of(name, value) for name, value in options.items()}
    return {name: text for name, text in texts.items() if text != parameter_defaults()[name]}


def _text_of(name: str, value: object) -> str:
    """A parameter's value, as a Python user writes it, as the text that the command line takes."""
    if isinstance(value, bool) and name in switches():
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={argument_text(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    # The text of a number's default, which is what it is compared with: 0.00001 is 1e-05 elsewhere.
    default = parameter_defaults()[name]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(ValueError):
            return default if float(default) == value else str(value)
    return str(value)


def _prepared(config: TrainConfig) -> tuple[MlflowClient, StreamTraining]:
    """A store that can keep the run, and a training that is ready to begin."""
    if (size := read_dist_env().size) > 1:
        raise ConfigError(
            f"this is one of {size} processes, each of which would train alone and open a run; "
            "start 'torchrun ... -m clear_mlflow train', or call this in one process"
        )
    from clear_mlflow.api.live import build_progress
    from clear_mlflow.learning.prepare import fetch, prepare
    from clear_mlflow.learning.session import check
    from clear_mlflow.store.client import limit_retries, preflight

    config = check(config)
    limit_retries()
    client = preflight()  # before the data, which may take minutes to read
    progress = build_progress(config.protocol)
    with progress:
        fetch(config, progress)
    return client, prepare(config, progress)
