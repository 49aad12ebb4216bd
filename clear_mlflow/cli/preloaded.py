"""``clear-mlflow`` for sweeps, in processes forked from one that has loaded torch and MLflow.

That one is :mod:`multiprocessing`'s fork server. It has one thread of Python, opens no store and
touches no GPU: all that begins in what is forked from it.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver

from clear_mlflow.process.forked import ForkedProcess, fork_training_process
from clear_mlflow.process.spinning import child_environment


class PreloadedProgram:
    """Starts the program as :func:`clear_mlflow.engines.local.start_program` does, but sooner.

    For Linux: other systems' own libraries forbid a fork. What computes in threads reads its
    settings when it is loaded, which is in the environment of the first call.
    """

    def __init__(self) -> None:
        self._is_loading = False

    def __call__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: str
    ) -> ForkedProcess:
        """Start it; see :func:`clear_mlflow.engines.local.start_program`."""
        context = multiprocessing.get_context("forkserver")
        if not self._is_loading:
            context.set_forkserver_preload(["clear_mlflow.cli.preload"])
            self._load(environment)
        process = context.Process(target=_run, args=(tuple(arguments), dict(environment), log))
        return ForkedProcess(process)

    def _load(self, environment: Mapping[str, str]) -> None:
        """Start the fork server, which takes the environment that this process has."""
        before = dict(os.environ)
        try:
            _set_environment(environment)
            _set_environment(child_environment())
            forkserver.ensure_running()
        finally:
            _set_environment(before)
        self._is_loading = True


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _run(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Be what a new interpreter would be, and run the program in it."""
    from clear_mlflow.cli import main
    from clear_mlflow.cli.preload import LOADED_WITH, give_signals_back

    os.setsid()
    give_signals_back()
    for path, stream in ((os.devnull, 1), (log, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, stream)
        os.close(opened)
    _set_environment(environment)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  (as python -m does)
    fork_training_process(LOADED_WITH)
    try:
        main(arguments, prog_name="clear-mlflow")
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
