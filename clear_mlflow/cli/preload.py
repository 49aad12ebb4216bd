"""Imported by a fork server, once: what a training needs, loaded.

Nothing here may start a thread, open a store or ask for a GPU: none of them survives a fork.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
from contextlib import suppress

from clear_mlflow.process.forked import threads_of

# What ends a sweep is for the sweep to hand on; what is forked may outlive it. Blocked and not
# ignored: a signal to what was just forked waits until that is ready to be ended by it.
_BEFORE = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP))

LOADED_WITH = threads_of(os.environ)

gc.disable()  # nothing that is loaded is garbage

import clear_mlflow.cli.output  # noqa: E402
import clear_mlflow.learning.prepare  # noqa: E402
import clear_mlflow.runs.supervised  # noqa: E402, F401

# What is loaded on the way: for models, and when a run is opened, watched, sent and drawn.
for name in (
    "IPython",
    "alembic.command",
    "git",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_workspace_store",
    "mlflow.system_metrics.system_metrics_monitor",
    "torchvision.models",
):
    with suppress(ImportError):
        importlib.import_module(name)
gc.freeze()
gc.enable()
atexit.register(gc.unfreeze)  # torch's libraries complain of what is left at the very end


def give_signals_back() -> None:
    """In a forked process: let stopping signals arrive, those that have been sent included."""
    signal.pthread_sigmask(signal.SIG_SETMASK, _BEFORE)
