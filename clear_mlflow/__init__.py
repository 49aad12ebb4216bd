"""Continual learning on CLEAR's stream of buckets, with every accuracy-matrix row kept in MLflow.

The names here are the pure core, which loads neither torch nor mlflow; only ``train`` does.

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
from clear_mlflow.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.metrics import clear, explain, renate, series, summarize
from clear_mlflow.version import __version__

if TYPE_CHECKING:
    from clear_mlflow.api import train

__all__ = [
    "AccuracyMatrix",
    "AccuracyRow",
    "__version__",
    "clear",
    "explain",
    "metrics",
    "renate",
    "series",
    "summarize",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load ``train`` when it is first asked for: it brings torch and mlflow."""
    if name == "train":
        from clear_mlflow.api import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
