"""A server with MLflow's workspaces and accounts: our commands and pages in one workspace."""

import mlflow
import pytest
from commands import run_command
from mlflow import MlflowClient
from mlflow_stores import copy_store, tracking_uri
from servers import Accounts, request_page, tracking_server

import clear_mlflow

pytestmark = pytest.mark.slow

ADMIN = ("head", "the password of the head 1")
ACCOUNTS = Accounts(ADMIN)
STRANGER = ("stranger", "the password of a stranger 1")


@pytest.fixture(scope="module")
def server(tmp_path_factory, empty_store):
    folder = tmp_path_factory.mktemp("server")
    started = tracking_server(
        folder,
        copy_store(empty_store, folder),
        *("--app-name", "clear", "--enable-workspaces"),
        artifacts=str(folder / "artifacts"),
        **ACCOUNTS.set_up(folder, f"sqlite:///{folder / 'users.db'}"),
    )
    with started as starting:
        ACCOUNTS.create_users(starting.wait(), STRANGER)
        yield starting.url


@pytest.fixture
def lab(server, monkeypatch):
    for name, text in {
        "MLFLOW_TRACKING_URI": server,
        "MLFLOW_TRACKING_USERNAME": ADMIN[0],
        "MLFLOW_TRACKING_PASSWORD": ADMIN[1],
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    }.items():
        monkeypatch.setenv(name, text)
    with tracking_uri(server):
        mlflow.create_workspace("lab")
        monkeypatch.setenv("MLFLOW_WORKSPACE", "lab")
        yield server


def test_commands_and_pages_stay_in_a_workspace(lab, tmp_path, monkeypatch):
    # mlflow.set_experiment would stay in force for whatever this process tests next.
    experiment_id = mlflow.create_experiment("rows")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "rows")
    for seed in range(2):
        with clear_mlflow.track(buckets=2, num_instances=100, dataset="mine", seed=seed) as run:
            for i in range(3):
                run.log_counts(i, [10 + 20 * i + seed, 20 + 10 * i])
    (tmp_path / "matrix.csv").write_text("trained,1,2\n1,0.9,0.5\n2,0.8,0.9\n")
    run_command(
        "import", str(tmp_path / "matrix.csv"), "--experiment", "rows", "--dataset", "other"
    )
    assert "3 unchanged" in run_command("evaluate", "--runs", "rows")
    compared = run_command("compare", "--runs", "rows", "--group-by", "dataset")
    address = f"{lab}/#/experiments/{experiment_id}/runs?workflowType=machine_learning"
    assert f"{address}&workspace=lab&compareRunsMode=CHART" in compared

    def page(path, user=ADMIN, **query):
        return request_page(lab, path, user, **query)

    here = {"experiment_id": experiment_id, "workspace": "lab"}
    page_text = page("compare", **here)
    assert page_text.status_code == 200, page_text.text
    assert "3 runs in 2 groups" in page_text.text
    runs = MlflowClient().search_runs([experiment_id], "params.dataset = 'mine'")
    assert len(runs) == 2
    for stored in runs:
        assert f"run?run_id={stored.info.run_id}&amp;workspace=lab" in page_text.text
        query = {"run_id": stored.info.run_id, "workspace": "lab"}
        assert page("run", **query).status_code == 200
        assert page("run/state", **query).json()["status"] == "FINISHED"
        assert page("run", STRANGER, **query).status_code == 403
        assert page("run", run_id=stored.info.run_id).status_code == 404
    address = f"compare?experiment_id={experiment_id}&amp;workspace=lab"
    assert address in page("", workspace="lab").text
    assert f"experiment_id={experiment_id}" not in page("").text
    assert f"experiment_id={experiment_id}" not in page("", STRANGER, workspace="lab").text
    assert page("compare", experiment_id=experiment_id).status_code == 404
    assert page("compare", STRANGER, **here).status_code == 403
    assert page("compare", None, **here).status_code == 401
    assert page("", workspace="no such").status_code == 400
    assert page("", workspace="nowhere").status_code == 404

    monkeypatch.setenv("MLFLOW_WORKSPACE", "default")
    assert MlflowClient().get_experiment_by_name("rows") is None
