"""Train from Python: what ``clear-mlflow train`` does, in the caller's own process or notebook."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from clear_mlflow.api._arguments import check_type, split_union
from clear_mlflow.core.disk import set_offline
from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.core.errors import ConfigError, require_package
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.text import format_count
from clear_mlflow.learning.parameters.config import PARAMETERS, TrainConfig, suggest_parameters
from clear_mlflow.learning.parameters.options import TrainOptions
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.learning.parameters.values import OFF, format_argument
from clear_mlflow.learning.progress import TrainingProgress, build_progress, format_accuracies
from clear_mlflow.report.page.run_page import render_progress_html

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clear_mlflow.api.load import Run

_Function = TypeVar("_Function", bound=Callable[..., object])
_TYPES = get_type_hints(TrainOptions)


def _declare_options(function: _Function) -> _Function:
    """Set a function's signature to all training options, for help() and completion."""
    signature = inspect.signature(function)
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=PARAMETERS[name].python_default,
            annotation=annotation,
        )
        for name, annotation in _TYPES.items()
    ]
    parameters.append(signature.parameters["offline"].replace(annotation=bool | str | Path))
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


@_declare_options
def train(*, offline: bool | str | Path = False, **options: Unpack[TrainOptions]) -> Run:
    """Train on a stream of buckets, and return the stored run.

    An active MLflow run is used and left open; without one, a run is opened and closed. The
    options are the parameters of ``clear-mlflow train`` as values of Python: numbers, True or
    False, None for none and off, a list for several values, and a dictionary for arguments.
    ``auto`` is the value in the dataset's recipe.

    Args:
        offline: record offline; see :func:`clear_mlflow.track`.
        **options: the parameters; docs/parameters.md lists them.

    Returns:
        The run, with its accuracy matrix as it was read back from the store. A notebook shows it
        as a heat map.

    Raises:
        ConfigError: a parameter has an invalid value.
        DataError: the dataset or its features are missing or damaged.
        TrackingError: the run cannot be stored in MLflow.
        TrainingError: training cannot continue; the rows so far are stored and scored.
    """
    requested, config = _resolve_options(train, options)
    if config.seeds != NONE:
        raise ConfigError(
            f"seeds is {config.seeds}, which trains an ensemble with one matrix per seed; "
            "call train_ensemble, or pass seed=N",
            parameter="seeds",
        )
    (run,) = _train_and_load(config, requested, offline).values()
    return run


@_declare_options
def train_ensemble(
    *, offline: bool | str | Path = False, **options: Unpack[TrainOptions]
) -> dict[int, Run]:
    """Train one seed after another on data loaded once.

    Each is its own MLflow run.

    They are child runs of one run, which contains the means of their metrics: the active run,
    which is left open, or a new run, which is closed.

    Args:
        offline: record offline; see :func:`clear_mlflow.track`.
        **options: see :func:`train`, and ``seeds=[0, 1, 2]``.

    Returns:
        A dictionary from seed to run, as :func:`train` returns it.

    Raises:
        ConfigError: a parameter has an invalid value, or ``seeds`` is missing.
        DataError: the dataset or its features are missing or damaged.
        TrackingError: the runs cannot be stored in MLflow.
        TrainingError: training cannot continue; the rows so far are stored and scored.
    """
    requested, config = _resolve_options(train_ensemble, options)
    if config.seeds == NONE:
        raise ConfigError(
            "seeds is None; an ensemble needs some: pass seeds=[0, 1, 2], or call train",
            parameter="seeds",
        )
    return _train_and_load(config, requested, offline)


def _resolve_options(
    function: Callable[..., object], options: Mapping[str, object]
) -> tuple[dict[str, str], TrainConfig]:
    """Return the options that are not defaults, and the resolved configuration."""
    for name in options.keys() - PARAMETERS.keys():  # as Python itself does
        raise TypeError(f"{function.__name__}() has no option {name!r}; {suggest_parameters(name)}")
    requested = _format_options(options)
    return requested, TrainConfig.resolve(requested, passed=requested)


def _format_options(options: Mapping[str, object]) -> dict[str, str]:
    """Return options that differ from defaults as command-line texts."""
    texts = {name: _format_option(name, value) for name, value in options.items()}
    return {name: text for name, text in texts.items() if text != PARAMETERS[name].default}


def _format_option(name: str, value: object) -> str:
    """Convert a Python value to the text of the command line.

    For example, True becomes "on", [1, 2] becomes "1,2", and {"a": 0.5} becomes "a=0.5". Raises
    ConfigError if it has another type.
    """
    check_type(name, value, split_union(_TYPES[name]))
    default = PARAMETERS[name].default
    if value is None:
        return OFF if default == OFF else NONE
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={format_argument(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    # The default as it is written in the declaration: str(0.00001) is 1e-05, which differs from it.
    if isinstance(value, (int, float)):
        with suppress(ValueError):
            return default if float(default) == value else str(value)
    return str(value)


def _train_and_load(
    config: TrainConfig, requested: Mapping[str, str], offline: bool | str | Path
) -> dict[int, Run]:
    if (size := read_dist_env().size) > 1:
        raise ConfigError(
            f"this is one of {size} processes, each of which would train and open a run; "
            "start 'torchrun ... -m clear_mlflow train', or call this in one process"
        )
    # Imported here: the pure core loads neither torch nor mlflow.
    from clear_mlflow.api.load import Run

    with require_package("torch", "training"):
        from clear_mlflow.learning.session import download_missing, prepare_training, resolve_config
    from clear_mlflow.store.client import connect_store, limit_retries, mlflow_errors
    from clear_mlflow.tracking.tracked_training import train_in_process

    config = resolve_config(config)
    set_offline(offline)
    limit_retries()
    client = connect_store()  # before the data, which may take minutes to read
    progress = NotebookProgress(config.protocol) if is_notebook() else build_progress(sys.stderr)
    with progress:
        download_missing(config, progress)
    result = train_in_process(client, prepare_training(config, progress), requested)
    runs = {}
    for seed, member in (result.members or {config.seed: result}).items():
        with mlflow_errors(f"look at run {member.run_id}"):
            runs[seed] = Run(client, client.get_run(str(member.run_id)), scores=member.scores)
    return runs


class NotebookProgress(TrainingProgress):
    """Progress bar and accuracy matrix in a notebook cell, updated during training."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._rows: list[AccuracyRow] = []
        self._display: Any = None
        self._updated_at = 0.0
        self._text = "starting"
        self._bucket_index, self._num_buckets = 0, 1
        self._num_done = self._num_steps = 0

    def __enter__(self) -> NotebookProgress:
        if self._display is None:  # it is entered to decode, and again to train
            from IPython.display import HTML, display

            self._display = display(HTML(self._build_html()), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._update(at_once=True)

    def images_prepared(self, step: str, done: int, total: int) -> None:
        """Show how many of *total* images are hashed or decoded."""
        self._text = f"{step} images, {done:,} of {total:,}"
        self._num_done, self._num_steps = done, total
        self._update(at_once=done == total)

    def bucket_started(self, key: str, *, bucket_index: int, num_buckets: int) -> None:
        """Show that training on bucket *key* begins. bucket_index: from 0."""
        text = f"bucket {key}: {bucket_index + 1} of {num_buckets}"
        self._start_bar_segment(bucket_index, num_buckets, text)

    def steps_planned(self, num_steps: int) -> None:
        """Set the number of training steps of the current bucket."""
        self._num_steps = num_steps

    def step_done(self) -> None:
        """Count a training step, and update the output twice a second."""
        self._num_done += 1
        self._update()

    def row_measured(self, row: AccuracyRow) -> None:
        """Add a measured row to the displayed accuracy matrix."""
        self._rows.append(row)
        text = ", ".join(
            [f"{row.row} of {format_count(len(row.buckets), 'bucket')}", *format_accuracies(row)]
        )
        self._start_bar_segment(row.row, len(row.buckets), text)

    def _start_bar_segment(self, bucket_index: int, num_buckets: int, text: str) -> None:
        """Set the bar to *bucket_index* buckets done, and update the output."""
        self._bucket_index, self._num_buckets, self._text = bucket_index, num_buckets, text
        self._num_done = self._num_steps = 0
        self._update(at_once=True)

    def _update(self, *, at_once: bool = False) -> None:
        """Replace the output, at most every 0.5 s unless *at_once*."""
        clock = time.monotonic()
        if self._display is not None and (at_once or clock - self._updated_at > 0.5):
            from IPython.display import HTML

            self._updated_at = clock
            self._display.update(HTML(self._build_html()))

    def _build_html(self) -> str:
        done = self._bucket_index + min(self._num_done / max(self._num_steps, 1), 1.0)
        matrix = AccuracyMatrix.from_rows(self._rows) if self._rows else None
        masked_matrix = None if matrix is None else matrix.mask(self._protocol)
        return render_progress_html(self._text, done, self._num_buckets, masked_matrix)


def is_notebook() -> bool:
    """Return True in a notebook's kernel, False in a terminal's IPython."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
