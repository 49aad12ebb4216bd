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

from clear_mlflow.adapters._run import Adapter, num_images, number
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.tracking.lifecycle import get_active_run_id


class MLflowAccuracyMatrix(Adapter, Callback):
    """Stores a row of the accuracy matrix after each ``trainer.test`` of all buckets.

    Each ``trainer.fit`` that ends well is one bucket more; ``trainer.test`` takes one dataloader
    for each bucket, in stream order. One callback serves all trainers of a run. A test before any
    fit is row 0. An ``MLFlowLogger`` of a trainer logs to the same run as the callback.

    Args:
        metric: the name under which ``test_step`` logs the accuracy, a fraction, with
            ``self.log(name, ..., on_epoch=True)``.
        buckets: keys of the buckets; "1" to "T" when not given.
        **options: what :func:`clear_mlflow.track` takes: ``dataset``, ``strategy``, ``seed``, ...
    """

    def __init__(
        self, metric: str = "test_acc", *, buckets: Sequence[str] | None = None, **options: Any
    ) -> None:
        Adapter.__init__(self, options)
        self._metric = metric
        self._buckets = None if buckets is None else tuple(buckets)
        self.trained = 0  # buckets; set it where a loop continues from a checkpoint

    @property
    def log(self) -> Any:
        """The model's ``log``, which Lightning assigns before a logger opens its run."""
        return self._log

    @log.setter
    def log(self, log: Any) -> None:
        self._log = log
        if rank_zero_only.rank == 0:
            self._share_run(log.__self__.trainer.loggers)

    def _share_run(self, loggers: Sequence[Any]) -> None:
        """Have all MLflow loggers of a trainer log to one run, and leave it open."""
        for logger in loggers:
            if not isinstance(logger, MLFlowLogger):
                continue
            run_id = self._loop.run_id if self._loop else self._shared_run_id
            run_id = run_id or get_active_run_id(logger._tracking_uri)
            if run_id is None:
                run_id = logger._run_id or os.environ.pop("MLFLOW_RUN_ID", None) or logger.run_id
                self._take_over(run_id)
                logger._run_id = run_id
                logger.experiment.update_run(run_id, status="RUNNING")
            if logger._run_id in (None, run_id):
                logger._run_id = run_id
                logger.finalize = partial(_finalize, logger)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """What follows is of the next row's cost."""
        self._start_clock()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The model is still on its device."""
        self._stop_clock(pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """One bucket more is trained."""
        self.trained += 1

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """A row is measured."""
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
        # Lightning's own names for what test_step logs.
        logged = (
            [self._metric]
            if len(loaders) == 1
            else [f"{self._metric}/dataloader_idx_{j}" for j in range(len(loaders))]
        )
        found = trainer.callback_metrics
        missing = [name for name in logged if name not in found]
        if len(missing) == len(logged):
            raise ConfigError(
                f"test_step logged no {self._metric!r} (there is {', '.join(sorted(found))}); name "
                "the metric that it logs: MLflowAccuracyMatrix(metric=...)"
            )
        cells = [number(name, found[name]) if name in found else math.nan for name in logged]
        self._log_row(self.trained, keys, cells, [num_images(loader) for loader in loaders])

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The rows so far are scored, and the run says how it ended."""
        self._end(exception)

    def state_dict(self) -> dict[str, Any]:
        """How many buckets are trained, for a checkpoint."""
        return {"trained": self.trained}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after as many buckets as a checkpoint says."""
        self.trained = int(state_dict["trained"])


def _finalize(logger: MLFlowLogger, status: str = "success") -> None:
    """Finalize a logger, but keep the status of its run, which ends with the last bucket."""
    client, run_id = logger.experiment, logger.run_id
    run_status = client.get_run(run_id).info.status
    type(logger).finalize(logger, status)
    client.update_run(run_id, status=run_status)
