"""The internals of MLflow's server (3.17) that the pages need are named only in this module."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import click
import mlflow
from flask import Flask
from mlflow.environment_variables import _MLFLOW_SGI_NAME, MLFLOW_ENABLE_WORKSPACES
from mlflow.exceptions import MlflowException
from mlflow.utils.plugins import get_entry_points

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import RecordError
from clear_mlflow.core.text import safe_repr

SEEN_IN = "3.17"


class ServerError(click.ClickException):
    """The server cannot be started; ``mlflow server`` prints the message as one line."""

    exit_code = 2


try:
    from mlflow.server import app
    from mlflow.server.constants import (
        ARTIFACTS_DESTINATION_ENV_VAR,
        ARTIFACTS_ONLY_ENV_VAR,
        BACKEND_STORE_URI_ENV_VAR,
    )
    from mlflow.server.handlers import (
        _add_static_prefix,
        _get_proxied_run_artifact_destination_path,
        _get_workspace_scoped_repo_path_if_enabled,
        _is_servable_proxied_run_artifact_root,
    )
    from mlflow.store.tracking import rest_store
    from mlflow.utils.workspace_context import (
        clear_server_request_workspace,
        set_server_request_workspace,
    )
    from mlflow.utils.workspace_utils import WORKSPACE_HEADER_NAME

    if find_spec("mlflow.server.fastapi_app") is None:
        raise ImportError("module mlflow.server.fastapi_app is missing")
    for attribute in ("_call_endpoint", "_search_runs", "_METHOD_TO_INFO"):  # of RequestStore
        if not hasattr(rest_store.RestStore, attribute):
            raise ImportError(f"RestStore.{attribute} is missing")
except ImportError as error:
    raise ServerError(
        f"the app clear needs internals of the server of mlflow {SEEN_IN}, and this is mlflow "
        f"{mlflow.__version__}: {error}; leave out --app-name clear, or install mlflow {SEEN_IN}"
    ) from error


flask_app: Flask = app
# Both change the current context (contextvars), which decides where stores look.
enter_workspace = set_server_request_workspace
leave_workspace = clear_server_request_workspace


def load_app(name: str) -> Callable[[], Any] | Any:
    """Import the app, or its factory, that ``mlflow server --app-name NAME`` would serve.

    Raises ServerError if no installed package offers that name.
    """
    entry_points = get_entry_points("mlflow.app")
    for entry_point in entry_points:
        if entry_point.name == name:
            return entry_point.load()
    valid_names = ", ".join(sorted({point.name for point in entry_points} - {"clear"}))
    raise ServerError(f"no app has the name {name!r}; expected one of {valid_names or 'none'}")


def is_worker() -> bool:
    """Return True in a process that answers requests, False in the one that starts it."""
    return bool(_MLFLOW_SGI_NAME.get())


def get_mlflow_app() -> Any:
    """Return MLflow's app in the form that this process serves: ASGI for uvicorn, else WSGI."""
    if _MLFLOW_SGI_NAME.get() != "uvicorn":
        return flask_app
    from mlflow.server import fastapi_app

    return fastapi_app.app


def has_workspaces() -> bool:
    """Return True if the server was started with --enable-workspaces."""
    return bool(MLFLOW_ENABLE_WORKSPACES.get())


def build_workspace_header(workspace: str) -> dict[str, str]:
    """Return the WSGI variable of MLflow's workspace header, or {} for an empty name."""
    name = f"HTTP_{WORKSPACE_HEADER_NAME.upper().replace('-', '_')}"
    return {name: workspace} if workspace else {}


def get_backend_uri() -> str:
    """Return the URI of the server's tracking store, its --backend-store-uri."""
    return os.environ[BACKEND_STORE_URI_ENV_VAR]


def serves_runs() -> bool:
    """Return False if the server was started with --artifacts-only."""
    return not os.environ.get(ARTIFACTS_ONLY_ENV_VAR)


def add_static_prefix(route: str) -> str:
    """Return the server's --static-prefix followed by *route*."""
    return str(_add_static_prefix(route))


def resolve_artifact_uri(artifact_uri: str) -> str:
    """Return the storage URI of artifacts, for a URI that may point to the server's own proxy.

    Reads the workspace of the current context. Raises RecordError if the path leads upwards.
    """
    if not _is_servable_proxied_run_artifact_root(artifact_uri):
        return artifact_uri
    path = _get_proxied_run_artifact_destination_path(artifact_uri)
    if ".." in path.split("/"):
        raise RecordError(f"artifacts of a run cannot be at {safe_repr(artifact_uri, 200)}")
    path = _get_workspace_scoped_repo_path_if_enabled(path)
    return f"{os.environ[ARTIFACTS_DESTINATION_ENV_VAR].rstrip('/')}/{path}"


def hide_addresses(message: str) -> str:
    """Return a message with the URIs of the server's stores replaced by "of the server"."""
    destination = os.environ.get(ARTIFACTS_DESTINATION_ENV_VAR, "")
    store = mask_credentials(get_backend_uri())
    for address in (store, destination, destination.removeprefix("file://")):
        message = message.replace(address, "of the server") if address else message
    return message


def allow_signed_in_users(paths: list[str]) -> None:
    """Let every signed-in user send GET requests to *paths*.

    Their calls of MLflow's API still check what the user may read.
    """
    from mlflow.server.auth import BEFORE_REQUEST_VALIDATORS

    for path in paths:
        BEFORE_REQUEST_VALIDATORS[path, "GET"] = lambda: True


def create_admin() -> None:
    """Create the database tables and the administrator of MLflow's basic-auth app.

    Raises ServerError if the settings are invalid. Does nothing before mlflow 3.16.
    """
    bootstrap = getattr(mlflow.server, "_bootstrap_basic_auth", None)
    if bootstrap is None:
        return
    try:
        bootstrap()
    except MlflowException as error:
        raise ServerError(" ".join(error.message.split())) from error
