"""Record an ensemble: one run per member, and a parent run for the ensemble."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clear_mlflow.learning.measured import Training
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.recipes import NONE
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors
from clear_mlflow.store.lease import build_lease_tags
from clear_mlflow.tracking.lifecycle import create_run
from clear_mlflow.tracking.resume import ResumePoint
from clear_mlflow.tracking.training_run import TrainingRun, format_run_name


class EnsembleRun:
    """Records each member of an ensemble in a child run, and their common curve in the parent run.

    A context manager with the interface of TrainingRun. It creates the child runs when it is
    entered.

    Args:
        client: client of the tracking store.
        run_id: id of the ensemble's run, which is RUNNING.
        config: the parameters of the training; ``config.seeds`` has one seed per member.
        requested: the parameters that the user passed, as text.
    """

    def __init__(
        self, client: MlflowClient, run_id: str, config: TrainConfig, requested: Mapping[str, str]
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._config = config
        self._requested = requested
        self._parent = TrainingRun(client, run_id, config, requested, run_type=names.KIND_ENSEMBLE)
        self.recorder = self._parent.recorder
        self._members: dict[int, TrainingRun] = {}  # by seed
        self._open_runs = ExitStack()
        self.member_ids: dict[int, str] = {}  # seed to run id, of the members opened so far

    def __enter__(self) -> EnsembleRun:
        """Create a child run for each member, and log the configuration in all runs."""
        with ExitStack() as stack:
            stack.enter_context(self._parent)
            with mlflow_errors(f"open the members of run {self._run_id}"):
                parent = self._client.get_run(self._run_id)
                for seed in map(int, self._config.seeds.split(",")):
                    config = dataclasses.replace(self._config, seed=seed, seeds=NONE)
                    member_id = create_run(
                        self._client,
                        parent.info.experiment_id,
                        format_run_name(config),
                        {MLFLOW_PARENT_RUN_ID: self._run_id, **build_lease_tags()},
                    )
                    self.member_ids[seed] = member_id
                    requested = {**self._requested, "seed": str(seed), "seeds": NONE}
                    member = TrainingRun(
                        self._client, member_id, config, requested, parent=self._parent
                    )
                    self._members[seed] = stack.enter_context(member)
            self._open_runs = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        """Upload what is not stored yet, of the members and the ensemble."""
        self._open_runs.__exit__(*error)

    def track(self, training: Training) -> None:
        """Train the ensemble. Store the rows of all members before the next bucket starts."""
        metadata = training.facts
        self._parent.log_dataset(dataclasses.replace(metadata, evaluation_set=None))
        # Only the parent prints the warnings about the dataset.
        member_metadata = dataclasses.replace(metadata, warnings=())
        for member in self._members.values():
            member.log_dataset(member_metadata)
        for measured in training.rows(self.recorder.write_curve):
            if measured.seed is None:
                raise RuntimeError("a row of an ensemble arrived without its member's seed")
            if measured.curve:
                self.recorder.write_curve(measured.curve)
            self._members[measured.seed].log_row(dataclasses.replace(measured, curve=()))


def build_tracked_run(
    client: MlflowClient,
    run_id: str,
    config: TrainConfig,
    requested: Mapping[str, str],
    resume_point: ResumePoint | None = None,
) -> TrainingRun | EnsembleRun:
    """Return the context manager that records a training in a run: EnsembleRun or TrainingRun.

    It is an EnsembleRun if *config* names several seeds. The arguments are those of TrainingRun.
    """
    if config.seeds != NONE:
        return EnsembleRun(client, run_id, config, requested)
    return TrainingRun(client, run_id, config, requested, resume_point=resume_point)
