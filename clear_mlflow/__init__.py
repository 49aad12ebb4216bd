"""Continual learning on CLEAR's stream of buckets, with every accuracy-matrix row kept in MLflow.

Importing this loads neither torch nor mlflow; the functions that need them do when they are used.

>>> import clear_mlflow
>>> matrix = clear_mlflow.AccuracyMatrix([[0.8, 0.6, 0.5], [0.7, 0.9, 0.6], [0.5, 0.6, 0.9]])
>>> found = clear_mlflow.scores(matrix)
>>> found["clear/backward_transfer"].text, found["renate/backward_transfer"].text
('0.6000', '-0.3000')
>>> found["renate/forward_transfer"].reason
'needs the initialisation row'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clear_mlflow import metrics
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.core.score import Score
from clear_mlflow.core.version import __version__
from clear_mlflow.metrics import MetricResult, clear, renate, scores

if TYPE_CHECKING:
    from clear_mlflow.api.compare import compare
    from clear_mlflow.api.compared import ComparedRuns
    from clear_mlflow.api.evaluate import evaluate
    from clear_mlflow.api.export import export
    from clear_mlflow.api.load import load, runs
    from clear_mlflow.api.run import Run
    from clear_mlflow.api.sweep import sweep
    from clear_mlflow.api.track import track
    from clear_mlflow.api.train import train, train_ensemble

# Each brings torch or mlflow: loaded when it is first asked for. Name to its module of api.
_OF_API = {
    "ComparedRuns": "compared",
    "Run": "run",
    "compare": "compare",
    "evaluate": "evaluate",
    "export": "export",
    "load": "load",
    "runs": "load",
    "sweep": "sweep",
    "track": "track",
    "train": "train",
    "train_ensemble": "train",
}

__all__ = [
    "AccuracyMatrix",
    "AccuracyRow",
    "ClearError",
    "ComparedRuns",
    "MetricResult",
    "Run",
    "Score",
    "__version__",
    "clear",
    "compare",
    "evaluate",
    "export",
    "load",
    "metrics",
    "renate",
    "runs",
    "scores",
    "sweep",
    "track",
    "train",
    "train_ensemble",
]


def __getattr__(name: str) -> Any:
    """What is asked for by its name, from its module."""
    if name not in _OF_API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"clear_mlflow.api.{_OF_API[name]}"), name)


def __dir__() -> list[str]:
    return __all__
