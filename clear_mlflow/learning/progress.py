"""Telling people how far a training is: bars on a terminal, one line per bucket elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from clear_mlflow.core.matrix import AccuracyRow

# Redrawing costs about a millisecond; the eye asks for no more than this.
_SECONDS_BETWEEN_DRAWINGS = 0.1


class TrainingProgress(Protocol):
    """What the training loop tells while it runs. Entered when it begins, left however it ends."""

    def __enter__(self) -> TrainingProgress:
        """Begin to show."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        ...

    def images_decoded(self, done: int, total: int) -> None:
        """Of the images that are needed next, so many are decoded."""
        ...

    def bucket_started(self, key: str, *, position: int, num_buckets: int) -> None:
        """Training on the bucket at *position* (from 0) begins."""
        ...

    def steps_planned(self, num_steps: int) -> None:
        """The bucket takes so many optimiser steps. Not called where it takes none."""
        ...

    def step_done(self) -> None:
        """One optimiser step was issued. Called in the innermost loop."""
        ...

    def row_measured(self, row: AccuracyRow) -> None:
        """The model was tested on all buckets."""
        ...


class LineProgress:
    """One line on *stream* for every bucket, and nothing else: made for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = math.nan

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def images_decoded(self, done: int, total: int) -> None:
        """Say nothing."""

    def bucket_started(self, key: str, *, position: int, num_buckets: int) -> None:
        """Take the time."""
        self._started = time.perf_counter()

    def steps_planned(self, num_steps: int) -> None:
        """Say nothing."""

    def step_done(self) -> None:
        """Say nothing."""

    def row_measured(self, row: AccuracyRow) -> None:
        """Write the bucket's line; the untrained model's row has none."""
        if row.row > 0:
            seconds = time.perf_counter() - self._started
            head = f"bucket {row.row}/{len(row.buckets)} (key {row.buckets[row.row - 1]})"
            self._stream.write(f"{head}: {', '.join([*accuracies(row), f'{seconds:.1f} s'])}\n")
            self._stream.flush()


class SilentProgress(LineProgress):
    """Nothing: of several processes that train together, one tells."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def row_measured(self, row: AccuracyRow) -> None:
        """Say nothing."""


class RowlessProgress:
    """All that is told to it, to another, but for rows: of several members' rows, one's are shown.

    Args:
        shown: who is told; it is entered and left by others.
    """

    def __init__(self, shown: TrainingProgress) -> None:
        self._shown = shown

    def __enter__(self) -> RowlessProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def images_decoded(self, done: int, total: int) -> None:
        """Pass it on."""
        self._shown.images_decoded(done, total)

    def bucket_started(self, key: str, *, position: int, num_buckets: int) -> None:
        """Pass it on."""
        self._shown.bucket_started(key, position=position, num_buckets=num_buckets)

    def steps_planned(self, num_steps: int) -> None:
        """Pass it on."""
        self._shown.steps_planned(num_steps)

    def step_done(self) -> None:
        """Pass it on."""
        self._shown.step_done()

    def row_measured(self, row: AccuracyRow) -> None:
        """Say nothing."""


class TerminalProgress:
    """A bar for the stream, with the current accuracies, and a bar for the bucket's steps."""

    def __init__(self, stream: TextIO) -> None:
        # Drawn from the training thread alone: a thread of rich's would take turns with it.
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(file=stream, force_terminal=True),
            auto_refresh=False,
            # Rich would send what is printed to its own stream: results belong to stdout alone.
            redirect_stdout=False,
            redirect_stderr=stream is sys.stderr,
        )
        self._stream_bar = self._bars.add_task("stream", total=None)
        self._step_bar = self._bars.add_task("", total=None, visible=False)
        self._steps = 0
        self._drawn = -math.inf

    def __enter__(self) -> TerminalProgress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def images_decoded(self, done: int, total: int) -> None:
        """Move the lower bar."""
        if done == total or self._is_time_to_draw():
            self._bars.update(
                self._step_bar, description="decoding", total=total, completed=done, visible=True
            )
            self._bars.refresh()

    def bucket_started(self, key: str, *, position: int, num_buckets: int) -> None:
        """Start the lower bar anew."""
        self._steps = 0
        self._bars.update(self._stream_bar, total=num_buckets, completed=position)
        self._bars.reset(self._step_bar, description=f"bucket {key}", total=None, visible=True)
        self._bars.refresh()

    def steps_planned(self, num_steps: int) -> None:
        """Give the lower bar its length."""
        self._bars.update(self._step_bar, total=num_steps)

    def step_done(self) -> None:
        """Move the lower bar, at most ten times a second."""
        self._steps += 1
        if self._is_time_to_draw():
            self._bars.update(self._step_bar, completed=self._steps)
            self._bars.refresh()

    def row_measured(self, row: AccuracyRow) -> None:
        """Show the accuracies beside the upper bar."""
        self._bars.update(
            self._stream_bar,
            description=" · ".join(["stream", *accuracies(row)]),
            total=len(row.buckets),
            completed=row.row,
        )
        self._bars.update(self._step_bar, completed=self._steps)
        self._bars.refresh()

    def _is_time_to_draw(self) -> bool:
        now = time.monotonic()
        if now - self._drawn < _SECONDS_BETWEEN_DRAWINGS:
            return False
        self._drawn = now
        return True


def progress_for(stream: TextIO) -> TrainingProgress:
    """Bars where *stream* is a terminal that can move its cursor; else one line per bucket."""
    if stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        return TerminalProgress(stream)
    return LineProgress(stream)


def accuracies(row: AccuracyRow) -> list[str]:
    """What a row says at a glance, for people; the first bucket has no past.

    >>> accuracies(AccuracyRow(2, ("a", "b", "c"), (5, 9, 1), (10, 10, 10)))
    ['on itself 90.0 %', 'on past buckets 50.0 %']
    """
    if row.row == 0:
        return [_percent("untrained", row.accuracy)]
    *past, itself = row.accuracy[: row.row]
    shown = [_percent("on itself", [itself])]
    return [*shown, _percent("on past buckets", past)] if past else shown


def _percent(name: str, fractions: Sequence[float]) -> str:
    return f"{name} {100 * sum(fractions) / len(fractions):.1f} %"
