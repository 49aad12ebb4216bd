"""A journal on local disk of what was measured, in order, until the store has taken it.

``unsent/RUN_ID`` has ``journal.json`` (which run, of which store), ``end.json`` (how it ended) and
an entry a file, named by its path among the run's artifacts and by its number, for example
``00000001-accuracy_matrix+rows+row_000.json``. An entry is there as a whole or not at all.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from mlflow.entities import Metric

from clear_mlflow.core.cache_dir import default_cache_dir
from clear_mlflow.core.credentials import has_credentials, mask_credentials
from clear_mlflow.core.durable import write_durably
from clear_mlflow.core.errors import DataError, RecordError, TrackingError
from clear_mlflow.core.text import safe_repr, truncate
from clear_mlflow.core.untrusted import convert, json_value, read_bytes
from clear_mlflow.store import names
from clear_mlflow.store.client import absolute_store
from clear_mlflow.store.lease import process_token

JOURNAL_JSON = "journal.json"
END_JSON = "end.json"
_METRICS_JSON = "metrics.json"
TAGS_JSON = "tags.json"
# A journal sets no others: it may come from anyone.
_TAGS = frozenset({names.ROWS_TAG, names.ANYTIME_TAG, names.PREDICTIONS_TAG, "dataset_digest"})
_LOCK = "lock"
_FORMAT = "1.0"
_MOST_BYTES = 1 << 20  # of a file that is no artifact
# No "#", "?" or "%": MLflow's requests to a server hang on them or name another file.
_ENTRY = re.compile(r"([0-9]{8})-((?:(?!\.)[A-Za-z0-9._-]+\+)*(?!\.)[A-Za-z0-9._-]+)")
Status: TypeAlias = Literal["FINISHED", "FAILED", "KILLED"]


class HeldError(TrackingError):
    """Another process writes to a journal now."""


@dataclass(frozen=True)
class Entry:
    """One thing to send: a file for the run's artifacts, points of metrics, or tags.json."""

    run_id: str
    file: Path

    @property
    def artifact(self) -> str | None:
        """Path among the run's artifacts, or None if the entry is metrics."""
        path = self.file.name[9:].replace("+", "/")
        return None if path == _METRICS_JSON else path

    def tags(self) -> dict[str, str]:
        """Read the tags, name to value, or raise TrackingError if the file is damaged."""
        tags: dict[str, str] = _read(self.file, dict[str, str])
        if unknown := tags.keys() - _TAGS:
            raise TrackingError(
                f"{self.file} is damaged: it sets the tag {safe_repr(min(unknown))}"
            )
        return tags

    def metrics(self) -> list[Metric]:
        """The points that it holds; TrackingError where it holds something else."""
        points = _read(self.file, list[tuple[str, float, int, int]])
        return [Metric(name, value, time, step) for name, value, time, step in points]

    def remove(self) -> None:
        """The store has it: forget it. What cannot be removed is sent again, and is the same."""
        with suppress(OSError):
            self.file.unlink()


@dataclass(frozen=True)
class End:
    """How a training ended that could not be closed in the store."""

    status: Status | None  # what its run is to be given; None leaves it as it is
    error: str | None = None  # one line
    diverged: bool = False  # the loss or the output was no longer a number


@dataclass(frozen=True)
class Origin:
    """Which run a journal is of, and of which store."""

    run_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    tracking_uri: Annotated[str, msgspec.Meta(max_length=2000)]  # without credentials
    password: bool = False  # whether the URI had one, which is not written down
    process: str = ""  # token of the process that wrote it, as in the run's lease


class Journal:
    """One run's journal, held by this process alone until it is closed."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.folder = folder
        self.run_id = run_id
        self._lock: int | None = _locked(folder)
        self._next = 1 + max((number for number, _ in self._numbered()), default=0)

    @classmethod
    def create(cls, folder: Path, run_id: str, tracking_uri: str) -> Journal:
        """Open the journal of a run that trains here; OSError: it cannot be written."""
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        journal = cls(folder, run_id)
        try:
            if waiting := len(journal.entries()):
                raise TrackingError(
                    f"{waiting} files that an earlier process measured for run {run_id} wait in "
                    f"{folder}; send them first: clear-mlflow sync {folder}"
                )
            uri = absolute_store(tracking_uri)
            origin = Origin(run_id, mask_credentials(uri), has_credentials(uri), process_token())
            journal._describe(JOURNAL_JSON, {"format": _FORMAT, **asdict(origin)})
            (folder / END_JSON).unlink(missing_ok=True)
        except BaseException:
            journal.close(remove=is_new)
            raise
        return journal

    @classmethod
    def take(cls, folder: Path, run_id: str) -> Journal:
        """Open a journal that was left; HeldError where the process that writes it lives."""
        try:
            return cls(folder, run_id)
        except OSError as error:
            raise TrackingError(f"{folder} cannot be opened: {error.strerror}") from error

    def append(self, artifact: str, content: bytes) -> Entry:
        """Write a file; it is on the disk when this returns. OSError: nothing of it is there."""
        file = self.folder / f"{self._next:08d}-{artifact.replace('/', '+')}"
        write_durably(file, content)
        self._next += 1
        return Entry(self.run_id, file)

    def append_metrics(self, metrics: Sequence[Metric]) -> Entry:
        """Write points of metrics; as :meth:`append`."""
        points = [[m.key, m.value, m.timestamp, m.step] for m in metrics]
        return self.append(_METRICS_JSON, json.dumps(points).encode())

    def entries(self) -> list[Entry]:
        """What waits, in order."""
        return [Entry(self.run_id, self.folder / name) for _, name in sorted(self._numbered())]

    def write_end(self, end: End) -> None:
        """Write how the training ended; OSError where the disk does not take it."""
        self._describe(END_JSON, asdict(end))

    def end(self) -> End | None:
        """How the training ended; None where its process did not write it down."""
        file = self.folder / END_JSON
        if not file.exists():
            return None
        found: End = _read(file, End)
        # It becomes a tag that people read.
        return replace(found, error=found.error and truncate(found.error, 4000))

    def close(self, *, remove: bool = False) -> None:
        """Let other processes at it; or remove it, when all of it was sent."""
        if remove:
            with suppress(OSError):  # what no training wrote stays, and its folder
                for path in self.folder.iterdir():
                    if path.name in (JOURNAL_JSON, END_JSON, _LOCK) or path.suffix == ".part":
                        path.unlink()
                self.folder.rmdir()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _numbered(self) -> Iterator[tuple[int, str]]:
        for path in self.folder.iterdir():
            # A link may lead to any file of this machine, which would then be sent.
            if (found := _ENTRY.fullmatch(path.name)) and not path.is_symlink() and path.is_file():
                yield int(found[1]), path.name

    def _describe(self, name: str, content: dict[str, Any]) -> None:
        write_durably(self.folder / name, json.dumps(content, indent=1).encode())


def default_root() -> Path:
    """Where journals are, if it can be written: in the cache folder, which survives."""
    return default_cache_dir() / "unsent"


def journal_places(run_id: str) -> list[Path]:
    """Folders for a run's journal, the best first; the last is in the working folder."""
    places = [Path("unsent_rows", run_id).absolute()]
    with suppress(DataError):  # no cache folder
        places.insert(0, default_root() / run_id)
    return places


def left_journals(run_id: str | None = None) -> list[Path]:
    """Journals in the default places, of all runs or of one."""
    found = []
    for place in journal_places("any"):
        with suppress(OSError):
            found += [path for path in journals_in(place.parent) if run_id in (None, path.name)]
    return found


def journals_in(folder: Path) -> list[Path]:
    """Journals that lie in a folder."""
    return sorted(path for path in folder.iterdir() if (path / JOURNAL_JSON).is_file())


def read_origin(folder: Path) -> Origin:
    """Which run a folder is the journal of, and of which store."""
    file = folder / JOURNAL_JSON
    written: Any = _read(file, dict[str, Any]).get("format")
    if written != _FORMAT:
        raise TrackingError(
            f"{file} is of format {safe_repr(written, 40)}; this program knows {_FORMAT}: update it"
        )
    found: Origin = _read(file, Origin)
    return found


def _locked(folder: Path) -> int:
    """Hold a folder against other processes; the system lets go when this one ends, however."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(folder / _LOCK, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise HeldError(f"a process that lives writes to {folder}; it sends it by itself") from None
    return lock


def _read(file: Path, form: Any) -> Any:
    try:
        if not stat.S_ISREG(file.lstat().st_mode):  # a pipe would be waited for, for ever
            raise RecordError("it is no plain file")
        return convert(json_value(read_bytes(file, _MOST_BYTES), _MOST_BYTES, nan=True), form)
    except (OSError, RecordError) as error:
        raise TrackingError(f"{file} is damaged: {error}") from error
