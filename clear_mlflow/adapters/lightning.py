"""Lightning's tests as a tracked run: a callback for its Trainer."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import rank_zero_only

from clear_mlflow.adapters._run import CountingAdapter, convert_metric, count_images
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.tracking.lifecycle import get_active_run_id, get_autolog_run_id


class MLflowAccuracyMatrix(CountingAdapter, Callback):
    """Stores a row of the matrix after each ``trainer.test`` of all buckets.

    Each ``trainer.fit`` without an error trains one bucket. Pass ``trainer.test`` one dataloader
    per bucket, in stream order. Use one callback for all trainers of a run. A test before any fit
    is row 0. An ``MLFlowLogger`` of a trainer logs to the same run as the callback.

    Args:
        metric: name under which ``test_step`` logs the accuracy, a fraction, with
            ``self.log(name, ..., on_epoch=True)``.
        buckets: names of the buckets; "1" to "T" by default.
        **options: arguments of :func:`clear_mlflow.track`: ``dataset``, ``strategy``, ``seed``, ...
    """

    def __init__(
        self, metric: str = "test_acc", *, buckets: Sequence[str] | None = None, **options: Any
    ) -> None:
        CountingAdapter.__init__(self, options)
        self._metric = metric
        self._buckets = None if buckets is None else tuple(buckets)

    @property
    def log(self) -> Any:
        """The model's ``log`` method. When it is set, loggers share one run."""
        return self._log

    @log.setter
    def log(self, log: Any) -> None:
        self._log = log
        if rank_zero_only.rank == 0:
            self._share_run(log.__self__.trainer.loggers)

    def _share_run(self, loggers: Sequence[Any]) -> None:
        """Share one open run with MLflow loggers, taking MLFLOW_RUN_ID from os.environ.

        That is the callback's or MLflow's active run, else the first logger's, set to RUNNING, or
        the run in MLFLOW_RUN_ID. A logger that already has another run keeps it.
        """
        for logger in loggers:
            if not isinstance(logger, MLFlowLogger):
                continue
            run_id = self._loop_run.run_id if self._loop_run else self._shared_run_id
            run_id = run_id or get_active_run_id(logger._tracking_uri)
            if run_id is None:
                run_id = logger._run_id or os.environ.pop("MLFLOW_RUN_ID", None) or logger.run_id
                self._use_shared_run(run_id)
                logger._run_id = run_id
                logger.experiment.update_run(run_id, status="RUNNING")
            if logger._run_id in (None, run_id):
                logger._run_id = run_id
                logger.finalize = partial(_finalize, logger)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to measure training time, for the cost of the next row.

        Raises ConfigError if the run to join has rows, and ``trained`` was not set.
        """
        self.on_test_start(trainer, pl_module)
        run_id = get_autolog_run_id()
        if self._loop_run is None and run_id is not None:
            self._use_shared_run(run_id)  # autolog ends it after this fit
            self._reopens_run = True
        self._start_clock()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Raise ConfigError if the run has rows, but ``trained`` is not set."""
        if trainer.is_global_zero:
            self._init_trained()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Add the training time to the cost of the next row."""
        self._stop_clock(pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Count a trained bucket."""
        self.trained += 1

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the row of accuracies that ``trainer.test`` measured. Only rank 0 logs.

        Raises ConfigError if the test had another number of dataloaders than buckets, or if
        ``test_step`` did not log the metric.
        """
        loaders = trainer.test_dataloaders
        loaders = list(loaders) if isinstance(loaders, (list, tuple)) else [loaders]
        keys = self._buckets or tuple(str(j + 1) for j in range(len(loaders)))
        if len(loaders) != len(keys):
            raise ConfigError(
                f"trainer.test had {len(loaders)} dataloaders for {len(keys)} buckets; pass one "
                "for each, in stream order"
            )
        if not trainer.is_global_zero:
            return
        metric_names = [self._metric]
        if len(loaders) > 1:  # Lightning's names for the values that test_step logs
            metric_names = [f"{self._metric}/dataloader_idx_{j}" for j in range(len(loaders))]
        values = trainer.callback_metrics
        if not any(name in values for name in metric_names):
            raise ConfigError(
                f"test_step logged no {self._metric!r} (there is {', '.join(sorted(values))}); "
                "name the metric that it logs: MLflowAccuracyMatrix(metric=...)"
            )
        accuracies = [convert_metric(name, values.get(name, math.nan)) for name in metric_names]
        self._log_row(self.trained, keys, accuracies, [count_images(loader) for loader in loaders])

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Log the metrics, and end the run as failed or killed."""
        self._end_run(exception)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of trained buckets, for a checkpoint."""
        return {"trained": self.trained}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the number of trained buckets from a checkpoint."""
        self.trained = int(state_dict["trained"])


def _finalize(logger: MLFlowLogger, status: str = "success") -> None:
    """Call the logger's own ``finalize``, but restore the run's status."""
    client, run_id = logger.experiment, logger.run_id
    run_status = client.get_run(run_id).info.status
    type(logger).finalize(logger, status)
    client.update_run(run_id, status=run_status)
