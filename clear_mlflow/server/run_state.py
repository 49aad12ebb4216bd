"""Whether anything of a run has changed that a page shows."""

from __future__ import annotations

from datetime import datetime, timezone

from mlflow import MlflowClient
from mlflow.entities import Run, RunStatus

from clear_mlflow.core.errors import ClearError
from clear_mlflow.scoring.run_record import list_test_sizes
from clear_mlflow.store import names
from clear_mlflow.store.rows import list_row_sizes

# Tags that change while nothing does that a page shows: signs of life.
_SIGNS_OF_LIFE = frozenset({names.PROCESS_TAG, names.HOLDER_TAG})


def state_of(store: MlflowClient, run: Run) -> list[object]:
    """What changes with anything that a page shows of a run, as JSON; metrics follow from rows."""
    info, tags = run.info, run.data.tags
    state: list[object] = [
        *(info.run_id, info.run_name, info.status, info.end_time),
        run.data.params,
        {name: text for name, text in tags.items() if name not in _SIGNS_OF_LIFE},
    ]
    if names.MATRIX_TAG not in tags or not has_ended(run):
        try:
            state.append(list_row_sizes(store, run))
            if names.ANYTIME_TAG in tags:
                state.append(list_test_sizes(store, run))
        except ClearError as error:
            state.append(str(error))
    return state


def has_ended(run: Run) -> bool:
    """Whether no more rows of a run will come, unless a user resumes it."""
    return bool(RunStatus.is_terminated(RunStatus.from_string(run.info.status)))


def minute(run: Run) -> str:
    """When a run started, in UTC."""
    return f"{datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc):%Y-%m-%d %H:%M}"
