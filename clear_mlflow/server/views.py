"""The routes: what is asked for, whether it may be, and the page or the one line of an answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import copy_context
from functools import wraps

from flask import Flask, Response, jsonify, request
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from clear_mlflow.core.errors import ClearError, ConfigError, TrackingError
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.report.page import rendered
from clear_mlflow.server.experiments import experiments
from clear_mlflow.server.kept_pages import BusyError, KeptPages
from clear_mlflow.server.live_comparison import Question, live_comparison
from clear_mlflow.server.live_run import following, live_run
from clear_mlflow.server.mlflow_hooks import (
    address_of,
    allow_signed_in,
    backend_uri,
    enter_workspace,
    has_workspaces,
    keeps_runs,
    without_addresses,
)
from clear_mlflow.server.permission import RefusedError, ask, workspace
from clear_mlflow.server.served_store import ServedStore
from clear_mlflow.store.client import mlflow_errors

# A page, or what a page asks for.
_View = Callable[[], str | dict[str, object]]

_LONGEST_QUERY = 16_384  # three hundred runs' ids

_logger = logging.getLogger(__name__)


def add_pages(app: Flask, *, has_accounts: bool) -> None:
    """Add the routes to MLflow's app, which no request has reached yet."""
    if not keeps_runs():
        return
    store = ServedStore(backend_uri())
    kept = KeptPages()

    routes: dict[str, _View] = {
        "/clear/": lambda: experiments(store, request.args.get("page_token"), workspace()),
        "/clear/compare": lambda: live_comparison(store, _question(), kept),
        "/clear/run": lambda: live_run(store, _run(store), kept, workspace()),
        "/clear/run/state": lambda: following(store, _run(store)),
    }
    for route, view in routes.items():
        app.add_url_rule(
            address_of(route), f"clear_mlflow{route}", _answering(view), methods=["GET"]
        )
    if has_accounts:
        allow_signed_in([address_of(route) for route in routes])


def _question() -> Question:
    """What the address asks to compare, once it is sure that this person may see it."""
    given = request.args
    experiment_id = given.get("experiment_id", "").strip()
    if not experiment_id:
        raise ConfigError("experiment_id is missing; expected /clear/compare?experiment_id=ID")
    experiment = ask("/mlflow/experiments/get", experiment_id=experiment_id)["experiment"]
    group_by = given.get("group_by", "").strip()
    return Question(
        experiment_id=experiment["experiment_id"],
        experiment=experiment["name"],
        workspace=workspace(),
        wanted=given.get("filter", "").strip(),
        group_by=None if not group_by else () if group_by == "none" else tuple(_listed([group_by])),
        runs=tuple(_listed(given.getlist("runs"))),
    )


def _run(store: ServedStore) -> Run:
    """The run that the address names, once it is sure that this person may see it."""
    run_id = request.args.get("run_id", "").strip()
    if not run_id:
        raise ConfigError("run_id is missing; expected /clear/run?run_id=ID")
    ask("/mlflow/runs/get", run_id=run_id)
    with mlflow_errors(f"read run {run_id}"):
        return store.get_run(run_id)


def _listed(texts: list[str]) -> list[str]:
    """The texts between commas, each once."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    return list(dict.fromkeys(part for part in parts if part))


def _answering(view: _View) -> Callable[[], Response]:
    """A view whose refusals are answers of one line."""

    @wraps(view)
    def answer() -> Response:
        if request.method != "GET":  # HEAD, which flask adds, and MLflow's accounts do not know
            return _problem(405, "only GET is answered")
        if len(request.query_string) > _LONGEST_QUERY:
            return _problem(414, f"the address asks in more than {_LONGEST_QUERY} bytes")
        try:
            # In a context of its own: the next request of this thread may be for another workspace.
            found = copy_context().run(_in_workspace, view)
            return _html(found, 200) if isinstance(found, str) else _uncached(jsonify(found))
        except RefusedError as error:
            return _problem(error.status, str(error))
        except BusyError:
            response = _problem(503, "the server is busy with other comparisons; try again")
            response.headers["Retry-After"] = "5"
            return response
        except ClearError as error:
            return _problem(*_status_and_reason(error))

    return answer


def _in_workspace(view: _View) -> str | dict[str, object]:
    if workspace():
        if not has_workspaces():
            raise ConfigError(
                f"workspace is {safe_repr(workspace(), 100)}, but this server has no workspaces; "
                "leave it out of the address"
            )
        with mlflow_errors("look for the workspace"):
            enter_workspace(workspace())
    return view()


def _status_and_reason(error: ClearError) -> tuple[int, str]:
    cause = error.__cause__
    if isinstance(cause, MlflowException) and cause.error_code == "INVALID_PARAMETER_VALUE":
        return 400, cause.message
    if isinstance(error, TrackingError):
        _logger.error("%s", error)
        return 503, "the tracking store does not answer; the server's log says more"
    return 400, str(error)


def _problem(status: int, message: str) -> Response:
    text = rendered(
        "clear_mlflow.server.page/problem",
        title=f"Error {status}",
        subtitle=one_line(without_addresses(message)),
        warnings=(),
        footer="",
    )
    return _html(text, status)


def _html(text: str, status: int) -> Response:
    return _uncached(Response(text, status, mimetype="text/html"))


def _uncached(response: Response) -> Response:
    # The person may be another one tomorrow, and runs change.
    response.headers["Cache-Control"] = "private, no-cache"
    return response
