"""What several programs do at the same moment to one store."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH

from clear_mlflow.core.durable import flush_folder

# MLflow writes to a database many times a second while it sets it up; on a machine with other work
# a pause of three seconds was seen.
_ABANDONED_SECONDS = 10.0


@contextmanager
def lock_store_opening(tracking_uri: str) -> Iterator[None]:
    """Hold a lock while a store's sqlite database is opened; a new one is set up first."""
    # MLflow sets a new database up in the first call of each process: of several at once all but
    # one fail, and one that is killed leaves what no later one can open (mlflow 3.17).
    database = get_sqlite_path(tracking_uri)
    if database is None:
        yield
        return
    lock_file = database.with_name(f"{database.name}.lock")
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_file.open("wb")
    except OSError:  # a folder that cannot be written: nothing is set up or upgraded there
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not database.exists():
            _set_up(database)
        _wait_until_set_up(database)
        yield
        # Whoever waits for this lock, or makes a new one, finds a database that is set up.
        lock_file.unlink(missing_ok=True)


@contextmanager
def lock_store_writes(tracking_uri: str) -> Iterator[None]:
    """One thread of one process of this user and machine at a time, of an sqlite store alone."""
    database = get_sqlite_path(tracking_uri)
    if database is None:
        yield
        return
    digest = hashlib.sha256(os.fsencode(database.absolute())).hexdigest()[:32]
    path = Path(tempfile.gettempdir(), f"clear_mlflow_{os.getuid()}_{digest}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def get_sqlite_path(tracking_uri: str) -> Path | None:
    """The file of an sqlite store; None for any other store.

    >>> get_sqlite_path("sqlite:////data/mlflow.db"), get_sqlite_path("http://127.0.0.1:5000")
    (PosixPath('/data/mlflow.db'), None)
    """
    scheme, _, rest = tracking_uri.partition("://")
    path = rest.partition("?")[0].removeprefix("/")
    if scheme.partition("+")[0] != "sqlite" or path in ("", ":memory:"):
        return None
    return Path(unquote(path))


def name_sqlite_driver(tracking_uri: str) -> str:
    """Return a percent-encoded sqlite URI with its driver, and any other URI unchanged.

    MLflow 3.17 creates the parent folder of an sqlite store without decoding its name, such as
    ``my%20project``, unless the URI names the driver.
    """
    if "%" in tracking_uri and tracking_uri.startswith("sqlite:"):
        return tracking_uri.replace("sqlite:", "sqlite+pysqlite:", 1)
    return tracking_uri


def _set_up(database: Path) -> None:
    """Set up an empty database beside its place, and move it there."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # a server needs none

    unfinished = database.with_name(f"{database.name}.new")
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    uri = name_sqlite_driver(f"sqlite:///{quote(str(unfinished))}")
    store = SqlAlchemyStore(uri, DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)
    store.engine.dispose()
    # MLflow's own server takes no lock: what it has begun meanwhile stays.
    if database.exists():
        unfinished.unlink()
    else:
        unfinished.rename(database)
        flush_folder(database.parent)


def _wait_until_set_up(database: Path) -> None:
    """Wait for a program that takes no lock, such as MLflow's server, to set up a database."""
    # MLflow writes the experiment Default last.
    written, since = 0, time.monotonic()
    while not _has_an_experiment(database):
        if written != (written := database.stat().st_mtime_ns):
            since = time.monotonic()
        elif time.monotonic() - since > _ABANDONED_SECONDS:
            return
        time.sleep(0.1)


def _has_an_experiment(database: Path) -> bool:
    try:
        with closing(
            sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
        ) as opened:
            return opened.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is not None
    except sqlite3.Error:  # no such table yet; or no database of MLflow's at all
        return False
