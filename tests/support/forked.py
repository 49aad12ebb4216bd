"""``python WORDS`` and ``clear-mlflow ARGUMENTS``, forked from a process with loaded modules.

Importing MLflow and torch takes most of the time of a command. A fork server of each pytest worker
imports them once, and also forks the processes that such a command starts. A test gets a
:class:`subprocess.Popen`.
"""

import atexit
import gc
import io
import multiprocessing
import os
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from setproctitle import setproctitle

PROGRAM = "clear_mlflow"
PIPED = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}  # one pipe has all output
_Popen = subprocess.Popen
_LOADED = [
    "IPython",  # MLflow imports it to find out whether it runs in a notebook
    *("alembic.command", "git", "pandas.io.formats.style", "sqlalchemy.dialects.sqlite"),
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf", "matplotlib.figure"),
    *("mlflow.cli", "mlflow.projects.backend.local"),
    "mlflow.store.tracking.sqlalchemy_workspace_store",
    "mlflow.system_metrics.system_metrics_monitor",
    *("mlflow.tracing.processor.base_mlflow", "mlflow.tracing.processor.otel_metrics_mixin"),
    "torchvision.models",
    *("clear_mlflow.cli", "clear_mlflow.cli.preloaded", "clear_mlflow.sweeps.local"),
    *("clear_mlflow.api.compared", "clear_mlflow.api.rescore", "clear_mlflow.api.sweep"),
    *("clear_mlflow.learning.session", "clear_mlflow.process.training_process"),
    "clear_mlflow.tracking.tracked_training",
]


class ForkedPython(_Popen):
    """``python WORDS`` (``-m MODULE``, ``-c CODE`` or a file, and arguments), forked.

    Supports the options of its base that are used here; streams are texts. The number of a
    descriptor that is passed is the last of the words.
    """

    def __init__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: IO[bytes] | int | None = None,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        start_new_session: bool = False,
        pass_fds: Iterable[int] = (),
        text: bool = True,
    ) -> None:
        assert text
        self.args = [sys.executable, *words]
        self.returncode = None
        self.encoding, self.errors, self.text_mode = None, None, True
        self._child_created = False  # not by this process: waiting is up to the server
        self._communication_started = False
        self._input = None
        self._sigint_wait_secs = 0.25
        self.stdin = self.stdout = self.stderr = None
        descriptors: list[int] = []
        for number, option in enumerate((stdin, stdout, stderr)):
            if option == subprocess.PIPE:
                reading, writing = os.pipe()
                descriptors.append(writing if number else reading)
                if number:
                    stream = os.fdopen(reading, errors="replace")
                    setattr(self, ("stdout", "stderr")[number - 1], stream)
                else:
                    self.stdin = io.TextIOWrapper(os.fdopen(writing, "wb"), write_through=True)
            elif option == subprocess.DEVNULL:
                descriptors.append(os.open(os.devnull, os.O_RDWR))
            elif option == subprocess.STDOUT:
                descriptors.append(os.dup(descriptors[1]))
            elif option is None:
                descriptors.append(os.dup(number))
            else:
                descriptors.append(os.dup(option if isinstance(option, int) else option.fileno()))
        descriptors += map(os.dup, pass_fds)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_LOADED)
        streams = [Connection(descriptor) for descriptor in descriptors]
        variables = dict(os.environ if env is None else env)
        asked_for = (words, variables, str(cwd or Path.cwd()), streams, start_new_session)
        self._process = context.Process(target=_run, args=asked_for)
        # Multiprocessing would run the script of this process in the new one, too.
        script = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            self._process.start()
        finally:
            sys.modules["__main__"] = script
            for stream in streams:
                stream.close()
        self.pid = self._process.pid
        while start_new_session and self.poll() is None and os.getsid(self.pid) != self.pid:
            time.sleep(0.01)

    def __exit__(self, error_type: object, *details: Any) -> None:
        """Wait for the process, which is killed after an error: it may never end by itself."""
        if error_type is not None:
            self.kill()
        super().__exit__(error_type, *details)

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code as soon as the process has ended."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode


class ForkedToo(_Popen):
    """Replaces Popen in a forked process, and forks Python programs of this package."""

    def __new__(cls, args: Any, **options: Any) -> Any:
        words = [] if isinstance(args, str) else [word for word in args if word != "-u"]
        if words[:2] == ["bash", "-c"]:  # mlflow run
            options.pop("close_fds")
            words = [sys.executable, *shlex.split(words[2])[1:]]
        if words[:1] == [PROGRAM.replace("_", "-")]:
            words = [sys.executable, "-m", PROGRAM, *words[1:]]
        is_module = words[:2] == [sys.executable, "-m"]
        if is_module and words[2].partition(".")[0] in (PROGRAM, "mlflow"):
            return ForkedPython(*words[1:], **options)
        return super().__new__(cls)


def _fork_what_it_starts() -> None:
    """Begin a fork server below this process. Multiprocessing would load all modules again."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # Linux chooses a name
    listener.listen()
    alive, keep_alive = os.pipe()
    if not (pid := os.fork()):
        os.close(keep_alive)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a group's; it ends when this process does
        try:
            forkserver.main(listener.fileno(), alive, preload=[])
        finally:
            os._exit(0)
    os.close(alive)
    server: Any = vars(forkserver)["_forkserver"]
    server._forkserver_address, server._forkserver_alive_fd = listener.getsockname(), keep_alive
    server._forkserver_pid = pid
    listener.close()
    subprocess.Popen = ForkedToo


class Forked(ForkedPython):
    """``python -m clear_mlflow ARGUMENTS``, forked and by default piped."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        if not {"stdout", "stderr"} & options.keys():
            options |= PIPED
        super().__init__("-m", PROGRAM, *arguments, **options)


@pytest.fixture(scope="session", autouse=True)
def loaded_fork_server():
    """Load torch and MLflow first where the time of a test is checked."""
    if "CLEAR_TESTS_ALONE" in os.environ:
        run_python("-c", "")


def find_training(process: subprocess.Popen) -> psutil.Process:
    for child in psutil.Process(process.pid).children(recursive=True):
        if f"{PROGRAM}.process.child" in " ".join(child.cmdline()):
            return child
    raise AssertionError("no training process")


def run_forked(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Like :func:`subprocess.run` with its output captured, for a command of the program."""
    return run_python("-m", PROGRAM, *arguments, **options)


# Before what a process does with another copy of the package: torch and MLflow stay loaded, and the
# package is loaded from where that process finds it, as by whatever it starts.
OTHER_COPY = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "clear_mlflow"]:
    del sys.modules[name]
"""


def run_python(
    *words: str, timeout: float | None = None, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Like :func:`subprocess.run` with its output captured, for ``python WORDS``.

    check: fail with its output unless it ends with exit code 0.
    """
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = ForkedPython(*words, **options)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    assert not check or done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done


def run_shell(line: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command line. ``mlflow``, ``clear-mlflow`` and ``python`` are forked."""
    program, *words = shlex.split(line)
    if program == "python":
        return run_python(*words, check=check, **options)
    if program in ("mlflow", "clear-mlflow"):
        return run_python("-m", program.replace("-", "_"), *words, check=check, **options)
    options = {"env": environment(), "text": True, "capture_output": True, **options}
    done = subprocess.run(line, shell=True, check=False, **options)
    assert not check or done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a command that finds python, clear-mlflow and mlflow."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **variables}


def _run(
    words: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    streams: Sequence[Connection],
    new_session: bool,
) -> None:
    """Behave like a new interpreter, to its end."""
    gc.freeze()  # else each collection traverses, and copies, what the server has loaded
    if new_session:
        os.setsid()
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream.fileno(), number)
        stream.close()
    if passed := streams[3:]:
        words = [*words[:-1], str(os.dup(passed[0].fileno()))]
        passed[0].close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    setproctitle(" ".join([sys.executable, *words]))
    _fork_what_it_starts()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    encoding, _, errors = environment.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdout = open(1, "w", closefd=False, encoding=encoding, errors=errors or None)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(words[1:] if words[0] == "-m" else words)
    # Of a file, Python looks in its folder for what it imports; else in that in which it is run.
    is_file = not words[0].startswith("-")
    sys.path[0] = str(Path(words[0]).resolve().parent) if is_file else cwd
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    code = 0
    for folder in sys.path:
        if (custom := Path(folder, "sitecustomize.py")).is_file():
            runpy.run_path(str(custom))
            break
    try:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(words[1], {"__name__": "__main__"})
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as exit_error:
        code = exit_error.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.last_type, sys.last_value = type(error), error  # as what runs at the end finds it
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    atexit._run_exitfuncs()  # multiprocessing leaves them out
    sys.stdout.flush()
    sys.exit(code)
