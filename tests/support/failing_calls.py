"""Let the Nth call of a program to files, or to its MLflow store, fail."""

import errno
import functools
import inspect
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

# Through these goes all that is written: pathlib and shutil call them, too.
FILE_CALLS = ("open", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir")


class Calls:
    """Counts calls, and lets some of them fail."""

    def __init__(self, first: int | None, *, lasting: bool) -> None:
        self.count = 0
        self.failed: list[str] = []
        self._first, self._lasting = first, lasting
        self._lock = threading.Lock()
        self.inside = threading.local()

    def next(self, call: str, error: Exception) -> None:
        with self._lock:
            self.count += 1
            if self._first is None or self.count < self._first:
                return
            if self.count > self._first and not self._lasting:
                return
            self.failed.append(f"{self.count}: {call}")
        raise error


class _Written:
    """A file whose writes are counted."""

    def __init__(self, file, path: str, calls: Calls) -> None:
        self._file, self._path, self._calls = file, path, calls

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *error):
        return self._file.__exit__(*error)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, content):
        self._file.write(content[: len(content) // 2])  # a disk that is full takes some
        self._calls.next(f"write {self._path}", _no_space(self._path))
        return self._file.write(content[len(content) // 2 :])


@contextmanager
def failing_files(
    monkeypatch, folders: tuple[Path, ...], first: int | None, *, lasting: bool
) -> Iterator[Calls]:
    """Count, and let fail, operations of a block on files below some folders, except reading."""
    calls = Calls(first, lasting=lasting)

    def resolve_path(arguments, options) -> str | None:
        file_path = arguments[0]
        try:
            at = f"/proc/self/fd/{file_path}"
            path = Path(at).readlink() if isinstance(file_path, int) else Path(os.fspath(file_path))
            if options.get("dir_fd") is not None:
                path = Path(f"/proc/self/fd/{options['dir_fd']}").readlink() / path
        except (OSError, TypeError):
            return None
        return str(path) if any(path.is_relative_to(folder) for folder in folders) else None

    def counting(name):
        real = getattr(os, name)

        @functools.wraps(real)
        def function(*arguments, **options):
            path = resolve_path(arguments, options)
            reads = name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if path is not None and not reads:
                calls.next(f"{name} {path}", _no_space(path))
            return real(*arguments, **options)

        return function

    opened = io.open

    def open_file(file, mode="r", *arguments, **options):
        path = None if isinstance(file, int) else resolve_path((file,), {})
        if path is None or not set(mode) & set("wxa+"):
            return opened(file, mode, *arguments, **options)
        calls.next(f"open {path}", _no_space(path))
        return _Written(opened(file, mode, *arguments, **options), path, calls)

    with monkeypatch.context() as patch:
        for name in FILE_CALLS:
            patch.setattr(os, name, counting(name))
        patch.setattr(io, "open", open_file)
        yield calls


@contextmanager
def failing_store(monkeypatch, first: int | None, *, lasting: bool) -> Iterator[Calls]:
    """Count, and let fail, calls of a block to MLflow's client, except nested calls."""
    calls = Calls(first, lasting=lasting)

    def counting(name, real):
        @functools.wraps(real)
        def method(*arguments, **options):
            if getattr(calls.inside, "call", False):
                return real(*arguments, **options)
            calls.next(name, MlflowException(f"{name} was made to fail"))
            calls.inside.call = True
            try:
                return real(*arguments, **options)
            finally:
                calls.inside.call = False

        return method

    with monkeypatch.context() as patch:
        for name, real in inspect.getmembers(MlflowClient, inspect.isfunction):
            if not name.startswith("_"):
                patch.setattr(MlflowClient, name, counting(name, real))
        yield calls


def _no_space(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
