"""Show the progress of a training in a notebook: a bar, and the matrix as it grows."""

from __future__ import annotations

import sys
import time
from typing import Any

from clear_mlflow.core.matrix import AccuracyMatrix, AccuracyRow
from clear_mlflow.learning.progress import TrainingProgress, accuracies, progress_for
from clear_mlflow.report.page.fragment import progress_html

# Each update is a message of some kilobytes to the browser.
_UPDATE_SECONDS = 0.5


class NotebookProgress(TrainingProgress):
    """Progress bar and accuracy matrix in a notebook cell, updated during training."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._rows: list[AccuracyRow] = []
        self._display: Any = None
        self._updated_at = 0.0
        self._text = "starting"
        self._bucket_index, self._num_buckets = 0, 1
        self._num_done = self._num_steps = 0

    def __enter__(self) -> NotebookProgress:
        if self._display is None:  # it is entered to decode, and again to train
            from IPython.display import HTML, display

            self._display = display(HTML(self._build_html()), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._update(now=True)

    def images_decoded(self, done: int, total: int) -> None:
        """Show how many of *total* images are decoded."""
        self._text = f"decoding images, {done:,} of {total:,}"
        self._num_done, self._num_steps = done, total
        self._update(now=done == total)

    def bucket_started(self, key: str, *, position: int, num_buckets: int) -> None:
        """Show that training on a bucket begins.

        key: name of the bucket. position: its index, from 0.
        """
        text = f"bucket {key}: {position + 1} of {num_buckets}"
        self._start_bar_segment(position, num_buckets, text)

    def steps_planned(self, num_steps: int) -> None:
        """Set the number of training steps of the current bucket."""
        self._num_steps = num_steps

    def step_done(self) -> None:
        """Count a training step. The output is updated at most twice a second."""
        self._num_done += 1
        self._update()

    def row_measured(self, row: AccuracyRow) -> None:
        """Add a measured row to the displayed accuracy matrix."""
        self._rows.append(row)
        text = ", ".join([f"{row.row} of {len(row.buckets)} buckets", *accuracies(row)])
        self._start_bar_segment(row.row, len(row.buckets), text)

    def _start_bar_segment(self, bucket_index: int, num_buckets: int, text: str) -> None:
        """Set the bar to *bucket_index* buckets done, with a text, and update the output."""
        self._bucket_index, self._num_buckets, self._text = bucket_index, num_buckets, text
        self._num_done = self._num_steps = 0
        self._update(now=True)

    def _update(self, *, now: bool = False) -> None:
        """Replace the output. If *now* is False, only 0.5 s or more after the last update."""
        clock = time.monotonic()
        if self._display is not None and (now or clock - self._updated_at > _UPDATE_SECONDS):
            from IPython.display import HTML

            self._updated_at = clock
            self._display.update(HTML(self._build_html()))

    def _build_html(self) -> str:
        """Return text, bar and the matrix of the rows so far as HTML."""
        done = self._bucket_index + min(self._num_done / max(self._num_steps, 1), 1.0)
        matrix = AccuracyMatrix.from_rows(self._rows) if self._rows else None
        masked_matrix = None if matrix is None else matrix.masked(self._protocol)
        return progress_html(self._text, done, self._num_buckets, masked_matrix)


def build_progress(protocol: str) -> TrainingProgress:
    """Return a progress display for a notebook, or for standard error outside of a notebook.

    protocol: evaluation protocol, which decides the cells of the matrix that are shown.
    """
    return NotebookProgress(protocol) if is_notebook() else progress_for(sys.stderr)


def is_notebook() -> bool:
    """Return True if this process is a notebook's kernel, and False in IPython on a terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
