"""Which runs are meant: by id, by a search that is read page by page, or by the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
from clear_mlflow.store.client import DEFAULT_EXPERIMENT_ID, mlflow_errors, retry_on_conflict

# Runs that one request lists. A listed run takes 50 kB of memory, so a page of them 10 MB.
_PAGE = 200
# Each condition joins a table; sqlite joins 64, and takes minutes to refuse hundreds.
_MOST_CONDITIONS = 50
_AND = re.compile(r"\band\b", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")


@dataclass(frozen=True)
class MissingRun:
    """A run that was asked for by its id, and is not there to be read."""

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
    """Runs by id, else of an experiment (None: of all), newest first; taken as they are needed."""
    if named := tuple(dict.fromkeys(run_ids)):
        found: Iterable[Run | MissingRun] = (_get(client, run_id) for run_id in named)
    else:
        listed = search_runs(client, find_experiment_ids(client, experiment), filter or "")
        found = (r for r in listed if r.data.tags.get(names.KIND_TAG) not in names.WITHOUT_ROWS)
    return (run for run in found if not (unscored_only and _is_scored(run)))


def expand_run_id(client: MlflowClient, text: str) -> str:
    """Return the id of the only run that starts with a text of 6 to 31 hexadecimal digits.

    Returns any other text unchanged. Raises TrackingError if several runs match.
    """
    if not re.fullmatch("[0-9a-f]{6,31}", text):
        return text
    matches = [
        *search_runs(client, find_experiment_ids(client), f"attributes.run_id LIKE '{text}%'")
    ]
    if len(matches) > 1:
        listed = ", ".join(
            safe_repr(f"{run.info.run_id} {run.info.run_name}") for run in matches[:10]
        )
        raise TrackingError(f"{len(matches)} runs start with {text}; use more digits of {listed}")
    return str(matches[0].info.run_id) if matches else text


def _is_scored(run: Run | MissingRun) -> bool:
    return isinstance(run, Run) and names.SCORED_TAG in run.data.tags


def search_runs(client: MlflowClient, experiments: list[str], wanted: str) -> Iterator[Run]:
    """All active runs of experiments that MLflow's search finds, newest first."""
    num_conditions = 1 + len(_AND.findall(_QUOTED.sub("", wanted)))
    if num_conditions > _MOST_CONDITIONS:
        raise ConfigError(
            f"filter has {num_conditions} conditions; expected at most {_MOST_CONDITIONS}, which "
            "is what databases can join: search for a tag that the runs share"
        )
    # Pages of MLflow's own count from the newest run, and shift with each that is opened.
    since: int | None = None
    token: str | None = None
    at_since: set[str] = set()  # runs that were given already and that a next page may hold
    while True:
        condition = "" if since is None else f"attributes.start_time <= {since}"
        with mlflow_errors("list the runs"):
            page = client.search_runs(
                experiments,
                filter_string=" and ".join(part for part in (wanted, condition) if part),
                run_view_type=ViewType.ACTIVE_ONLY,
                max_results=_PAGE,
                order_by=["attributes.start_time DESC"],
                page_token=token,
            )
        for run in page:
            if run.info.run_id not in at_since:
                yield run
        if not page.token:
            return
        last = page[-1].info.start_time
        if last is None or last == since:
            token = page.token
        else:
            since, token, at_since = last, None, set()
        at_since |= {run.info.run_id for run in page if run.info.start_time == last}


def get_project_run(client: MlflowClient, entry_point: str) -> Run | None:
    """The run that ``mlflow run -e ENTRY_POINT`` opened for this process, if it did."""
    run_id = MLFLOW_RUN_ID.get()
    if not run_id:
        return None
    with mlflow_errors(f"read run {run_id}"):
        run = client.get_run(run_id)
    return run if run.data.tags.get(MLFLOW_PROJECT_ENTRY_POINT) == entry_point else None


def tag_project_run(client: MlflowClient, kind: str) -> str | None:
    """Tag the run that ``mlflow run -e KIND`` opened for a command that opens none; its id."""
    run = get_project_run(client, kind)
    if run is None:
        return None
    with mlflow_errors(f"tag run {run.info.run_id}"):
        client.set_tag(run.info.run_id, names.KIND_TAG, kind)
    return str(run.info.run_id)


def get_or_create_experiment(client: MlflowClient, wanted: str | None = None) -> str:
    """The id of the experiment to open runs in, made where absent; None: the environment's."""
    name = wanted or MLFLOW_EXPERIMENT_NAME.get()
    if not name:
        return str(MLFLOW_EXPERIMENT_ID.get() or DEFAULT_EXPERIMENT_ID)
    if len(name) > 200 or not name.isprintable():
        raise TrackingError("the experiment's name is no printable text of at most 200 characters")

    def find_or_make() -> str:
        experiment = client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else client.create_experiment(name))

    with mlflow_errors("find the experiment"):
        return retry_on_conflict(find_or_make)


def _get(client: MlflowClient, run_id: str) -> Run | MissingRun:
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            problem = mask_credentials(str(error), client.tracking_uri)
            raise TrackingError(f"cannot read run {run_id}: {problem}") from error
        return MissingRun(
            run_id,
            run_id,
            f"no such run in the tracking store {mask_credentials(client.tracking_uri)}",
        )
    if run.info.lifecycle_stage == LifecycleStage.DELETED:
        name = run.info.run_name or run_id
        return MissingRun(run_id, name, "it is deleted; restore it first")
    return run


def find_experiment_ids(client: MlflowClient, wanted: str | None = None) -> list[str]:
    """Ids of all experiments, or of those of a name, else of an id."""
    listed = _experiments(client)
    if wanted is None:
        return [e.experiment_id for e in listed]
    if found := _of_name_or_id(listed, wanted):
        return found
    known = ", ".join(repr(e.name) for e in listed[:20])
    raise TrackingError(
        f"no experiment has the name or id {safe_repr(wanted)} in "
        f"{mask_credentials(client.tracking_uri)}; there are {known}"
    )


def has_experiment(client: MlflowClient, wanted: str) -> bool:
    """Whether an experiment has this name or id."""
    return bool(_of_name_or_id(_experiments(client), wanted))


def _of_name_or_id(listed: list[Experiment], wanted: str) -> list[str]:
    # A name takes precedence over an id: an experiment may be called "3".
    found = [e.experiment_id for e in listed if e.name == wanted]
    return found or [e.experiment_id for e in listed if e.experiment_id == wanted]


def _experiments(client: MlflowClient) -> list[Experiment]:
    with mlflow_errors("list the experiments"):
        page = client.search_experiments(max_results=1000)
        listed = list(page)
        while page.token:
            page = client.search_experiments(max_results=1000, page_token=page.token)
            listed += page
    return listed
