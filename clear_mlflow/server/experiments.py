"""The experiments that a person may see and that hold rows."""

from __future__ import annotations

from datetime import datetime, timezone

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.core.version import __version__
from clear_mlflow.server.page import ListedExperiment, experiments_page
from clear_mlflow.server.permission import ask
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors

# Experiments that one request looks into, with one or two searches for a run each.
_PAGE = 50


def experiments(store: MlflowClient, token: str | None, workspace: str) -> str:
    """The page of experiments.

    Args:
        store: where the runs are.
        token: where to continue MLflow's listing, as it gave it; None: from the beginning.
        workspace: that the address names, for the links.

    Raises:
        RefusedError: MLflow does not list them.
        TrackingError: the store does not answer.
    """
    asked = {"max_results": _PAGE, "order_by": "last_update_time DESC"}
    answer = ask("/mlflow/experiments/search", **asked, **({"page_token": token} if token else {}))
    listed = []
    for experiment in answer.get("experiments", []):
        run = _newest_with_rows(store, experiment["experiment_id"])
        if run is not None:
            started = datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc)
            listed.append(
                ListedExperiment(
                    experiment_id=experiment["experiment_id"],
                    name=experiment["name"],
                    run_id=run.info.run_id,
                    run_name=run.info.run_name or run.info.run_id,
                    status=run.info.status.lower(),
                    started=f"{started:%Y-%m-%d %H:%M}",
                )
            )
    return experiments_page(
        listed,
        looked_at=len(answer.get("experiments", [])),
        workspace=workspace,
        next_token=answer.get("next_page_token") or None,
        footer=f"clear_mlflow {__version__}",
    )


def _newest_with_rows(store: MlflowClient, experiment_id: str) -> Run | None:
    """Of runs that this program made, in training or not, else of those that it scored."""
    for wanted in (
        f"tags.`{names.KIND_TAG}` = '{names.KIND_TRAIN}'",
        f"tags.`{names.ROWS_TAG}` != 'none'",
    ):
        with mlflow_errors("list the runs"):
            found = store.search_runs([experiment_id], wanted, max_results=1)
        if found:
            return found[0]
    return None
