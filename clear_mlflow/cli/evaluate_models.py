"""``clear-mlflow evaluate --from-models``: test stored models again, run after run."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from clear_mlflow.cli.output import print_places, print_scores
from clear_mlflow.cli.terminal import console
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.text import one_line
from clear_mlflow.scoring.scores import Scores
from clear_mlflow.store.client import MlflowClient


def show_reevaluated(
    client: MlflowClient, tested: Iterable[tuple[str, Scores | ClearError]]
) -> int:
    """Print what came of each run, given as its id and the new run's scores or what went wrong.

    Returns:
        The exit code: 2 where a run could not be tested.
    """
    code, made = 0, []
    for run_id, scores in tested:
        if isinstance(scores, ClearError):
            print(f"error: {one_line(f'run {run_id}: {scores}')}", file=sys.stderr)
            code = 2
            continue
        print_scores(scores, console())
        print(f"run {run_id}: its models tested again are run {scores.run_id}")
        made.append(scores.run_id)
    print_places(client, made)
    return code
