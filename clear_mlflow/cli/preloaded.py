"""Start trainings of a sweep in processes forked from one that has loaded torch and MLflow.

That process is :mod:`multiprocessing`'s fork server. It has one Python thread, opens no store and
uses no GPU: the forked processes do. This saves three of five seconds for each further run.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver

from clear_mlflow.process.streams import guard_streams
from clear_mlflow.process.training_process import (
    ForkedProcess,
    build_child_environment,
    fork_training_process,
)

# Modules that a training imports: training and models, and those that open, watch, upload and plot
# a run. None of them starts a thread, opens a store or uses a GPU: none of these survives a fork.
_PRELOADED_MODULES = [
    "clear_mlflow.cli.train",
    "clear_mlflow.learning.session",
    "clear_mlflow.tracking.tracked_training",
    "IPython",
    "alembic.command",
    "git",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_workspace_store",
    "mlflow.system_metrics.system_metrics_monitor",
    "mlflow.tracing.processor.base_mlflow",
    "mlflow.tracing.processor.otel_metrics_mixin",
    "sqlalchemy.dialects.sqlite",
    "torchvision.models",
]
# The sweep itself passes stopping signals on to its trainings. They are blocked, not ignored: a
# signal to a process that was just forked waits until the process can handle it.
_STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def start_forked_program(
    arguments: Sequence[str], environment: Mapping[str, str], log: str
) -> ForkedProcess:
    """Start ``clear-mlflow ARGUMENTS`` in a fork of a process with torch.

    Works only on Linux. The first call starts the fork server, which ends with this process.

    environment: all environment variables of the process. log: path of an existing file that its
    standard error is appended to. Standard output is discarded.
    """
    _start_server(environment)
    process = multiprocessing.get_context("forkserver").Process(
        target=_run_command, args=(tuple(arguments), dict(environment), log)
    )
    return ForkedProcess(process)


def _start_server(environment: Mapping[str, str]) -> None:
    """Start the fork server unless it runs, replacing os.environ during the call.

    It loads torch and MLflow, and blocks SIGTERM and SIGHUP. environment: environment variables of
    the server, completed by :func:`build_child_environment`.
    """
    own_environment = dict(os.environ)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING_SIGNALS)
    try:
        _set_environment(build_child_environment(environment))
        forkserver.set_forkserver_preload(_PRELOADED_MODULES)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        _set_environment(own_environment)


def _set_environment(environment: Mapping[str, str]) -> None:
    """Replace all environment variables of this process."""
    os.environ.clear()
    os.environ.update(environment)


def _run_command(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Run ``clear-mlflow ARGUMENTS`` in a forked process, like a new interpreter.

    Standard output is discarded, and standard error is appended to the existing file *log*. Ends
    with SystemExit, which has the exit code.
    """
    gc.freeze()  # else each collection traverses, and copies, what the server has loaded
    from clear_mlflow.cli import main

    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING_SIGNALS)
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
