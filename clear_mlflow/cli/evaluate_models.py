"""``clear-mlflow evaluate --from-models``: test stored models again, run after run."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.cli.output import show_scores
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.text import one_line
from clear_mlflow.evaluation.reevaluate_models import retest
from clear_mlflow.store.search import MissingRun


def retest_runs(client: MlflowClient, runs: Iterable[Run | MissingRun], *, data_root: str) -> int:
    """Re-test each run's models; one that cannot be tested does not stop the others.

    Returns:
        The exit code: 2 where a run could not be tested.
    """
    code = 0
    for run in runs:
        run_id = run.run_id if isinstance(run, MissingRun) else run.info.run_id
        try:
            if isinstance(run, MissingRun):
                raise ClearError(run.problem)
            scores = retest(client, run, data_root=data_root)
        except ClearError as error:
            print(f"error: {one_line(f'run {run_id}: {error}')}", file=sys.stderr)
            code = 2
            continue
        show_scores(scores)
        print(f"run {run_id}: its models tested again are run {scores.run_id}")
    return code
