"""The server's pages: a run by its id, and a cache that draws one page at a time."""

import threading

import pytest
from flask import Flask
from mlflow.server.constants import ARTIFACTS_DESTINATION_ENV_VAR, BACKEND_STORE_URI_ENV_VAR
from stored_runs import stored_run

from clear_mlflow.server.request_store import RequestError, hide_addresses
from clear_mlflow.server.views import PageCache, add_pages
from clear_mlflow.store import names


@pytest.fixture(autouse=True)
def server_environment(monkeypatch, tmp_path):
    """The module of the views reads where the server stores runs."""
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{tmp_path}/mlflow.db")


def test_a_report_is_rendered_once_per_state():
    num_drawn = 0
    cache = PageCache()

    def request_page(state):
        def draw():
            nonlocal num_drawn
            num_drawn += 1
            return f"page {num_drawn}"

        return cache.get(state, draw)

    assert [request_page(["a", {"rows": 1}]) for _ in range(2)] == ["page 1", "page 1"]
    assert request_page(["a", {"rows": 2}]) == "page 2"
    for other in range(15):
        request_page(["a", {"rows": 2}])  # its use keeps it in the cache
        request_page(other)
    assert request_page(["a", {"rows": 2}]) == "page 2"
    assert request_page(["a", {"rows": 1}]) == "page 18"


def test_a_request_that_would_wait_too_long_is_rejected():
    cache = PageCache(max_wait_seconds=0.01)
    with pytest.raises(ZeroDivisionError):
        cache.get("slow", lambda: str(1 / 0))  # neither cached nor in the way of others
    started, finish = threading.Event(), threading.Event()

    def draw_slowly():
        started.set()
        assert finish.wait(60)
        return "slow"

    drawing = threading.Thread(target=cache.get, args=("slow", draw_slowly))
    drawing.start()
    assert started.wait(60)
    with pytest.raises(RequestError, match="busy"):
        cache.get("other", lambda: "other")
    finish.set()
    drawing.join(60)
    assert cache.get("other", lambda: "other") == "other"
    assert cache.get("slow", lambda: "drawn anew") == "slow"


@pytest.fixture
def browser(store, monkeypatch):
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", store.tracking_uri)
    monkeypatch.setattr("mlflow.server.handlers._tracking_store", None)
    app = Flask("pages")
    add_pages(app, has_accounts=False)
    return app.test_client()


def test_a_run_is_shown_by_its_id(store, experiment_id, browser):
    run_id = stored_run(store, experiment_id).info.run_id
    page = browser.get("/clear/run", query_string={"run_id": run_id})
    assert (page.status_code, run_id in page.text) == (200, True), page.text
    state = browser.get("/clear/run/state", query_string={"run_id": run_id})
    assert state.json["status"] == "FINISHED"
    missing = browser.get("/clear/run")
    assert missing.status_code == 400
    assert "run_id is missing; expected /clear/run?run_id=ID" in missing.text


def test_runs_of_an_experiment_are_compared(store, experiment_id, browser):
    run_ids = {name: stored_run(store, experiment_id).info.run_id for name in ("mine", "yours")}
    for name, run_id in run_ids.items():
        store.set_tag(run_id, "strategy", name)
        store.set_tag(run_id, names.ROWS_TAG, "complete")

    def list_compared(**query):
        query = {"experiment_id": experiment_id, "group_by": "strategy", **query}
        page = browser.get("/clear/compare", query_string=query)
        assert page.status_code == 200, page.text
        return [name for name, run_id in run_ids.items() if run_id in page.text]

    assert list_compared() == ["mine", "yours"]
    assert list_compared(filter="tags.strategy = 'mine'") == ["mine"]
    assert "experiment_id is missing" in browser.get("/clear/compare").text
    assert f"experiment_id={experiment_id}" in browser.get("/clear/").text


@pytest.mark.parametrize("destination", ["", "s3://bucket/x", "file:///srv/artifacts"])
def test_messages_hide_the_addresses_of_the_server(monkeypatch, destination):
    monkeypatch.setenv(BACKEND_STORE_URI_ENV_VAR, "postgresql://me:secret@db/mlflow")
    monkeypatch.setenv(ARTIFACTS_DESTINATION_ENV_VAR, destination)
    path = destination.removeprefix("file://")
    message = hide_addresses(f"no run in postgresql://***@db/mlflow; {path}/1 was looked at")
    folder = "the server's store" if path else ""
    assert message == f"no run in the server's store; {folder}/1 was looked at"
