"""The stories of docs/offline.md: each command of the page, with two stores and a server."""

import re
import shutil
from pathlib import Path

import pytest
from forked import environment, run_shell
from mlflow import MlflowClient
from servers import tracking_server
from stored_runs import stored_run

import clear_mlflow
from clear_mlflow.store import names

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "offline.md").read_text()


def read_commands(heading):
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.S | re.M)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory, empty_store):
    """The address of a server that proxies artifacts to a folder."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    artifacts = (folder / "artifacts").as_uri()
    with tracking_server(folder, f"sqlite:///{folder}/mlflow.db", artifacts=artifacts) as starting:
        yield starting.wait()


class Person:
    """A user with a working folder and an environment, who types commands of the page."""

    def __init__(self, folder, **variables):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.environment = environment()
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
            self.environment.pop(name, None)
        self.environment |= variables

    def type(self, line, **replacements):
        """Run one line, with names replaced for this test, and return its output."""
        for name, text in replacements.items():
            line = line.replace(name, str(text))
        if line.startswith("export MLFLOW_TRACKING_URI="):
            self.environment["MLFLOW_TRACKING_URI"] = line.partition("=")[2]
            return ""
        done = run_shell(line, cwd=self.folder, env=self.environment, timeout=300)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout


def read_runs(uri, experiment):
    client = MlflowClient(uri)
    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    condition = f"tags.`{names.KIND_TAG}` = '{names.KIND_TRAIN}'"
    return client.search_runs([experiment_id], condition, order_by=["params.seed"])


def test_a_node_without_network(server, tmp_path):
    *trainings, compare, show, copy, export, sync = read_commands("A node without network")
    unreachable = "http://127.0.0.1:9"
    node = Person(tmp_path / "node", MLFLOW_TRACKING_URI=unreachable)
    for training in trainings:
        node.type(training)
    recorded = clear_mlflow.runs(node.folder / "offline_runs")
    assert sorted(run.config["seed"] for run in recorded) == ["0", "1"]
    assert "replay" in node.type(compare)
    assert "FINISHED" in node.type(show, RUN=recorded[0].run_id[:8])
    values = {run.run_id: run.metrics["clear/challenge_score"].value for run in recorded}
    desk = Person(tmp_path / "desk")
    desk.type(copy, **{"/node": node.folder})
    shutil.rmtree(node.folder)
    desk.type(export, **{"http://server:5000": server})
    for _ in range(2):
        desk.type(sync)
        runs = read_runs(server, "paper")
        assert [run.info.status for run in runs] == ["FINISHED"] * 2
        assert {run.data.tags[names.COPIED_FROM_TAG] for run in runs} == {
            run.run_id for run in recorded
        }
    for run in runs:
        source = run.data.tags[names.COPIED_FROM_TAG]
        assert run.data.metrics["clear/challenge_score"] == values[source]


def test_a_colleagues_results(store, server, empty_store, tmp_path):
    export, compare, compare_mine, import_, compare_stored = read_commands("A colleague's results")
    paper = store.create_experiment("paper", artifact_location=(tmp_path / "files").as_uri())
    runs = [stored_run(store, paper, seed=seed) for seed in (0, 1)]
    colleague = Person(tmp_path / "colleague", MLFLOW_TRACKING_URI=store.tracking_uri)
    colleague.type(export)
    me = Person(tmp_path / "me", MLFLOW_TRACKING_URI=server)
    shutil.copy(colleague.folder / "results.tar.xz", me.folder)
    client = MlflowClient(server)
    stored = client.create_run(client.create_experiment("mine"))
    for row in stored_rows(runs[0]):
        client.log_artifact(stored.info.run_id, str(row), "accuracy_matrix/rows")
    client.set_terminated(stored.info.run_id)
    assert "seeds" in me.type(compare)
    assert "seeds" in me.type(compare_mine)
    assert me.type(import_).count("imported") == 3  # two lines and the sum
    assert me.type(import_).count("there already") == 3
    copies = client.search_runs([client.get_experiment_by_name("theirs").experiment_id])
    assert {run.data.tags[names.COPIED_FROM_TAG] for run in copies} == {
        run.info.run_id for run in runs
    }
    assert "seeds" in me.type(compare_stored)


def stored_rows(run):
    return sorted(Path(run.info.artifact_uri.removeprefix("file://")).rglob("row_*.json"))


def test_moving_to_another_server(server, empty_store, tmp_path):
    export, copy = read_commands("Moving to another server")
    me = Person(tmp_path / "me")
    shutil.copy(empty_store, me.folder / "mlflow.db")
    old = MlflowClient(f"sqlite:///{me.folder}/mlflow.db")
    location = (me.folder / "mlruns").as_uri()
    runs = [
        stored_run(old, old.create_experiment(name, artifact_location=f"{location}/{name}"))
        for name in ("first", "second")
    ]
    me.type(export, **{"http://server:5000": server})
    for _ in range(2):
        me.type(copy)
        client = MlflowClient(server)
        for run, name in zip(runs, ("first", "second"), strict=True):
            experiment = client.get_experiment_by_name(name)
            (moved,) = client.search_runs([experiment.experiment_id])
            assert moved.data.tags[names.COPIED_FROM_TAG] == run.info.run_id
            assert moved.info.artifact_uri.startswith("mlflow-artifacts:")
            assert moved.data.metrics["clear/challenge_score"] > 0
