"""Hugging Face's evaluations as a tracked run: a callback for its Trainer."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import MLflowCallback

from clear_mlflow.adapters._run import CountingAdapter, convert_metric, count_images
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.tracking.lifecycle import end_shared_run, get_active_run_id, reopen_run


class MLflowAccuracyMatrix(CountingAdapter, TrainerCallback):
    """Stores a row of the matrix after each ``trainer.evaluate`` of all buckets.

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
        CountingAdapter.__init__(self, options)
        self._buckets = tuple(buckets)
        self._metric = metric
        self._accuracies: dict[str, float] = {}  # accuracies of the current row
        self._num_images: dict[str, int | None] = {}  # test images per bucket, or None if unknown
        self._is_training = False
        self._checked_run_id: str | None = None  # last active run that _join_callback_run saw

    def _join_callback_run(self) -> None:
        """Join the Trainer callback's run, leaving it open and unsetting MLFLOW_NESTED_RUN."""
        run_id = get_active_run_id()
        if self._loop_run is not None or run_id in (None, self._checked_run_id):
            return
        self._checked_run_id = run_id
        # Hooks do not receive the Trainer's list of callbacks, which contains this one.
        for callbacks in gc.get_referrers(self):
            for callback in callbacks if isinstance(callbacks, list) else ():
                if isinstance(callback, MLflowCallback) and callback._auto_end_run:
                    callback._auto_end_run = False
                    os.environ.pop("MLFLOW_NESTED_RUN", None)  # one child run is enough
                    self._use_shared_run(run_id)

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Share the run that the Trainer's MLflow callback has just started."""
        self._join_callback_run()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Reopen the ended run, so that the Trainer starts no other."""
        if self._shared_run_id and self._is_closed and get_active_run_id() is None:
            reopen_run(self._shared_run_id)

    def on_predict(self, args: Any, state: Any, control: Any, *_: Any, **__: Any) -> None:
        """End the run again if an evaluation had reopened it."""
        if self._shared_run_id and self._is_closed and get_active_run_id() == self._shared_run_id:
            end_shared_run(self._shared_run_id)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log the row measured before this training, NaN for missing buckets.

        Starts to measure training time. Raises ConfigError if the run to join has rows, and
        ``trained`` was not set.
        """
        self._join_callback_run()
        if state.is_world_process_zero:
            self._init_trained()
        self._log_pending_row()
        self._is_training = True
        self._start_clock()

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Count a trained bucket, and add its time to the next row."""
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
        """Remember a bucket's accuracy, and log the row when it is complete.

        Ignores evaluations during training and of other datasets. Raises ConfigError if
        ``compute_metrics`` did not return the metric.
        """
        self._join_callback_run()
        self.on_predict(args, state, control)
        metrics = metrics or {}
        # The Trainer reports the runtime of each test set under this name.
        key = next((key for key in self._buckets if f"eval_{key}_runtime" in metrics), None)
        if key is None or self._is_training or not state.is_world_process_zero:
            return
        self._init_trained()
        prefix = f"eval_{key}_"
        values = {n.removeprefix(prefix): v for n, v in metrics.items() if n.startswith(prefix)}
        if self._metric not in values:
            raise ConfigError(
                f"compute_metrics returned no {self._metric!r} (there is "
                f"{', '.join(sorted(values))}); name the metric that it returns: "
                "MLflowAccuracyMatrix(metric=...)"
            )
        self._accuracies[key] = convert_metric(self._metric, values[self._metric])
        self._num_images[key] = count_images(eval_dataloader)
        if len(self._accuracies) == len(self._buckets):
            self._log_pending_row()

    def _log_pending_row(self) -> None:
        """Log the accuracies so far as a row, NaN for other buckets."""
        if not self._accuracies:
            return
        cells = [self._accuracies.get(key, math.nan) for key in self._buckets]
        self._accuracies = {}
        num_images = [self._num_images.get(key) for key in self._buckets]
        self._log_row(self.trained, self._buckets, cells, num_images)
