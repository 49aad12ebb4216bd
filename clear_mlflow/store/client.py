"""Find out in seconds whether MLflow can keep a run, before anything is trained."""

from __future__ import annotations

import contextvars
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar, cast
from urllib.parse import quote, urlsplit

import mlflow
from mlflow import MlflowClient as MlflowClient  # handed on, to those that name no mlflow
from mlflow.entities import LifecycleStage, RunTag
from mlflow.environment_variables import (
    MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR,
    MLFLOW_EXPERIMENT_ID,
    MLFLOW_EXPERIMENT_NAME,
    MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR,
    MLFLOW_HTTP_REQUEST_MAX_RETRIES,
    MLFLOW_HTTP_REQUEST_TIMEOUT,
    MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER,
    MLFLOW_RUN_CONTEXT,
    MLFLOW_RUN_ID,
    MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT,
    MLFLOW_TRACKING_URI,
)
from mlflow.exceptions import MlflowException
from mlflow.store.db.db_types import DATABASE_ENGINES

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ClearError, RecordError, TrackingError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, json_object
from clear_mlflow.store.sqlite import get_sqlite_path, lock_store_opening, name_sqlite_driver

DEFAULT_EXPERIMENT_ID = "0"
_Made = TypeVar("_Made")

# What MLflow answers: for an experiment, and for a row of any other table (mlflow 3.17).
_MADE_BY_ANOTHER = ("RESOURCE_ALREADY_EXISTS", "BAD_REQUEST")

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Items that are begun before the result of the first is taken, for each thread: enough that no
# thread waits for a slow neighbour, and few enough to keep in memory.
_AHEAD = 4


_SERVED = "/mlflow-artifacts/artifacts"


def limit_retries() -> None:
    """Let a call to a dead server fail within seconds (MLflow: minutes), unless a user chose."""
    os.environ.setdefault(MLFLOW_HTTP_REQUEST_MAX_RETRIES.name, "3")
    os.environ.setdefault(MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR.name, "1")
    os.environ.setdefault(MLFLOW_HTTP_REQUEST_TIMEOUT.name, "30")
    # A server may ask for an hour's patience with a 429 or a 503.
    os.environ.setdefault(MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER.name, "false")


def _bound_tries(tracking_uri: str) -> None:
    """Let a database that cannot be opened fail after six seconds of trying (MLflow: 100)."""
    if urlsplit(tracking_uri).scheme.partition("+")[0] in DATABASE_ENGINES:
        from mlflow.store.db import utils  # a server needs none of SQLAlchemy

        utils.MAX_RETRY_COUNT = 6


def set_up_mlflow() -> None:
    """What every command wants of MLflow: calls that end within seconds, and no remarks."""
    limit_retries()
    # Its link to a run quotes the server's credentials.
    os.environ.setdefault(MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.name, "true")
    os.environ.setdefault(MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR.name, "false")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # A database that cannot be written: a traceback of 100 lines before our own line.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


@contextmanager
def mlflow_errors(action: str) -> Iterator[None]:
    """Turn MLflow's refusal of ``action`` into one line that names the store."""
    try:
        yield
    except ClearError:
        raise
    except Exception as error:  # what MLflow's stores and their plugins raise has no common base
        text = " ".join(str(error).split()) or type(error).__name__
        reason = mask_credentials(text, mlflow.get_tracking_uri())[:500]
        if "database is locked" in reason:
            reason += "; does a process write to it that was stopped (ps -o pid,stat,args)?"
        if not isinstance(error, MlflowException):
            reason = f"{type(error).__name__}: {reason}"
        raise TrackingError(
            f"cannot {action} in the tracking store {mask_credentials(mlflow.get_tracking_uri())}: "
            f"{reason}"
        ) from error


def log_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags of a run in one request."""
    client.log_batch(run_id, tags=[RunTag(key, text) for key, text in tags.items()])


def is_server(tracking_uri: str) -> bool:
    """Whether a tracking URI names a server, which can hand artifacts on, or a store itself."""
    return urlsplit(tracking_uri).scheme in ("http", "https")


def resolve_store_uri(tracking_uri: str) -> str:
    """A tracking URI that means the same store in every folder."""
    scheme, separator, path = tracking_uri.partition(":///")
    if scheme.partition("+")[0] != "sqlite" or not separator or path.startswith("/") or not path:
        return tracking_uri
    return f"{scheme}:///{quote(str(Path.cwd()))}/{path}"


def use_store(tracking_uri: str) -> None:
    """Have MLflow use a store in this process, and in those that it starts."""
    set_up_mlflow()
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri
    mlflow.set_tracking_uri(tracking_uri)


def switch_store(tracking_uri: str) -> None:
    """Have MLflow use a store in this process, and keep the environment, which MLflow would set."""
    before = MLFLOW_TRACKING_URI.get()
    mlflow.set_tracking_uri(tracking_uri)
    if before is None:
        MLFLOW_TRACKING_URI.unset()
    else:
        MLFLOW_TRACKING_URI.set(before)


def is_missing_store(tracking_uri: str) -> bool:
    """Return True if a URI names an sqlite database that does not exist."""
    database = get_sqlite_path(tracking_uri)
    return database is not None and not database.exists()


class _MissingStore:
    """Client of a store that does not exist, for commands that may read only bundles."""

    def __init__(self, tracking_uri: str) -> None:
        self.tracking_uri = tracking_uri

    def __getattr__(self, name: str) -> NoReturn:
        raise TrackingError(
            f"the tracking store {mask_credentials(self.tracking_uri)} does not exist; set "
            "MLFLOW_TRACKING_URI to the store of your runs, or change to the folder of its file"
        )


def preflight(*, opens_run: bool = True, experiment: str | None = None) -> MlflowClient:
    """Connect to the tracking store; with *opens_run*, check that it keeps a run with artifacts.

    Without *opens_run*, a missing sqlite store is not created: every call to the client raises.
    """
    switch_store(name_sqlite_driver(mlflow.get_tracking_uri()))
    if not opens_run and is_missing_store(mlflow.get_tracking_uri()):
        return cast(MlflowClient, _MissingStore(mlflow.get_tracking_uri()))
    _bound_tries(mlflow.get_tracking_uri())
    with mlflow_errors("read experiments"), lock_store_opening(mlflow.get_tracking_uri()):
        client = MlflowClient()
        client.search_experiments(max_results=1)
    if not opens_run:
        return client
    try:
        json_object(MLFLOW_RUN_CONTEXT.get() or "{}", MAX_TAG_BYTES)
    except RecordError as error:
        raise TrackingError(
            f"MLFLOW_RUN_CONTEXT is {safe_repr(MLFLOW_RUN_CONTEXT.get(), 100)}; expected tags of "
            "runs "
            'as a JSON object, for example {"team": "vision"}, or nothing'
        ) from error
    if experiment is not None:
        _check_experiment(client, experiment)
        return client
    active = mlflow.active_run()
    run_id = active.info.run_id if active else MLFLOW_RUN_ID.get()
    if run_id:
        check_artifact_root(client.tracking_uri, f"run {run_id}", _artifact_uri_of(client, run_id))
    else:
        _check_experiment(client)
    return client


def _artifact_uri_of(client: MlflowClient, run_id: str) -> str:
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise TrackingError(
            f"run {run_id} (MLFLOW_RUN_ID) is not in the tracking store "
            f"{mask_credentials(client.tracking_uri)} as seen from {Path.cwd()}: "
            f"{mask_credentials(str(error), client.tracking_uri)}; a "
            "relative sqlite path names another file in each folder, so set MLFLOW_TRACKING_URI "
            "to an absolute one (sqlite:////absolute/path/mlflow.db)"
        ) from error
    if run.info.lifecycle_stage == LifecycleStage.DELETED:
        raise TrackingError(f"run {run_id} is deleted; restore it, or unset MLFLOW_RUN_ID")
    return str(run.info.artifact_uri)


def _check_experiment(client: MlflowClient, wanted: str | None = None) -> None:
    name, experiment_id = wanted or MLFLOW_EXPERIMENT_NAME.get(), MLFLOW_EXPERIMENT_ID.get()
    with mlflow_errors(f"read the experiment {name or experiment_id or 'Default'}"):
        if name:
            experiment = client.get_experiment_by_name(name)  # absent: MLflow will create it
        else:
            experiment = client.get_experiment(experiment_id or DEFAULT_EXPERIMENT_ID)
    if experiment is None:
        return
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        raise TrackingError(
            f"experiment {experiment.name!r} is deleted; restore it, or name another with "
            "MLFLOW_EXPERIMENT_NAME"
        )
    check_artifact_root(
        client.tracking_uri, f"experiment {experiment.name!r}", str(experiment.artifact_location)
    )


def check_artifact_root(tracking_uri: str, whose: str, artifact_root: str) -> None:
    """Raise where artifacts are kept behind a server, and the tracking URI names none."""
    if is_server(artifact_root) and _SERVED not in artifact_root:
        raise TrackingError(
            f"{whose} keeps its artifacts at {mask_credentials(artifact_root)}, which is no "
            "artifact store of MLflow; expected a folder, a bucket, or a tracking server's "
            f"(...{_SERVED}): use an experiment with another artifact location"
        )
    # A server that was started on the same database writes its proxied root into the Default
    # experiment; without the server, uploads there fail (mlflow #7819).
    if urlsplit(artifact_root).scheme == "mlflow-artifacts" and not is_server(tracking_uri):
        raise TrackingError(
            f"{whose} keeps its artifacts behind a tracking server ({artifact_root}), but the "
            f"tracking URI is {mask_credentials(tracking_uri)}; set MLFLOW_TRACKING_URI to the "
            "server's address (http://127.0.0.1:5000 for a plain mlflow ui), or use an experiment "
            "of its own (mlflow run --experiment-name NAME, or MLFLOW_EXPERIMENT_NAME=NAME)"
        )


def retry_on_conflict(make: Callable[[], _Made]) -> _Made:
    """Look for what runs share and make it where it is not there; again if another was faster."""
    try:
        return make()
    except MlflowException as error:
        if error.error_code not in _MADE_BY_ANOTHER:
            raise
        return make()


def map_in_threads(
    function: Callable[[_Item], _Result], items: Iterable[_Item], jobs: int
) -> Iterator[_Result]:
    """``map`` with *jobs* threads that work ahead a little; with 1, the caller's does it."""
    if jobs == 1:
        yield from map(function, items)
        return
    threads = ThreadPoolExecutor(jobs, "clear_mlflow pool")
    begun: deque[Future[_Result]] = deque()
    try:
        for item in items:
            # In the caller's context: MLflow keeps there which workspace is meant.
            begun.append(threads.submit(contextvars.copy_context().run, function, item))
            while begun and (len(begun) >= _AHEAD * jobs or begun[0].done()):
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
