"""The app of ``mlflow server --app-name clear``: MLflow's own app with the pages added.

MLflow imports this module in its command before that starts a worker. Wrong settings raise here, so
that the command ends with one line; a worker that fails would be started again and again.
"""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any

from clear_mlflow.server.mlflow_hooks import (
    create_admin,
    flask_app,
    get_mlflow_app,
    is_worker,
    load_app,
)

# The variable names another app that the pages are added to, since MLflow serves one app at a time.
WRAPPED_APP = "CLEAR_MLFLOW_SERVER_APP"
_ACCOUNTS = "basic-auth"


def create_app() -> Any:
    """Add the pages to MLflow's app and return it, for ``mlflow server`` to serve.

    Returns the app that CLEAR_MLFLOW_SERVER_APP names, if set: it wraps MLflow's app.
    """
    from clear_mlflow.server.views import add_pages

    wrapped_name = os.environ.get(WRAPPED_APP)
    # Before the other app wraps MLflow's, so that its checks of requests apply to the pages, too.
    add_pages(flask_app, has_accounts=wrapped_name == _ACCOUNTS)
    if not wrapped_name:
        return get_mlflow_app()
    wrapped = load_app(wrapped_name)
    return wrapped() if isinstance(wrapped, FunctionType) else wrapped


def _check_settings() -> None:
    """Raise ServerError if the wrapped app is missing, and create basic-auth's administrator."""
    wrapped_name = os.environ.get(WRAPPED_APP)
    if wrapped_name:
        load_app(wrapped_name)
    if wrapped_name == _ACCOUNTS:
        create_admin()


if not is_worker():
    _check_settings()
