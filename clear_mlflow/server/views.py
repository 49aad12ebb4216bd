"""The routes of the pages: each reads the address, and answers with a page or one line."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import cast

from flask import Flask, Response, jsonify, request
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from clear_mlflow.comparison.page.wording import many, short
from clear_mlflow.core.errors import ClearError, ConfigError, TrackingError
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.core.version import __version__
from clear_mlflow.report.page import rendered
from clear_mlflow.server.live_comparison import ComparisonQuery, draw_comparison, list_runs
from clear_mlflow.server.live_run import describe_state, draw_run, format_start, hash_state
from clear_mlflow.server.mlflow_hooks import (
    add_static_prefix,
    allow_signed_in_users,
    backend_uri,
    has_workspaces,
    hide_addresses,
    serves_runs,
)
from clear_mlflow.server.request_store import RequestError, RequestStore, get_workspace
from clear_mlflow.store import names

# A view returns the HTML of a page, or values that are sent as JSON.
_View = Callable[[], str | dict[str, object]]

_MAX_QUERY_BYTES = 16_384  # room for the ids of three hundred runs
_MAX_PAGES = 16  # of about half a megabyte each
_EXPERIMENTS_PER_PAGE = 50  # each costs one or two searches for a run

_logger = logging.getLogger(__name__)


class BusyError(Exception):
    """Other requests occupy the page cache; the same request may succeed later."""


class PageCache:
    """The HTML of the last pages, of which one is drawn at a time.

    Args:
        max_wait_seconds: how long a request waits while another page is drawn.
    """

    def __init__(self, max_wait_seconds: float = 10.0) -> None:
        self._max_wait_seconds = max_wait_seconds
        self._pages: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, state: object, draw: Callable[[], str]) -> str:
        """Return the page for a state (of JSON types), which *draw* returns if it is not cached.

        Raises BusyError if another page is being drawn for too long.
        """
        key = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        if not self._lock.acquire(timeout=self._max_wait_seconds):
            raise BusyError
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
    """Add the routes to MLflow's app, which must not have answered a request yet."""
    if not serves_runs():
        return
    store = RequestStore(backend_uri())
    client = cast(MlflowClient, store)  # it has the methods that reading runs needs
    cache = PageCache()

    def show_comparison() -> str:
        query = _read_query(store)
        runs, states = list_runs(client, query)
        return cache.get([query.to_json(), *states], lambda: draw_comparison(client, query, runs))

    def show_run() -> str:
        run, workspace = _get_run(store), get_workspace()
        state = describe_state(client, run)
        return cache.get([workspace, *state], lambda: draw_run(client, run, state, workspace))

    def show_state() -> dict[str, object]:
        run = _get_run(store)
        return {"state": hash_state(describe_state(client, run)), "status": run.info.status}

    routes: dict[str, _View] = {
        "/clear/": lambda: _draw_experiments(store),
        "/clear/compare": show_comparison,
        "/clear/run": show_run,
        "/clear/run/state": show_state,
    }
    for route, view in routes.items():
        path = add_static_prefix(route)
        app.add_url_rule(path, f"clear_mlflow{route}", _answer_with(view), methods=["GET"])
    if has_accounts:
        allow_signed_in_users([add_static_prefix(route) for route in routes])


def _read_query(store: RequestStore) -> ComparisonQuery:
    """Return what the address asks to compare, in an experiment that the user may read."""
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
    """Return the items between the commas of all values, without repetitions."""
    items = [item.strip() for value in values for item in value.split(",")]
    return list(dict.fromkeys(item for item in items if item))


def _draw_experiments(store: RequestStore) -> str:
    """Return the page of the experiments that have rows, starting at the address's page token."""
    page = store.search_experiments(
        max_results=_EXPERIMENTS_PER_PAGE,
        order_by=["last_update_time DESC"],
        page_token=request.args.get("page_token"),
    )
    newest_runs = [
        (experiment, run)
        for experiment in page
        if (run := _find_newest_run(store, experiment.experiment_id)) is not None
    ]
    return rendered(
        "clear_mlflow.server.page/experiments",
        title="Experiments with accuracy matrices",
        subtitle=f"{len(newest_runs)} of {many(len(page), 'experiment')}, the last changed first",
        warnings=(),
        footer=f"clear_mlflow {__version__}",
        experiments=[
            {
                "id": experiment.experiment_id,
                "name": short(experiment.name),
                "run_id": run.info.run_id,
                "run_name": short(run.info.run_name or run.info.run_id),
                "status": run.info.status.lower(),
                "started": format_start(run),
            }
            for experiment, run in newest_runs
        ],
        workspace=get_workspace(),
        next_token=page.token,
    )


def _find_newest_run(store: RequestStore, experiment_id: str) -> Run | None:
    """Return the newest run that clear_mlflow trained, else the newest that it scored, or None."""
    for filter_string in (
        f"tags.`{names.KIND_TAG}` = '{names.KIND_TRAIN}'",
        f"tags.`{names.ROWS_TAG}` != 'none'",
    ):
        runs: list[Run] = store.search_runs([experiment_id], filter_string, ViewType.ACTIVE_ONLY, 1)
        if runs:
            return runs[0]
    return None


def _answer_with(view: _View) -> Callable[[], Response]:
    """Return the Flask view that answers with a view's result, or with its error as one line."""

    @wraps(view)
    def answer() -> Response:
        if request.method != "GET":  # Flask adds HEAD, which MLflow's accounts do not check
            return _answer_error(405, "only GET is answered")
        if len(request.query_string) > _MAX_QUERY_BYTES:
            return _answer_error(414, f"the address has more than {_MAX_QUERY_BYTES} bytes")
        try:
            _check_workspace()
            result = view()
        except RequestError as error:
            return _answer_error(error.status, str(error))
        except BusyError:
            response = _answer_error(503, "the server is busy with other comparisons; try again")
            response.headers["Retry-After"] = "5"
            return response
        except TrackingError as error:
            _logger.error("%s", error)
            return _answer_error(
                503, "the tracking store does not answer; the server's log has the reason"
            )
        except ClearError as error:
            return _answer_error(400, str(error))
        return _forbid_caching(
            Response(result, mimetype="text/html") if isinstance(result, str) else jsonify(result)
        )

    return answer


def _check_workspace() -> None:
    if get_workspace() and not has_workspaces():
        raise ConfigError(
            f"workspace is {safe_repr(get_workspace(), 100)}, but this server has no workspaces; "
            "leave it out of the address"
        )


def _answer_error(status: int, message: str) -> Response:
    page = rendered(
        "clear_mlflow.server.page/problem",
        title=f"Error {status}",
        subtitle=one_line(hide_addresses(message)),
        warnings=(),
        footer="",
    )
    return _forbid_caching(Response(page, status, mimetype="text/html"))


def _forbid_caching(response: Response) -> Response:
    # Another user may use this browser tomorrow, and runs change.
    response.headers["Cache-Control"] = "private, no-cache"
    return response
