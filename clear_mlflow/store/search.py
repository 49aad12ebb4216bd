"""Look up runs and experiments: by id, by a search, or by MLflow's environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from mlflow import MlflowClient
from mlflow.entities import Experiment, LifecycleStage, Run, ViewType
from mlflow.environment_variables import (
    MLFLOW_EXPERIMENT_ID,
    MLFLOW_EXPERIMENT_NAME,
    MLFLOW_RUN_ID,
)
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PROJECT_ENTRY_POINT

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.store import names
from clear_mlflow.store.client import (
    DEFAULT_EXPERIMENT_ID,
    get_run,
    mlflow_errors,
    retry_on_conflict,
)

# Runs per request: a listed run takes 50 kB of memory, a page 10 MB.
_PAGE_SIZE = 200
# Each condition joins a table; sqlite joins 64, and takes minutes to refuse hundreds.
_MAX_CONDITIONS = 50
_AND = re.compile(r"\band\b", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")


@dataclass(frozen=True)
class MissingRun:
    """A run that was requested, but is missing, deleted or without rows."""

    run_id: str
    run_name: str
    problem: str


def select_runs(
    client: MlflowClient,
    *,
    run_ids: Iterable[str] = (),
    experiment: str | None = None,
    filter: str | None = None,  # noqa: A002
    unscored_only: bool = False,
) -> Iterator[Run | MissingRun]:
    """Search the runs with these ids, or all in an experiment.

    Each id is looked up once. The runs of an experiment come newest first, without deleted ones and
    those that only refer to other runs, such as sweeps and comparisons. The id of a run that does
    not exist or is deleted is yielded as a MissingRun. Raises TrackingError if the experiment does
    not exist.

    experiment: name or id of an experiment, or None for all. filter: MLflow search filter. Both are
    ignored with *run_ids*. unscored_only: skip runs whose metrics were computed already.
    """
    runs: Iterable[Run | MissingRun]
    if unique_ids := tuple(dict.fromkeys(run_ids)):
        runs = (_read_run(client, run_id) for run_id in unique_ids)
    else:
        listed = search_runs(client, find_experiment_ids(client, experiment), filter or "")
        runs = (r for r in listed if r.data.tags.get(names.KIND_TAG) not in names.WITHOUT_ROWS)
    for run in runs:
        is_scored = isinstance(run, Run) and names.SCORED_TAG in run.data.tags
        if not (unscored_only and is_scored):
            yield run


def expand_run_id(client: MlflowClient, prefix: str) -> str:
    """Search the one run id with a prefix, else return the prefix.

    Returns *prefix* unchanged if it is anything else, or if no run starts with it. Raises
    TrackingError if several runs do.
    """
    if not re.fullmatch("[0-9a-f]{6,31}", prefix):
        return prefix
    has_prefix = f"attributes.run_id LIKE '{prefix}%'"
    matches = [*search_runs(client, find_experiment_ids(client), has_prefix)]
    if len(matches) > 1:
        listed = ", ".join(
            safe_repr(f"{run.info.run_id} {run.info.run_name}") for run in matches[:10]
        )
        raise TrackingError(f"{len(matches)} runs start with {prefix}; use more digits of {listed}")
    return str(matches[0].info.run_id) if matches else prefix


def search_runs(
    client: MlflowClient, experiment_ids: list[str], filter_string: str
) -> Iterator[Run]:
    """Search the runs that match an MLflow filter, yielding newest first.

    Runs that start during the search do not shift its pages. Raises ConfigError if the filter has
    more than 50 conditions.
    """
    num_conditions = 1 + len(_AND.findall(_QUOTED.sub("", filter_string)))
    if num_conditions > _MAX_CONDITIONS:
        raise ConfigError(
            f"filter has {num_conditions} conditions; expected at most {_MAX_CONDITIONS}, which "
            "is what databases can join: search for a tag that the runs share"
        )
    # MLflow's own pages count from the newest run and shift with each run that is opened.
    latest_start: int | None = None
    token: str | None = None
    ids_at_latest_start: set[str] = set()  # runs already yielded that the next page may repeat
    while True:
        condition = "" if latest_start is None else f"attributes.start_time <= {latest_start}"
        with mlflow_errors("list the runs"):
            page = client.search_runs(
                experiment_ids,
                filter_string=" and ".join(part for part in (filter_string, condition) if part),
                run_view_type=ViewType.ACTIVE_ONLY,
                max_results=_PAGE_SIZE,
                order_by=["attributes.start_time DESC"],
                page_token=token,
            )
        yield from (run for run in page if run.info.run_id not in ids_at_latest_start)
        if not page.token:
            return
        last_start = page[-1].info.start_time
        if last_start is None or last_start == latest_start:
            token = page.token
        else:
            latest_start, token, ids_at_latest_start = last_start, None, set()
        ids_at_latest_start |= {r.info.run_id for r in page if r.info.start_time == last_start}


def read_project_run(client: MlflowClient, entry_point: str | None = None) -> Run | None:
    """Read the run that ``mlflow run`` opened, or return None.

    entry_point: None for any. Raises TrackingError if the run that MLFLOW_RUN_ID names cannot be
    read.
    """
    run_id = MLFLOW_RUN_ID.get()
    if not run_id:
        return None
    run = get_run(client, run_id)
    opened = run.data.tags.get(MLFLOW_PROJECT_ENTRY_POINT)
    return run if opened is not None and entry_point in (None, opened) else None


def tag_project_run(client: MlflowClient, entry_point: str) -> str | None:
    """Tag the run that ``mlflow run`` opened, and return its id.

    Returns the run's id, or None without such a run.
    """
    run = read_project_run(client, entry_point)
    if run is None:
        return None
    with mlflow_errors(f"tag run {run.info.run_id}"):
        client.set_tag(run.info.run_id, names.KIND_TAG, entry_point)
    return str(run.info.run_id)


def find_or_create_experiment(client: MlflowClient, name: str | None = None) -> str:
    """Look up or create an experiment, and return its id.

    Without a name, uses MLFLOW_EXPERIMENT_NAME, or else returns MLFLOW_EXPERIMENT_ID or "0", which
    is not looked up. Raises TrackingError if the name is longer than 200 characters or not
    printable.
    """
    name = name or MLFLOW_EXPERIMENT_NAME.get()
    if not name:
        return str(MLFLOW_EXPERIMENT_ID.get() or DEFAULT_EXPERIMENT_ID)
    if len(name) > 200 or not name.isprintable():
        raise TrackingError(
            "the experiment's name is too long or not printable; expected at most 200 printable "
            "characters"
        )

    def find_or_create() -> str:
        experiment = client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else client.create_experiment(name))

    with mlflow_errors("find the experiment"):
        return retry_on_conflict(find_or_create)


def read_run(client: MlflowClient, run_id: str) -> Run:
    """Read a run, or raise TrackingError if it is missing or deleted."""
    with mlflow_errors(f"read run {run_id[:80]}"):
        run = _read_run(client, run_id)
    if isinstance(run, MissingRun):
        raise TrackingError(f"cannot read run {run_id[:80]}: {run.problem}")
    return run


def read_run_or_none(client: MlflowClient, run_id: str) -> Run | None:
    """Read a run, or return None if it is missing or deleted.

    Raises TrackingError if the store cannot be read.
    """
    run = _read_run(client, run_id)
    return run if isinstance(run, Run) else None


def _read_run(client: MlflowClient, run_id: str) -> Run | MissingRun:
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        uri = client.tracking_uri
        if not is_missing_error(error):
            problem = mask_credentials(str(error), uri)
            raise TrackingError(f"cannot read run {run_id}: {problem}") from error
        problem = f"no such run in the tracking store {mask_credentials(uri)}"
        if not re.fullmatch("[0-9a-f]{32}", run_id):
            problem += _suggest_ids(client, run_id) or (
                "; pass the id of a run, or at least its first six digits"
            )
        if error.error_code == "PERMISSION_DENIED":
            problem += f", or none that you may read ({mask_credentials(str(error), uri)})"
        return MissingRun(run_id, run_id, problem)
    if run.info.lifecycle_stage == LifecycleStage.DELETED:
        return MissingRun(run_id, run.info.run_name or run_id, "it is deleted; restore it first")
    return run


def is_missing_error(error: MlflowException) -> bool:
    """Return True if an error means that no such run exists.

    Servers with accounts deny the permission then, as for a run that the user may not read.
    """
    missing = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "PERMISSION_DENIED")
    return error.error_code in missing


def find_experiment_ids(client: MlflowClient, name_or_id: str | None = None) -> list[str]:
    """Look up the experiments with a name or id, or raise TrackingError.

    None stands for all experiments. Deleted experiments are left out. A name takes precedence over
    an id. Raises TrackingError if no experiment matches.
    """
    experiments = _list_experiments(client)
    if name_or_id is None:
        return [e.experiment_id for e in experiments]
    # A name takes precedence over an id: an experiment may be called "3".
    matching_ids = [e.experiment_id for e in experiments if e.name == name_or_id] or [
        e.experiment_id for e in experiments if e.experiment_id == name_or_id
    ]
    if matching_ids:
        return matching_ids
    valid_names = ", ".join(repr(e.name) for e in experiments[:20])
    advice = _suggest_ids(client, name_or_id) or f"; there are {valid_names}"
    raise TrackingError(
        f"no experiment has the name or id {safe_repr(name_or_id)} in "
        f"{mask_credentials(client.tracking_uri)}{advice}"
    )


def _suggest_ids(client: MlflowClient, name: str) -> str:
    """Return advice to pass ids of runs with this name, or ""."""
    if "'" in name or "\\" in name:
        return ""
    condition = f"attributes.run_name = '{name}'"
    runs = [*islice(search_runs(client, find_experiment_ids(client), condition), 3)]
    run_ids = ", ".join(run.info.run_id for run in runs)
    return f"; {safe_repr(name)} is the name of a run, pass its id: {run_ids}" if runs else ""


def has_experiment(client: MlflowClient, name_or_id: str) -> bool:
    """Return True if an undeleted experiment has this name or id."""
    experiments = _list_experiments(client)
    return any(name_or_id in (e.name, e.experiment_id) for e in experiments)


def _list_experiments(client: MlflowClient) -> list[Experiment]:
    with mlflow_errors("list the experiments"):
        page = client.search_experiments(max_results=1000)
        experiments = list(page)
        while page.token:
            page = client.search_experiments(max_results=1000, page_token=page.token)
            experiments += page
    return experiments
