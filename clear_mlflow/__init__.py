"""Track continual learning in MLflow.

Every run keeps its complete accuracy matrix, any metric can be computed from it later, and a
comparison tells you which method is better.

Importing this loads neither torch nor mlflow; the functions that need them do when they are used.

>>> import clear_mlflow
>>> matrix = clear_mlflow.AccuracyMatrix([[0.8, 0.6, 0.5], [0.7, 0.9, 0.6], [0.5, 0.6, 0.9]])
>>> results = clear_mlflow.scores(matrix)
>>> results["clear/backward_transfer"].text, results["renate/backward_transfer"].text
('0.6000', '-0.3000')
>>> results["renate/forward_transfer"].reason
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
    from clear_mlflow.api.compared import ComparedRuns
    from clear_mlflow.api.identify import identify
    from clear_mlflow.api.load import Run, load, runs
    from clear_mlflow.api.train import train, train_ensemble
    from clear_mlflow.api.transfer import download, import_runs, sync
    from clear_mlflow.api.verbs import compare, evaluate, export, sweep
    from clear_mlflow.tracking.loop_run import track

# Each imports torch or mlflow, so it is imported when it is first used. Name to its module.
_LAZY_MODULES = {
    "ComparedRuns": "api.compared",
    "Run": "api.load",
    "compare": "api.verbs",
    "download": "api.transfer",
    "evaluate": "api.verbs",
    "export": "api.verbs",
    "identify": "api.identify",
    "import_runs": "api.transfer",
    "load": "api.load",
    "runs": "api.load",
    "sweep": "api.verbs",
    "sync": "api.transfer",
    "track": "tracking.loop_run",
    "train": "api.train",
    "train_ensemble": "api.train",
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
    "download",
    "evaluate",
    "export",
    "identify",
    "import_runs",
    "load",
    "metrics",
    "renate",
    "runs",
    "scores",
    "sweep",
    "sync",
    "track",
    "train",
    "train_ensemble",
]


def __getattr__(name: str) -> Any:
    """Import a name from its module when it is first used."""
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"clear_mlflow.{_LAZY_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
