"""The MLflow run that ``mlflow run -e evaluate`` itself opens: it holds which runs it scored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from clear_mlflow.evaluation.rescore import ScoringResult
from clear_mlflow.store import names
from clear_mlflow.store.client import log_tags, mlflow_errors


def result_entry(result: ScoringResult) -> dict[str, object]:
    """What became of one run, as it is stored."""
    return {
        "run_id": result.run_id,
        "run_name": result.run_name,
        "action": result.action,
        "detail": result.detail,
        "metrics": dict(result.scores.summary) if result.scores else {},
    }


def log_results(client: MlflowClient, run_id: str, entries: Sequence[dict[str, object]]) -> None:
    """Store what became of each run in the run that scored them."""
    counts = Counter(str(entry["action"]) for entry in entries)
    summary = ", ".join(f"{count} {action}" for action, count in sorted(counts.items()))
    note = (
        f"Re-scored runs from their stored rows: {summary}. Each run and what became of it: "
        f"`{names.EVALUATED_JSON}`."
    )
    with mlflow_errors(f"log the results into run {run_id}"):
        client.log_text(run_id, json.dumps(entries, indent=2) + "\n", names.EVALUATED_JSON)
        log_tags(client, run_id, {names.EVALUATED_TAG: str(len(entries)), MLFLOW_RUN_NOTE: note})
