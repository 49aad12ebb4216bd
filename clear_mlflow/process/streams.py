"""Standard output and standard error that cannot end a training."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any

from clear_mlflow.core.errors import ClearError


class OutputError(ClearError, OSError):
    """The result of a command could not be written."""


class _Output(io.FileIO):
    """A file descriptor whose failures are dropped or reported once."""

    def __init__(self, descriptor: int, *, drops_failures: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._drops_failures = drops_failures

    def write(self, data: Any) -> int:
        """Write bytes, dropping failures except perhaps the first."""
        try:
            written = super().write(data)
        except OSError as error:
            if not self._drops_failures:
                self._drops_failures = True  # what is flushed at the exit would fail again
                raise OutputError(
                    f"standard output cannot be written: {error.strerror}; the result is incomplete"
                ) from error
            written = None
        return memoryview(data).nbytes if written is None else written


def open_output(
    descriptor: int, encoding: str, *, drops_failures: bool = False
) -> io.TextIOWrapper:
    """Open a descriptor as a text stream that never fails to encode.

    Closing the stream does not close the descriptor. drops_failures: True to ignore failures to
    write; False if the first one raises OutputError.
    """
    raw = _Output(descriptor, drops_failures=drops_failures)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding,
        errors="replace",
        line_buffering=drops_failures or raw.isatty(),
    )


def guard_streams(*, has_result: bool = True) -> None:
    """Replace sys.stdout and sys.stderr by streams that ignore failures to write.

    Standard descriptors that are closed are opened on the null device first.

    has_result: True if what the process prints is its result: standard output then raises
    OutputError if it cannot be written.
    """
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: no other file may get its number; writes to output fail
            os.set_inheritable(os.open(os.devnull, mode), True)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None:
            with suppress(OSError):
                stream.flush()
        encoding = getattr(stream, "encoding", "utf-8")
        drops_failures = not (has_result and descriptor == 1)
        setattr(sys, name, open_output(descriptor, encoding, drops_failures=drops_failures))
