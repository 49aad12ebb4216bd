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

from typing import TYPE_CHECKING, Any

from clear_mlflow import metrics
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.score import Score
from clear_mlflow.core.version import __version__
from clear_mlflow.metrics import clear, explain, renate, series, summarize

if TYPE_CHECKING:
    from clear_mlflow.api import track, train, train_ensemble

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


def __getattr__(name: str) -> Any:
    """Load ``train`` and its like when first asked for: they bring torch and mlflow."""
    if name in ("track", "train", "train_ensemble"):
        from clear_mlflow import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
