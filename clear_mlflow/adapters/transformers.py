"""Hugging Face's evaluations as a tracked run: a callback for its Trainer."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import MLflowCallback

from clear_mlflow.adapters._run import Adapter, num_images, number
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.tracking.lifecycle import end_shared_run, get_active_run_id, reopen_run


class MLflowAccuracyMatrix(Adapter, TrainerCallback):
    """Stores a row of the accuracy matrix after each ``trainer.evaluate`` of all buckets.

    Each ``trainer.train`` that ends well is one bucket more; ``trainer.evaluate`` takes a
    dictionary of test sets, a bucket's key to its own. One callback serves all trainers of a run.
    An evaluation before any training is row 0; those that the Trainer makes while it trains are
    not looked at. With ``report_to="mlflow"``, the Trainer logs to the same run as the callback.

    Args:
        buckets: keys of all buckets, in stream order.
        metric: the name under which ``compute_metrics`` gives the accuracy, a fraction.
        **options: what :func:`clear_mlflow.track` takes: ``dataset``, ``strategy``, ``seed``, ...
    """

    def __init__(self, buckets: Sequence[str], metric: str = "accuracy", **options: Any) -> None:
        Adapter.__init__(self, options)
        self._buckets = tuple(buckets)
        self._metric = metric
        self._cells: dict[str, float] = {}  # of the row that is being measured
        self._sizes: dict[str, int | None] = {}  # test images per bucket, where they are known
        self._trains = False
        self._checked_run_id: str | None = None  # the last active run
        self.trained = 0  # buckets; set it where a loop continues from a checkpoint

    def _share_run(self) -> None:
        """Take over the run that the Trainer's own MLflow callback opened.

        That callback would end the run after each training and open another in each evaluation.
        """
        run_id = get_active_run_id()
        if self._loop is not None or run_id in (None, self._checked_run_id):
            return
        self._checked_run_id = run_id
        for callbacks in gc.get_referrers(self):  # the Trainer's list; hooks do not receive it
            for callback in callbacks if isinstance(callbacks, list) else ():
                if isinstance(callback, MLflowCallback) and callback._auto_end_run:
                    callback._auto_end_run = False
                    os.environ.pop("MLFLOW_NESTED_RUN", None)  # one child run is enough
                    self._take_over(run_id)

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer's MLflow callback may have opened its run just now."""
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
        """What was measured before this bucket is a row, whether whole or not."""
        self._share_run()
        self._flush()
        self._trains = True
        self._start_clock()

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """One bucket more is trained."""
        self._stop_clock(model)
        self._trains = False
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
        """A cell is measured; with the last one, a row."""
        self._share_run()
        self.on_predict(args, state, control)
        found = metrics or {}
        # The Trainer reports the runtime of each test set, always under this name.
        key = next((key for key in self._buckets if f"eval_{key}_runtime" in found), None)
        if key is None or self._trains or not state.is_world_process_zero:
            return
        prefix = f"eval_{key}_"
        there = {
            name.removeprefix(prefix): found[name] for name in found if name.startswith(prefix)
        }
        if self._metric not in there:
            raise ConfigError(
                f"compute_metrics gave no {self._metric!r} (there is {', '.join(sorted(there))}); "
                "name the metric that it gives: MLflowAccuracyMatrix(metric=...)"
            )
        self._cells[key] = number(self._metric, there[self._metric])
        self._sizes[key] = num_images(eval_dataloader)
        if len(self._cells) == len(self._buckets):
            self._flush()

    def _flush(self) -> None:
        if not self._cells:
            return
        cells = [self._cells.get(key, math.nan) for key in self._buckets]
        self._cells = {}
        sizes = [self._sizes.get(key) for key in self._buckets]
        self._log_row(self.trained, self._buckets, cells, sizes)
