"""PostgreSQL, an S3-compatible store and MLflow's accounts."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import mlflow
import psutil
import pytest
from commands import run_command
from forked import Forked
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from mlflow_stores import tracking_uri
from offline_folders import create_offline_folder
from servers import (
    BUCKET,
    Accounts,
    ObjectStore,
    Postgres,
    object_store,
    postgres,
    request_page,
    tracking_server,
)
from short_stream import BUCKETS, HELD, options
from stored_runs import histories, only_run, row_texts, stored_run
from trainings import EXPECTED, FOUR_BUCKETS, KnownTraining
from waiting import LONG, finish, wait_until

import clear_mlflow
from clear_mlflow import AccuracyMatrix
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.record import ROWS_FOLDER
from clear_mlflow.metrics import summarize
from clear_mlflow.store import names
from clear_mlflow.store.lease import format_lease
from clear_mlflow.store.search import select_runs
from clear_mlflow.tracking.tracked_training import train_in_process

pytestmark = pytest.mark.slow


ADMIN = ("admin", "a-password-of-the-admin")
ACCOUNTS = Accounts(ADMIN)
TRAINER = ("trainer", "a-password-of-the-trainer")
READER = ("reader", "a-password-of-the-reader")
EDITOR = ("editor", "a-password-of-the-editor")
STRANGER = ("stranger", "a-password-of-the-stranger")
QUICK = ("--features", "pixels", "--strategy", "ncm")  # a second on the embedded dataset


@dataclass(frozen=True)
class Server:
    """A tracking server with its database and object store."""

    url: str
    database: str
    postgres: Postgres
    objects: ObjectStore
    has_accounts: bool

    def use(self, patch, user=TRAINER) -> MlflowClient:
        """Use this server from here on, by the environment."""
        for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        patch.setenv("MLFLOW_TRACKING_URI", self.url)
        patch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        self.log_in(patch, user)
        mlflow.set_tracking_uri(self.url)
        return MlflowClient(self.url)

    def log_in(self, patch, user) -> None:
        for name, value in zip(("USERNAME", "PASSWORD"), user, strict=True):
            if self.has_accounts:
                patch.setenv(f"MLFLOW_TRACKING_{name}", value)
            else:
                patch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)

    def points(self, run_id) -> list[tuple[object, ...]]:
        query = f"SELECT key, step, timestamp, value FROM metrics WHERE run_uuid = '{run_id}'"
        return self.postgres.rows(self.database, query)

    def everything(self) -> tuple[object, ...]:
        """Return all that a rejected command could have changed in database and store."""
        tables = ("experiments", "runs", "metrics", "latest_metrics", "params", "tags", "inputs")
        return (
            *(Counter(self.postgres.rows(self.database, f"SELECT * FROM {t}")) for t in tables),
            self.objects.names(),
        )


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Both tracking servers, by name, started at the same time."""
    plain, guarded = (tmp_path_factory.mktemp(name) for name in ("plain", "guarded"))
    patched = pytest.MonkeyPatch.context()
    with patched as patch, postgres() as database, object_store(patch) as objects:
        database.set_up("plain", "guarded")
        artifacts = f"s3://{BUCKET}"
        letting_in = tracking_server(
            plain, database.uri("plain"), artifacts=f"{artifacts}/plain", workers=2
        )
        asking = tracking_server(
            guarded,
            database.uri("guarded"),
            *("--app-name", "clear"),  # our pages, in the app that asks for passwords
            artifacts=f"{artifacts}/guarded",
            **ACCOUNTS.set_up(guarded, database.create("users")),
        )
        with letting_in as first, asking as second:
            uris = {
                "plain": Server(first.wait(), "plain", database, objects, has_accounts=False),
                "guarded": Server(second.wait(), "guarded", database, objects, has_accounts=True),
            }
            ACCOUNTS.create_users(second.url, TRAINER, READER, EDITOR, STRANGER)
            yield uris
        # Gone with all that they started.
        for server in (first, second):
            killed = [p for p in psutil.process_iter() if _is_in_group(p, server.process.pid)]
            assert not psutil.wait_procs(killed, LONG)[1]


def _is_in_group(process, group):
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


@pytest.fixture
def plain_server(servers):
    return servers["plain"]


@pytest.fixture
def guarded(servers):
    """A server with accounts, where users see only what they have permission for."""
    return servers["guarded"]


def give(server, user, experiment_id, permission):
    ACCOUNTS.call(
        server.url,
        "3.0/mlflow/users/permissions/grant",
        username=user[0],
        resource_type="experiment",
        resource_id=experiment_id,
        permission=permission,
    )


@pytest.fixture(autouse=True)
def as_before():
    """Restore MLflow's settings of this process."""
    with tracking_uri(mlflow.get_tracking_uri()):
        yield


@pytest.fixture
def started():
    processes = []

    def start(*arguments):
        processes.append(Forked(*arguments, start_new_session=True))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def stored_by_another_program(client, experiment_id, **options):
    run = client.create_run(experiment_id)
    for name, text in row_texts(**options).items():
        client.log_text(run.info.run_id, text, f"{ROWS_FOLDER}/{name}")
    client.set_terminated(run.info.run_id)
    return client.get_run(run.info.run_id)


def stored_matrix(run):
    """Return the matrix, rebuilt here from the row artifacts by nothing but json."""
    rows = [
        json.loads(mlflow.artifacts.load_text(f"{run.info.artifact_uri}/{ROWS_FOLDER}/{name}"))
        for name in sorted(list_names(run, ROWS_FOLDER))
    ]
    counted = rows[0]["num_instances"]
    fractions = [[c / n for c, n in zip(r["correct"], counted, strict=True)] for r in rows]
    return AccuracyMatrix(fractions[1:], initial=fractions[0], num_instances=counted)


def list_names(run, folder):
    listed = MlflowClient().list_artifacts(run.info.run_id, folder)
    return [file.path.rsplit("/", 1)[-1] for file in listed]


def assert_stored_once(server, client, run_id, matrix):
    run = client.get_run(run_id)
    assert sorted(list_names(run, ROWS_FOLDER)) == [
        f"row_{i:03}.json" for i in range(matrix.num_rows + 1)
    ]
    expected = {
        (f"test_accuracy/bucket_{j + 1:02}", step): value
        for step in range(matrix.num_rows + 1)
        for j, value in enumerate(matrix.initial if step == 0 else matrix.values[step - 1])
    }
    for step in range(1, matrix.num_rows + 1):
        scores = summarize(matrix.after(step))
        expected |= {(name, step): value for name, value in scores.items()}
    points = server.points(run_id)
    own_points = [p for p in points if p[0].startswith(("test_accuracy/", "clear/", "renate/"))]
    assert {(name, step): value for name, step, _, value in own_points} == expected
    assert len(own_points) == len(expected)
    # What the client gives is what the database holds.
    assert sum(map(len, histories(client, run_id).values())) == len(points)
    assert len({(name, step) for name, step, _, _ in points}) == len(points)


def test_train_evaluate_resume_and_compare(guarded, started, short_stream, hold, monkeypatch):
    server, client = guarded, guarded.use(monkeypatch)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "first")
    training = started("train", *options({**short_stream, **HELD}))

    def find_experiment():
        # Of the database: to a user, an experiment is for a moment there and not yet theirs.
        return server.postgres.rows(
            server.database,
            "SELECT experiment_id FROM runs JOIN experiments USING (experiment_id)"
            " WHERE experiments.name = 'first'",
        )

    ((experiment_id,),) = wait_until(find_experiment)
    while_training = client.search_runs([str(experiment_id)])
    (run_id,) = [run.info.run_id for run in while_training]
    assert while_training[0].info.status == "RUNNING"
    of_run = f"{server.database}/{while_training[0].info.experiment_id}/{run_id}/artifacts/"
    wait_until(lambda: f"{of_run}{ROWS_FOLDER}/row_001.json" in server.objects.names(of_run))
    (verdict,) = rescore_runs(client, while_training)
    assert verdict.action == "skipped", verdict
    os.killpg(training.pid, signal.SIGKILL)
    training.communicate(timeout=LONG)
    hold.unlink()
    measured = set(list_names(client.get_run(run_id), ROWS_FOLDER))
    assert 2 <= len(measured) <= BUCKETS

    resume = ("train", "--resume", run_id, "--strategy", HELD["strategy"])
    resumes = [started(*resume) for _ in range(2)]
    ends = [finish(process) for process in resumes]
    # The second finds the first at work; or, where the machine kept it waiting, all done.
    idle = [end for end in ends if "another process" in end[1] or "nothing to resume" in end[1]]
    assert len(idle) == 1, ends
    assert [code for code, _ in ends].count(0) >= 1, ends
    assert idle[0][0] == (2 if "another process" in idle[0][1] else 0)

    # A listing that is as old as that is not believed: the run is not closed a second time.
    (verdict,) = rescore_runs(client, while_training)
    assert verdict.action == "unchanged", verdict
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert names.ERROR_TAG not in run.data.tags
    matrix = stored_matrix(run)
    assert matrix.is_complete
    assert matrix.num_buckets == BUCKETS
    assert_stored_once(server, client, run_id, matrix)
    assert f"{of_run}{ROWS_FOLDER}/row_004.json" in server.objects.names(of_run)

    other = stored_by_another_program(client, run.info.experiment_id, seed=8)
    before = histories(client, run_id)
    run_command("evaluate", "--runs", "first")
    assert_stored_once(server, client, other.info.run_id, EXPECTED)
    assert histories(client, run_id) == before

    run_command("compare", "--runs", "first", "--group-by", "seed")
    is_comparison = f"tags.`{names.KIND_TAG}` = '{names.KIND_COMPARE}'"
    comparison = only_run(client, run.info.experiment_id, is_comparison)
    assert comparison.info.status == "FINISHED"
    page = mlflow.artifacts.load_text(f"{comparison.info.artifact_uri}/{names.COMPARISON_PAGE}")
    assert run_id[:8] in page


def test_artifacts_without_the_server_between(plain_server, monkeypatch):
    client = plain_server.use(monkeypatch)
    client.create_experiment("direct", artifact_location=f"s3://{BUCKET}/direct")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "direct")
    train_in_process(client, KnownTraining(FOUR_BUCKETS), {"seed": "7"})
    runs = list(select_runs(client, experiment="direct"))
    (run,) = runs
    file = f"direct/{run.info.run_id}/artifacts/{ROWS_FOLDER}/row_004.json"
    assert file in plain_server.objects.names()
    assert_stored_once(plain_server, client, run.info.run_id, EXPECTED)
    (verdict,) = rescore_runs(client, runs, explicit=True)
    assert verdict.action == "unchanged", verdict


@pytest.fixture
def shared_run(guarded, monkeypatch):
    """A run that the reader may read and the stranger may not see."""
    client = guarded.use(monkeypatch)
    experiment = client.get_experiment_by_name("shown")
    if experiment is None:
        experiment_id = client.create_experiment("shown")
        give(guarded, READER, experiment_id, "READ")
        run = stored_by_another_program(client, experiment_id)
    else:
        (run,) = client.search_runs([experiment.experiment_id])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "shown")
    return run


@pytest.mark.parametrize(
    ("user", "says"),
    [
        (READER, "Permission denied"),
        (STRANGER, "Permission denied"),
        ((READER[0], "a wrong password"), "not authenticated"),
    ],
    ids=["reader", "stranger", "wrong password"],
)
@pytest.mark.parametrize("command", ["train", "evaluate", "compare"])
def test_a_user_without_permission_is_rejected(
    guarded, shared_run, user, says, command, monkeypatch
):
    guarded.log_in(monkeypatch, user)
    before = guarded.everything()
    arguments = {
        "train": QUICK,
        "evaluate": ("--runs", shared_run.info.run_id),
        "compare": ("--runs", shared_run.info.run_id, "--group-by", "seed"),
    }[command]
    output = run_command(command, *arguments, code=2)
    (error_line,) = [line for line in output.splitlines() if line.startswith("error:")]
    assert says in error_line
    assert "Traceback" not in output
    assert user[1] not in output
    assert guarded.everything() == before


def test_a_reader_evaluates_an_experiment_only_in_a_dry_run(guarded, shared_run, monkeypatch):
    guarded.log_in(monkeypatch, READER)
    assert "Permission denied" in run_command("evaluate", "shown", code=2)
    before = guarded.everything()
    run_command("evaluate", "--runs", "shown", "--dry-run")
    assert guarded.everything() == before


def test_a_user_with_edit_permission_trains_and_evaluates(guarded, monkeypatch):
    client = guarded.use(monkeypatch)
    experiment_id = client.create_experiment("edited")
    give(guarded, EDITOR, experiment_id, "EDIT")
    stored_by_another_program(client, experiment_id)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "edited")
    guarded.log_in(monkeypatch, EDITOR)
    train_in_process(client, KnownTraining(FOUR_BUCKETS), {"seed": "7"})
    for command in ("evaluate", "compare"):
        run_command(command, "edited")
    runs = client.search_runs([experiment_id], "tags.`clear_mlflow.rows` = 'complete'")
    assert len(runs) == 2
    for run in runs:
        assert_stored_once(guarded, client, run.info.run_id, EXPECTED)


def test_a_user_with_edit_permission_sends_and_imports_runs(
    guarded, empty_store, tmp_path, monkeypatch
):
    """MLflow answers 403 for an unknown id: of a run, of its parent, and for a wrong name."""
    client = guarded.use(monkeypatch)
    experiment_id = client.create_experiment("sent")
    give(guarded, EDITOR, experiment_id, "EDIT")
    folder = tmp_path / "offline_runs"
    offline, source_id = create_offline_folder(folder)
    parent = stored_run(offline, source_id)
    child = stored_run(offline, source_id, seed=8)
    offline.set_tag(child.info.run_id, MLFLOW_PARENT_RUN_ID, parent.info.run_id)
    other = stored_run(offline, source_id, seed=9)
    offline.set_tag(other.info.run_id, MLFLOW_PARENT_RUN_ID, "f" * 32)  # it was not recorded here
    bundles = clear_mlflow.export(folder, tmp_path / "bundles")
    guarded.log_in(monkeypatch, EDITOR)
    for command, outcome in (
        (["sync", str(folder)], "copied"),
        (["import", str(bundles)], "there already"),
        (["import", "--from", str(folder)], "there already"),
    ):
        output = run_command(*command, "--experiment", "sent")
        assert output.count(outcome) >= 3, output
    copies = {
        run.data.tags[names.COPIED_FROM_TAG]: run for run in client.search_runs([experiment_id])
    }
    assert copies.keys() == {run.info.run_id for run in (parent, child, other)}
    parent_id = copies[child.info.run_id].data.tags[MLFLOW_PARENT_RUN_ID]
    assert parent_id == copies[parent.info.run_id].info.run_id
    assert MLFLOW_PARENT_RUN_ID not in copies[other.info.run_id].data.tags
    # Names of experiments are looked up as ids of runs first, also in a store with accounts.
    fetch = ("import", "--from", guarded.url)
    assert "updated" in run_command(*fetch, "sent", "--experiment", "sent")
    for command in (
        (*fetch, "none", "--experiment", "sent"),
        ("open", "nothing", "--browser", "no"),
    ):
        assert "has the name or id" in run_command(*command, code=2)


@pytest.fixture
def page(guarded):
    return partial(request_page, guarded.url)


def test_pages_follow_mlflows_permissions(shared_run, page):
    run_id, wrong = shared_run.info.run_id, (READER[0], "a wrong password")
    may = {None: 401, wrong: 401, STRANGER: 403, READER: 200, ADMIN: 200, TRAINER: 200}
    for path in ("compare", "run", "run/state"):
        id_name = "experiment_id" if path == "compare" else "run_id"
        for user, status in may.items():
            response = page(path, user, **{id_name: getattr(shared_run.info, id_name)})
            assert response.status_code == status, response.text
            if path != "run/state":
                assert (run_id in response.text) == (status == 200)
    assert page("run", READER, run_id="0" * 32).status_code == 403  # as MLflow says of unknown ones
    # Flask answers HEAD where it answers GET, and MLflow's accounts have no rule for it.
    of_shown = shared_run.info.experiment_id
    for user, method in ((STRANGER, "HEAD"), (READER, "HEAD"), (READER, "POST")):
        assert page("compare", user, method, experiment_id=of_shown).status_code in (403, 405)


def test_the_list_contains_only_readable_experiments(guarded, shared_run, page, monkeypatch):
    client = guarded.use(monkeypatch)
    hidden = client.create_experiment("not for readers")
    run = stored_by_another_program(client, hidden)
    client.set_tag(run.info.run_id, names.ROWS_TAG, "complete")
    client.set_tag(shared_run.info.run_id, names.ROWS_TAG, "complete")
    assert page("").status_code == 401
    assert "not for readers" not in page("", STRANGER).text
    response = page("", READER)
    assert "shown" in response.text
    assert "not for readers" not in response.text
    assert "not for readers" in page("", TRAINER).text
    assert page("compare", READER, experiment_id=hidden).status_code == 403


def test_no_run_of_another_experiment_is_shown(guarded, shared_run, page, monkeypatch):
    client = guarded.use(monkeypatch)
    hidden = client.create_experiment("ticked from elsewhere")
    secret = stored_by_another_program(client, hidden).info
    own = shared_run.info
    ticked = page("compare", READER, experiment_id=own.experiment_id, runs=secret.run_id)
    assert ticked.status_code == 400
    both = page("compare", READER, experiment_id=[own.experiment_id, hidden])
    swapped = page("compare", READER, experiment_id=[hidden, own.experiment_id])
    run_filter = f"attributes.run_id = '{secret.run_id}'"
    filtered = page("compare", READER, experiment_id=own.experiment_id, filter=run_filter)
    assert (both.status_code, swapped.status_code, filtered.status_code) == (200, 403, 400)
    for response in (ticked, both, swapped, filtered):
        assert secret.run_name not in response.text


def test_concurrent_trainings_share_a_server(plain_server, monkeypatch):
    client = plain_server.use(monkeypatch)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "at once")
    ready = threading.Barrier(4)

    def train(_):
        ready.wait(LONG)
        return train_in_process(client, KnownTraining(FOUR_BUCKETS), {"seed": "7"}).run_id

    with ThreadPoolExecutor(4) as threads:
        run_ids = list(threads.map(train, range(4)))
    assert len(set(run_ids)) == 4
    for run_id in run_ids:
        assert client.get_run(run_id).info.status == "FINISHED"
        assert_stored_once(plain_server, client, run_id, EXPECTED)


def test_concurrent_evaluations_share_a_server(plain_server, monkeypatch):
    client = plain_server.use(monkeypatch)
    experiment_id = client.create_experiment("evaluated at once")
    runs = [stored_by_another_program(client, experiment_id) for _ in range(4)]
    # One whose process is gone: both close it.
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(LONG)
    abandoned = runs[0].info.run_id
    process = {**json.loads(format_lease()), "pid": gone.pid}
    client.set_tag(abandoned, names.PROCESS_TAG, json.dumps(process))
    client.update_run(abandoned, "RUNNING")
    runs[0] = client.get_run(abandoned)
    together = threading.Barrier(2)

    def wait(*_):
        together.wait(LONG)

    def evaluate(_):
        return list(rescore_runs(client, runs, jobs=1, prepare=wait))

    with ThreadPoolExecutor(2) as threads:
        verdicts = [verdict for found in threads.map(evaluate, range(2)) for verdict in found]
    assert {verdict.action for verdict in verdicts} <= {"scored", "unchanged"}, verdicts
    assert client.get_run(abandoned).info.status == "KILLED"
    assert names.PROCESS_TAG not in client.get_run(abandoned).data.tags
    for run in runs:
        assert_stored_once(plain_server, client, run.info.run_id, EXPECTED)
