"""A tracking server that fails, behind a proxy: what the server has afterwards."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import mlflow
import pytest
from commands import run_command
from faulty_proxy import Fault, FaultyProxy, every
from feature_streams import config as features_config
from feature_streams import training as features_training
from forked import Forked, ForkedPython
from mlflow import MlflowClient
from mlflow_stores import copy_store, tracking_uri
from row_points import collect_points
from servers import tracking_server
from short_stream import BUCKETS, HELD, options
from trainings import EXPECTED, FOUR_BUCKETS, KnownTraining
from waiting import LONG, finish_well, wait_until

import clear_mlflow
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.journal.uploader import UnsentError
from clear_mlflow.learning.measured import CurvePoint, Measurement, ignore
from clear_mlflow.learning.session import StreamTraining
from clear_mlflow.metrics import summarize
from clear_mlflow.store import names
from clear_mlflow.store.client import connect_store
from clear_mlflow.tracking.tracked_training import train_in_process

ASKED = {"seed": "7", "epochs": "auto"}
ENSEMBLE = {"features": "made_up", "epochs": "7", "seeds": "4,2", "batch_size": "6"}
THREE_ROWS = [f"row_00{i}.json" for i in range(3)]


@pytest.fixture(scope="module")
def server(tmp_path_factory, empty_store):
    """A tracking server on SQLite that proxies artifacts to a folder."""
    folder = tmp_path_factory.mktemp("server")
    uri, artifacts = copy_store(empty_store, folder), (folder / "artifacts").as_uri()
    with tracking_server(folder, uri, artifacts=artifacts) as starting:
        yield starting.wait()


@pytest.fixture
def proxy(server, tmp_path, monkeypatch):
    """A proxy in front of the server, which the environment names.

    Calls time out after a second.
    """
    proxy = FaultyProxy(server)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "CLEAR_MLFLOW_CACHE": str(tmp_path / "cache"),
        "CLEAR_MLFLOW_EXIT_WAIT": "1",
        "MLFLOW_TRACKING_URI": proxy.uri,
        "MLFLOW_EXPERIMENT_NAME": tmp_path.name,
        "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
        "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    MlflowClient(server).create_experiment(tmp_path.name)
    with tracking_uri(proxy.uri):
        yield proxy
        proxy.close()


@dataclass(frozen=True)
class Direct:
    """What the server has, read without the proxy, and what waits on local disk."""

    client: MlflowClient
    folder: Path

    @property
    def runs(self):
        experiment = self.client.get_experiment_by_name(self.folder.name)
        return self.client.search_runs([experiment.experiment_id])

    @property
    def run(self):
        (run,) = self.runs
        return run

    @property
    def journals(self) -> list[Path]:
        return sorted((self.folder / "cache" / "unsent").glob("*"))

    def read_rows(self, run=None) -> dict[str, dict]:
        run = run or self.run
        listed = [file.path for file in self.client.list_artifacts(run.info.run_id, ROWS_FOLDER)]
        assert len(listed) == len(set(listed))
        texts = {}
        for path in listed:
            local = mlflow.artifacts.download_artifacts(
                artifact_uri=f"{run.info.artifact_uri}/{path}",
                tracking_uri=self.client.tracking_uri,
            )
            texts[path.rsplit("/", 1)[-1]] = json.loads(Path(local).read_text())
        return texts

    def check_whole(self) -> None:
        """Check that the run has ended, with every row and point once, in order, as measured."""
        rows, run = self.read_rows(), self.run
        assert run.info.status == "FINISHED"
        assert {name: row["correct"] for name, row in rows.items()} == {
            f"row_{i:03d}.json": row for i, row in enumerate(FOUR_BUCKETS)
        }
        points = [p for i in range(1, len(FOUR_BUCKETS)) for p in (*LIVE[i], *REST[i])]
        expected = {
            **collect_points(EXPECTED),
            names.CURVE_LOSS: {p.step: p.loss for p in points},
            names.CURVE_LR: {p.step: p.lr for p in points},
            names.CURVE_SPEED: {p.step: p.images_per_second for p in points},
        }
        assert set(run.data.metrics) == set(expected)
        for name, steps in expected.items():
            history = self.client.get_metric_history(run.info.run_id, name)
            assert [(m.step, m.value) for m in history] == sorted(steps.items())
        assert self.journals == []

    def check_closed(self, run=None, rows: Sequence[str] = THREE_ROWS) -> None:
        run = run or self.run
        assert (run.info.status, run.data.tags[names.ROWS_TAG]) == ("FINISHED", "complete")
        assert names.ERROR_TAG not in run.data.tags
        assert sorted(self.read_rows(run)) == list(rows)


@pytest.fixture
def direct(server, proxy, tmp_path):
    return Direct(MlflowClient(server), tmp_path)


# Of each bucket, points that come while it is trained on, and those that its row brings.
LIVE, REST = (
    {
        i: [CurvePoint(10 * i + k, 1 / (10 * i + k), 0.1, 50.0 + i, 1_000_000 + 10 * i + k)]
        for i in range(1, 5)
    }
    for k in (0, 5)
)


@dataclass
class Events(KnownTraining):
    """Acts before it measures a row, and returns the measured rows."""

    correct: Sequence[Sequence[int]] = field(default_factory=lambda: FOUR_BUCKETS)
    live: Mapping[int, Sequence[CurvePoint]] = field(default_factory=lambda: LIVE)
    curve: Mapping[int, Sequence[CurvePoint]] = field(default_factory=lambda: REST)
    before: dict[int, Callable[[], object]] = field(default_factory=dict)
    measured: list[int] = field(default_factory=list)

    def rows(self, on_message=ignore) -> Iterator[Measurement]:
        for measured in super().rows(on_message):
            self.before.get(measured.row.row, lambda: None)()
            self.measured.append(measured.row.row)
            yield measured
        self.before.get(len(self.measured), lambda: None)()


def train(**before: Callable[[], object]) -> None:
    """Train all rows, with an action before some (``row_2=...``)."""
    training = Events(before={int(name[4:]): action for name, action in before.items()})
    try:
        train_in_process(connect_store(), training, ASKED)
    finally:
        assert training.measured == [0, 1, 2, 3, 4]


sync = partial(run_command, "sync")


def list_row_requests(proxy) -> list[int]:
    puts = [path for method, path in proxy.requests if method == "PUT"]
    sent = [re.search(r"row_(\d+)\.json$", path) for path in puts]
    return [int(match[1]) for match in sent if match]


@pytest.mark.program
def test_a_row_is_stored_before_the_next_bucket(proxy, direct):
    counts = []
    train(**{f"row_{i}": lambda: counts.append(len(direct.read_rows())) for i in range(5)})
    assert counts == [0, 1, 2, 3, 4]
    direct.check_whole()


@pytest.mark.program
def test_training_continues_while_the_server_is_unreachable(proxy, direct, capsys):
    def come_back():
        (journal,) = direct.journals
        waiting.extend(path.name for path in journal.rglob("*.json"))
        proxy.up()

    waiting: list[str] = []
    train(row_2=proxy.down, row_4=come_back)
    assert {"row_002.json", "row_003.json"} <= {*waiting}
    assert "row_001.json" not in waiting
    assert len([name for name in waiting if name.endswith("-metrics.json")]) >= 2
    assert list_row_requests(proxy) == [0, 1, 2, 3, 4]
    direct.check_whole()
    errors = capsys.readouterr().err
    assert errors.count("training continues") == 1
    assert "all that was kept on local disk is stored" in errors


STUTTERS = [
    *(Fault("drop"), Fault("lose"), Fault("truncate")),
    *(Fault("status", status) for status in (500, 429, 503)),
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("number", "part"), [(3, ""), (2, "/rows/row_")])
def test_an_unreliable_server_gets_every_row_once(proxy, direct, monkeypatch, number, part):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", "30")
    plan = every(number, STUTTERS, part)
    train(row_0=lambda: proxy.follow(plan), row_5=proxy.follow)
    assert proxy.faults >= 2
    direct.check_whole()


def leave_folder(proxy, direct) -> Path:
    """Return the run folder of a training whose server never came back after the second row."""
    with pytest.raises(UnsentError) as caught:
        train(row_2=proxy.down)
    (journal,) = direct.journals
    assert f"clear-mlflow sync {journal}" in str(caught.value)
    assert mlflow.active_run() is None
    return journal


@pytest.mark.program
def test_sync_sends_what_was_left(proxy, direct, tmp_path):
    journal = leave_folder(proxy, direct)
    copy = shutil.copytree(journal, tmp_path / "copy")
    assert direct.run.info.status == "RUNNING"
    assert sorted(direct.read_rows()) == ["row_000.json", "row_001.json"]
    proxy.up()
    assert "scored, FINISHED" in sync()
    direct.check_whole()
    sync(copy)
    direct.check_whole()
    data = direct.run.data
    assert data.tags[names.ROWS_TAG] == "complete"
    assert data.tags.keys().isdisjoint([names.ERROR_TAG, names.PROCESS_TAG])
    summary = {n: v for n, v in data.metrics.items() if n.startswith(("clear/", "renate/"))}
    assert summary == summarize(EXPECTED)
    assert not journal.exists()
    assert sync() == "nothing waits for a store\n"


@pytest.mark.slow
def test_a_silent_server_delays_training_by_seconds(proxy, direct, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    with pytest.raises(UnsentError, match="has not taken"):
        train(row_2=lambda: proxy.follow(lambda method, path: Fault("hang")))
    proxy.follow()
    proxy.release()
    # The call that hung may still store what sync is about to read; a process would have ended.
    senders = "clear_mlflow upload"
    wait_until(lambda: senders not in {thread.name for thread in threading.enumerate()})
    sync()
    direct.check_whole()


@pytest.mark.slow
def test_an_unwritable_cache_is_reported(proxy, direct, tmp_path, monkeypatch, capsys):
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "no folder"))
    with pytest.raises(UnsentError, match="unsent_rows"):
        train(row_2=proxy.down)
    assert "are kept in" in capsys.readouterr().err
    proxy.up()
    sync()
    direct.check_whole()


@pytest.mark.program
def test_credentials_are_not_sent_to_a_store_that_a_run_folder_names(
    proxy, direct, tmp_path, monkeypatch
):
    """A received run folder could steal them: the environment has to name the store."""
    journal = leave_folder(proxy, direct)
    copy = shutil.copytree(journal, tmp_path / "from elsewhere")
    proxy.up()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    before = len(proxy.requests)
    assert f"set MLFLOW_TRACKING_URI to it ({proxy.uri}" in sync(copy, code=2)
    assert len(proxy.requests) == before
    sync(journal)


def train_members(monkeypatch, proxy, lost_seed) -> str:
    """Train an ensemble whose server is lost at row 2 of a seed, and back at the end.

    Return the error.
    """
    rows = StreamTraining.rows

    def measure_rows(self, on_message=ignore):
        for measured in rows(self, on_message):
            if measured.row.row == 2 and self.config.seed == lost_seed:
                proxy.down()
            yield measured

    monkeypatch.setattr(StreamTraining, "rows", measure_rows)
    training = features_training(features_config(**ENSEMBLE))
    with pytest.raises(UnsentError) as errors:
        train_in_process(connect_store(), training, ENSEMBLE)
    proxy.up()
    return str(errors.value)


@pytest.mark.slow
def test_the_last_member_of_an_ensemble_is_sent_later(proxy, direct, tmp_path, monkeypatch):
    error = train_members(monkeypatch, proxy, lost_seed=2)
    root = tmp_path / "cache" / "unsent"
    assert f"clear-mlflow sync {root}" in error
    assert len(direct.journals) == 2
    sync(root)
    runs = direct.runs
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    (parent,) = [r for r in runs if r.data.tags[names.KIND_TAG] == names.KIND_ENSEMBLE]
    assert parent.data.tags[names.MEMBERS_TAG] == "2"
    members = [r for r in runs if r is not parent]
    for name in ("clear/in_domain_accuracy", "renate/forgetting"):
        mean = sum(m.data.metrics[name] for m in members) / 2
        assert parent.data.metrics[f"mean/{name}"] == pytest.approx(mean)
    assert [len(direct.read_rows(member)) for member in members] == [4, 4]
    assert direct.journals == []


@pytest.mark.slow
def test_an_outage_between_two_seeds_ends_the_ensemble(proxy, direct, tmp_path, monkeypatch):
    train_members(monkeypatch, proxy, lost_seed=4)
    sync(tmp_path / "cache" / "unsent")
    runs = {run.data.tags[names.KIND_TAG]: run for run in direct.runs}
    member, parent = runs.pop(names.KIND_TRAIN), runs.pop(names.KIND_ENSEMBLE)
    assert (member.info.status, parent.info.status, runs) == ("FINISHED", "FAILED", {})
    assert "no further seed is trained" in parent.data.tags[names.ERROR_TAG]
    assert names.MEMBERS_TAG not in parent.data.tags
    assert len(direct.read_rows(member)) == 4


@pytest.mark.slow
def test_the_command_prints_where_unsent_rows_are(proxy, direct, short_stream, hold, tmp_path):
    process = Forked(
        *("train", *options({**short_stream, **HELD})),
        env={**os.environ, "CLEAR_MLFLOW_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: len(list_row_requests(proxy)) >= 2, process)
    proxy.down()
    hold.unlink()
    output, errors = process.communicate(timeout=LONG)
    assert process.returncode == 2, errors
    (journal,) = direct.journals
    assert f"clear-mlflow sync {journal}" in errors
    assert "Traceback" not in errors
    assert f"run {journal.name} FINISHED (not stored yet)" in output
    proxy.up()
    sync(journal)
    direct.check_closed(rows=[f"row_{i:03}.json" for i in range(BUCKETS + 1)])


@pytest.mark.slow
def test_a_sweep_survives_an_outage(proxy, direct, short_stream, hold, tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", "60")
    grid = tmp_path / "sweep.yaml"
    content = {"fixed": {**short_stream, **HELD}, "runs": [{"seed": "0"}, {"seed": "1"}]}
    grid.write_text(json.dumps(content))  # JSON is YAML
    process = Forked("sweep", "--grid", str(grid))
    wait_until(lambda: len(list_row_requests(proxy)) >= 2, process)
    proxy.down()
    hold.unlink()
    # Until the run under way has measured its last row, which waits as all before it.
    unsent = tmp_path / "cache" / "unsent"
    wait_until(lambda: list(unsent.rglob("row_004.json")), process)
    proxy.up()
    finish_well(process)
    runs = direct.runs
    trained = [run for run in runs if run.data.tags[names.KIND_TAG] == names.KIND_TRAIN]
    assert sorted(run.data.params["seed"] for run in trained) == ["0", "1"]
    assert [len(direct.read_rows(run)) for run in trained] == [BUCKETS + 1] * 2
    assert Counter(run.info.status for run in runs) == {"FINISHED": 4}  # the sweep, the comparison
    assert direct.journals == []


OWN_LOOP = """
import os, signal, sys
import clear_mlflow

def wait(message):
    print(message, flush=True)
    sys.stdin.readline()
"""


def start_script(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = ForkedPython(str(script), **pipes, cwd=tmp_path)
    assert process.stdout.readline() == "opened\n", process.communicate()
    return process


def continue_script(process, message):
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{message}\n"


@pytest.mark.slow
def test_a_custom_loop_logs_predictions_and_tests_while_the_server_is_unreachable(proxy, direct):
    labels = [[0, 1, 2], [2, 1]]

    def log_rows():
        with clear_mlflow.track(buckets=2, class_names="abc", strategy="x") as run:
            proxy.down()
            run.log_predictions(0, [[0, 1, 1], [2, 2]], labels)
            for i in (1, 2):
                run.log_test(i, [2, 1], test=1, num_tests=1, step=1, num_steps=2)
                run.log_predictions(i, labels)

    with pytest.raises(UnsentError, match="the tracking store did not take"):
        log_rows()
    proxy.up()
    sync()
    direct.check_closed()
    data = direct.run.data
    assert {"continual_evaluation/minimum_accuracy", "class_changes/known"} <= data.metrics.keys()
    stored = clear_mlflow.load(direct.run.info.run_id)
    assert data.tags["dataset_digest"] == stored.predictions.images.digest
    assert direct.journals == []


INTERRUPTED = f"""{OWN_LOOP}
import mlflow
try:
    with clear_mlflow.track(buckets=2, num_instances=10) as run:
        wait("opened")
        for i in range(3):
            run.log_counts(i, [i, 2])
        print("closing", flush=True)
except KeyboardInterrupt:
    print(mlflow.active_run())
wait("interrupted")
with clear_mlflow.track(buckets=1, num_instances=10, dataset="next") as run:
    run.log_counts(1, [3])
"""


@pytest.mark.slow
def test_ctrl_c_while_a_custom_loop_waits_for_the_server(proxy, direct, tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", "3600")
    process = start_script(tmp_path, INTERRUPTED)
    proxy.down()
    continue_script(process, "closing")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "None\n"
    assert process.stdout.readline() == "interrupted\n"
    proxy.up()
    _, errors = process.communicate("\n", timeout=LONG)
    assert process.returncode == 0, errors
    assert "clear-mlflow sync" in errors
    sync()
    runs = {run.data.tags["dataset"]: run for run in direct.runs}
    assert [run.info.status for run in runs.values()] == ["FINISHED"] * 2
    direct.check_closed(runs["own"])
