"""What the user of a request may see: MLflow's own API is asked, as that user.

The request is passed on inside this process, with its headers, to an endpoint of MLflow's that
returns no more than that. So whatever guards the server (its accounts, another app around it) also
guards these pages, and the pages need not know its rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextvars import copy_context
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

from flask import request
from werkzeug.test import run_wsgi_app

from clear_mlflow.server.mlflow_hooks import (
    api_address,
    flask_app,
    forget_workspace,
    workspace_headers,
)


class RefusedError(Exception):
    """MLflow does not answer the user of this request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def ask(endpoint: str, **query: object) -> dict[str, Any]:
    """What MLflow's API answers the user of this request."""
    environ = {
        name: value for name, value in request.environ.items() if not name.startswith("werkzeug.")
    }
    environ |= {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": api_address(endpoint),
        "QUERY_STRING": urlencode(query, doseq=True),
        "CONTENT_LENGTH": "0",
        "wsgi.input": BytesIO(),
    } | workspace_headers(workspace())
    # In a context of its own: its end would forget the workspace of the request around it.
    answer, status = copy_context().run(_answer, environ)
    text = b"".join(answer).decode(errors="replace")
    code = int(status.split()[0])
    if code != 200:
        # What sends a person elsewhere to log in has done so before this.
        raise RefusedError(code if code >= 400 else 403, _message(text))
    found = json.loads(text)
    if not isinstance(found, dict):
        raise RefusedError(502, f"{endpoint} gave no object")
    return found


def workspace() -> str:
    """The workspace that the address of this request names; empty: MLflow's default one."""
    return request.args.get("workspace", "").strip()


def _answer(environ: dict[str, Any]) -> tuple[Iterable[bytes], str]:
    forget_workspace()
    answer, status, _ = run_wsgi_app(flask_app.wsgi_app, environ, True)
    return answer, status


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError):
        return text
