"""Locks for sqlite stores that several processes open or write at the same time."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH

from clear_mlflow.core.disk import flush_folder

# MLflow writes to a database many times a second while it sets it up, but a busy machine caused a
# pause of three seconds.
_ABANDONED_SECONDS = 10.0


@contextmanager
def lock_store_opening(tracking_uri: str) -> Iterator[None]:
    """Create and lock an sqlite store while the block opens it.

    Waits until no other process has the lock, and until another program that is setting up the
    database has finished, or has written nothing for 10 seconds. Does nothing for any other store,
    or if the folder of the database cannot be written.
    """
    # MLflow sets up a new database in the first call of each process. If several do it at once, all
    # but one fail; one that is killed leaves a database that cannot be opened (mlflow 3.17).
    database = get_sqlite_path(tracking_uri)
    if database is None:
        yield
        return
    lock_file = database.with_name(f"{database.name}.lock")
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_file.open("wb")
    except OSError:  # in a folder that is not writable, nothing is set up or upgraded
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not database.exists():
            _create_database(database)
        _wait_until_set_up(database)
        yield
        # The next process to lock, even with a new lock file, finds a database that is set up.
        lock_file.unlink(missing_ok=True)


@contextmanager
def lock_store_writes(tracking_uri: str) -> Iterator[None]:
    """Wait for a lock that only one writer to sqlite has.

    Waits for the others, without a limit. Does nothing for any other store.
    """
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
    """Return the database file of an sqlite store, None for others.

    >>> get_sqlite_path("sqlite:////data/mlflow.db"), get_sqlite_path("http://127.0.0.1:5000")
    (PosixPath('/data/mlflow.db'), None)
    """
    scheme, _, rest = tracking_uri.partition("://")
    path = rest.partition("?")[0].removeprefix("/")
    if scheme.partition("+")[0] != "sqlite" or path in ("", ":memory:"):
        return None
    return Path(unquote(path))


def name_sqlite_driver(tracking_uri: str) -> str:
    """Return a percent-encoded sqlite URI with its driver, others unchanged.

    MLflow 3.17 creates the parent folder of an sqlite store without decoding its name, such as
    ``my%20project``, unless the URI names the driver.
    """
    if "%" in tracking_uri and tracking_uri.startswith("sqlite:"):
        return tracking_uri.replace("sqlite:", "sqlite+pysqlite:", 1)
    return tracking_uri


def _create_database(database: Path) -> None:
    """Create an MLflow database under a temporary name, then rename it."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # slow to import

    unfinished = database.with_name(f"{database.name}.new")
    unfinished.unlink(missing_ok=True)  # left by a process that was killed
    uri = name_sqlite_driver(f"sqlite:///{quote(str(unfinished))}")
    logger = logging.getLogger("mlflow.store.db.utils")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))  # else it reports each step of a new database
    try:
        SqlAlchemyStore(uri, DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()
    finally:
        logger.setLevel(level)
    # MLflow's server takes no lock: keep a database that it has just created.
    if database.exists():
        unfinished.unlink()
    else:
        unfinished.rename(database)
        flush_folder(database.parent)


def _wait_until_set_up(database: Path) -> None:
    """Wait until another program has set up a database, or stalls.

    MLflow's server is such a program. Returns as well after 10 seconds in which nothing was
    written.
    """
    written, since = 0, time.monotonic()
    while not _has_experiment(database):
        if written != (written := database.stat().st_mtime_ns):
            since = time.monotonic()
        elif time.monotonic() - since > _ABANDONED_SECONDS:
            return
        time.sleep(0.1)


def _has_experiment(database: Path) -> bool:
    """Return True if a database has an experiment, MLflow's last set-up step."""
    try:
        with closing(
            sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            return connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is not None
    except sqlite3.Error:  # the table does not exist yet, or it is not a database of MLflow
        return False
