"""``clear-mlflow`` for sweeps, in processes forked from one that has loaded torch and MLflow.

That one is :mod:`multiprocessing`'s fork server. It has one thread of Python, opens no store and
touches no GPU: all that begins in what is forked from it. A further run of a sweep takes three
seconds less so, of five.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver

from clear_mlflow.process.forked import ForkedProcess, fork_training_process
from clear_mlflow.process.parent import child_environment
from clear_mlflow.process.streams import guard_streams

# What a training loads: itself, models, and what a run takes to be opened, watched, sent and drawn.
# Nothing here starts a thread, opens a store or asks for a GPU: none of them survives a fork.
_LOADED = [
    "clear_mlflow.cli.output",
    "clear_mlflow.learning.prepare",
    "clear_mlflow.tracking.tracked_training",
    "IPython",
    "alembic.command",
    "git",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_workspace_store",
    "mlflow.system_metrics.system_metrics_monitor",
    "torchvision.models",
]
# What ends a sweep is for the sweep to hand on; what is forked may outlive it. Blocked and not
# ignored: a signal to what was just forked waits until that is ready to be ended by it.
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class PreloadedProgram:
    """Starts the program as ``start_program`` of engines.local does, but sooner; on Linux."""

    def __init__(self) -> None:
        self._is_loading = False

    def __call__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: str
    ) -> ForkedProcess:
        """Start it; see :func:`clear_mlflow.engines.local.start_program`."""
        context = multiprocessing.get_context("forkserver")
        if not self._is_loading:
            context.set_forkserver_preload(_LOADED)
            _start_server(environment)
            self._is_loading = True
        process = context.Process(target=_run, args=(tuple(arguments), dict(environment), log))
        return ForkedProcess(process)


def _start_server(environment: Mapping[str, str]) -> None:
    """Start the fork server, which takes the environment and the signals that this process has."""
    before = dict(os.environ)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        _set_environment(child_environment(environment))
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        _set_environment(before)


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _run(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Be what a new interpreter would be, and run the program in it."""
    from clear_mlflow.cli import main

    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    for path, stream in ((os.devnull, 1), (log, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, stream)
        os.close(opened)
    guard_streams(has_result=False)
    _set_environment(environment)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  (as python -m does)
    fork_training_process()
    try:
        main(arguments, prog_name="clear-mlflow")
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
