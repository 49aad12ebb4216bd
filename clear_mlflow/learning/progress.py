"""Show the progress of a training: bars on a terminal, one line per bucket elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TextIO

from clear_mlflow.core.anytime import AnytimeRow
from clear_mlflow.core.matrix import AccuracyRow
from clear_mlflow.learning.measured import CurvePoint, Measurement, OnMessage

# The points of a shorter bucket are sent with its row, which saves a file and a request.
_SECONDS_BETWEEN_POINTS = 5.0
_SECONDS_BETWEEN_LINES = 60.0


class LineInterval:
    """Limits lines of progress in log files to one a minute."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def restart_if_over(self) -> bool:
        """Return True, and restart, if a minute has passed."""
        if time.monotonic() - self._last < _SECONDS_BETWEEN_LINES:
            return False
        self._last = time.monotonic()
        return True


class TrainingProgress:
    """A context manager that receives a training's events, and displays nothing."""

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""

    def print_line(self, line: str) -> None:
        """Print a line between bars or lines of progress."""

    def downloading(self, label: str, done: int, total: int | None) -> None:
        """Show a download: *done* of *total* bytes, None if unknown."""

    def images_prepared(self, step: str, done: int, total: int) -> None:
        """Show how many of *total* images are done. step: the verb."""

    def bucket_started(self, key: str, *, bucket_index: int, num_buckets: int) -> None:
        """Note that training on the bucket at *bucket_index* begins."""

    def steps_planned(self, num_steps: int) -> None:
        """Note the bucket's number of optimiser steps, if any."""

    def step_done(self) -> None:
        """Count an optimiser step. The innermost loop calls it."""

    def curve_measured(self, point: CurvePoint) -> None:
        """Note the loss over some steps. On a GPU, it arrives later."""

    def test_done(self, test: AnytimeRow) -> None:
        """Note a test on all buckets within the training of a bucket."""

    def row_measured(self, row: AccuracyRow) -> None:
        """Note a test on all buckets after training on a bucket."""


class LineProgress(TrainingProgress):
    """Writes a line per bucket and minute to *stream*, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = math.nan
        self._interval = LineInterval()
        self._bucket, self._num_done, self._num_steps = "", 0, 0
        self._losses = deque[float](maxlen=10)  # losses of the bucket's last points
        self._downloading = ""

    def downloading(self, label: str, done: int, total: int | None) -> None:
        """Write the label as a line, unless it was the last."""
        if label != self._downloading:
            self.print_line(label)
        self._downloading = label

    def images_prepared(self, step: str, done: int, total: int) -> None:
        """Write a line if a minute has passed since the last one."""
        if self._interval.restart_if_over():
            self.print_line(f"{step}: {done:,} of {total:,} images")

    def bucket_started(self, key: str, *, bucket_index: int, num_buckets: int) -> None:
        """Start measuring the time of the bucket, and forget earlier losses."""
        self._started = time.perf_counter()
        self._losses.clear()
        self._bucket = f"bucket {bucket_index + 1}/{num_buckets} (key {key})"
        self._num_done = self._num_steps = 0

    def steps_planned(self, num_steps: int) -> None:
        """Keep the number for the lines within the bucket."""
        self._num_steps = num_steps

    def step_done(self) -> None:
        """Write a line if a minute has passed since the last one."""
        self._num_done += 1
        if self._interval.restart_if_over():
            steps = f"step {self._num_done:,}"
            if self._num_steps:
                steps += f" of {self._num_steps:,}"
            parts = ", ".join([steps, *_format_mean_loss(self._losses)])
            self.print_line(f"{self._bucket}: {parts}")

    def curve_measured(self, point: CurvePoint) -> None:
        """Keep the loss for the bucket's lines."""
        self._losses.append(point.loss)

    def row_measured(self, row: AccuracyRow) -> None:
        """Write the bucket's line: accuracies, mean loss and seconds.

        Writes nothing for the untrained model.
        """
        if row.row > 0:
            seconds = time.perf_counter() - self._started
            parts = [*format_accuracies(row), *_format_mean_loss(self._losses), f"{seconds:.1f} s"]
            self.print_line(f"{self._bucket}: {', '.join(parts)}")

    def print_line(self, line: str) -> None:
        """Write a line. Ignores errors, for example on a full disk."""
        with suppress(OSError, ValueError):
            print(line, file=self._stream, flush=True)


class CollectingProgress(TrainingProgress):
    """Forwards events to *display*, and sends loss curve and tests.

    Does not forward downloads and decoding.
    """

    def __init__(self, display: TrainingProgress, on_message: OnMessage) -> None:
        for name in ("bucket_started", "steps_planned", "step_done"):
            setattr(self, name, getattr(display, name))
        self._display, self._on_message = display, on_message
        self._points: list[CurvePoint] = []
        self._handed_at = time.monotonic()

    def curve_measured(self, point: CurvePoint) -> None:
        """Forward and collect a point of the curve.

        Sends the collected points if five seconds have passed since the last time.
        """
        self._display.curve_measured(point)
        self._points.append(point)
        if time.monotonic() - self._handed_at >= _SECONDS_BETWEEN_POINTS:
            self._on_message(Measurement(curve=self.take_points()))

    def test_done(self, test: AnytimeRow) -> None:
        """Send a test. No display shows it."""
        self._on_message(Measurement(test=test))

    def row_measured(self, row: AccuracyRow) -> None:
        """Forward a row to the display only."""
        self._display.row_measured(row)

    def take_points(self) -> tuple[CurvePoint, ...]:
        """Return the points that were not sent, and forget them.

        Restarts the five seconds between two messages with points.
        """
        points, self._points = tuple(self._points), []
        self._handed_at = time.monotonic()
        return points


class TerminalProgress(TrainingProgress):
    """A bar for the stream with accuracies, one for the steps."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description}", markup=False),  # keys of buckets
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(
                file=stream, force_terminal=True, markup=False, emoji=False, highlight=False
            ),
            # Rich would redirect printed lines to its own stream, but stdout is only for results.
            redirect_stdout=False,
            redirect_stderr=stream is sys.stderr,
        )
        self._stream_bar = self._bars.add_task("stream", total=None, visible=False)
        self._step_bar = self._bars.add_task("", total=None, visible=False)
        self._bucket = ""
        self._losses = deque[float](maxlen=10)

    def __enter__(self) -> TerminalProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def print_line(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(line)

    def downloading(self, label: str, done: int, total: int | None) -> None:
        """Move the lower bar, in megabytes."""
        ends = None if total is None else total // 10**6
        self._move_lower_bar(f"{label}, MB", done // 10**6, ends)

    def images_prepared(self, step: str, done: int, total: int) -> None:
        """Move the lower bar."""
        self._move_lower_bar(step, done, total)

    def bucket_started(self, key: str, *, bucket_index: int, num_buckets: int) -> None:
        """Set the upper bar to trained buckets, the lower to start."""
        self._bucket = f"bucket {key}"
        self._losses.clear()
        self._bars.update(self._stream_bar, total=num_buckets, completed=bucket_index, visible=True)
        self._bars.reset(self._step_bar, description=self._bucket, total=None, visible=True)

    def steps_planned(self, num_steps: int) -> None:
        """Set the length of the lower bar."""
        self._bars.update(self._step_bar, total=num_steps)

    def step_done(self) -> None:
        """Move the lower bar."""
        self._bars.advance(self._step_bar)

    def curve_measured(self, point: CurvePoint) -> None:
        """Show the mean of the last ten losses at the lower bar."""
        self._losses.append(point.loss)
        description = " · ".join([self._bucket, *_format_mean_loss(self._losses)])
        self._bars.update(self._step_bar, description=description)

    def row_measured(self, row: AccuracyRow) -> None:
        """Show the accuracies at the upper bar, and move it."""
        self._bars.update(
            self._stream_bar,
            description=" · ".join(["stream", *format_accuracies(row)]),
            total=len(row.buckets),
            completed=row.row,
        )

    def _move_lower_bar(self, label: str, done: int, total: int | None) -> None:
        """Show *done* of *total* with a label. total: None if unknown."""
        self._bars.update(
            self._step_bar, description=label, total=total, completed=done, visible=True
        )


def build_progress(stream: TextIO | None) -> TrainingProgress:
    """Return a progress with bars on a terminal, else with lines.

    Without a stream, return one that shows nothing.
    """
    if stream is None:
        return TrainingProgress()
    return TerminalProgress(stream) if can_show_bars(stream) else LineProgress(stream)


def can_show_bars(stream: TextIO) -> bool:
    """Return True if *stream* is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def format_accuracies(row: AccuracyRow) -> list[str]:
    """Return a row's accuracies on its newest and past buckets.

    Omits past buckets if there are none. Row 0 has one text, the mean over all buckets.

    >>> format_accuracies(AccuracyRow(2, ("a", "b", "c"), (5, 9, 1), (10, 10, 10)))
    ['on itself 90.0 %', 'on past buckets 50.0 %']
    """
    if row.row == 0:
        return [_format_mean("untrained", row.cells)]
    *past, itself = row.cells[: row.row]
    parts = [_format_mean("on itself", [itself])]
    return [*parts, _format_mean("on past buckets", past)] if past else parts


def _format_mean_loss(losses: Collection[float]) -> list[str]:
    return [f"loss {sum(losses) / len(losses):.3g}"] if losses else []


def _format_mean(name: str, fractions: Sequence[float]) -> str:
    return f"{name} {100 * sum(fractions) / len(fractions):.1f} %"
