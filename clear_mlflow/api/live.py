"""How far a training is, in a notebook: a bar, and the matrix as it grows."""

from __future__ import annotations

import sys
import time
from typing import Any

from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.learning.progress import TrainingProgress, accuracies, progress_for
from clear_mlflow.report.page.fragment import progress_html

# Each drawing is a message to the browser, of some kilobytes.
_SECONDS_BETWEEN_DRAWINGS = 0.5


class NotebookProgress(TrainingProgress):
    """One output that is replaced again and again during training."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._rows: list[AccuracyRow] = []
        self._handle: Any = None
        self._drawn = 0.0
        self._text = "starting"
        self._position, self._num_buckets = 0, 1
        self._steps = self._num_steps = 0

    def __enter__(self) -> NotebookProgress:
        if self._handle is None:  # it is entered to decode, and again to train
            from IPython.display import HTML, display

            self._handle = display(HTML(self._html()), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._draw(now=True)

    def images_decoded(self, done: int, total: int) -> None:
        """Say so."""
        self._text = f"decoding images, {done:,} of {total:,}"
        self._steps, self._num_steps = done, total
        self._draw(now=done == total)

    def bucket_started(self, key: str, *, position: int, num_buckets: int) -> None:
        """Start the bucket's part of the bar."""
        self._begin(position, num_buckets, f"bucket {key}: {position + 1} of {num_buckets}")

    def steps_planned(self, num_steps: int) -> None:
        """Give the bucket's part of the bar its length."""
        self._num_steps = num_steps

    def step_done(self) -> None:
        """Move the bar, at most twice a second."""
        self._steps += 1
        self._draw()

    def row_measured(self, row: AccuracyRow) -> None:
        """Show the row in the matrix."""
        self._rows.append(row)
        text = ", ".join([f"{row.row} of {len(row.buckets)} buckets", *accuracies(row)])
        self._begin(row.row, len(row.buckets), text)

    def _begin(self, position: int, num_buckets: int, text: str) -> None:
        self._position, self._num_buckets, self._text = position, num_buckets, text
        self._steps = self._num_steps = 0
        self._draw(now=True)

    def _draw(self, *, now: bool = False) -> None:
        moment = time.monotonic()
        if self._handle is not None and (now or moment - self._drawn > _SECONDS_BETWEEN_DRAWINGS):
            from IPython.display import HTML

            self._drawn = moment
            self._handle.update(HTML(self._html()))

    def _html(self) -> str:
        done = self._position + min(self._steps / max(self._num_steps, 1), 1.0)
        matrix = AccuracyMatrix.from_rows(self._rows) if self._rows else None
        evidence = None if matrix is None else matrix.masked(self._protocol)
        return progress_html(self._text, done, self._num_buckets, evidence)


def progress_here(protocol: str) -> TrainingProgress:
    """What suits where this runs: a notebook's own output, a terminal's bars, or lines."""
    return NotebookProgress(protocol) if in_notebook() else progress_for(sys.stderr)


def in_notebook() -> bool:
    """Whether this is a notebook's kernel, which shows HTML; IPython on a terminal is none."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
