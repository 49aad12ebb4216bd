"""Connect to MLflow, and find out within seconds whether it can store a run."""

from __future__ import annotations

import contextvars
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urlsplit

import mlflow
from mlflow import MlflowClient as MlflowClient  # for modules that may not import MLflow
from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag
from mlflow.environment_variables import (
    MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR,
    MLFLOW_EXPERIMENT_ID,
    MLFLOW_EXPERIMENT_NAME,
    MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR,
    MLFLOW_HTTP_REQUEST_MAX_RETRIES,
    MLFLOW_HTTP_REQUEST_TIMEOUT,
    MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER,
    MLFLOW_RUN_ID,
    MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT,
    MLFLOW_TRACKING_URI,
)
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.db.db_types import DATABASE_ENGINES
from mlflow.tracking.fluent import _active_run_stack, run_id_to_system_metrics_monitor

# MLflow lacks a public way to recognise a generated name.
from mlflow.utils.name_utils import _GENERATOR_NOUNS, _GENERATOR_PREDICATES

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.disk import OFFLINE_VARIABLE, find_offline_folder
from clear_mlflow.core.errors import ClearError, TrackingError
from clear_mlflow.core.text import warn
from clear_mlflow.store.offline import (
    format_offline_uri,
    get_offline_folder,
    is_offline_folder,
    prepare_offline_folder,
)
from clear_mlflow.store.sqlite import get_sqlite_path, lock_store_opening, name_sqlite_driver

if TYPE_CHECKING:  # it loads psutil, which a server may lack
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

DEFAULT_EXPERIMENT_ID = "0"
# MLflow takes 1,000 values, parameters and tags together in a request, of at most 1 MB.
MAX_POINTS = 900
_MAX_ITEMS = 50  # parameters, and tags

_SERVED_ARTIFACTS = "/mlflow-artifacts/artifacts"
# Items per thread that map_in_threads starts before it needs their results: no thread waits for a
# slow neighbour, and the results fit into memory.
_ITEMS_AHEAD = 4

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def limit_retries() -> None:
    """Set missing environment variables so that calls to dead servers end soon."""
    os.environ.setdefault(MLFLOW_HTTP_REQUEST_MAX_RETRIES.name, "3")
    os.environ.setdefault(MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR.name, "1")
    os.environ.setdefault(MLFLOW_HTTP_REQUEST_TIMEOUT.name, "30")
    # With a 429 or 503, a server may ask for a wait of an hour.
    os.environ.setdefault(MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER.name, "false")


def set_up_mlflow() -> None:
    """Limit MLflow's retries and messages, by os.environ and levels of loggers.

    Keeps the environment variables that the user set.
    """
    limit_retries()
    # MLflow's link to a run contains the server's credentials.
    os.environ.setdefault(MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.name, "true")
    os.environ.setdefault(MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR.name, "false")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It logs a traceback of 100 lines for a database that is not writable.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


@contextmanager
def mlflow_errors(action: str) -> Iterator[None]:
    """Turn errors of the block into one-line TrackingErrors without credentials.

    action: what failed, for the message: "cannot *action* in the tracking store". Errors of this
    package (ClearError) pass unchanged.
    """
    try:
        yield
    except ClearError:
        raise
    except Exception as error:  # the errors of MLflow's stores and plugins share no base class
        message = " ".join(str(error).split()) or type(error).__name__
        # SQLAlchemy's hint to programmers, the statement and its values are left out.
        message = message.partition(" [SQL: ")[0].rpartition("occurring prematurely) ")[2]
        reason = mask_credentials(message, mlflow.get_tracking_uri())[:500]
        if "database is locked" in reason:
            reason += "; does a process write to it that was stopped (ps -o pid,stat,args)?"
        if not isinstance(error, MlflowException):
            reason = f"{type(error).__name__}: {reason}"
        raise TrackingError(
            f"cannot {action} in the tracking store {mask_credentials(mlflow.get_tracking_uri())}: "
            f"{reason}"
        ) from error


def get_run(client: MlflowClient, run_id: str) -> Run:
    """Read a run, also a deleted one, or raise TrackingError."""
    with mlflow_errors(f"read run {run_id}"):
        return client.get_run(run_id)


def log_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags of a run in one request."""
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])


def log_in_batches(
    client: MlflowClient,
    run_id: str,
    points: Iterable[Metric] = (),
    params: Mapping[str, str] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Log values, parameters and tags in few requests, the tags last.

    Values that another process logs at the same time may make a store refuse one; it is sent again.
    """
    param_list = [Param(*item) for item in params.items()]
    tag_list = [RunTag(*item) for item in tags.items()]
    point_batches = split_into_batches(points, MAX_POINTS)
    param_batches = split_into_batches(param_list, _MAX_ITEMS)
    batches = zip_longest(point_batches, param_batches, fillvalue=())
    batch = next(batches, ((), ()))
    for next_batch in batches:
        retry_on_conflict(partial(client.log_batch, run_id, *batch))
        batch = next_batch
    first_tags, *other_tags = [*split_into_batches(tag_list, _MAX_ITEMS)] or [[]]
    if any((*batch, first_tags)):
        retry_on_conflict(partial(client.log_batch, run_id, *batch, first_tags))
    for tag_batch in other_tags:
        retry_on_conflict(partial(client.log_batch, run_id, tags=tag_batch))


def split_into_batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield lists of *size* items, the last one of fewer."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def is_server(tracking_uri: str) -> bool:
    """Return True if a tracking URI names a tracking server."""
    return urlsplit(tracking_uri).scheme in ("http", "https")


def resolve_store_uri(tracking_uri: str) -> str:
    """Make the path in an sqlite URI absolute, others are unchanged.

    A relative path of an sqlite URI starts from the working folder.
    """
    scheme, separator, path = tracking_uri.partition(":///")
    if scheme.partition("+")[0] != "sqlite" or not separator or path.startswith("/") or not path:
        return tracking_uri
    return f"{scheme}:///{quote(str(Path.cwd()))}/{path}"


def switch_store(tracking_uri: str) -> None:
    """Make MLflow use a store in this process, not its children."""
    environment_uri = MLFLOW_TRACKING_URI.get()
    mlflow.set_tracking_uri(tracking_uri)
    MLFLOW_TRACKING_URI.unset()
    if environment_uri is not None:
        MLFLOW_TRACKING_URI.set(environment_uri)


def use_offline_store(*, creates: bool) -> None:
    """Switch MLflow and os.environ to the folder of CLEAR_MLFLOW_OFFLINE, if set.

    Makes the paths in the environment absolute, for child processes. If ``mlflow run`` opened a run
    of another store, warns that the run remains empty, and unsets MLFLOW_RUN_ID and
    MLFLOW_EXPERIMENT_ID.

    creates: True to create the folder if it does not exist; with False, a missing folder is still
    made MLflow's store. Raises TrackingError if MLflow's active run is in another store, or the
    folder cannot be used.
    """
    folder, environment_uri = find_offline_folder(), MLFLOW_TRACKING_URI.get()
    if folder is None:
        return
    uri = format_offline_uri(folder)
    if uri != mlflow.get_tracking_uri() and mlflow.active_run() is not None:
        raise TrackingError(
            "an MLflow run of another store is active, and this is recorded offline; end that run "
            "first (mlflow.end_run()), or leave offline out"
        )
    prepare_offline_folder(folder, creates=creates)
    # Processes that this one starts may have another working folder.
    os.environ[OFFLINE_VARIABLE] = str(folder)
    switch_store(uri)
    is_project = all(v.get() for v in (MLFLOW_RUN_ID, MLFLOW_EXPERIMENT_ID, MLFLOW_TRACKING_URI))
    if is_project and environment_uri != uri:
        warn(
            f"run {MLFLOW_RUN_ID.get()}, which mlflow run opened, remains empty: what is measured "
            f"is recorded in {folder}"
        )
        MLFLOW_RUN_ID.unset()
        MLFLOW_EXPERIMENT_ID.unset()


def is_missing_store(tracking_uri: str) -> bool:
    """Return True for a missing folder, or a missing or empty database."""
    if folder := get_offline_folder(tracking_uri):
        return not is_offline_folder(folder)
    database = get_sqlite_path(tracking_uri)
    return database is not None and not (database.exists() and database.stat().st_size)


class _LazyClient:
    """Client that connects at its first use: bundles need no store."""

    def __init__(self) -> None:
        self.tracking_uri = name_sqlite_driver(mlflow.get_tracking_uri())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @cached_property
    def _client(self) -> MlflowClient:
        return connect_store(opens_run=False)


def open_store() -> MlflowClient:
    """Return a client that connects at its first use.

    Calls :func:`set_up_mlflow` and :func:`use_offline_store`. The client connects when one of its
    methods is first called, which raises TrackingError if the store does not exist or cannot be
    reached.
    """
    set_up_mlflow()
    use_offline_store(creates=False)
    return cast(MlflowClient, _LazyClient())


def connect_store(
    *, opens_run: bool = True, experiment: str | None = None, can_be_offline: bool = True
) -> MlflowClient:
    """Switch MLflow to its store or offline folder, connect, and check it.

    Shortens MLflow's waits for databases. Raises TrackingError if the store cannot be reached.

    opens_run: True creates a missing offline folder or sqlite database, and raises TrackingError if
    the run or experiment to record in is deleted or its artifact location cannot be used. False
    only connects, and raises TrackingError if the sqlite database is missing.
    experiment: name of the experiment to record in; None for MLflow's active run, or else the run
    or experiment that its environment variables name.
    can_be_offline: False if the error for an unreachable server should not suggest recording
    offline.
    """
    try:
        return _connect_store(opens_run, experiment, can_be_offline)
    except TrackingError as error:
        raise error from None  # in a script, a hundred lines of MLflow's would precede its sentence


def _connect_store(opens_run: bool, experiment: str | None, can_be_offline: bool) -> MlflowClient:
    use_offline_store(creates=opens_run)
    uri = name_sqlite_driver(mlflow.get_tracking_uri())
    if not uri.strip():
        raise TrackingError(
            "the tracking URI is blank; set MLFLOW_TRACKING_URI to a store of runs, or unset it"
        )
    for variable in (MLFLOW_RUN_ID, MLFLOW_EXPERIMENT_ID):
        if (value := variable.get()) and not value.strip():
            raise TrackingError(f"{variable.name} is blank; set it to an id, or unset it")
    switch_store(uri)
    if not opens_run and is_missing_store(uri):
        if folder := get_offline_folder(uri):
            raise TrackingError(
                f"the offline folder {folder} does not exist; set {OFFLINE_VARIABLE} to the folder "
                "of your runs, or unset it"
            )
        raise TrackingError(
            f"the tracking store {mask_credentials(uri)} does not exist; set MLFLOW_TRACKING_URI "
            "to the store of your runs, or change to the folder of its file"
        )
    if urlsplit(uri).scheme.partition("+")[0] in DATABASE_ENGINES:
        from mlflow.store.db import utils  # not at the top: a server does not need SQLAlchemy

        utils.MAX_RETRY_COUNT = 6  # seconds for a database that cannot be opened (MLflow: 100)
    try:
        with mlflow_errors("read experiments"), lock_store_opening(uri):
            client = MlflowClient()
            client.search_experiments(max_results=1)
    except TrackingError as error:
        if not (opens_run and can_be_offline and is_server(uri)):
            raise
        raise TrackingError(
            f"{error}; to record the run in a folder until the server is reached, pass "
            f"offline=True to train, sweep or track, or set {OFFLINE_VARIABLE}=1"
        ) from None
    if not opens_run:
        return client
    active_run = mlflow.active_run()
    run_id = active_run.info.run_id if active_run else MLFLOW_RUN_ID.get()
    if run_id and experiment is None:
        _check_run(client, run_id)
    else:
        _check_experiment(client, experiment)
    return client


def _check_run(client: MlflowClient, run_id: str) -> None:
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        uri = client.tracking_uri
        advice = "unset MLFLOW_RUN_ID to open a new run"
        if resolve_store_uri(uri) != uri:
            advice += (
                f", or set MLFLOW_TRACKING_URI to an absolute path: {uri} is another file in each "
                f"folder, here in {Path.cwd()}"
            )
        raise TrackingError(
            f"cannot read run {run_id} (MLFLOW_RUN_ID) in the tracking store "
            f"{mask_credentials(uri)}: {mask_credentials(str(error), uri)}; {advice}"
        ) from error
    if run.info.lifecycle_stage == LifecycleStage.DELETED:
        raise TrackingError(f"run {run_id} is deleted; restore it, or unset MLFLOW_RUN_ID")
    check_artifact_root(client.tracking_uri, f"run {run_id}", str(run.info.artifact_uri))


def _check_experiment(client: MlflowClient, name: str | None) -> None:
    name = MLFLOW_EXPERIMENT_NAME.get() or None if name is None else name
    experiment_id = MLFLOW_EXPERIMENT_ID.get()
    if name is not None and not name.strip():
        raise TrackingError(
            "the experiment's name is blank; pass experiment=NAME, or set MLFLOW_EXPERIMENT_NAME"
        )
    with mlflow_errors(f"read the experiment {name or experiment_id or 'Default'}"):
        if name:
            experiment = client.get_experiment_by_name(name)
        else:
            try:
                experiment = client.get_experiment(experiment_id or DEFAULT_EXPERIMENT_ID)
            except MlflowException as error:
                if experiment_id or error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                raise TrackingError(
                    f"{mask_credentials(client.tracking_uri)} lacks the experiment Default, like "
                    "each workspace except default; pass experiment=NAME, or set "
                    "MLFLOW_EXPERIMENT_NAME"
                ) from error
    if experiment is None:  # MLflow will create it
        return
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        raise TrackingError(
            f"experiment {experiment.name!r} is deleted; restore it, or name another with "
            "MLFLOW_EXPERIMENT_NAME"
        )
    check_artifact_root(
        client.tracking_uri, f"experiment {experiment.name!r}", str(experiment.artifact_location)
    )


def check_artifact_root(tracking_uri: str, name: str, artifact_root: str) -> None:
    """Raise TrackingError if MLflow cannot store artifacts at a URI.

    Checks only the URI: a web address must be a tracking server's, and ``mlflow-artifacts:``, which
    names artifacts behind a server, needs the URI of a server as *tracking_uri*.

    name: the run or experiment that has the artifacts, for the message.
    """
    if is_server(artifact_root) and _SERVED_ARTIFACTS not in artifact_root:
        raise TrackingError(
            f"{name} stores its artifacts at {mask_credentials(artifact_root)}, which is not an "
            "artifact store of MLflow; expected a folder, a bucket, or a tracking server's "
            f"(...{_SERVED_ARTIFACTS}): use an experiment with another artifact location"
        )
    # A server that was started on the same database writes its proxied root into the Default
    # experiment; without the server, uploads there fail (mlflow #7819).
    if urlsplit(artifact_root).scheme == "mlflow-artifacts" and not is_server(tracking_uri):
        raise TrackingError(
            f"{name} stores its artifacts behind a tracking server ({artifact_root}), but the "
            f"tracking URI is {mask_credentials(tracking_uri)}; set MLFLOW_TRACKING_URI to the "
            "server's address (http://127.0.0.1:5000 for a plain mlflow ui), or use another "
            "experiment (mlflow run --experiment-name NAME, or MLFLOW_EXPERIMENT_NAME=NAME)"
        )


def retry_on_conflict(find_or_create: Callable[[], _Result]) -> _Result:
    """Call a function, and once more after a conflict with another process.

    That is an MlflowException because another process has just created the same thing. The second
    call's errors are raised.
    """
    try:
        return find_or_create()
    except MlflowException as error:
        # If an experiment, or any other row, exists already (mlflow 3.17).
        if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "BAD_REQUEST"):
            raise
        return find_or_create()


def map_in_threads(
    function: Callable[[_Item], _Result], items: Iterable[_Item], num_threads: int
) -> Iterator[_Result]:
    """Yield the function's result for each item in order, using threads.

    At most four items per thread are started before their results are requested. With one thread,
    the caller's thread computes each result when it is requested. An error of the function is
    raised in place of its result; items that were not started are then dropped.
    """
    if num_threads == 1:
        yield from map(function, items)
        return
    threads = ThreadPoolExecutor(num_threads, "clear_mlflow pool")
    futures: deque[Future[_Result]] = deque()
    try:
        for item in items:
            # The caller's context contains MLflow's workspace.
            futures.append(threads.submit(contextvars.copy_context().run, function, item))
            while futures and (len(futures) >= _ITEMS_AHEAD * num_threads or futures[0].done()):
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


# Private parts of MLflow 3.17; no other module uses any.


def is_generated_name(name: str | None) -> bool:
    """Return True if MLflow generated a run's name, or it is empty.

    >>> is_generated_name("upbeat-foal-91"), is_generated_name("replay-3"), is_generated_name(None)
    (True, False, True)
    """
    if not name:
        return True
    match = re.fullmatch(r"([a-z]+)-([a-z]+)-[0-9]+", name)
    return bool(match and match[1] in _GENERATOR_PREDICATES and match[2] in _GENERATOR_NOUNS)


def download_file(repository: ArtifactRepository, name: str, to: Path) -> None:
    """Download one artifact with one request. to: local file to write."""
    repository._download_file(name, str(to))


def forget_active_run(run_id: str) -> None:
    """Remove a run from MLflow's active runs without ending it."""
    stack = _active_run_stack.get()
    stack[:] = [run for run in stack if run.info.run_id != run_id]


def forget_system_metrics(run_id: str) -> SystemMetricsMonitor | None:
    """Take a run's system metrics monitor from MLflow unstopped, or None.

    MLflow then does not wait for the monitor when the run ends.
    """
    monitor: SystemMetricsMonitor | None = run_id_to_system_metrics_monitor.pop(run_id, None)
    return monitor
