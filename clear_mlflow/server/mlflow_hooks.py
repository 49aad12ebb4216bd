"""What MLflow's server keeps to itself and these pages need; seen in mlflow 3.17, named here."""

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

SEEN_IN = "3.17"


class ServerError(click.ClickException):
    """The server cannot be started as it is asked for: one line, which ``mlflow server`` shows."""

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
        _get_rest_path,
        _get_workspace_scoped_repo_path_if_enabled,
        _is_servable_proxied_run_artifact_root,
    )
    from mlflow.utils.workspace_context import (
        clear_server_request_workspace,
        set_server_request_workspace,
    )
    from mlflow.utils.workspace_utils import WORKSPACE_HEADER_NAME

    if find_spec("mlflow.server.fastapi_app") is None:
        raise ImportError("there is no module mlflow.server.fastapi_app")
except ImportError as error:
    raise ServerError(
        f"the app clear needs what mlflow {SEEN_IN} has in its server, and this is mlflow "
        f"{mlflow.__version__}: {error}; leave out --app-name clear, or install mlflow {SEEN_IN}"
    ) from error


flask_app: Flask = app
# Of the context: which workspace the stores look into.
enter_workspace = set_server_request_workspace
forget_workspace = clear_server_request_workspace


def find_app(name: str) -> Callable[[], Any] | Any:
    """An app that a package offers to ``mlflow server --app-name``."""
    offered = get_entry_points("mlflow.app")
    for point in offered:
        if point.name == name:
            return point.load()
    known = ", ".join(sorted({point.name for point in offered} - {"clear"}))
    raise ServerError(f"no app has the name {name!r}; expected one of {known or 'none'}")


def is_worker() -> bool:
    """Whether this process answers requests; else it is the command that starts those that do."""
    return bool(_MLFLOW_SGI_NAME.get())


def plain_app() -> Any:
    """MLflow's own app, in the form that the server of this process takes."""
    if _MLFLOW_SGI_NAME.get() != "uvicorn":
        return flask_app
    from mlflow.server import fastapi_app

    return fastapi_app.app


def has_workspaces() -> bool:
    """Return True if the server was started with --enable-workspaces."""
    return bool(MLFLOW_ENABLE_WORKSPACES.get())


def workspace_headers(workspace: str) -> dict[str, str]:
    """What MLflow takes a workspace from, in the form of WSGI; nothing for the default one."""
    name = f"HTTP_{WORKSPACE_HEADER_NAME.upper().replace('-', '_')}"
    return {name: workspace} if workspace else {}


def backend_uri() -> str:
    """Where the server keeps runs."""
    return os.environ[BACKEND_STORE_URI_ENV_VAR]


def keeps_runs() -> bool:
    """Whether the server answers for runs: one that hands artifacts on may do nothing else."""
    return not os.environ.get(ARTIFACTS_ONLY_ENV_VAR)


def address_of(route: str) -> str:
    """A route as the server's static prefix has it."""
    return str(_add_static_prefix(route))


def api_address(endpoint: str) -> str:
    """The path of an endpoint of MLflow's API, as ``/mlflow/runs/get``."""
    return str(_get_rest_path(endpoint))


def artifacts_address(artifact_uri: str) -> str:
    """Where artifacts lie, as this process reaches them: past the server, which it is itself."""
    if not _is_servable_proxied_run_artifact_root(artifact_uri):
        return artifact_uri
    path = _get_proxied_run_artifact_destination_path(artifact_uri)
    if ".." in path.split("/"):
        raise MlflowException.invalid_parameter_value(f"artifacts are not at {artifact_uri!r}")
    path = _get_workspace_scoped_repo_path_if_enabled(path)
    return f"{os.environ[ARTIFACTS_DESTINATION_ENV_VAR].rstrip('/')}/{path}"


def without_addresses(text: str) -> str:
    """A message without where the server keeps runs and artifacts: no concern of who reads it."""
    destination = os.environ.get(ARTIFACTS_DESTINATION_ENV_VAR, "")
    for address in (
        mask_credentials(backend_uri()),
        destination,
        destination.removeprefix("file://"),
    ):
        text = text.replace(address, "of the server") if address else text
    return text


def allow_signed_in(addresses: list[str]) -> None:
    """Let who is signed in ask for addresses; what they may see :mod:`.permission` asks."""
    from mlflow.server.auth import BEFORE_REQUEST_VALIDATORS

    for address in addresses:
        BEFORE_REQUEST_VALIDATORS[address, "GET"] = lambda: True


def make_admin() -> None:
    """Make tables and administrator of MLflow's accounts (since 3.16), before workers do."""
    bootstrap = getattr(mlflow.server, "_bootstrap_basic_auth", None)
    if bootstrap is None:
        return
    try:
        bootstrap()
    except MlflowException as error:
        raise ServerError(" ".join(error.message.split())) from error
