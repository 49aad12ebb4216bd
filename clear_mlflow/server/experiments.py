"""The experiments that a person may see and that hold rows."""

from __future__ import annotations

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.comparison.page.wording import many, short
from clear_mlflow.core.version import __version__
from clear_mlflow.report.page import rendered
from clear_mlflow.server.permission import ask
from clear_mlflow.server.run_state import minute
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors

# Experiments that one request looks into, with one or two searches for a run each.
_PAGE = 50


def experiments(store: MlflowClient, token: str | None, workspace: str) -> str:
    """The page of experiments from MLflow's page token on; links name the workspace, if any."""
    asked = {"max_results": _PAGE, "order_by": "last_update_time DESC"}
    answer = ask("/mlflow/experiments/search", **asked, **({"page_token": token} if token else {}))
    found = answer.get("experiments", [])
    listed = []
    for experiment in found:
        run = _newest_with_rows(store, experiment["experiment_id"])
        if run is not None:
            listed.append(
                {
                    "id": experiment["experiment_id"],
                    "name": short(experiment["name"]),
                    "run_id": run.info.run_id,
                    "run_name": short(run.info.run_name or run.info.run_id),
                    "status": run.info.status.lower(),
                    "started": minute(run),
                }
            )
    return rendered(
        "clear_mlflow.server.page/experiments",
        title="Experiments with accuracy matrices",
        subtitle=f"{len(listed)} of {many(len(found), 'experiment')}, the last changed first",
        warnings=(),
        footer=f"clear_mlflow {__version__}",
        experiments=listed,
        workspace=workspace,
        next_token=answer.get("next_page_token") or None,
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
