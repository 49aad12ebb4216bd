"""Where the runs of a sweep are trained: on this machine, or on a Ray cluster."""

from clear_mlflow.engines.engine import Ended, Engine, Task
from clear_mlflow.engines.local import LocalEngine

__all__ = ["Ended", "Engine", "LocalEngine", "Task"]
