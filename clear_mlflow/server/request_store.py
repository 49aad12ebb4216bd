"""Reads experiments and runs of MLflow's server as the user of the current request.

Each experiment and run that a page shows comes from MLflow's REST API, which is called inside this
process with the headers of the request. So whatever guards the server (its accounts, another app
around it) decides what the user may see. Artifacts of a run that the API has returned are read
where they are stored: over the API, each file would cost another check of the password.
"""

from __future__ import annotations

import json
from contextvars import copy_context
from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

from flask import request
from mlflow.entities import Run, RunInfo
from mlflow.store.tracking import rest_store
from mlflow.utils.proto_json_utils import parse_dict
from werkzeug.test import run_wsgi_app

from clear_mlflow.core.errors import ClearError
from clear_mlflow.server.mlflow_hooks import (
    add_static_prefix,
    build_workspace_header,
    enter_workspace,
    flask_app,
    leave_workspace,
    resolve_artifact_uri,
)


class RequestError(ClearError):
    """An error of MLflow's API for the user of the current request. Status: HTTP status >= 400."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_RestStore: Any = rest_store.RestStore  # without types


class RequestStore(_RestStore):  # type: ignore[misc]
    """MLflow's REST client, which calls the app in this process instead of sending requests.

    Each call has the headers of the current Flask request, so that the user's permissions apply.

    Raises RequestError if the API answers with an error. Artifact URIs of runs are storage URIs.
    """

    def __init__(self, tracking_uri: str) -> None:
        super().__init__(lambda: None)
        self.tracking_uri = tracking_uri

    def get_run(self, run_id: str) -> Run:
        """Return a run with the storage URI of its artifacts."""
        return _resolve_artifacts(super().get_run(run_id))

    def _search_runs(self, *args: Any, **kwargs: Any) -> tuple[list[Run], str | None]:
        """Return runs with the storage URIs of their artifacts, and the token of the next page."""
        runs, token = super()._search_runs(*args, **kwargs)
        return [_resolve_artifacts(run) for run in runs], token

    def _call_endpoint(self, api: Any, json_body: str | None = None, **_: Any) -> Any:
        """Call MLflow's API as the user of the current request, and return its response.

        Args:
            api: protobuf class of the API's request.
            json_body: request as JSON, or None if it is empty.

        Raises RequestError if the API answers with an error.
        """
        path, method = self._METHOD_TO_INFO[api]
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
        } | build_workspace_header(get_workspace())
        # In its own context, because MLflow forgets the workspace at the end of a request.
        status, text = copy_context().run(_run_app, environ)
        if status != HTTPStatus.OK:
            # Redirects of browsers to a login page were followed before this request.
            raise RequestError(status if status >= 400 else 403, _read_message(text))
        response = api.Response()
        parse_dict(json.loads(text), response)
        return response


def get_workspace() -> str:
    """Return ``workspace`` from the address of the current request, or "" for the default one."""
    return request.args.get("workspace", "").strip()


def _run_app(environ: dict[str, Any]) -> tuple[int, str]:
    """Call MLflow's app with a WSGI environment, and return HTTP status and body."""
    leave_workspace()
    chunks, status, _ = run_wsgi_app(flask_app.wsgi_app, environ, buffered=True)
    return int(status.split()[0]), b"".join(chunks).decode(errors="replace")


def _read_message(body: str) -> str:
    """Return the message in an error response of MLflow, or the body itself if it is not JSON."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, LookupError, TypeError):
        return body


def _resolve_artifacts(run: Run) -> Run:
    """Return a copy of a run whose artifact URI is the storage URI."""
    # In its own context: the next request of this thread may be for another workspace.
    uri = copy_context().run(_resolve_in_workspace, str(run.info.artifact_uri))
    return Run(RunInfo(**{**dict(run.info), "artifact_uri": uri}), run.data, run.inputs)


def _resolve_in_workspace(artifact_uri: str) -> str:
    """Return the storage URI of artifacts in the workspace of the request.

    Changes the workspace of the current context.
    """
    if workspace := get_workspace():
        enter_workspace(workspace)
    return resolve_artifact_uri(artifact_uri)
