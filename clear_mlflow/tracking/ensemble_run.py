"""The runs of an ensemble: one for each member, below one for the ensemble as a whole."""

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
from clear_mlflow.store.lease import lease_tags
from clear_mlflow.tracking.lifecycle import create_run
from clear_mlflow.tracking.resume import ResumePoint
from clear_mlflow.tracking.training_run import TrainingRun, run_name


class EnsembleRun:
    """Each member's run is what it would be alone; the parent holds means and the common curve."""

    def __init__(
        self, client: MlflowClient, run_id: str, config: TrainConfig, asked: Mapping[str, str]
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._config = config
        self._asked = asked
        self._parent = TrainingRun(client, run_id, config, asked, kind=names.KIND_ENSEMBLE)
        self.recorder = self._parent.recorder
        self._members: dict[int, TrainingRun] = {}
        self._open = ExitStack()
        self.member_ids: dict[int, str] = {}  # seed to run, of the members that are there

    def __enter__(self) -> EnsembleRun:
        with ExitStack() as stack:
            stack.enter_context(self._parent)
            with mlflow_errors(f"open the members of run {self._run_id}"):
                parent = self._client.get_run(self._run_id)
                for seed in map(int, self._config.seeds.split(",")):
                    config = dataclasses.replace(self._config, seed=seed, seeds=NONE)
                    member_id = create_run(
                        self._client,
                        parent.info.experiment_id,
                        run_name(config),
                        {MLFLOW_PARENT_RUN_ID: self._run_id, **lease_tags()},
                    )
                    self.member_ids[seed] = member_id
                    asked = {**self._asked, "seed": str(seed), "seeds": NONE}
                    self._members[seed] = stack.enter_context(
                        TrainingRun(self._client, member_id, config, asked, above=self._parent)
                    )
            self._open = stack.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def track(self, training: Training) -> None:
        """Train, and store the rows of all members before the next bucket starts."""
        facts = training.facts
        self._parent.log_facts(dataclasses.replace(facts, evaluation_set=None))
        # The warnings about the dataset are shown once.
        quiet = dataclasses.replace(facts, warnings=())
        for member in self._members.values():
            member.log_facts(quiet)
        curve = self.recorder.write_curve
        for measured in training.rows(curve):
            if measured.seed is None:
                raise RuntimeError("a row of an ensemble arrived without its member's seed")
            if measured.curve:
                curve(measured.curve)
            self._members[measured.seed].log_row(dataclasses.replace(measured, curve=()))


def run_of(
    client: MlflowClient,
    run_id: str,
    config: TrainConfig,
    asked: Mapping[str, str],
    resumed: ResumePoint | None = None,
) -> TrainingRun | EnsembleRun:
    """What keeps the record of a training in a run that is open, as its parameters ask."""
    if config.seeds != NONE:
        return EnsembleRun(client, run_id, config, asked)
    return TrainingRun(client, run_id, config, asked, resumed=resumed)
