"""Read the run folders of offline folders and bundles as runs of MLflow."""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LifecycleStage,
    Metric,
    Param,
    Run,
    RunData,
    RunInfo,
    RunInputs,
    RunTag,
)

from clear_mlflow.core.errors import RecordError, TrackingError
from clear_mlflow.journal.run_folder import (
    ARTIFACTS,
    INFO_JSON,
    INPUTS_JSON,
    METRICS_JSON,
    PARAMS_JSON,
    TAGS_JSON,
    Entry,
    StoredInfo,
    StoredInput,
    list_json_entries,
)

_MAX_TRIES = 1000  # to read a folder in which another process replaces files
# A bundle may be exported without the values of metrics.
_METADATA_ENTRIES = frozenset({PARAMS_JSON, TAGS_JSON, INPUTS_JSON, INFO_JSON})
ALL_ENTRIES = _METADATA_ENTRIES | {METRICS_JSON}


class Content:
    """The JSON entries of a run folder.

    Raises RecordError unless it has those in *required*.
    """

    params: dict[str, str]
    tags: dict[str, str]
    inputs: list[StoredInput]
    info: StoredInfo

    def __init__(self, folder: Path, required: Set[str] = _METADATA_ENTRIES) -> None:
        self.points: list[Metric] = []
        entries = _read_entries(folder)
        if missing := required - {name for name, _ in entries}:
            raise RecordError(f"{folder} lacks its {min(missing)}")
        for name, content in entries:
            if name == METRICS_JSON:
                self.points += content
            elif name in _METADATA_ENTRIES:
                # Each one replaces the one before, which a power cut may have left.
                setattr(self, name.removesuffix(".json"), content)


def _read_entries(folder: Path) -> list[tuple[str, Any]]:
    """Read name and content of each JSON entry at one moment."""
    for _ in range(_MAX_TRIES):
        entries = list_json_entries(folder)
        contents, error = [], None
        try:
            contents = [(e.name, _read_entry(e, *read_file_state(e.file))) for e in entries]
        except (OSError, TrackingError) as raised:
            error = raised
        # A process that replaces an entry writes the new one, then removes the old one.
        if [entry.file for entry in list_json_entries(folder)] == [e.file for e in entries]:
            break
    if error is not None:
        raise error
    return contents


def read_run(
    folder: Path, run_id: str, experiment_id: str, *, required: Set[str] = _METADATA_ENTRIES
) -> Run:
    """Read the run in a folder, with the folder's artifacts.

    Raises RecordError or TrackingError if the folder is damaged. required: see :class:`Content`.
    """
    content = Content(folder, required)
    info = RunInfo(
        run_id=run_id,
        experiment_id=experiment_id,
        user_id=content.tags.get("mlflow.user", ""),
        status=content.info.status,
        start_time=content.info.start_time,
        end_time=content.info.end_time,
        lifecycle_stage=(
            LifecycleStage.DELETED if content.info.is_deleted else LifecycleStage.ACTIVE
        ),
        artifact_uri=(folder.absolute() / ARTIFACTS).as_uri(),
        run_name=content.info.name,
    )
    latest: dict[str, Metric] = {}
    for point in content.points:
        if point.key not in latest or _rank(point) >= _rank(latest[point.key]):
            latest[point.key] = point
    params = [Param(*item) for item in content.params.items()]
    tags = [RunTag(*item) for item in content.tags.items()]
    data = RunData([*latest.values()], params, tags)
    run = Run(info, data, RunInputs([unpack_input(stored) for stored in content.inputs]))
    run.folder = folder  # type: ignore[attr-defined]
    return run


def get_run_folder(run: Run) -> Path | None:
    """Return the folder that a run was read from, or None."""
    folder: Path | None = getattr(run, "folder", None)
    return folder


def read_points(folder: Path) -> list[Metric]:
    """Read all values of all metrics in the order of logging."""
    return Content(folder).points


def pack_input(dataset_input: DatasetInput) -> StoredInput:
    """Convert MLflow's dataset input to the form in a run folder."""
    dataset, tags = dataset_input.dataset, dataset_input.tags
    return StoredInput(**dict(dataset), tags={tag.key: tag.value for tag in tags})


def unpack_input(stored: StoredInput) -> DatasetInput:
    """Convert a dataset in a run folder to MLflow's dataset input."""
    fields = msgspec.structs.asdict(stored)
    tags = fields.pop("tags")
    return DatasetInput(Dataset(**fields), [InputTag(*tag) for tag in tags.items()])


def _rank(point: Metric) -> tuple[int, int, float]:
    """Return a sort key: the latest value of a metric is largest."""
    return point.step, point.timestamp, point.value


def read_file_state(file: Path) -> tuple[int, int, int]:
    """Return numbers that differ after a file was replaced or changed."""
    status = file.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4096)
def _read_entry(entry: Entry, inode: int, time: int, size: int) -> Any:
    """Read an entry's content, from memory while the file is unchanged."""
    return entry.read_metrics() if entry.name == METRICS_JSON else entry.read()
