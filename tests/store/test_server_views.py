"""The server's pages: a run by its id, and a cache that draws one page at a time."""

import threading

import pytest
from flask import Flask
from stored_runs import stored_run

from clear_mlflow.server.request_store import RequestError
from clear_mlflow.server.views import PageCache, add_pages


@pytest.fixture(autouse=True)
def server_environment(monkeypatch, tmp_path):
    """The module of the views reads where the server stores runs."""
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{tmp_path}/mlflow.db")


def test_a_report_is_rendered_once_per_state():
    """A page is drawn again if its state has changed, or if sixteen others were shown since."""
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
    """RequestError is raised only while another page is drawn."""
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


def test_a_run_is_shown_by_its_id(store, experiment_id, monkeypatch):
    """The page contains the run's name, and its state is what the page polls."""
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", store.tracking_uri)
    monkeypatch.setattr("mlflow.server.handlers._tracking_store", None)
    run_id = stored_run(store, experiment_id).info.run_id
    app = Flask("pages")
    add_pages(app, has_accounts=False)
    client = app.test_client()
    page = client.get("/clear/run", query_string={"run_id": run_id})
    assert (page.status_code, run_id in page.text) == (200, True), page.text
    state = client.get("/clear/run/state", query_string={"run_id": run_id})
    assert state.json["status"] == "FINISHED"
    missing = client.get("/clear/run")
    assert missing.status_code == 400
    assert "run_id is missing; expected /clear/run?run_id=ID" in missing.text
