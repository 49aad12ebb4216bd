"""The tracking store of an offline folder, for MLflow: each run is a run folder.

So all that uses MLflow works without a server: training, sweeps, other loggers, evaluation.
MLflow's own pages and models need a server; ``clear-mlflow sync`` copies the runs to one.
"""

from __future__ import annotations

import fcntl
import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast
from uuid import uuid4

import msgspec
from mlflow.entities import (
    DatasetInput,
    Experiment,
    ExperimentTag,
    LifecycleStage,
    LoggedModel,
    Metric,
    Param,
    Run,
    RunInfo,
    RunStatus,
    RunTag,
    ViewType,
)
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INVALID_PARAMETER_VALUE,
    RESOURCE_ALREADY_EXISTS,
    RESOURCE_DOES_NOT_EXIST,
)
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking.abstract_store import AbstractStore
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
from mlflow.utils.search_utils import SearchExperimentsUtils, SearchUtils
from mlflow.utils.time import get_current_time_millis
from mlflow.utils.validation import (
    _validate_batch_log_data,
    _validate_dataset_inputs,
    _validate_param_keys_unique,
    _validate_tag,
)

from clear_mlflow.core.disk import write_durably
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.core.text import warn
from clear_mlflow.core.untrusted import format_size
from clear_mlflow.journal.reading import (
    ALL_ENTRIES,
    Content,
    pack_input,
    read_points,
    read_run,
)
from clear_mlflow.journal.run_folder import (
    ARTIFACTS,
    FORMAT,
    HEADER_JSON,
    INFO_JSON,
    INPUTS_JSON,
    MAX_ENTRY_BYTES,
    METRICS_JSON,
    PARAMS_JSON,
    TAGS_JSON,
    RunState,
    StoredInfo,
    find_next_number,
    limit_value,
    list_json_entries,
    read_header,
    read_json,
)
from clear_mlflow.store.client import MAX_POINTS, split_into_batches
from clear_mlflow.store.offline import HEADER

_EXPERIMENTS = "experiments"
_DEFAULT = "0"
_MAX_INTEGER = 2**63 - 1  # in MLflow's databases
_RUN_ID = re.compile("[0-9a-f]{32}")


class _StoredExperiment(msgspec.Struct, kw_only=True):
    """A file in ``experiments/``, whose name is the experiment's id."""

    name: str
    creation_time: int = 0
    tags: dict[str, str] = {}


def list_offline_runs(root: Path) -> list[Path]:
    """List the run folders in an offline folder, sorted by their ids."""
    headers = sorted(root.glob(f"*/{HEADER_JSON}"))
    return [header.parent for header in headers if _RUN_ID.fullmatch(header.parent.name)]


def list_headless_runs(root: Path) -> list[Path]:
    """List folders in an offline folder with rows but without run.json."""
    rows = root.glob(f"*/{ARTIFACTS}/{ROWS_FOLDER}")
    folders = sorted(folder.parents[len(Path(ROWS_FOLDER).parts)] for folder in rows)
    return [folder for folder in folders if not (folder / HEADER_JSON).is_file()]


def read_offline_run(folder: Path) -> Run:
    """Read the run in a folder of an offline folder.

    Raises RecordError or TrackingError if it is damaged.
    """
    return read_run(folder, folder.name, _read_experiment_id(folder), required=ALL_ENTRIES)


class _Experiments(AbstractStore):
    """The experiments of an offline folder: Default, and others in files."""

    def __init__(self, root: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._root = root
        self._lock = threading.RLock()

    def search_experiments(
        self,
        view_type: int = ViewType.ACTIVE_ONLY,
        max_results: int = 1000,
        filter_string: str | None = None,
        order_by: list[str] | None = None,
        page_token: str | None = None,
    ) -> PagedList[Experiment]:
        files = (self._root / _EXPERIMENTS).glob("*.json")
        ids = {_DEFAULT, *(file.stem for file in files if file.stem.isdecimal())}
        experiments = [self.get_experiment(i) for i in sorted(ids, key=int)]
        experiments = SearchExperimentsUtils.filter(experiments, filter_string)
        experiments = SearchExperimentsUtils.sort(experiments, order_by or [])
        return PagedList(*SearchExperimentsUtils.paginate(experiments, page_token, max_results))

    def create_experiment(
        self,
        name: str,
        artifact_location: str | None = None,
        tags: Sequence[ExperimentTag] | None = None,
    ) -> str:
        with self._lock_file(self._root / HEADER):
            if self.get_experiment_by_name(name) is not None:
                raise MlflowException(f"Experiment {name!r} exists.", RESOURCE_ALREADY_EXISTS)
            experiments = self.search_experiments(max_results=50_000)
            experiment_id = str(1 + max(int(e.experiment_id) for e in experiments))
            experiment = _StoredExperiment(
                name=name,
                creation_time=get_current_time_millis(),
                tags={tag.key: tag.value for tag in tags or ()},
            )
            self._write_experiment(experiment_id, experiment)
        return experiment_id

    def get_experiment(self, experiment_id: str) -> Experiment:
        stored = self._read_experiment(experiment_id)
        return Experiment(
            experiment_id,
            stored.name,
            self._root.as_uri(),
            LifecycleStage.ACTIVE,
            [ExperimentTag(*item) for item in stored.tags.items()],
            stored.creation_time,
            stored.creation_time,
        )

    def get_experiment_by_name(self, experiment_name: str) -> Experiment | None:
        experiments = self.search_experiments(max_results=50_000)
        return next((e for e in experiments if e.name == experiment_name), None)

    def set_experiment_tag(self, experiment_id: str, tag: ExperimentTag) -> None:
        with self._lock_file(self._root / HEADER):
            stored = self._read_experiment(experiment_id)
            stored.tags = {**stored.tags, tag.key: tag.value}
            self._write_experiment(experiment_id, stored)

    def _read_experiment(self, experiment_id: str) -> _StoredExperiment:
        file = self._root / _EXPERIMENTS / f"{experiment_id}.json"
        if experiment_id.isdecimal() and file.is_file():
            stored: _StoredExperiment = read_json(file, _StoredExperiment)
            return stored
        if experiment_id == _DEFAULT:
            return _StoredExperiment(name=Experiment.DEFAULT_EXPERIMENT_NAME)
        raise MlflowException(
            f"No Experiment with id={experiment_id} exists", RESOURCE_DOES_NOT_EXIST
        )

    def _write_experiment(self, experiment_id: str, stored: _StoredExperiment) -> None:
        file = self._root / _EXPERIMENTS / f"{experiment_id}.json"
        write_durably(file, msgspec.json.encode(stored))

    @contextmanager
    def _lock_file(self, file: Path) -> Iterator[None]:
        """Wait for a lock that excludes other writers during the block."""
        with self._lock, file.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


class OfflineStore(_Experiments):
    """MLflow's tracking store in an offline folder.

    The folder has ``offline.json``, a folder for each run, and a file for each experiment. Several
    processes, and threads, may write at the same time.
    """

    def create_run(
        self,
        experiment_id: str,
        user_id: str,
        start_time: int,
        tags: Sequence[RunTag] | None,
        run_name: str | None,
    ) -> Run:
        self.get_experiment(experiment_id)  # raises if it does not exist
        valid_tags = [_validate_tag(tag.key, str(tag.value)) for tag in tags or ()]
        all_tags = {tag.key: tag.value for tag in valid_tags}
        name = run_name or all_tags.get(MLFLOW_RUN_NAME) or f"run {uuid4().hex[:8]}"
        run_id = uuid4().hex
        folder = self._root / run_id
        header = {"format": FORMAT, "run_id": run_id, "experiment_id": experiment_id}
        contents = {
            TAGS_JSON: {**all_tags, MLFLOW_RUN_NAME: name},
            INFO_JSON: StoredInfo(name=name, status="RUNNING", start_time=start_time),
            PARAMS_JSON: {},
            INPUTS_JSON: [],
            METRICS_JSON: [],
        }
        for entry_name, content in contents.items():
            _append(folder, entry_name, content)
        # At last: a folder without this file does not count as a run.
        write_durably(folder / HEADER_JSON, json.dumps(header).encode())
        return self.get_run(run_id)

    def get_run(self, run_id: str) -> Run:
        return read_offline_run(self._get_folder(run_id))

    def update_run_info(
        self, run_id: str, run_status: int | None, end_time: int | None, run_name: str | None
    ) -> RunInfo:
        with self._open(run_id, must_be_active=True) as (folder, content):
            info = msgspec.structs.replace(content.info)
            if end_time is not None:
                info.end_time = end_time
            if run_status is not None:
                info.status = cast(RunState, RunStatus.to_string(run_status))
            if run_name:
                info.name = run_name
                _replace(folder, TAGS_JSON, {**content.tags, MLFLOW_RUN_NAME: run_name})
            _replace(folder, INFO_JSON, info)
        return self.get_run(run_id).info

    def delete_run(self, run_id: str) -> None:
        self._set_deleted(run_id, is_deleted=True)

    def restore_run(self, run_id: str) -> None:
        self._set_deleted(run_id, is_deleted=False)

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Metric],
        params: Sequence[Param],
        tags: Sequence[RunTag],
    ) -> None:
        # What no other store accepts could not be copied to one later.
        metrics, params, tags = _validate_batch_log_data(metrics, params, tags)
        _validate_param_keys_unique(params)
        with self._open(run_id, must_be_active=True) as (folder, content):
            new_params = {param.key: str(param.value) for param in params}
            for key, value in new_params.items():
                if (stored := content.params.get(key, value)) != value:
                    raise MlflowException(
                        "Changing param values is not allowed. Param with key="
                        f"{key!r} was already logged with value={stored!r} for run ID={run_id!r}. "
                        f"Attempted logging new value {value!r}.",
                        INVALID_PARAMETER_VALUE,
                    )
            if new_params.keys() - content.params.keys():
                _replace(folder, PARAMS_JSON, {**content.params, **new_params})
            _append_points(folder, content.points, metrics)
            if tags:
                new_tags = {tag.key: str(tag.value) for tag in tags}
                _replace(folder, TAGS_JSON, {**content.tags, **new_tags})
                if name := new_tags.get(MLFLOW_RUN_NAME):
                    info = msgspec.structs.replace(content.info, name=name)
                    _replace(folder, INFO_JSON, info)

    def delete_tag(self, run_id: str, key: str) -> None:
        with self._open(run_id, must_be_active=True) as (folder, content):
            if key not in content.tags:
                raise MlflowException(
                    f"No tag with name: {key} in run with id {run_id}", RESOURCE_DOES_NOT_EXIST
                )
            _replace(folder, TAGS_JSON, {k: v for k, v in content.tags.items() if k != key})

    def log_inputs(
        self, run_id: str, datasets: Sequence[DatasetInput] | None = None, models: object = None
    ) -> None:
        _validate_dataset_inputs(list(datasets or ()))
        with self._open(run_id, must_be_active=True) as (folder, content):
            new_inputs = [pack_input(dataset) for dataset in datasets or ()]
            stored_ids = {(stored.name, stored.digest) for stored in content.inputs}
            inputs = [i for i in new_inputs if (i.name, i.digest) not in stored_ids]
            if inputs:
                _replace(folder, INPUTS_JSON, [*content.inputs, *inputs])

    def get_metric_history(
        self,
        run_id: str,
        metric_key: str,
        max_results: int | None = None,
        page_token: str | None = None,
    ) -> PagedList[Metric]:
        points = read_points(self._get_folder(run_id))
        return PagedList([point for point in points if point.key == metric_key], None)

    def _search_runs(
        self,
        experiment_ids: Sequence[str],
        filter_string: str | None,
        run_view_type: int,
        max_results: int,
        order_by: list[str] | None,
        page_token: str | None,
    ) -> tuple[list[Run], str | None]:
        stages = LifecycleStage.view_type_to_stages(run_view_type)
        runs = []
        for folder in list_offline_runs(self._root):
            try:
                run = self.get_run(folder.name)
            except ClearError as error:  # the others can be read
                warn(f"{folder} is not used: {error}")
                continue
            if run.info.experiment_id in experiment_ids and run.info.lifecycle_stage in stages:
                runs.append(run)
        runs = SearchUtils.sort(SearchUtils.filter(runs, filter_string), order_by)
        page: tuple[list[Run], str | None] = SearchUtils.paginate(runs, page_token, max_results)
        return page

    def search_logged_models(self, *args: object, **options: object) -> PagedList[LoggedModel]:
        """Return no models: they are logged when the run is copied."""
        return PagedList([], None)

    def _refuse(self, *args: object, **options: object) -> NoReturn:
        raise MlflowException(
            "An offline folder contains runs only. Models, traces and changes of experiments need "
            "another store; clear-mlflow sync copies the runs to it.",
            INVALID_PARAMETER_VALUE,
        )

    create_logged_model = delete_experiment = restore_experiment = rename_experiment = _refuse
    link_traces_to_run = start_trace = _refuse

    def _get_folder(self, run_id: str) -> Path:
        folder = self._root / run_id
        # The id may be anything that a user typed.
        if not _RUN_ID.fullmatch(run_id) or not (folder / HEADER_JSON).is_file():
            raise MlflowException(f"Run '{run_id}' not found", RESOURCE_DOES_NOT_EXIST)
        return folder

    @contextmanager
    def _open(self, run_id: str, *, must_be_active: bool = False) -> Iterator[tuple[Path, Content]]:
        """Lock a run's folder during the block, and yield its content."""
        folder = self._get_folder(run_id)
        with self._lock_file(folder / HEADER_JSON):
            content = Content(folder, ALL_ENTRIES)
            if must_be_active and content.info.is_deleted:
                raise MlflowException(
                    f"The run {run_id} must be in 'active' lifecycle_stage.",
                    INVALID_PARAMETER_VALUE,
                )
            yield folder, content

    def _set_deleted(self, run_id: str, *, is_deleted: bool) -> None:
        with self._open(run_id) as (folder, content):
            info = msgspec.structs.replace(content.info, is_deleted=is_deleted)
            _replace(folder, INFO_JSON, info)


def _append(folder: Path, name: str, content: object) -> Path:
    file = folder / f"{find_next_number(folder) if folder.exists() else 1:08d}-{name}"
    text = json.dumps(msgspec.to_builtins(content), ensure_ascii=False)
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise MlflowException(
            f"{error.object[error.start]!r} is not a Unicode text", INVALID_PARAMETER_VALUE
        ) from error
    if len(encoded) > MAX_ENTRY_BYTES:
        raise MlflowException(
            f"The {name.removesuffix('.json')} of a run in an offline folder may have up to "
            f"{format_size(MAX_ENTRY_BYTES)} in all.",
            INVALID_PARAMETER_VALUE,
        )
    write_durably(file, encoded)
    return file


def _replace(folder: Path, name: str, content: object) -> None:
    """Write an entry, and delete earlier ones of this name."""
    outdated = [entry for entry in list_json_entries(folder) if entry.name == name]
    _append(folder, name, content)
    for entry in outdated:
        entry.remove()


def _append_points(folder: Path, stored: Sequence[Metric], points: Sequence[Metric]) -> None:
    """Write new values to the last entry of metrics, or another."""
    identities = {repr(_list_fields(point)) for point in stored} if points else set()
    new = {repr(_list_fields(point)): _list_fields(point) for point in points}
    new_points = [fields for identity, fields in new.items() if identity not in identities]
    if not new_points:
        return
    entries = [entry for entry in list_json_entries(folder) if entry.name == METRICS_JSON]
    last: list[Any] = list(entries[-1].read())
    if len(last) + len(new_points) <= MAX_POINTS:
        write_durably(entries[-1].file, json.dumps([*last, *new_points]).encode())
        return
    for batch in split_into_batches(new_points, MAX_POINTS):
        _append(folder, METRICS_JSON, batch)


def _list_fields(point: Metric) -> list[Any]:
    """Return the fields of a value, or raise MlflowException for huge integers."""
    timestamp, step = int(point.timestamp), int(point.step)
    if max(timestamp, abs(step)) > _MAX_INTEGER:
        raise MlflowException(
            f"Metric {point.key!r} has the timestamp {timestamp} and the step {step}, and may "
            "have 64-bit integers.",
            INVALID_PARAMETER_VALUE,
        )
    return [point.key, limit_value(float(point.value)), timestamp, step]


def _read_experiment_id(folder: Path) -> str:
    return str(read_header(folder, dict[str, Any]).get("experiment_id"))
