"""The MLflow run that ``mlflow run -e evaluate`` itself opens: it tells which runs it scored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from mlflow import MlflowClient
from mlflow.environment_variables import MLFLOW_RUN_ID
from mlflow.utils.mlflow_tags import MLFLOW_PROJECT_ENTRY_POINT, MLFLOW_RUN_NOTE

from clear_mlflow.tracking import names
from clear_mlflow.tracking.evaluate import Verdict
from clear_mlflow.tracking.preflight import explained


def mark_evaluate_run(client: MlflowClient) -> str | None:
    """Tag the run that ``mlflow run -e evaluate`` opened for this process, if it did.

    A run that a user's own environment names is left as it is: it may be one that trains.
    """
    run_id = MLFLOW_RUN_ID.get()
    if not run_id:
        return None
    with explained(f"tag run {run_id}"):
        if client.get_run(run_id).data.tags.get(MLFLOW_PROJECT_ENTRY_POINT) != "evaluate":
            return None
        client.set_tag(run_id, names.KIND_TAG, names.KIND_EVALUATE)
    return str(run_id)


def log_verdicts(client: MlflowClient, run_id: str, verdicts: Sequence[Verdict]) -> None:
    """Store what became of each run in the run that scored them."""
    content = [
        {
            "run_id": verdict.run_id,
            "run_name": verdict.run_name,
            "action": verdict.action,
            "detail": verdict.detail,
            "metrics": dict(verdict.scores.summary) if verdict.scores else {},
        }
        for verdict in verdicts
    ]
    counts = Counter(verdict.action for verdict in verdicts)
    with explained(f"log the verdicts into run {run_id}"):
        client.log_text(run_id, json.dumps(content, indent=2) + "\n", names.EVALUATED_JSON)
        client.set_tag(run_id, names.EVALUATED_TAG, str(len(verdicts)))
        client.set_tag(
            run_id,
            MLFLOW_RUN_NOTE,
            "Re-scored runs from their stored rows: "
            + ", ".join(f"{count} {action}" for action, count in sorted(counts.items()))
            + f". Each run and its verdict: `{names.EVALUATED_JSON}`.",
        )
