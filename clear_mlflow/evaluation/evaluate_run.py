"""The MLflow run that ``mlflow run -e evaluate`` itself opens: it holds which runs it scored."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from clear_mlflow.evaluation.rescore import ScoringResult
from clear_mlflow.store import names
from clear_mlflow.store.client import mlflow_errors


class ResultFile:
    """What became of each run, written down as it happens: no list of thousands is kept."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._count = 0

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, verdict: ScoringResult) -> None:
        """Write down one run."""
        entry = {
            "run_id": verdict.run_id,
            "run_name": verdict.run_name,
            "action": verdict.action,
            "detail": verdict.detail,
            "metrics": dict(verdict.scores.summary) if verdict.scores else {},
        }
        text = json.dumps([entry], indent=2)[2:-2]
        self._file.write(f",\n{text}" if self._count else text)
        self._count += 1

    def log(self, client: MlflowClient, run_id: str, counts: Mapping[str, int]) -> None:
        """Store what became of each run in the run that scored them."""
        self._file.seek(0)
        entries = self._file.read()
        summary = ", ".join(f"{count} {action}" for action, count in sorted(counts.items()))
        with mlflow_errors(f"log the verdicts into run {run_id}"):
            content = f"[\n{entries}\n]\n" if entries else "[]\n"
            client.log_text(run_id, content, names.EVALUATED_JSON)
            client.set_tag(run_id, names.EVALUATED_TAG, str(self._count))
            client.set_tag(
                run_id,
                MLFLOW_RUN_NOTE,
                f"Re-scored runs from their stored rows: {summary}. Each run and its verdict: "
                f"`{names.EVALUATED_JSON}`.",
            )
