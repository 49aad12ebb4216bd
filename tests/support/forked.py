"""``clear-mlflow`` in a process of its own that begins with everything imported.

Importing MLflow and torch takes most of the time of a command that a test starts. Here one process
of each pytest worker imports them once, and forks for every command: with the command's own
environment, folder, streams, session, signals and exit code. What a test sees is a
:class:`subprocess.Popen`; tests of the start itself use that one. Where a shell starts commands, or
``mlflow run`` does, it finds in :func:`programs` a ``python``, a ``clear-mlflow`` and an ``mlflow``
that are forks, too.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

from clear_mlflow.engines.local import start_program

PROGRAM = "clear_mlflow"
PROJECT = Path(__file__).parents[2]
# What ``ps`` shows of a process lies where its arguments were: there has to be room for others.
_ROOM = "-" * 4000


class ForkedPython(subprocess.Popen):
    """``python WORDS``, forked.

    Args:
        words: as Python takes them: ``-m MODULE``, ``-c CODE`` or a file, and its arguments.
        env: its whole environment; that of this process where there is none.
        cwd: its folder.
        stdin: as :class:`subprocess.Popen` takes it.
        stdout: likewise.
        stderr: likewise.
        start_new_session: whether signals to this process's group pass it by.
        text: that streams are of texts.
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
        text: bool = True,
    ) -> None:
        assert text
        self.args = [sys.executable, *words]
        self._line = None
        if sys.platform != "linux":  # elsewhere libraries of the system forbid it
            super().__init__(
                self.args,
                env=env,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=start_new_session,
                text=True,
            )
            return
        self.returncode = None
        self.encoding, self.errors, self.text_mode = None, None, True
        self._child_created = False  # not by this process: waiting is up to the server
        self._communication_started = False
        self._input = None
        self._sigint_wait_secs = 0.25
        self.stdin = self.stdout = self.stderr = None
        theirs, opened = [], []
        for number, asked in enumerate((stdin, stdout, stderr)):
            if asked == subprocess.PIPE:
                reading, writing = os.pipe()
                theirs.append(writing if number else reading)
                opened.append(theirs[-1])
                if number == 0:
                    self.stdin = io.TextIOWrapper(os.fdopen(writing, "wb"), write_through=True)
                elif number == 1:
                    self.stdout = os.fdopen(reading)
                else:
                    self.stderr = os.fdopen(reading)
            elif asked == subprocess.DEVNULL:
                theirs.append(os.open(os.devnull, os.O_RDWR))
                opened.append(theirs[-1])
            elif asked == subprocess.STDOUT:
                theirs.append(theirs[1])
            elif asked is None:
                theirs.append(number)
            else:
                theirs.append(asked if isinstance(asked, int) else asked.fileno())
        request = {
            "words": words,
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "new_session": start_new_session,
        }
        self._line, far = socket.socketpair()
        try:
            socket.send_fds(_server(), [b"."], [far.fileno(), *theirs])
        finally:
            far.close()
            for descriptor in opened:
                os.close(descriptor)
        self._line.sendall(json.dumps(request).encode() + b"\n")
        self._told = self._line.makefile("rb")
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self._line is None:
            return super().poll()
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as soon as there is one."""
        if self._line is None:
            return super().wait(timeout)
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = os.waitstatus_to_exitcode(int(self._told.readline()))
            self._told.close()
            self._line.close()
        return self.returncode


class Forked(ForkedPython):
    """``python -m clear_mlflow ARGUMENTS``, forked; it takes the options of its base."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        super().__init__("-m", PROGRAM, *arguments, **options)


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
    """Like :func:`subprocess.run` with its output captured, for ``python WORDS``."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = ForkedPython(*words, **options)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


# A program that asks the server to be it, and is as it while it runs: with its signals and its end.
_PROGRAM_TEXT = """#!{python} -IS
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
words = [*{words!r}, *sys.argv[1:]]
request = dict(words=words, env=dict(os.environ), cwd=os.getcwd(), new_session=False)
socket.send_fds(line, [b"."], [0, 1, 2])
line.sendall(json.dumps(request).encode() + b"\\n")
told = line.makefile("rb")
pid = int(told.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = os.waitstatus_to_exitcode(int(told.readline()))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
_PROGRAMS = {
    "python": [],
    "clear-mlflow": ["-m", PROGRAM],
    "mlflow": ["-m", "mlflow"],
}

_servers: list[socket.socket] = []


def _server() -> socket.socket:
    """The line to the server of this process, with which it ends; who asks first starts it."""
    if not _servers:
        _servers.append(_start_server())
    return _servers[0]


def programs() -> str:
    """A folder with ``python``, ``clear-mlflow`` and ``mlflow`` that are forks of the server.

    It goes first in the ``PATH`` of what starts them by name. A signal to one is passed on; what
    it starts has another parent, so tests that look for processes below it start the real ones.
    """
    if sys.platform != "linux":
        return str(Path(sys.executable).parent)
    _server()
    return str(_folder)


_folder = Path()  # of the programs, and of the address at which they ask; it goes with the server


def _start_server() -> socket.socket:
    global _folder
    near, far = socket.socketpair()
    _folder = Path(tempfile.mkdtemp(prefix="forked_"))
    address = str(_folder / "server")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    for name, words in _PROGRAMS.items():
        text = _PROGRAM_TEXT.format(python=sys.executable, address=address, words=words)
        (_folder / name).write_text(text)
        (_folder / name).chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    path = filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])
    ours = (far.fileno(), listening.fileno())
    subprocess.Popen(
        [sys.executable, __file__, *map(str, ours), _ROOM],
        env={**environment, "PYTHONPATH": os.pathsep.join(path)},
        pass_fds=ours,
    )
    far.close()
    listening.close()
    return near


class _Training(subprocess.Popen):
    """The training process of a forked command, forked from it: it never looks at MLflow."""

    def __init__(self, args, *, stdin, env, pass_fds, start_new_session) -> None:
        self.args = args
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25
        self.pid = os.fork()
        if self.pid == 0:
            atexit._clear()  # what the command does at its end
            gc.freeze()  # and what it has opened is not closed here
            try:
                _become([stdin, 1, 2], pass_fds, args[1:], env, start_new_session)
                code = _main(args[1:])
            finally:
                os._exit(code)


def _start(args, **options) -> subprocess.Popen:
    """What a forked command starts is forked, too: a training process, and a sweep's trainings."""
    if list(args[:2]) == [sys.executable, "-m"]:
        # Threads of OpenMP are not there in a fork of a process that has computed, and waited for.
        computed = len(os.listdir("/proc/self/task")) > threading.active_count()  # noqa: PTH208
        if args[2] == "clear_mlflow.process.child" and not computed:
            return _Training(args, **options)
        if _servers and args[2] in (PROGRAM, "uvicorn", "gunicorn"):
            return ForkedPython(*args[1:], **options)
    return subprocess.Popen(args, **options)


def _fork_server() -> socket.socket:
    """A server of a forked command's own, made while nothing has been opened yet."""
    near, far = socket.socketpair()
    if os.fork() == 0:
        near.close()
        _serve_and_run(far)
    far.close()
    return near


def _main(words: Sequence[str]) -> int:
    """Run what Python was given to its end, as the interpreter does; give the exit code."""
    try:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            exec(words[1], sys.modules["__main__"].__dict__)
        else:
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.last_type, sys.last_value = type(error), error  # as what runs at the end finds it
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _become(streams, keep, words, environment, new_session) -> None:
    """Make of this forked process what a fresh interpreter would be.

    Args:
        streams: of its input, output and errors: descriptors.
        keep: the only other descriptors that it has.
        words: what the interpreter is given: a module, code or a file, and its arguments.
        environment: all of it.
        new_session: whether it leads a session of its own.
    """
    if new_session:
        os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    # First to the side: one of the streams may have the number of another.
    aside = [os.dup(stream) for stream in streams]
    for number, stream in enumerate(aside):
        os.dup2(stream, number)
    kept = {0, 1, 2, *keep}
    for opened in list(Path("/proc/self/fd").iterdir()):
        if int(opened.name) not in kept:
            with suppress(OSError):  # that of the listing itself
                os.close(int(opened.name))
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)
    sys.argv = list({"-m": words[1:], "-c": ["-c", *words[2:]]}.get(words[0], words))
    _show([sys.executable, *words])


def _show(words: Sequence[str]) -> None:
    """Have ``ps`` show these words as the command line of this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = "\0".join(words).encode()[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))


def _serve(line: socket.socket, listening: socket.socket | None) -> dict[str, Any] | None:
    """Fork for each request; give it, in the fork. None: there is nobody left to ask.

    Args:
        line: of the process that started this one: with each request comes its own line.
        listening: where others ask, each by the line that it opens.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for who started this
        signal.signal(number, signal.SIG_IGN)
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    asked_at = [line] if listening is None else [line, listening]
    while True:
        ready, _, _ = select.select([*asked_at, woken], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                woken.recv(4096)
            _reap(running)
        for place in ready:
            if place is woken:
                continue
            if place is line:
                data, descriptors, _, _ = socket.recv_fds(line, 1, 4)
                if not data:
                    return None
                asking, streams = socket.socket(fileno=descriptors[0]), descriptors[1:]
            else:
                asking, _ = place.accept()
                _, streams, _, _ = socket.recv_fds(asking, 1, 3)
            pid = os.fork()
            if pid == 0:
                with asking.makefile("rb") as told:
                    request = json.loads(told.readline())
                request["streams"] = streams
                return request
            for descriptor in streams:
                os.close(descriptor)
            running[pid] = asking
            with suppress(OSError):  # as below
                asking.sendall(b"%d\n" % pid)


def _reap(running: dict[int, socket.socket]) -> None:
    """Say of each that has ended how."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with suppress(OSError):  # who started it may have gone
            running[pid].sendall(b"%d\n" % status)
        running.pop(pid).close()


_LOADED = (
    "alembic.command",
    "git",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_store",
    "torchvision.models",
    "clear_mlflow.cli",
    "clear_mlflow.engines.local",
    "clear_mlflow.evaluation.compare",
    "clear_mlflow.evaluation.rescore",
    "clear_mlflow.learning.prepare",
    "clear_mlflow.process.parent",
    "clear_mlflow.runs.supervised",
    "clear_mlflow.sweep.run",
)


# What starts Python once more, which is a fork here: trainings, those of a sweep, MLflow's server.
_STARTING = ("clear_mlflow.process.parent", "clear_mlflow.engines.local", "mlflow.utils.process")


def _preload() -> None:
    """Import what commands import, and start nothing."""
    for module in _LOADED:
        importlib.import_module(module)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


def _serve_and_run(line: socket.socket, listening: socket.socket | None = None) -> NoReturn:
    """Serve; and in a fork, run what was asked for to its end."""
    request = _serve(line, listening)
    if request is None:
        if listening is not None:  # at the address in the folder that is this server's
            shutil.rmtree(Path(listening.getsockname()).parent)
        os._exit(0)
    line.close()
    words = request["words"]
    os.chdir(request["cwd"])
    # Of a file, Python looks in its folder for what it imports; else in that in which it is run.
    file = not words[0].startswith("-")
    sys.path[0] = str(Path(words[0]).resolve().parent) if file else request["cwd"]
    sys.path[1:1] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
    _become(request["streams"], (), words, request["env"], request["new_session"])
    if words[:3] in (["-m", PROGRAM, "sweep"], ["-m", "mlflow", "server"]):
        _servers.append(_fork_server())
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": _start})
    for module in _STARTING:
        sys.modules[module].subprocess = forking  # type: ignore[attr-defined]
    # A sweep would fork from a server of its own, which would load everything once more.
    sys.modules["clear_mlflow.cli.sweep"]._program = lambda runs: start_program  # type: ignore[attr-defined]
    os._exit(_main(words))


if __name__ == "__main__":
    _preload()
    _serve_and_run(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3]))
