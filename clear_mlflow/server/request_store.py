"""Reads experiments and runs of MLflow's server (3.17) as the user of the current request.

Each experiment and run that a page shows comes from MLflow's REST API, which is called inside this
process with the headers of the request. So whatever guards the server (its accounts, another app
around it) decides what the user may see. Artifacts of a run that the API has returned are read
where they are stored: over the API, each file would cost another check of the password.

The internals of MLflow's server are named only here and in mlflow_app.
"""

from __future__ import annotations

import json
import os
from contextvars import copy_context
from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

import click
import mlflow
from flask import Flask, request
from mlflow.entities import Run
from mlflow.utils.proto_json_utils import parse_dict
from werkzeug.test import run_wsgi_app

from clear_mlflow.core.credentials import mask_credentials
from clear_mlflow.core.errors import ClearError, RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.store.offline import replace_info

SEEN_IN = "3.17"


class ServerError(click.ClickException):
    """The server cannot be started. ``mlflow server`` prints the message."""

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

    _RestStore: Any = rest_store.RestStore  # without types
    _API_PATHS = _RestStore._METHOD_TO_INFO  # protobuf class of a request to path and HTTP method
    _ = _RestStore._call_endpoint, _RestStore._search_runs  # RequestStore overrides both
except (ImportError, AttributeError) as error:
    raise ServerError(
        f"the app clear needs internals of the server of mlflow {SEEN_IN}, and this is mlflow "
        f"{mlflow.__version__}: {error}; leave out --app-name clear, or install mlflow {SEEN_IN}"
    ) from error

flask_app: Flask = app


class RequestError(ClearError):
    """An error of MLflow's API in this request, with status >= 400."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RequestStore(_RestStore):  # type: ignore[misc]
    """MLflow's REST client, which calls the app in this process.

    Each call has the headers of the current Flask request, so that the user's permissions apply.

    Raises RequestError if the API answers with an error. Artifact URIs of runs are storage URIs.
    """

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.tracking_uri = os.environ[BACKEND_STORE_URI_ENV_VAR]

    def get_run(self, run_id: str) -> Run:
        """Return a run with the storage URI of its artifacts."""
        return _resolve_artifacts(super().get_run(run_id))

    def _search_runs(self, *args: Any, **kwargs: Any) -> tuple[list[Run], str | None]:
        """Return runs with their artifacts' storage URIs, and the next token."""
        runs, token = super()._search_runs(*args, **kwargs)
        return [_resolve_artifacts(run) for run in runs], token

    def _call_endpoint(self, api: Any, json_body: str | None = None, **_: Any) -> Any:
        """Call MLflow's API as the user of the current request."""
        path, method = _API_PATHS[api]
        is_get = method == "GET"
        content = b"" if is_get or json_body is None else json_body.encode()
        environ = {k: v for k, v in request.environ.items() if not k.startswith("werkzeug.")}
        environ |= {
            "REQUEST_METHOD": method,
            "PATH_INFO": add_static_prefix(path),
            "QUERY_STRING": urlencode(json.loads(json_body or "{}") if is_get else {}, doseq=True),
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(content)),
            "wsgi.input": BytesIO(content),
        }
        if workspace := get_workspace():
            environ[f"HTTP_{WORKSPACE_HEADER_NAME.upper().replace('-', '_')}"] = workspace
        # In its own context, because MLflow forgets the workspace at the end of a request.
        status, body = copy_context().run(_run_app, environ)
        if status != HTTPStatus.OK:
            try:
                message = str(json.loads(body)["message"])
            except (ValueError, LookupError, TypeError):
                message = body
            # Redirects of browsers to a login page were followed before this request.
            raise RequestError(status if status >= 400 else 403, message)
        response = api.Response()
        parse_dict(json.loads(body), response)
        return response


def serves_runs() -> bool:
    """Return False if the server was started with --artifacts-only."""
    return not os.environ.get(ARTIFACTS_ONLY_ENV_VAR)


def get_workspace() -> str:
    """Return the request's ``workspace``, or "" for the default one."""
    return request.args.get("workspace", "").strip()


def add_static_prefix(route: str) -> str:
    """Return the server's --static-prefix followed by *route*."""
    return str(_add_static_prefix(route))


def allow_signed_in_users(paths: list[str]) -> None:
    """Let every signed-in user send GET requests to *paths*.

    Their calls of MLflow's API still check what the user may read.
    """
    from mlflow.server.auth import BEFORE_REQUEST_VALIDATORS

    for path in paths:
        BEFORE_REQUEST_VALIDATORS[path, "GET"] = lambda: True


def hide_addresses(message: str) -> str:
    """Replace the URIs of the server's stores in a message."""
    destination = os.environ.get(ARTIFACTS_DESTINATION_ENV_VAR, "")
    store = mask_credentials(os.environ[BACKEND_STORE_URI_ENV_VAR])
    for address in (store, destination, destination.removeprefix("file://")):
        message = message.replace(address, "the server's store") if address else message
    return message


def _run_app(environ: dict[str, Any]) -> tuple[int, str]:
    clear_server_request_workspace()
    chunks, status, _ = run_wsgi_app(flask_app.wsgi_app, environ, buffered=True)
    return int(status.split()[0]), b"".join(chunks).decode(errors="replace")


def _resolve_artifacts(run: Run) -> Run:
    """Return a run whose artifact URI is the storage URI."""
    # In its own context: the next request of this thread may be for another workspace.
    uri = copy_context().run(_resolve_artifact_uri, str(run.info.artifact_uri))
    return replace_info(run, artifact_uri=uri)


def _resolve_artifact_uri(artifact_uri: str) -> str:
    """Return the storage behind a URI of the server's artifact proxy.

    Makes the request's workspace MLflow's current one, in which the path is resolved.
    """
    if workspace := get_workspace():
        set_server_request_workspace(workspace)
    if not _is_servable_proxied_run_artifact_root(artifact_uri):
        return artifact_uri
    path = _get_proxied_run_artifact_destination_path(artifact_uri)
    if ".." in path.split("/"):
        raise RecordError(f"artifacts of a run cannot be at {safe_repr(artifact_uri, 200)}")
    path = _get_workspace_scoped_repo_path_if_enabled(path)
    return f"{os.environ[ARTIFACTS_DESTINATION_ENV_VAR].rstrip('/')}/{path}"
