"""The app that ``mlflow server --app-name clear`` serves: MLflow's own, with these pages in it.

MLflow imports this module in the command itself before that starts any worker. So what is wrong is
found here, where it ends the command with one line; a worker would be started over and over again.
"""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any

from clear_mlflow.server.mlflow_hooks import (
    find_app,
    flask_app,
    is_worker,
    make_admin,
    plain_app,
)

# Another app that these pages go into, as MLflow serves one app at a time.
WRAPPED_APP = "CLEAR_MLFLOW_SERVER_APP"
_ACCOUNTS = "basic-auth"


def create_app() -> Any:
    """MLflow's server with these pages, for the server of this process."""
    from clear_mlflow.server.views import add_pages

    wrapped = os.environ.get(WRAPPED_APP)
    # Before another app wraps it: what that checks of each request holds for the pages, too.
    add_pages(flask_app, has_accounts=wrapped == _ACCOUNTS)
    if not wrapped:
        return plain_app()
    app = find_app(wrapped)
    return app() if isinstance(app, FunctionType) else app


# Done once, in the command that starts the workers.
if not is_worker():
    _wrapped = os.environ.get(WRAPPED_APP)
    if _wrapped:
        find_app(_wrapped)
    if _wrapped == _ACCOUNTS:
        make_admin()
