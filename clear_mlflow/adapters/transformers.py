"""Hugging Face's evaluations as a tracked run: a callback for its Trainer."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import MLflowCallback

from clear_mlflow.adapters._run import Adapter, convert_metric, count_images
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.tracking.lifecycle import end_shared_run, get_active_run_id, reopen_run


class MLflowAccuracyMatrix(Adapter, TrainerCallback):
    """Stores a row of the accuracy matrix after each ``trainer.evaluate`` of all buckets.

    Each ``trainer.train`` without an error trains one bucket. Pass ``trainer.evaluate`` a dict from
    bucket name to test set. Use one callback for all trainers of a run. An evaluation before any
    training is row 0; evaluations during training are ignored. With ``report_to="mlflow"``, the
    Trainer logs to the same run as the callback.

    Args:
        buckets: names of all buckets, in stream order.
        metric: name under which ``compute_metrics`` returns the accuracy, a fraction.
        **options: arguments of :func:`clear_mlflow.track`: ``dataset``, ``strategy``, ``seed``, ...
    """

    def __init__(self, buckets: Sequence[str], metric: str = "accuracy", **options: Any) -> None:
        Adapter.__init__(self, options)
        self._buckets = tuple(buckets)
        self._metric = metric
        self._cells: dict[str, float] = {}  # of the current row
        self._num_images: dict[str, int | None] = {}  # test images per bucket, or None if unknown
        self._is_training = False
        self._checked_run_id: str | None = None  # last active run that _share_run looked at
        self.trained = 0  # number of buckets; set it if a loop continues from a checkpoint

    def _share_run(self) -> None:
        """Take over the run that the Trainer's own MLflow callback opened.

        That callback would end the run after each training and open another in each evaluation.
        """
        run_id = get_active_run_id()
        if self._loop is not None or run_id in (None, self._checked_run_id):
            return
        self._checked_run_id = run_id
        # Hooks do not receive the Trainer's list of callbacks, which contains this one.
        for callbacks in gc.get_referrers(self):
            for callback in callbacks if isinstance(callbacks, list) else ():
                if isinstance(callback, MLflowCallback) and callback._auto_end_run:
                    callback._auto_end_run = False
                    os.environ.pop("MLFLOW_NESTED_RUN", None)  # one child run is enough
                    self._take_over(run_id)

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take over a run that the Trainer's MLflow callback has just opened."""
        self._share_run()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Reopen the run for an evaluation after the last row, which would open another."""
        if self._shared_run_id and self._has_ended and get_active_run_id() is None:
            reopen_run(self._shared_run_id)

    def on_predict(self, args: Any, state: Any, control: Any, *_: Any, **__: Any) -> None:
        """End the run again after an evaluation that came after the last row."""
        if self._shared_run_id and self._has_ended and get_active_run_id() == self._shared_run_id:
            end_shared_run(self._shared_run_id)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log the row that was measured before this bucket, even if cells are missing."""
        self._share_run()
        self._flush()
        self._is_training = True
        self._start_clock()

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Count a trained bucket."""
        self._stop_clock(model)
        self._is_training = False
        self.trained += 1

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Mapping[str, Any] | None = None,
        eval_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Keep the cell of an evaluated bucket, and log the row with the last one.

        Raises ConfigError if the metric is missing.
        """
        self._share_run()
        self.on_predict(args, state, control)
        metrics = metrics or {}
        # The Trainer reports the runtime of each test set under this name.
        key = next((key for key in self._buckets if f"eval_{key}_runtime" in metrics), None)
        if key is None or self._is_training or not state.is_world_process_zero:
            return
        prefix = f"eval_{key}_"
        values = {n.removeprefix(prefix): v for n, v in metrics.items() if n.startswith(prefix)}
        if self._metric not in values:
            raise ConfigError(
                f"compute_metrics returned no {self._metric!r} (there is "
                f"{', '.join(sorted(values))}); name the metric that it returns: "
                "MLflowAccuracyMatrix(metric=...)"
            )
        self._cells[key] = convert_metric(self._metric, values[self._metric])
        self._num_images[key] = count_images(eval_dataloader)
        if len(self._cells) == len(self._buckets):
            self._flush()

    def _flush(self) -> None:
        if not self._cells:
            return
        cells = [self._cells.get(key, math.nan) for key in self._buckets]
        self._cells = {}
        num_images = [self._num_images.get(key) for key in self._buckets]
        self._log_row(self.trained, self._buckets, cells, num_images)
