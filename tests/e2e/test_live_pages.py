"""Our pages in MLflow's server, with gunicorn workers and a prefix.

See test_real_servers for accounts.
"""

import base64
import html
import itertools
import json
import os
import re
import sys
import zlib
from functools import partial
from unittest import mock

import mlflow
import psutil
import pytest
import requests
from click.testing import CliRunner
from comparisons import counts, log_predictions, log_run, row_records
from mlflow import MlflowClient
from mlflow_stores import copy_store, tracking_uri
from servers import request_page, tracking_server
from waiting import LONG

from clear_mlflow.core.record import format_row_file_name
from clear_mlflow.store import names

pytestmark = pytest.mark.slow


HOSTILE = "<script>alert(1)</script>\"'><img src=x>"


@pytest.fixture(scope="module")
def server(tmp_path_factory, empty_store):
    """Two gunicorn workers on SQLite, with a prefix in addresses and artifacts on disk."""
    folder = tmp_path_factory.mktemp("server")
    started = tracking_server(
        folder,
        copy_store(empty_store, folder),
        *("--app-name", "clear", "--gunicorn-opts", "--timeout 100"),
        artifacts=str(folder / "artifacts"),
        workers=2,
        prefix="/lab",
        fresh=True,
    )
    with started as starting:
        starting.wait()
        yield starting


@pytest.fixture
def client(server, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    with tracking_uri(server.url):
        yield MlflowClient(server.url)


@pytest.fixture
def ask(server):
    return partial(request_page, server.url)


def read_page_data(page):
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(match[1])


def find_ticked(page):
    return sorted(re.findall(r'name="runs" value="(\w+)" checked', page))


def test_runs_are_grouped_selected_and_filtered(client, ask):
    experiment_id = client.create_experiment("four kinds")
    strategies = (("cumulative", 180), ("replay", 160), ("naive", 120), ("slda", 90))
    ids = []
    for (name, level), seed in itertools.product(strategies, range(3)):
        row_counts, options = counts(level, seed), {"strategy": name, "seed": seed}
        run = log_run(client, experiment_id, f"{name} {seed}", row_counts, **options)
        ids.append(run.info.run_id)
    unfiltered = ask("compare", experiment_id=experiment_id)
    assert unfiltered.status_code == 200
    assert "12 runs in 4 groups by strategy and dataset" in unfiltered.text
    assert find_ticked(unfiltered.text) == sorted(ids)
    first = unfiltered.text.split('<table class="heat">')[1].split('scope="row">after 1</th>')[1]
    mean = sum(counts(180, seed)[1][0] for seed in range(3)) / 3 / 200
    assert re.search(r"<td [^>]*>([0-9.]+)<", first)[1] == f"{100 * mean:.1f}"

    for query, heading in (
        ({"runs": f"{ids[0][:8]},{ids[9]}", "group_by": "none"}, "2 runs, not grouped"),
        ({"runs": f" {ids[0]},,{ids[9]}, ", "group_by": "strategy, ,"}, "2 groups by strategy"),
        ({"runs": [ids[0], ids[9]]}, "2 runs"),  # as a form without a script sends it
    ):
        chosen = ask("compare", experiment_id=experiment_id, **query)
        assert find_ticked(chosen.text) == sorted([ids[0], ids[9]])
        assert heading in chosen.text

    run_filter = "tags.strategy = 'replay'"
    some = ask("compare", experiment_id=experiment_id, filter=run_filter, group_by="seed")
    assert find_ticked(some.text) == sorted(ids[3:6])
    assert "3 runs in 3 groups by seed" in some.text
    assert f'value="{html.escape(run_filter).replace("&#x27;", "&#39;")}"' in some.text


def store_row(client, run_id, row):
    name = format_row_file_name(row.row.row)
    client.log_text(run_id, row.to_json().decode(), f"accuracy_matrix/rows/{name}")


def test_the_page_shows_changes_of_the_store(client, ask):
    experiment_id = client.create_experiment("followed")
    run_id = client.create_run(experiment_id, run_name="in training").info.run_id
    rows = row_records(counts(150, 0))
    for row in rows[:2]:
        store_row(client, run_id, row)
    assert ">1 of 4<" in ask("compare", experiment_id=experiment_id).text
    store_row(client, run_id, rows[2])
    # Each worker keeps pages of its own; several requests reach both.
    pages = [ask("compare", experiment_id=experiment_id).text for _ in range(6)]
    assert all(">2 of 4<" in page for page in pages)
    assert len(set(pages)) <= 2, "an unchanged page was drawn anew"
    client.update_run(run_id, name="renamed")
    assert "renamed" in ask("compare", experiment_id=experiment_id).text
    log_run(client, experiment_id, "another", counts(150, 1), strategy="naive", seed=1)
    assert "another" in ask("compare", experiment_id=experiment_id).text


def test_the_page_of_a_run_in_training_is_updated(client, ask):
    experiment_id = client.create_experiment("in training")
    run_id = client.create_run(experiment_id, run_name="its name").info.run_id
    rows = row_records(counts(150, 0))

    def news():
        responses = [ask("run/state", run_id=run_id).json() for _ in range(3)]  # of both workers
        assert all(response == responses[0] for response in responses)
        return responses[0]

    before, empty = news(), ask("run", run_id=run_id)
    assert empty.status_code == 200
    assert "No row of an accuracy matrix" in empty.text
    states = [before["state"]]
    for row in rows[:3]:
        store_row(client, run_id, row)
        states.append(news()["state"])
        client.set_tag(run_id, names.PROCESS_TAG, f"a sign of life {row.row.row}")
        assert news()["state"] == states[-1]
    assert len(set(states)) == 4
    page = ask("run", run_id=run_id).text
    assert f'data-state="{states[-1]}" data-followed="yes"' in page
    assert "2 of 4 buckets trained" in page
    measured_rows = [row for row in read_page_data(page)["cells"] if row[0] is not None]
    assert measured_rows == [[count / 200 for count in row] for row in counts(150, 0)[:3]]

    client.set_terminated(run_id)
    assert news() == {"state": news()["state"], "status": "FINISHED"}
    assert news()["state"] not in states
    page = ask("run", run_id=run_id).text
    assert "data-followed" not in page
    assert "connect-src 'self'" in page


def test_a_runs_class_table_comes_from_its_predictions(client, ask, tmp_path):
    experiment_id = client.create_experiment("classes")
    right = counts(120, 0)
    run = log_run(client, experiment_id, "kept", right, strategy="naive")
    run_id = run.info.run_id
    assert "the run kept none" in ask("run", run_id=run_id).text
    log_predictions(client, run, right, tmp_path)
    client.set_tag(run_id, names.PREDICTIONS_TAG, "labels")
    page = ask("run", run_id=run_id).text
    predictions = read_page_data(page)["predictions"]
    assert predictions["classes"] == ["bus", "camera"]
    labels = [zlib.decompress(base64.b64decode(text)) for text in predictions["rows"].values()]
    assert [text.count(0) for text in labels] == [sum(row) for row in right]
    assert "were left out" not in page
    (tmp_path / "row_002.safetensors").write_bytes(b"x" * 20)
    client.log_artifact(run_id, str(tmp_path / "row_002.safetensors"), "predictions")
    client.set_tag(run_id, "seen", "again")
    page = ask("run", run_id=run_id)
    assert page.status_code == 200
    assert "Its predictions were left out: row_002.safetensors: " in page.text


def test_untrusted_names_are_shown_as_text(client, ask):
    experiment_id = client.create_experiment(f"called {HOSTILE}")
    tags = {names.KIND_TAG: names.KIND_TRAIN}
    run = log_run(client, experiment_id, HOSTILE, counts(150, 0), strategy=HOSTILE, tags=tags)
    responses = [
        ask(""),
        ask("compare", experiment_id=experiment_id),
        ask("compare", experiment_id=experiment_id, filter=HOSTILE),
        ask("compare", experiment_id=experiment_id, group_by=HOSTILE),
        ask("compare", experiment_id=HOSTILE),
        ask("compare", experiment_id=experiment_id, runs=HOSTILE),
        ask("run", run_id=run.info.run_id),
        ask("run", run_id=HOSTILE),
    ]
    statuses = [response.status_code for response in responses]
    assert statuses == [200, 200, 400, 400, 400, 400, 200, 404]
    for response in responses:
        assert "<img" not in response.text
        assert "alert(1)</script>" not in response.text
        assert "default-src 'none'" in response.text
        assert response.headers["X-Frame-Options"] == "SAMEORIGIN"
        assert response.headers["Cache-Control"] == "private, no-cache"
    assert f">called {HOSTILE}</a>" in html.unescape(responses[0].text)


def test_each_experiment_is_listed_with_its_newest_run(client, ask):
    many, few = client.create_experiment("many runs"), client.create_experiment("few runs")
    client.create_experiment("no runs")
    scored, trained = {names.ROWS_TAG: "complete"}, {names.KIND_TAG: names.KIND_TRAIN}
    newest = {few: client.create_run(few, tags=trained, start_time=1000).info.run_id}
    client.create_run(few, tags=scored, start_time=5000)
    for i in range(60):
        newest[many] = client.create_run(many, tags=trained, start_time=2000 + i).info.run_id
    page = ask("").text
    for experiment_id, run_id in newest.items():
        assert f"experiment_id={experiment_id}" in page
        assert f"run?run_id={run_id}" in page
    assert "no runs" not in page


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ({"experiment_id": None}, 400, "experiment_id is missing"),
        ({}, 400, "none of the chosen runs has rows"),
        ({"experiment_id": "987654"}, 404, "No Experiment with id=987654"),
        ({"filter": "strategy is replay"}, 400, "nvalid"),
        (
            {"filter": " AND ".join(["tags.a='1'"] * 151)},
            400,
            "has 151 conditions; expected at most",
        ),
        ({"workspace": "nope"}, 400, "this server does not use workspaces"),
    ],
)
def test_an_invalid_request_is_rejected_in_one_line(ask, query, status, says):
    response = ask("compare", **{"experiment_id": "0", **query})
    assert response.status_code == status
    reason = re.search(r'<p class="faint">(.*?)</p>', response.text)[1]
    assert says in html.unescape(reason)
    assert "sqlite" not in response.text


def test_the_server_is_mlflows_server(server, client, ask):
    assert ask("", headers={"Host": "elsewhere.example"}).status_code == 403
    assert (
        ask("compare", headers={"Host": "elsewhere.example"}, experiment_id="0").status_code == 403
    )
    assert ask("", method="HEAD").status_code == 405
    assert ask("", method="POST").status_code == 405
    assert requests.get(f"{server.url}/", timeout=LONG).text.startswith("<!doctype html>")
    assert requests.get(f"{server.url}/version", timeout=LONG).text == mlflow.__version__
    assert requests.get(f"{server.url}/clear", timeout=LONG).url == f"{server.url}/clear/"
    run_id = client.create_run("0").info.run_id
    client.log_text(run_id, "kept", "a.txt")
    assert mlflow.artifacts.load_text(f"runs:/{run_id}/a.txt") == "kept"
    workers = psutil.Process(server.process.pid).children(recursive=True)
    assert len(workers) >= 2
    loaded = {file.path for worker in workers for file in worker.memory_maps()}
    assert any("numpy" in path for path in loaded)
    assert not any("/torch" in path for path in loaded)


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Start a server in this process, up to the start of workers."""
    import mlflow.cli
    import mlflow.server

    def no_worker(*_, **__):
        raise AssertionError("a worker was about to be started")

    monkeypatch.setattr(mlflow.server, "_exec_cmd", no_worker)
    for name in [name for name in sys.modules if name.startswith("clear_mlflow.server.")]:
        monkeypatch.delitem(sys.modules, name)
    command = ["server", "--app-name", "clear"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"]
    monkeypatch.setattr("mlflow.server.handlers._tracking_store", None)
    # The command changes the process, which it takes for its own.
    with mock.patch.dict(os.environ), tracking_uri(mlflow.get_tracking_uri()):
        yield lambda: CliRunner().invoke(mlflow.cli.cli, command)


def test_a_server_that_cannot_start_is_a_one_line_error(start, monkeypatch):
    """Before a worker is started, which would be restarted again and again."""
    hook = "_get_proxied_run_artifact_destination_path"
    with monkeypatch.context() as patch:
        patch.delattr(f"mlflow.server.handlers.{hook}")
        result = start()
    assert result.exit_code == 2
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert f"this is mlflow {mlflow.__version__}" in line
    assert hook in line
    monkeypatch.setenv("CLEAR_MLFLOW_SERVER_APP", "oidc")
    result = start()
    assert result.exit_code == 2
    assert "Error: no app has the name 'oidc'; expected one of basic-auth" in result.output
