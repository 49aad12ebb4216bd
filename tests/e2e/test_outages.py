"""A tracking server that fails, behind a proxy: what the server has afterwards."""

from __future__ import annotations

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
from pathlib import Path

import mlflow
import pytest
from click.testing import CliRunner
from courses import series
from damaged_journals import DAMAGES
from faulty_proxy import Fault, FaultyProxy, every, wait_until
from feature_streams import config as features_config
from feature_streams import training as features_training
from forked import Forked, ForkedPython
from mlflow import MlflowClient
from servers import tracking_server
from short_stream import BUCKETS, HELD, options
from trainings import EXPECTED, FOUR_BUCKETS, KnownTraining

import clear_mlflow
from clear_mlflow.cli import main
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.journal.uploader import UnsentError
from clear_mlflow.learning.measured import CurvePoint, MeasuredRow, ignore
from clear_mlflow.learning.session import StreamTraining
from clear_mlflow.metrics import summarize
from clear_mlflow.scoring.run_log import collect_series
from clear_mlflow.store import names
from clear_mlflow.store.client import preflight
from clear_mlflow.tracking.tracked_training import train_ensemble_in_process, train_in_process

ASKED = {"seed": "7", "epochs": "auto"}
LONG = 120  # seconds: a bound against hangs


@pytest.fixture(scope="module")
def server(tmp_path_factory, empty_store):
    """A tracking server on SQLite that proxies artifacts to a folder."""
    folder = tmp_path_factory.mktemp("server")
    database = folder / "mlflow.db"
    shutil.copy(empty_store, database)
    artifacts = (folder / "artifacts").as_uri()
    with tracking_server(folder, f"sqlite:///{database}", artifacts=artifacts) as starting:
        yield starting.wait()


@pytest.fixture
def proxy(server, tmp_path, monkeypatch):
    """A proxy in front of the server, which the environment names.

    Calls time out after a second.
    """
    proxy = FaultyProxy(server)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", "false")
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(proxy.uri)
    MlflowClient(server).create_experiment(tmp_path.name)
    yield proxy
    proxy.close()
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


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

    live: Mapping[int, Sequence[CurvePoint]] = field(default_factory=lambda: LIVE)
    curve: Mapping[int, Sequence[CurvePoint]] = field(default_factory=lambda: REST)
    before: dict[int, Callable[[], object]] = field(default_factory=dict)
    measured: list[int] = field(default_factory=list)

    def rows(self, on_curve=ignore, on_test=ignore, on_state=ignore) -> Iterator[MeasuredRow]:
        for measured in super().rows(on_curve, on_test, on_state):
            self.before.get(measured.row.row, lambda: None)()
            self.measured.append(measured.row.row)
            yield measured
        self.before.get(len(self.measured), lambda: None)()


def find_runs(server, tmp_path):
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name(tmp_path.name)
    return client, client.search_runs([experiment.experiment_id])


def read_rows(client, run_id) -> dict[str, dict]:
    """Return every row file that the server has, by name."""
    listed = [f.path for f in client.list_artifacts(run_id, ROWS_FOLDER)]
    uri = client.get_run(run_id).info.artifact_uri
    assert len(listed) == len(set(listed))
    texts = {}
    for path in listed:
        local = mlflow.artifacts.download_artifacts(
            artifact_uri=f"{uri}/{path}", tracking_uri=client.tracking_uri
        )
        texts[path.rsplit("/", 1)[-1]] = json.loads(Path(local).read_text())
    return texts


def check_whole(client, run_id, correct: Sequence[Sequence[int]] = FOUR_BUCKETS) -> None:
    """Check that every row and every point is stored once, in order, as measured."""
    rows = read_rows(client, run_id)
    assert {name: row["correct"] for name, row in rows.items()} == {
        f"row_{i:03d}.json": row for i, row in enumerate(correct)
    }
    run = client.get_run(run_id)
    matrix = EXPECTED.after(len(correct) - 1)
    points = [p for i in range(1, len(correct)) for p in (*LIVE[i], *REST[i])]
    expected = {
        **collect_series(matrix, series(matrix)),
        names.CURVE_LOSS: {p.step: p.loss for p in points},
        names.CURVE_LR: {p.step: p.lr for p in points},
        names.CURVE_SPEED: {p.step: p.images_per_second for p in points},
    }
    assert set(run.data.metrics) == set(expected)
    for name, steps in expected.items():
        history = client.get_metric_history(run_id, name)
        assert [(m.step, m.value) for m in history] == sorted(steps.items())


def sync(*arguments: object):
    return CliRunner().invoke(main, ["sync", *map(str, arguments)])


def journals(tmp_path) -> list[Path]:
    return sorted((tmp_path / "cache" / "unsent").glob("*"))


def list_row_requests(proxy) -> list[int]:
    """Return the rows that reached the server, in order."""
    puts = [path for method, path in proxy.tally.requests if method == "PUT"]
    sent = [re.search(r"row_(\d+)\.json$", path) for path in puts]
    return [int(match[1]) for match in sent if match]


@pytest.mark.program
def test_a_row_is_stored_before_the_next_bucket(server, proxy, tmp_path):
    """While the server responds. Nothing of the run folder remains."""
    client = preflight()
    stored_counts = []

    def look():
        _, (run,) = find_runs(server, tmp_path)
        stored_counts.append(len(read_rows(MlflowClient(server), run.info.run_id)))

    train_in_process(client, Events(FOUR_BUCKETS, before=dict.fromkeys(range(5), look)), ASKED)
    assert stored_counts == [0, 1, 2, 3, 4]
    assert journals(tmp_path) == []
    direct, (run,) = find_runs(server, tmp_path)
    check_whole(direct, run.info.run_id)
    assert run.info.status == "FINISHED"


@pytest.mark.program
def test_training_continues_while_the_server_is_unreachable(server, proxy, tmp_path, capsys):
    """Rows and metrics are kept on disk and sent once, in order, when it is back."""

    def come_back():
        (journal,) = journals(tmp_path)
        entry_names.extend(path.name[9:] for path in sorted(journal.glob("0*")))
        proxy.up()

    entry_names: list[str] = []
    training = Events(FOUR_BUCKETS, before={2: proxy.down, 4: come_back})
    train_in_process(preflight(), training, ASKED)
    assert training.measured == [0, 1, 2, 3, 4]
    rows = [f"{ROWS_FOLDER.replace('/', '+')}+row_00{i}.json" for i in (2, 3)]
    assert [name for name in entry_names if name in rows] == rows
    assert entry_names.count("metrics.json") >= 2
    assert list_row_requests(proxy) == [0, 1, 2, 3, 4]
    direct, (run,) = find_runs(server, tmp_path)
    check_whole(direct, run.info.run_id)
    assert run.info.status == "FINISHED"
    assert journals(tmp_path) == []
    errors = capsys.readouterr().err
    assert errors.count("training continues") == 1
    assert "all that was kept on local disk is stored" in errors


STUTTERS = [
    Fault("drop"),
    Fault("lose"),
    Fault("truncate"),
    Fault("status", 500),
    Fault("status", 429),
    Fault("status", 503),
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("number", "part"), [(3, ""), (2, "/rows/row_")])
def test_an_unreliable_server_gets_every_row_once(
    server, proxy, tmp_path, monkeypatch, number, part
):
    """Requests are dropped, responses are lost or truncated, or have status 500, 429 and 503."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", "30")

    def stutter():
        proxy.plan = every(number, STUTTERS, part)

    def recover():
        proxy.plan = lambda method, path: None

    training = Events(FOUR_BUCKETS, before={0: stutter, 5: recover})
    train_in_process(preflight(), training, ASKED)
    assert proxy.tally.faults >= 2
    direct, (run,) = find_runs(server, tmp_path)
    check_whole(direct, run.info.run_id)
    assert run.info.status == "FINISHED"
    assert journals(tmp_path) == []


def left_behind(proxy, tmp_path, **options) -> Path:
    """The run folder of a training whose server never came back after the second row."""
    training = Events(FOUR_BUCKETS, before={2: proxy.down}, **options)
    with pytest.raises(UnsentError) as caught:
        train_in_process(preflight(), training, ASKED)
    assert training.measured == [0, 1, 2, 3, 4]
    (journal,) = journals(tmp_path)
    assert f"clear-mlflow sync {journal}" in str(caught.value)
    assert mlflow.active_run() is None
    return journal


@pytest.mark.program
def test_sync_sends_what_was_left(server, proxy, tmp_path):
    """The run is then complete, and the folder is gone. A copy duplicates nothing."""
    journal = left_behind(proxy, tmp_path)
    copy = shutil.copytree(journal, tmp_path / "copy")
    direct, (run,) = find_runs(server, tmp_path)
    assert run.info.status == "RUNNING"
    assert sorted(read_rows(direct, run.info.run_id)) == ["row_000.json", "row_001.json"]
    proxy.up()
    result = sync()
    assert result.exit_code == 0, result.output
    assert "scored, FINISHED" in result.output
    check_whole(direct, run.info.run_id)
    assert sync(copy).exit_code == 0
    check_whole(direct, run.info.run_id)
    run = direct.get_run(run.info.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags[names.ROWS_TAG] == "complete"
    assert names.ERROR_TAG not in run.data.tags
    assert names.PROCESS_TAG not in run.data.tags
    summary = {n: v for n, v in run.data.metrics.items() if n.startswith(("clear/", "renate/"))}
    assert summary == summarize(EXPECTED)
    assert not journal.exists()
    assert sync().output == "nothing waits for a store\n"


@pytest.mark.slow
def test_a_silent_server_delays_training_by_seconds(server, proxy, tmp_path, monkeypatch):
    """It accepts connections and never responds: one row waits for it, the others do not."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")

    def fall_silent():
        proxy.plan = lambda method, path: Fault("hang")

    training = Events(FOUR_BUCKETS, before={2: fall_silent})
    with pytest.raises(UnsentError, match="has not taken"):
        train_in_process(preflight(), training, ASKED)
    assert training.measured == [0, 1, 2, 3, 4]
    proxy.plan = lambda method, path: None
    proxy.release()
    # The call that hung may still store what sync is about to read; a process would have ended.
    senders = "clear_mlflow upload"
    wait_until(lambda: senders not in {thread.name for thread in threading.enumerate()}, LONG)
    result = sync()
    assert result.exit_code == 0, result.output
    direct, (run,) = find_runs(server, tmp_path)
    check_whole(direct, run.info.run_id)
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_an_unwritable_cache_is_reported(server, proxy, tmp_path, monkeypatch, capsys):
    """The run folder is created in the working folder instead, where sync finds it."""
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("CLEAR_MLFLOW_CACHE", str(tmp_path / "no folder"))
    training = Events(FOUR_BUCKETS, before={2: proxy.down})
    with pytest.raises(UnsentError, match="unsent_rows"):
        train_in_process(preflight(), training, ASKED)
    assert "are kept in" in capsys.readouterr().err
    proxy.up()
    assert sync().exit_code == 0
    direct, (run,) = find_runs(server, tmp_path)
    check_whole(direct, run.info.run_id)


@pytest.mark.slow
def test_nothing_in_a_run_folder_is_trusted(server, proxy, tmp_path):
    """Contradicting rows, other JSON and other formats are one-line errors, and nothing is sent."""
    journal = left_behind(proxy, tmp_path)
    proxy.up()
    direct, (run,) = find_runs(server, tmp_path)
    for name, damage in DAMAGES.items():
        hostile = tmp_path / name
        shutil.copytree(journal, hostile)
        for entry in hostile.glob("00000*"):
            if "row_002" not in entry.name:
                entry.unlink()
        damage(hostile)
        result = sync(hostile)
        assert result.exit_code == 2, name
        assert len(result.output.splitlines()) == 1, result.output
        (row,) = [r for n, r in read_rows(direct, run.info.run_id).items() if n == "row_001.json"]
        assert row["correct"] == FOUR_BUCKETS[1]
    assert sync(journal).exit_code == 0
    check_whole(direct, run.info.run_id)


@pytest.mark.program
def test_credentials_are_not_sent_to_a_store_that_a_run_folder_names(proxy, tmp_path, monkeypatch):
    """A received run folder could steal them: the environment has to name the store."""
    journal = left_behind(proxy, tmp_path)
    copy = shutil.copytree(journal, tmp_path / "from elsewhere")
    proxy.up()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    before = len(proxy.tally.requests)
    result = sync(copy)
    assert result.exit_code == 2
    assert f"set MLFLOW_TRACKING_URI to it ({proxy.uri}" in result.output
    assert len(proxy.tally.requests) == before
    assert sync(journal).exit_code == 0


@pytest.mark.slow
def test_the_last_member_of_an_ensemble_is_sent_later(server, proxy, tmp_path, monkeypatch):
    """Its rows are stored in its own run. Then the parent run gets the means and ends."""
    parameters = {"features": "made_up", "epochs": "7", "seeds": "4,2", "batch_size": "6"}
    lose_server(monkeypatch, proxy, seed=2)
    with pytest.raises(UnsentError, match="clear-mlflow sync") as errors:
        train_ensemble_in_process(
            preflight(), features_training(features_config(**parameters)), parameters
        )
    root = tmp_path / "cache" / "unsent"
    assert str(root) in str(errors.value)
    assert len(journals(tmp_path)) == 2
    proxy.up()
    result = sync(root)
    assert result.exit_code == 0, result.output
    direct, runs = find_runs(server, tmp_path)
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    (parent,) = [r for r in runs if r.data.tags[names.KIND_TAG] == names.KIND_ENSEMBLE]
    assert parent.data.tags[names.MEMBERS_TAG] == "2"
    members = [r for r in runs if r is not parent]
    for name in ("clear/in_domain_accuracy", "renate/forgetting"):
        mean = sum(m.data.metrics[name] for m in members) / 2
        assert parent.data.metrics[f"mean/{name}"] == pytest.approx(mean)
    for member in members:
        assert len(read_rows(direct, member.info.run_id)) == 4
    assert journals(tmp_path) == []


@pytest.mark.slow
def test_an_outage_between_two_seeds_ends_the_ensemble(server, proxy, tmp_path, monkeypatch):
    """The seed that was trained is FINISHED after sync, and the parent run is FAILED."""
    parameters = {"features": "made_up", "epochs": "7", "seeds": "4,2", "batch_size": "6"}
    lose_server(monkeypatch, proxy, seed=4)
    with pytest.raises(UnsentError):
        train_ensemble_in_process(
            preflight(), features_training(features_config(**parameters)), parameters
        )
    proxy.up()
    assert sync(tmp_path / "cache" / "unsent").exit_code == 0
    direct, (member, parent) = find_runs(server, tmp_path)
    if parent.data.tags[names.KIND_TAG] != names.KIND_ENSEMBLE:
        member, parent = parent, member
    assert (member.info.status, parent.info.status) == ("FINISHED", "FAILED")
    assert "no further seed is trained" in parent.data.tags[names.ERROR_TAG]
    assert names.MEMBERS_TAG not in parent.data.tags
    assert len(read_rows(direct, member.info.run_id)) == 4


def lose_server(monkeypatch, proxy, *, seed):
    """Make the server unreachable after row 2 of the training with this seed."""
    rows = StreamTraining.rows

    def measure_rows(self, on_curve=ignore, on_test=ignore, on_state=ignore):
        for measured in rows(self, on_curve, on_test, on_state):
            if measured.row.row == 2 and self.config.seed == seed:
                proxy.down()
            yield measured

    monkeypatch.setattr(StreamTraining, "rows", measure_rows)


@pytest.mark.slow
def test_the_command_prints_where_unsent_rows_are(server, proxy, short_stream, hold, tmp_path):
    """The command exits with 2 and prints the command that sends them."""
    process = Forked(
        *("train", *options({**short_stream, **HELD})),
        env={**os.environ, "CLEAR_MLFLOW_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: len(list_row_requests(proxy)) >= 2 or process.poll() is not None, LONG)
    proxy.down()
    hold.unlink()
    output, errors = process.communicate(timeout=LONG)
    assert process.returncode == 2, errors
    (journal,) = journals(tmp_path)
    assert f"clear-mlflow sync {journal}" in errors
    assert "Traceback" not in errors
    assert f"run {journal.name} FINISHED (not stored yet)" in output
    proxy.up()
    result = sync(journal)
    assert result.exit_code == 0, result.output
    direct, (run,) = find_runs(server, tmp_path)
    assert run.info.status == "FINISHED"
    assert run.data.tags[names.ROWS_TAG] == "complete"
    assert len(read_rows(direct, run.info.run_id)) == BUCKETS + 1


@pytest.mark.slow
def test_a_sweep_survives_an_outage(server, proxy, short_stream, hold, tmp_path, monkeypatch):
    """The current run keeps its rows, and the next one is opened when the server is back."""
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", "60")
    grid = tmp_path / "sweep.yaml"
    content = {"fixed": {**short_stream, **HELD}, "runs": [{"seed": "0"}, {"seed": "1"}]}
    grid.write_text(json.dumps(content))  # JSON is YAML
    process = Forked("sweep", "--grid", str(grid), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: len(list_row_requests(proxy)) >= 2 or process.poll() is not None, LONG)
    proxy.down()
    hold.unlink()
    # Until the run under way has measured its last row, which waits as all before it.
    wait_until(lambda: bool(list((tmp_path / "cache" / "unsent").glob("*/*row_004.json"))), LONG)
    assert process.poll() is None
    proxy.up()
    output, _ = process.communicate(timeout=LONG)
    assert process.returncode == 0, output
    direct, runs = find_runs(server, tmp_path)
    trained = [run for run in runs if run.data.tags[names.KIND_TAG] == names.KIND_TRAIN]
    assert sorted(run.data.params["seed"] for run in trained) == ["0", "1"]
    for run in trained:
        assert run.info.status == "FINISHED"
        assert len(read_rows(direct, run.info.run_id)) == BUCKETS + 1
    assert Counter(run.info.status for run in runs) == {"FINISHED": 4}  # the sweep, the comparison
    assert journals(tmp_path) == []


OWN_LOOP = """
import os, signal, sys
import clear_mlflow

def wait(message):
    print(message, flush=True)
    sys.stdin.readline()

LABELS = [[0, 1, 2], [2, 1]]
"""

PREDICTIONS = f"""{OWN_LOOP}
with clear_mlflow.track(buckets=2, class_names="abc", strategy="x") as run:
    wait("opened")
    run.log_predictions(0, [[0, 1, 1], [2, 2]], LABELS)
    for i in (1, 2):
        run.log_test(i, [2, 1], test=1, num_tests=1, step=1, num_steps=2)
        run.log_predictions(i, LABELS)
"""

COUNTS = f"""{OWN_LOOP}
with clear_mlflow.track(buckets=2, num_instances=10) as run:
    wait("opened")
    for i in range(3):
        run.log_counts(i, [i, 2])
    wait("measured")
"""


def start_script(tmp_path, text, *words):
    """Start a program and wait until it has opened its run."""
    script = tmp_path / "script.py"
    script.write_text(text)
    process = ForkedPython(
        *(str(script), *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert process.stdout.readline() == "opened\n", process.communicate()
    return process


def release_training(process):
    process.stdin.write("\n")
    process.stdin.flush()


def check_closed(client, run_id, rows):
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags[names.ROWS_TAG]) == ("FINISHED", "complete")
    assert names.ERROR_TAG not in run.data.tags
    assert sorted(read_rows(client, run_id)) == rows


@pytest.mark.slow
def test_a_custom_loop_logs_predictions_and_tests_while_the_server_is_unreachable(
    server, proxy, tmp_path
):
    """Sync stores them with the tags that scoring needs, and the digest of the true labels."""
    process = start_script(tmp_path, PREDICTIONS)
    proxy.down()
    release_training(process)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == 1
    assert "UnsentError: the tracking store did not take" in errors
    proxy.up()
    result = sync()
    assert result.exit_code == 0, result.output
    direct, (run,) = find_runs(server, tmp_path)
    check_closed(direct, run.info.run_id, [f"row_00{i}.json" for i in range(3)])
    expected = {"continual_evaluation/minimum_accuracy", "class_changes/known"}
    assert expected <= run.data.metrics.keys()
    stored = clear_mlflow.load(run.info.run_id)
    assert run.data.tags["dataset_digest"] == stored.predictions.images.digest
    assert journals(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["killed", "ended"])
def test_a_custom_loop_continues_after_an_outage(server, proxy, tmp_path, monkeypatch, ending):
    """Started again, it sends unsent rows, and ends like a loop without an outage."""
    process = start_script(tmp_path, COUNTS)
    proxy.down()
    release_training(process)
    assert process.stdout.readline() == "measured\n"
    (journal,) = journals(tmp_path)
    assert [path for path in journal.iterdir() if "row_00" in path.name]
    if ending == "killed":
        process.kill()
    process.communicate("\n", timeout=LONG)
    assert process.returncode != 0
    proxy.up()
    direct, (run,) = find_runs(server, tmp_path)
    assert read_rows(direct, run.info.run_id) == {}
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    again = start_script(tmp_path, COUNTS)
    _, errors = again.communicate("\n\n", timeout=LONG)
    assert again.returncode == 0, errors
    check_closed(direct, run.info.run_id, [f"row_00{i}.json" for i in range(3)])
    assert journals(tmp_path) == []


@pytest.mark.slow
def test_a_rejected_tag_does_not_delay_rows(server, proxy, tmp_path):
    """Rows are stored, the error is reported, and sync completes the run once it is allowed."""

    def refuse_tags(method, path):
        is_refused = path.endswith(("runs/set-tag", "runs/log-batch"))
        return Fault("status", 403) if is_refused else None

    process = start_script(tmp_path, COUNTS)
    proxy.plan = refuse_tags
    release_training(process)
    assert process.stdout.readline() == "measured\n"
    direct, (run,) = find_runs(server, tmp_path)
    wait_until(lambda: len(read_rows(direct, run.info.run_id)) == 3, LONG)
    _, errors = process.communicate("\n", timeout=LONG)
    assert process.returncode == 1
    assert "cannot store tags.json of run" in errors
    assert "403" in errors.splitlines()[-1]
    proxy.plan = lambda method, path: None
    result = sync()
    assert result.exit_code == 0, result.output
    check_closed(direct, run.info.run_id, [f"row_00{i}.json" for i in range(3)])


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
def test_ctrl_c_while_a_custom_loop_waits_for_the_server(server, proxy, tmp_path, monkeypatch):
    """It stops at once, and its outcome is kept for sync."""
    monkeypatch.setenv("CLEAR_MLFLOW_EXIT_WAIT", "3600")
    process = start_script(tmp_path, INTERRUPTED)
    proxy.down()
    release_training(process)
    assert process.stdout.readline() == "closing\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "None\n"
    assert process.stdout.readline() == "interrupted\n"
    proxy.up()
    _, errors = process.communicate("\n", timeout=LONG)
    assert process.returncode == 0, errors
    assert "clear-mlflow sync" in errors
    assert sync().exit_code == 0
    direct, runs = find_runs(server, tmp_path)
    assert [run.info.status for run in runs] == ["FINISHED"] * 2
    (run,) = [run for run in runs if run.data.tags["dataset"] == "own"]
    check_closed(direct, run.info.run_id, [f"row_00{i}.json" for i in range(3)])
