"""The app of ``mlflow server --app-name clear``: MLflow's own app with the pages added.

MLflow imports this module in its command before that starts a worker. Wrong settings raise here, so
that the command ends with one line; a worker that fails would be started again and again.
"""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any

import mlflow
from mlflow.environment_variables import _MLFLOW_SGI_NAME
from mlflow.exceptions import MlflowException
from mlflow.utils.plugins import get_entry_points

from clear_mlflow.server.request_store import ServerError, flask_app

# The variable names another app that the pages are added to, since MLflow serves one app at a time.
WRAPPED_APP = "CLEAR_MLFLOW_SERVER_APP"
_ACCOUNTS = "basic-auth"


def create_app() -> Any:
    """Add the pages to MLflow's app, and return it.

    Returns the app that CLEAR_MLFLOW_SERVER_APP names, if set: it wraps MLflow's app.
    """
    from clear_mlflow.server.views import add_pages

    wrapped_name = os.environ.get(WRAPPED_APP, "").strip()
    # Before the other app wraps MLflow's, so that its checks of requests apply to the pages, too.
    add_pages(flask_app, has_accounts=wrapped_name == _ACCOUNTS)
    if wrapped_name:
        wrapped = _load_app(wrapped_name)
        return wrapped() if isinstance(wrapped, FunctionType) else wrapped
    if _MLFLOW_SGI_NAME.get() != "uvicorn":
        return flask_app
    from mlflow.server import fastapi_app

    return fastapi_app.app


def _load_app(name: str) -> Any:
    """Import the app that ``mlflow server --app-name NAME`` would serve."""
    entry_points = {entry_point.name: entry_point for entry_point in get_entry_points("mlflow.app")}
    if name in entry_points:
        return entry_points[name].load()
    valid_names = ", ".join(sorted(entry_points.keys() - {"clear"}))
    raise ServerError(f"no app has the name {name!r}; expected one of {valid_names or 'none'}")


def _prepare_wrapped_app() -> None:
    """Check the wrapped app, and create basic-auth's administrator."""
    wrapped_name = os.environ.get(WRAPPED_APP, "").strip()
    if wrapped_name:
        _load_app(wrapped_name)
    if wrapped_name == _ACCOUNTS and hasattr(mlflow.server, "_bootstrap_basic_auth"):
        try:  # creates tables and the administrator; since mlflow 3.16
            mlflow.server._bootstrap_basic_auth()
        except MlflowException as error:
            raise ServerError(" ".join(error.message.split())) from error


if not _MLFLOW_SGI_NAME.get():  # not in a worker
    _prepare_wrapped_app()
