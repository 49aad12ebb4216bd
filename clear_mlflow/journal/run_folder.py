"""A run on local disk: a folder with its artifacts, and with numbered entries for the rest.

``artifacts/`` contains the run's artifacts under their own paths. Parameters, tags, metric values
and so on are JSON files next to it, numbered in the order in which they were written, for example
``00000001-params.json``. Each file is either complete or absent. ``run.json`` names the run and its
store, as far as there are any.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from mlflow.entities import Metric

from clear_mlflow.core.credentials import has_credentials, mask_credentials
from clear_mlflow.core.disk import default_cache_dir, write_durably
from clear_mlflow.core.errors import DataError, RecordError, TrackingError
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.core.text import format_count, safe_repr, truncate
from clear_mlflow.core.untrusted import convert, parse_json, read_bytes
from clear_mlflow.store import names
from clear_mlflow.store.client import resolve_store_uri
from clear_mlflow.store.lease import get_process_token

HEADER_JSON = "run.json"
ARTIFACTS = "artifacts"
INFO_JSON = "info.json"
INPUTS_JSON = "inputs.json"
OUTCOME_JSON = "outcome.json"
METRICS_JSON = "metrics.json"
PARAMS_JSON = "params.json"
TAGS_JSON = "tags.json"
# A folder may come from anyone, so no other tags are set.
_VALID_TAGS = frozenset(
    {
        *(names.ROWS_TAG, names.ANYTIME_TAG, names.PREDICTIONS_TAG, names.STATE_PROBLEM_TAG),
        "dataset_digest",
    }
)
_LOCK = "lock"
FORMAT = "2.0"
MAX_ENTRY_BYTES = 1 << 24
_ENTRY = re.compile(r"[0-9]{8}-(params|tags|metrics|inputs|info|outcome)\.json")
# "#", "?" and "%" change the meaning of an address, on which requests to a server hang.
_FILE_PATH = re.compile(r"([^/\\#?%\x00-\x1f]+/)*[^/\\#?%\x00-\x1f]+")
_REPLACING = threading.Lock()  # no file is replaced between a look at it and its removal
Status: TypeAlias = Literal["FINISHED", "FAILED", "KILLED"]
RunState: TypeAlias = Literal["RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"]


class FolderLockedError(TrackingError):
    """Another process has locked a run folder, because it writes to it."""


@dataclass(frozen=True)
class Outcome:
    """A run's final status, its error, and whether the training diverged."""

    status: Status | None  # None: the status in the store stays as it is
    error: str | None = None  # one line
    diverged: bool = False  # the loss or the output was not a finite number


@dataclass(frozen=True)
class RunHeader:
    """The content of run.json: a run and its store."""

    run_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")] | None = None
    tracking_uri: Annotated[str, msgspec.Meta(max_length=2000)] = ""  # without credentials
    password: bool = False  # True if the store needs credentials, which are not written down
    process: str = ""  # token of the process that wrote the folder, as in the run's lease


class StoredInfo(msgspec.Struct, kw_only=True):
    """Name, status and times of a run, as MLflow has them."""

    name: str
    status: RunState
    start_time: int  # milliseconds since the epoch
    end_time: int | None = None
    is_deleted: bool = False


class StoredInput(msgspec.Struct, kw_only=True):
    """A dataset that a run logged as its input."""

    name: str
    digest: str
    source_type: str
    source: str
    schema: str | None = None
    profile: str | None = None
    tags: dict[str, str] = {}


# The types of the JSON in entries that are not artifacts.
_CONTENT_TYPES: dict[str, Any] = {
    PARAMS_JSON: dict[str, str],
    TAGS_JSON: dict[str, str],
    METRICS_JSON: list[tuple[str, float, int, int]],  # the arguments of MLflow's Metric
    INPUTS_JSON: list[StoredInput],
    INFO_JSON: StoredInfo,
    OUTCOME_JSON: Outcome,
}


@dataclass(frozen=True)
class Entry:
    """One file of a run folder: an artifact, or JSON."""

    file: Path
    artifact: str | None = None  # path among the run's artifacts; None for JSON
    inode: int | None = None  # of the artifact's file: the same path may be written again

    @property
    def name(self) -> str:
        """The artifact's path, or for example "tags.json" for other content."""
        return self.artifact or self.file.name[9:]

    @property
    def folder(self) -> Path:
        """The run folder that contains the file."""
        depth = 0 if self.artifact is None else 1 + self.artifact.count("/")
        return self.file.parents[depth]

    def read(self) -> Any:
        """Read the bytes of an artifact, or parse JSON.

        Raises TrackingError if JSON is damaged.
        """
        if self.artifact is not None:
            return self.file.read_bytes()
        return read_json(self.file, _CONTENT_TYPES[self.name])

    def read_tags(self) -> dict[str, str]:
        """Read the tags in this tags.json, or raise TrackingError.

        Raises TrackingError if the file is damaged or sets a tag that is not in _VALID_TAGS.
        """
        tags: dict[str, str] = self.read()
        if invalid := tags.keys() - _VALID_TAGS:
            raise TrackingError(
                f"{self.file} is damaged: it sets the tag {safe_repr(min(invalid))}"
            )
        return tags

    def read_metrics(self) -> list[Metric]:
        """Read the values in this metrics.json, or raise TrackingError."""
        return [Metric(*point) for point in self.read()]

    @property
    def is_replaced(self) -> bool:
        """True if the artifact was written again, as another entry."""
        with suppress(OSError):
            return self.inode is not None and self.file.stat().st_ino != self.inode
        return False

    def remove(self) -> None:
        """Delete the file, unless it was written again since.

        Errors are ignored: uploading it again would change nothing.
        """
        with _REPLACING, suppress(OSError):
            if not self.is_replaced:
                self.file.unlink()


class RunFolder:
    """A folder on local disk with one run's files to upload.

    It exists, and is locked for this process until it is closed. Raises FolderLockedError if
    another process has it locked. is_durable: False to write faster; a power cut may then damage
    files.
    """

    def __init__(self, folder: Path, *, is_durable: bool = True) -> None:
        self.folder = folder
        self._is_durable = is_durable
        self._lock: int | None = _lock_folder(folder)  # None once it is closed
        self._next_number = find_next_number(folder)

    @classmethod
    def create(cls, folder: Path, run_id: str | None, tracking_uri: str | None) -> RunFolder:
        """Create or reuse a run's folder, lock it, and write run.json.

        Deletes a final status of an earlier process. A new folder is deleted if this fails.

        run_id, tracking_uri: None for a run that no store has. Raises OSError if the folder cannot
        be written, FolderLockedError if another process has it locked, and TrackingError if files
        of an earlier process wait in it for upload.
        """
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        run_folder = cls(folder)
        try:
            if num_entries := len(run_folder.list_entries()):
                raise TrackingError(
                    f"{format_count(num_entries, 'file')} of an earlier process of run {run_id} "
                    f"in {folder} must be sent first: clear-mlflow sync {folder}"
                )
            uri = resolve_store_uri(tracking_uri or "")
            header = RunHeader(
                run_id, mask_credentials(uri), has_credentials(uri), get_process_token()
            )
            content = json.dumps({"format": FORMAT, **asdict(header)}, indent=1).encode()
            write_durably(folder / HEADER_JSON, content)
            for entry in run_folder._list_outcomes():
                entry.file.unlink()
        except BaseException:
            run_folder.close(remove=is_new)
            raise
        return run_folder

    @classmethod
    def reopen(cls, folder: Path) -> RunFolder:
        """Lock an earlier process's folder, or raise FolderLockedError.

        Raises FolderLockedError if a living process has it locked, and TrackingError if it cannot
        be opened, for example because it is missing.
        """
        try:
            return cls(folder)
        except OSError as error:
            raise TrackingError(f"{folder} cannot be opened: {error.strerror}") from error

    def append(self, artifact: str, content: bytes) -> Entry:
        """Write an artifact and return its entry.

        Unless the folder was opened with is_durable=False, the file survives a power cut once this
        has returned, and no part of it remains if this fails. Raises OSError if the disk is full,
        and RecordError if it is a row that the folder has: a row is measured once.
        artifact: path among the run's artifacts.
        """
        file = self.folder / ARTIFACTS / artifact
        if artifact.startswith(f"{ROWS_FOLDER}/") and file.exists():
            raise RecordError(f"{file} exists already; a measured row is never overwritten")
        with _REPLACING:
            self._write(file, content)
            return Entry(file, artifact, file.stat().st_ino)

    def append_json(self, name: str, content: object) -> Entry:
        """Write *content* to the next numbered file, like :meth:`append`.

        Of several outcomes, the last one counts.
        name: PARAMS_JSON, TAGS_JSON, METRICS_JSON or another of these names.
        """
        file = self.folder / f"{self._next_number:08d}-{name}"
        self._write(file, json.dumps(msgspec.to_builtins(content)).encode())
        self._next_number += 1
        return Entry(file)

    def _write(self, file: Path, content: bytes) -> None:
        if self._is_durable:
            write_durably(file, content)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def append_metrics(self, points: Sequence[Metric]) -> Entry:
        """Write at most 900 values of metrics, like :meth:`append_json`."""
        values = [[p.key, limit_value(p.value), p.timestamp, p.step] for p in points]
        return self.append_json(METRICS_JSON, values)

    def list_entries(self) -> list[Entry]:
        """List the files to upload: rows, other artifacts, tags and metrics."""
        artifacts = sorted(
            iter_artifacts(self.folder),
            key=lambda entry: (not entry.name.startswith(f"{ROWS_FOLDER}/"), entry.name),
        )
        entries = list_json_entries(self.folder)
        return artifacts + [e for e in entries if e.name in (TAGS_JSON, METRICS_JSON)]

    def read_outcome(self) -> Outcome | None:
        """Read the run's final status and error, None if not written.

        An error of more than 4,000 characters is truncated. Raises TrackingError if the file is
        damaged.
        """
        outcomes = self._list_outcomes()
        if not outcomes:
            return None
        outcome: Outcome = outcomes[-1].read()
        # It becomes a tag that people read, and a folder may come from anyone.
        return replace(outcome, error=outcome.error and truncate(outcome.error, 4000))

    def close(self, *, remove: bool = False) -> None:
        """Unlock the folder, and with *remove* delete it if it is empty.

        remove: first delete its run.json and final status, and the folder if it is empty then. Set
        it only if all other files are uploaded and deleted. Errors of deleting are ignored.
        """
        if remove:
            with suppress(OSError):
                for entry in self._list_outcomes():
                    entry.file.unlink()
                for name in (HEADER_JSON, _LOCK):
                    (self.folder / name).unlink(missing_ok=True)
                walked = [f for f, _, _ in os.walk(self.folder / ARTIFACTS, topdown=False)]
                for folder in (*map(Path, walked), self.folder):
                    for draft in folder.glob(".*.part"):
                        draft.unlink()
                    folder.rmdir()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _list_outcomes(self) -> list[Entry]:
        return [entry for entry in list_json_entries(self.folder) if entry.name == OUTCOME_JSON]


def list_json_entries(folder: Path) -> list[Entry]:
    """List a run folder's numbered files in order, without links."""
    return [
        Entry(path)
        for path in sorted(folder.iterdir())
        # A link may lead to any file of this machine, which would then be uploaded.
        if _ENTRY.fullmatch(path.name) and not path.is_symlink() and path.is_file()
    ]


def find_next_number(folder: Path) -> int:
    """List a run folder's JSON files, and return the next number."""
    return 1 + max((int(entry.file.name[:8]) for entry in list_json_entries(folder)), default=0)


def iter_artifacts(folder: Path) -> Iterator[Entry]:
    """Yield the artifacts in a run folder that :func:`walk_files` yields."""
    root = folder / ARTIFACTS
    if not root.is_symlink():
        for path, file in walk_files(root):
            yield Entry(file, path, file.stat().st_ino)


def walk_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield relative path and path of each file below a folder.

    Skips links, hidden files, and paths for which :func:`is_safe_path` is False.
    """
    for parent, _, file_names in os.walk(root):
        for file in (Path(parent, name) for name in file_names if not name.startswith(".")):
            path = file.relative_to(root).as_posix()
            if not file.is_symlink() and file.is_file() and is_safe_path(path):
                yield path, file


def is_safe_path(path: str) -> bool:
    """Return True if a path is safe as file path and URL.

    Returns False for absolute paths, "..", and characters such as "#", "?", "%" and backslashes.
    """
    return bool(_FILE_PATH.fullmatch(path)) and not {".", ".."} & {*path.split("/")}


def get_unsent_root() -> Path:
    """Return the user's folder of run folders, or raise DataError."""
    return default_cache_dir() / "unsent"


def list_candidate_folders(run_id: str) -> list[Path]:
    """Return the two folders for a run's files, preferred one first.

    The first is in the user's cache, the second in the working folder. They need not exist.
    """
    folders = [Path("unsent_rows", run_id).absolute()]
    with suppress(DataError):  # no cache folder
        folders.insert(0, get_unsent_root() / run_id)
    return folders


def find_run_folders(run_id: str | None = None) -> list[Path]:
    """List the folders that have a run.json, of all runs or one.

    They are in the user's cache and in the working folder.

    run_id: only folders of this name; None for all. Skips parent folders that cannot be read.
    """
    folders: list[Path] = []
    for candidate in list_candidate_folders("any"):
        with suppress(OSError):
            folders += list_run_folders(candidate.parent)
    return [folder for folder in folders if run_id in (None, folder.name)]


def list_run_folders(parent: Path) -> list[Path]:
    """List the folders in *parent* that have a run.json, sorted.

    Raises OSError if *parent* cannot be read, for example because it is missing.
    """
    return sorted(path for path in parent.iterdir() if (path / HEADER_JSON).is_file())


def limit_value(value: float) -> float:
    """Replace infinity by the largest float, as MLflow's databases do. Keeps NaN."""
    largest = sys.float_info.max
    return min(max(value, -largest), largest)  # in this order, since NaN is in no order


def read_header(folder: Path, content_type: Any = RunHeader) -> Any:
    """Read a folder's run.json, or raise TrackingError.

    Raises TrackingError if the file is damaged or has an unknown format.
    """
    file = folder / HEADER_JSON
    version = read_json(file, dict[str, Any]).get("format")
    if version != FORMAT:
        raise TrackingError(
            f"{file} has format {safe_repr(version, 40)}; this program reads {FORMAT}: update it"
        )
    return read_json(file, content_type)


def _lock_folder(folder: Path) -> int:
    """Lock a folder until a returned descriptor closes, or raise FolderLockedError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(folder / _LOCK, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise FolderLockedError(
            f"another process writes to {folder} now and uploads it itself"
        ) from None
    return lock


def read_json(file: Path, expected_type: Any) -> Any:
    """Read a JSON file, in which NaN is allowed, or raise TrackingError."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):  # opening a pipe would never return
            raise RecordError("it is not a regular file")
        content = read_bytes(file, MAX_ENTRY_BYTES)
        return convert(parse_json(content, MAX_ENTRY_BYTES, nan=True), expected_type)
    except (OSError, RecordError) as error:
        raise TrackingError(f"{file} is damaged: {error}") from error
