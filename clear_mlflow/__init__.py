"""Continual learning on CLEAR's stream of buckets, with every accuracy-matrix row kept in MLflow.

The names here are the pure core, which loads neither torch nor mlflow; only ``train`` and
``train_ensemble`` load both, and ``track`` mlflow.

>>> import clear_mlflow
>>> matrix = clear_mlflow.AccuracyMatrix([[0.8, 0.6, 0.5], [0.7, 0.9, 0.6], [0.5, 0.6, 0.9]])
>>> summary = clear_mlflow.summarize(matrix)
>>> round(summary["clear/backward_transfer"], 2), round(summary["renate/backward_transfer"], 2)
(0.6, -0.3)
>>> clear_mlflow.explain(matrix)["renate/forward_transfer"]
'needs the initialisation row'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clear_mlflow import metrics
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.score import Score
from clear_mlflow.core.version import __version__
from clear_mlflow.metrics import clear, explain, renate, series, summarize

if TYPE_CHECKING:
    from clear_mlflow.api.track import track
    from clear_mlflow.api.train import train, train_ensemble

__all__ = [
    "AccuracyMatrix",
    "AccuracyRow",
    "Score",
    "__version__",
    "clear",
    "explain",
    "metrics",
    "renate",
    "series",
    "summarize",
    "track",
    "train",
    "train_ensemble",
]


# Each brings torch or mlflow: loaded when it is first asked for.
_VERBS = {"track": "track", "train": "train", "train_ensemble": "train"}


def __getattr__(name: str) -> Any:
    """What is asked for by its name, from the module of its verb."""
    if name not in _VERBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"clear_mlflow.api.{_VERBS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
