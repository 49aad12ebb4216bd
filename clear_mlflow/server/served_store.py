"""The tracking store as the server itself has it: no request to its own address."""

from __future__ import annotations

from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run, RunInfo
from mlflow.store.entities import PagedList

from clear_mlflow.server.mlflow_hooks import artifacts_address


class ServedStore(MlflowClient):
    """MLflow's client on the store behind the server; runs say where their artifacts really lie."""

    def get_run(self, run_id: str) -> Run:
        """A run, by its id."""
        return _within_reach(super().get_run(run_id))

    def search_runs(self, *arguments: Any, **options: Any) -> PagedList[Run]:
        """Runs of experiments, a page of them."""
        found = super().search_runs(*arguments, **options)
        return PagedList([_within_reach(run) for run in found], found.token)


def _within_reach(run: Run) -> Run:
    info = {**dict(run.info), "artifact_uri": artifacts_address(str(run.info.artifact_uri))}
    return Run(RunInfo(**info), run.data, run.inputs, run.outputs)
