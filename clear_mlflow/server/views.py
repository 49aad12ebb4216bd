"""The routes of the pages: each reads the address, and answers with a page or an error message."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import cast

from flask import Blueprint, Flask, Response, request
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.environment_variables import MLFLOW_ENABLE_WORKSPACES

from clear_mlflow.comparison.page.charts import shorten
from clear_mlflow.core.errors import ClearError, ConfigError, TrackingError
from clear_mlflow.core.text import format_count, one_line, safe_repr
from clear_mlflow.core.version import __version__
from clear_mlflow.report.page import render_page
from clear_mlflow.server.live_pages import (
    ComparisonQuery,
    describe_state,
    format_start,
    hash_state,
    list_runs,
    render_live_comparison,
    render_live_run,
)
from clear_mlflow.server.request_store import (
    RequestError,
    RequestStore,
    add_static_prefix,
    allow_signed_in_users,
    get_workspace,
    hide_addresses,
    serves_runs,
)
from clear_mlflow.store import names

# A view returns the HTML of a page, or values that are sent as JSON.
_View = Callable[[], str | dict[str, object]]

_MAX_QUERY_BYTES = 16_384  # room for the ids of three hundred runs
_MAX_PAGES = 16  # of about half a megabyte each
_EXPERIMENTS_PER_PAGE = 50
_NEWEST_FIRST = ["attributes.start_time DESC"]

_logger = logging.getLogger(__name__)


class PageCache:
    """A cache of the 16 pages that were used last.

    Draws one page at a time.
    """

    def __init__(self, max_wait_seconds: float = 10.0) -> None:
        self._max_wait_seconds = max_wait_seconds
        self._pages: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, state: object, draw: Callable[[], str]) -> str:
        """Return the cached page of a state, or draw and cache it.

        state: key of the page, in types that JSON can contain. Raises RequestError if another page
        is being drawn for longer than *max_wait_seconds*.
        """
        key = json.dumps(state, sort_keys=True)
        if not self._lock.acquire(timeout=self._max_wait_seconds):
            raise RequestError(503, "the server is busy with other comparisons; try again")
        try:
            if key not in self._pages:
                self._pages[key] = draw()
                if len(self._pages) > _MAX_PAGES:
                    self._pages.popitem(last=False)
            self._pages.move_to_end(key)
            return self._pages[key]
        finally:
            self._lock.release()


def add_pages(app: Flask, *, has_accounts: bool) -> None:
    """Add the routes of the pages to MLflow's Flask app.

    Call it before the app's first request. The routes are ``/clear/``, ``/clear/compare``,
    ``/clear/run`` and ``/clear/run/state``. Does nothing on a server that serves only artifacts.
    With *has_accounts*, users of MLflow's basic-auth app may open the pages.
    """
    if not serves_runs():
        return
    store = RequestStore()
    client = cast(MlflowClient, store)  # it has the methods that reading runs needs
    cache = PageCache()

    def show_comparison() -> str:
        """Return the comparison page, from the cache if no run has changed."""
        query = _read_query(store)
        runs, states = list_runs(client, query)
        return cache.get(
            [asdict(query), *states], lambda: render_live_comparison(client, query, runs)
        )

    def show_run() -> str:
        """Return a run's report, drawn anew if the run has changed."""
        run, workspace = _get_run(store), get_workspace()
        state = describe_state(client, run)
        return cache.get(
            [workspace, *state], lambda: render_live_run(client, run, state, workspace)
        )

    def show_state() -> dict[str, object]:
        """Return the hash of a run's state, which the page polls."""
        run = _get_run(store)
        return {"state": hash_state(describe_state(client, run)), "status": run.info.status}

    routes: dict[str, _View] = {
        "/clear/": lambda: _render_experiments_page(store),
        "/clear/compare": show_comparison,
        "/clear/run": show_run,
        "/clear/run/state": show_state,
    }
    app.register_blueprint(build_blueprint(routes))
    if has_accounts:
        allow_signed_in_users([add_static_prefix(route) for route in routes])


def build_blueprint(routes: Mapping[str, _View]) -> Blueprint:
    """Return a Flask blueprint that serves views to GET requests.

    Each request is checked first. A ClearError becomes an error page. Browsers may not reuse a
    response without asking again.

    routes: route without the server's prefix to its view.
    """
    blueprint = Blueprint("clear_mlflow", __name__)
    for route, view in routes.items():
        blueprint.add_url_rule(add_static_prefix(route), route, view, methods=["GET"])
    blueprint.before_request(_check_request)
    blueprint.after_request(_forbid_caching)
    blueprint.register_error_handler(ClearError, _answer_error)
    return blueprint


def _read_query(store: RequestStore) -> ComparisonQuery:
    args = request.args
    experiment_id = args.get("experiment_id", "").strip()
    if not experiment_id:
        raise ConfigError("experiment_id is missing; expected /clear/compare?experiment_id=ID")
    experiment = store.get_experiment(experiment_id)
    group_by: tuple[str, ...] | None = tuple(_split_list([args.get("group_by", "")])) or None
    return ComparisonQuery(
        experiment_id=experiment.experiment_id,
        experiment_name=experiment.name,
        workspace=get_workspace(),
        filter_string=args.get("filter", "").strip(),
        group_by=() if group_by == ("none",) else group_by,
        run_id_prefixes=tuple(_split_list(args.getlist("runs"))),
    )


def _get_run(store: RequestStore) -> Run:
    run_id = request.args.get("run_id", "").strip()
    if not run_id:
        raise ConfigError("run_id is missing; expected /clear/run?run_id=ID")
    return store.get_run(run_id)


def _split_list(values: list[str]) -> list[str]:
    """Split each value at its commas, and return all items without repetitions."""
    items = [item.strip() for value in values for item in value.split(",")]
    return list(dict.fromkeys(item for item in items if item))


def _render_experiments_page(store: RequestStore) -> str:
    """Render a list of 50 experiments, starting at the page_token, if any."""
    page = store.search_experiments(
        max_results=_EXPERIMENTS_PER_PAGE,
        order_by=["last_update_time DESC"],
        page_token=request.args.get("page_token"),
    )
    num_searched = format_count(len(page), "experiment")
    run_by_experiment = _find_newest_runs(store, [experiment.experiment_id for experiment in page])
    return render_page(
        "clear_mlflow.server/page/experiments",
        title="Experiments with accuracy matrices",
        subtitle=f"{len(run_by_experiment)} of {num_searched}, last changed first",
        warnings=(),
        footer=f"clear_mlflow {__version__}",
        experiments=[
            {
                "id": experiment.experiment_id,
                "name": shorten(experiment.name),
                "run_id": run.info.run_id,
                "run_name": shorten(run.info.run_name or run.info.run_id),
                "status": run.info.status.lower(),
                "started": format_start(run),
            }
            for experiment in page
            if (run := run_by_experiment.get(experiment.experiment_id))
        ],
        workspace=get_workspace(),
        next_token=page.token,
    )


def _find_newest_runs(store: RequestStore, experiment_ids: list[str]) -> dict[str, Run]:
    """Return experiment id to the newest trained run, else scored run."""
    newest_runs: dict[str, Run] = {}
    for filter_string in (
        f"tags.`{names.KIND_TAG}` = '{names.KIND_TRAIN}'",
        f"tags.`{names.ROWS_TAG}` != 'none'",
    ):
        # One search for many experiments: with accounts, each search checks the password.
        while remaining := [i for i in experiment_ids if i not in newest_runs]:
            runs = store.search_runs(
                remaining, filter_string, ViewType.ACTIVE_ONLY, len(remaining), _NEWEST_FIRST
            )
            for run in runs:
                newest_runs.setdefault(run.info.experiment_id, run)
            if not runs.token:
                break
    return newest_runs


def _check_request() -> None:
    if request.method != "GET":  # Flask adds HEAD, which MLflow's accounts do not check
        raise RequestError(405, "only GET is answered")
    if len(request.query_string) > _MAX_QUERY_BYTES:
        raise RequestError(414, f"the address has more than {_MAX_QUERY_BYTES} bytes")
    if get_workspace() and not MLFLOW_ENABLE_WORKSPACES.get():
        raise ConfigError(
            f"workspace is {safe_repr(get_workspace(), 100)}, but this server does not use "
            "workspaces; leave it out of the address"
        )


def _answer_error(error: ClearError) -> Response:
    """Return an HTML page for an error, without the server's URIs.

    A TrackingError may contain them: it is written to the server's log.
    """
    status, message = 400, str(error)
    if isinstance(error, RequestError):
        status = error.status
    elif isinstance(error, TrackingError):
        _logger.error("%s", error)
        status, message = 503, "the tracking store does not answer; the server's log has the reason"
    page = render_page(
        "clear_mlflow.server/page/problem",
        title=f"Error {status}",
        subtitle=one_line(hide_addresses(message)),
        warnings=(),
        footer="",
    )
    headers = {"Retry-After": "5"} if status == 503 else None
    return Response(page, status, headers, mimetype="text/html")


def _forbid_caching(response: Response) -> Response:
    """Make browsers ask again each time, and return the response."""
    # Another user may use this browser tomorrow, and runs change.
    response.headers["Cache-Control"] = "private, no-cache"
    return response
