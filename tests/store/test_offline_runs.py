"""Runs of an offline folder are read from its own files, without any store."""

import json
import re
import shutil
import socket

import mlflow
import pytest
from click.testing import CliRunner
from commands import run_command
from kept_predictions import kept_run
from mlflow.exceptions import MlflowException
from offline_folders import create_offline_folder
from stored_runs import change, rows_folder, stored_run

import clear_mlflow
from clear_mlflow.api.bundle import read_bundles, read_metric_points
from clear_mlflow.cli import main
from clear_mlflow.core.disk import OFFLINE_VARIABLE
from clear_mlflow.core.errors import ClearError, ConfigError, RecordError


@pytest.fixture
def copied_folder(tmp_path):
    """An offline folder with two runs from another machine, whose stored paths are wrong."""
    client, experiment_id = create_offline_folder(tmp_path / "node" / "offline_runs")
    runs = [kept_run(client, experiment_id), stored_run(client, experiment_id, seed=1)]
    for seed, run in enumerate(runs):
        client.log_param(run.info.run_id, "strategy", "replay")
        client.log_param(run.info.run_id, "seed", str(seed))
        client.log_metric(run.info.run_id, "train/loss", 0.25, timestamp=7, step=3)
    folder = tmp_path / "mine" / "offline_runs"
    shutil.copytree(tmp_path / "node" / "offline_runs", folder)
    for run in runs:  # whoever follows a stored path reads other numbers
        row = rows_folder(run) / "row_001.json"
        counts = json.loads(row.read_text())["correct"]
        change(row, correct=[counts[0] - 1, *counts[1:]])
    return folder, [run.info.run_id for run in runs]


@pytest.fixture
def silent_store(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
        yield uri
        with pytest.raises(BlockingIOError):  # no connection waits
            server.accept()


@pytest.mark.slow
def test_a_copied_folder_is_read_without_a_store(
    copied_folder, silent_store, tmp_path, monkeypatch
):
    folder, run_ids = copied_folder
    monkeypatch.chdir(folder.parent)
    runs = clear_mlflow.runs("offline_runs")
    assert sorted(run.run_id for run in runs) == sorted(run_ids)
    loaded = clear_mlflow.load(f"offline_runs/{run_ids[0][:6]}")
    assert (loaded.run_id, loaded.links) == (
        run_ids[0],
        (f"bundle   offline_runs/{run_ids[0][:8]}",),
    )
    assert loaded.predictions is not None
    (row,) = folder.rglob(f"{run_ids[0]}/**/row_001.json")
    assert loaded.matrix.values[0].tolist() == [
        n / 100 for n in json.loads(row.read_text())["correct"]
    ]
    with pytest.raises(ConfigError, match="contains 2 runs; name one, for example offline_runs/"):
        clear_mlflow.load("offline_runs")
    printed = CliRunner().invoke(main, ["show", f"offline_runs/{run_ids[0]}", "--json"])
    assert json.loads(printed.stdout)["matrix"] == loaded.matrix.to_dict()
    clear_mlflow.export("offline_runs", tmp_path / "results.tar.xz")
    compared = clear_mlflow.compare(["offline_runs", tmp_path / "results.tar.xz"], log=False)
    assert sorted(run.run_id for run in compared.comparison.runs) == sorted(run_ids)
    assert "replay" in compared.page()
    (member,) = (
        run for run in read_bundles(tmp_path / "results.tar.xz") if run.info.run_id == run_ids[0]
    )
    (point,) = read_metric_points(None, member)
    assert (point.key, point.value, point.timestamp, point.step) == ("train/loss", 0.25, 7, 3)


@pytest.mark.slow
def test_a_folder_is_compared_with_stored_runs(store, experiment_id, copied_folder):
    folder, run_ids = copied_folder
    stored = kept_run(store, experiment_id)
    compared = clear_mlflow.compare([stored.info.run_id, folder], group_by=())
    assert {run.run_id for run in compared.comparison.runs} == {stored.info.run_id, *run_ids}
    assert store.get_run(compared.run_id).info.experiment_id == experiment_id
    assert compared.comparison.image_intervals


@pytest.mark.slow
def test_a_comparison_is_printed_though_no_store_can_take_it(copied_folder, monkeypatch):
    folder, _ = copied_folder
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    output = run_command("compare", folder)
    assert "replay" in output
    error = f"the comparison is not stored: cannot read experiments in the tracking store {uri}"
    assert error in output


def test_one_run_needs_no_name(store, tmp_path):
    folder = tmp_path / "offline_runs"
    client, experiment_id = create_offline_folder(folder)
    with pytest.raises(RecordError, match=r"contains no run$"):
        clear_mlflow.load(folder)
    run_id = stored_run(client, experiment_id).info.run_id
    client.create_run(experiment_id, tags={"clear_mlflow.kind": "compare"})
    assert clear_mlflow.load(folder).run_id == run_id
    client.create_run(experiment_id)  # its training ended before the first row
    exported = clear_mlflow.export(folder, tmp_path / "exported")
    assert clear_mlflow.load(exported).run_id == run_id
    with pytest.raises(RecordError, match="contains no run ffffff"):
        clear_mlflow.load(folder / "ffffff")
    assert {result.action for result in clear_mlflow.evaluate(folder)} == {"failed"}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        *(
            (f"*-{entry}.json", None, f"lacks its {entry}.json")
            for entry in ("info", "tags", "params", "inputs", "metrics")
        ),
        ("*-info.json", b"{", "is damaged"),
        ("*-info.json", b'{"name": "x", "status": "LOST", "start_time": 0}', "is damaged"),
        ("*-tags.json", b'{"strategy": 1}', "is damaged"),
        ("*-metrics.json", b"[1]", "is damaged"),
        ("run.json", b'{"format"', "cut off"),
        ("run.json", b"", "cut off"),
        ("run.json", b'{"format": "3.0", "experiment_id": "0"}', "has format '3.0'"),
    ],
)
def test_a_damaged_run_stops_no_other(store, tmp_path, monkeypatch, capsys, name, content, problem):
    folder = tmp_path / "recorded"
    client, experiment_id = create_offline_folder(folder)
    damaged, intact = (stored_run(client, experiment_id).info.run_id for _ in range(2))
    client.log_metric(damaged, "loss", 1.0)
    (file,) = (folder / damaged).glob(name)
    file.unlink() if content is None else file.write_bytes(content)
    (run,) = clear_mlflow.runs(folder)
    assert run.run_id == intact
    assert re.search(f"{damaged}.*{problem}", capsys.readouterr().err)
    with pytest.raises(ClearError, match=problem) as refusal:
        clear_mlflow.load(folder / damaged)
    assert "\n" not in str(refusal.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.tracking_uri)
    sent = CliRunner().invoke(main, ["sync", str(folder)])
    assert sent.exit_code == 2
    assert f"run {intact}: copied" in sent.stdout
    assert re.search(f"run {damaged}: .*{problem}", sent.stderr)


def test_rows_in_a_folder_without_its_header_are_reported(store, tmp_path, monkeypatch):
    folder = tmp_path / "recorded"
    client, experiment_id = create_offline_folder(folder)
    run_id = stored_run(client, experiment_id).info.run_id
    (folder / run_id / "run.json").unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.tracking_uri)
    sent = CliRunner().invoke(main, ["sync", str(folder)])
    assert sent.exit_code == 2
    assert f"{run_id} contains rows, but lacks its run.json" in sent.stderr


def test_nothing_in_a_hostile_folder_leads_out_of_it(store, tmp_path):
    folder = tmp_path / "hostile"
    client, experiment_id = create_offline_folder(folder)
    run_id = stored_run(client, experiment_id).info.run_id
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"secret": "of this machine"}))
    header = folder / run_id / "run.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "run_id": "../../x"}))
    tags = folder / run_id / "99999999-tags.json"
    tags.symlink_to(secret)
    (folder / run_id / "artifacts" / "config.json").symlink_to(secret)
    shutil.copytree(folder / run_id, folder / "not an id")
    (run,) = clear_mlflow.runs(folder)
    assert (run.run_id, "secret" in run.tags) == (run_id, False)
    for name in ("../hostile", "..", "not an id"):
        with pytest.raises(MlflowException, match=r"not found|Invalid"):
            client.get_run(name)
    copied = CliRunner().invoke(
        main, ["sync", str(folder)], env={"MLFLOW_TRACKING_URI": store.tracking_uri}
    )
    assert copied.exit_code == 0, copied.output
    (copy,) = store.search_runs([e.experiment_id for e in store.search_experiments()])
    assert {file.path for file in store.list_artifacts(copy.info.run_id)}.isdisjoint(
        {"config.json"}
    )


def test_a_folder_without_its_header_is_an_error_that_creates_nothing(
    store, own_cache, tmp_path, monkeypatch
):
    """Of sync, wherever the folder is named, and of import, which creates no other store in it."""
    folder = tmp_path / "work" / "offline_runs"
    client, experiment_id = create_offline_folder(folder)
    run_id = stored_run(client, experiment_id).info.run_id
    (folder / "offline.json").unlink()
    (tmp_path / "empty.db").touch()
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.tracking_uri)
    before = {path for path in tmp_path.rglob("*") if path.name != "lock"}
    lacking = "offline_runs, which lacks its offline.json"
    for command, offline, problem in (
        (["sync"], "", "offline_runs contains runs, but lacks its offline.json"),
        (["sync"], str(folder), "offline_runs contains runs, but lacks its offline.json"),
        (["sync", "offline_runs"], "", lacking),
        (["sync", f"offline_runs/{run_id}"], "", lacking),
        (["import", "--from", "offline_runs"], "", "offline_runs lacks offline.json, which an"),
        (["import", "--from", "nowhere"], "", "the store nowhere does not exist"),
        (["import", "--from", "sqlite:///../empty.db"], "", "empty.db does not exist"),
    ):
        monkeypatch.setenv(OFFLINE_VARIABLE, offline)
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2, (command, done.output)
        (line,) = done.stderr.splitlines()
        assert problem in line
        assert {path for path in tmp_path.rglob("*") if path.name != "lock"} == before
    assert (tmp_path / "empty.db").read_bytes() == b""
    monkeypatch.setenv(OFFLINE_VARIABLE, "")
    shutil.rmtree(folder / run_id)
    (folder / "offline.json").write_text('{"format": "2.0"}')
    done = CliRunner().invoke(main, ["sync", "offline_runs"])
    assert (done.exit_code, done.output) == (0, "nothing waits for a store\n")


@pytest.mark.parametrize("content", [b'{"format": "1.0"}', b'{"format": "9.0"}', b"", b"[]"])
def test_a_folder_of_another_format_is_an_error_of_every_command(
    store, own_cache, tmp_path, monkeypatch, content
):
    folder = tmp_path / "work" / "recorded"
    client, experiment_id = create_offline_folder(folder)
    run_id = stored_run(client, experiment_id).info.run_id
    (folder / "offline.json").write_bytes(content)
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///new.db")
    before = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    problem = r"recorded(/offline.json is damaged| has format .*; this program reads 2.0)"
    for command, offline in (
        (["sync", "recorded"], ""),
        (["show", "recorded"], ""),
        (["show", f"recorded/{run_id}"], ""),
        (["compare", "recorded"], ""),
        (["export", "recorded", "bundles"], ""),
        (["evaluate", "recorded"], ""),
        (["train", "--resume", "recorded"], ""),
        (["sync"], "recorded"),
        (["show", run_id], "recorded"),
        (["train", "--resume", run_id], "recorded"),
    ):
        monkeypatch.setenv(OFFLINE_VARIABLE, offline)
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2, (command, done.output)
        assert re.fullmatch(f".*{problem}.*\n", done.stderr), (command, done.stderr)
        after = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
        assert after == before, command
    monkeypatch.setenv(OFFLINE_VARIABLE, "")
    for read in (clear_mlflow.runs, clear_mlflow.load):
        with pytest.raises(ClearError, match=problem):
            read("recorded")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.tracking_uri)
    imported = CliRunner().invoke(main, ["import", "--from", "recorded"])
    assert imported.exit_code == 2
    assert re.search(problem, imported.stderr)
