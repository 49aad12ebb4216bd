"""The store of an offline folder does what MLflow's own store does, and no kill damages it."""

import math
import multiprocessing
import shutil
from contextlib import suppress
from types import SimpleNamespace

import mlflow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException
from offline_folders import create_offline_folder, use_store

from clear_mlflow.core import disk
from clear_mlflow.journal import offline_store, run_folder
from clear_mlflow.journal.reading import read_points
from clear_mlflow.store.offline import format_offline_uri

NAMES = st.sampled_from(["a", "b/c", "loss", "a?b", "../a"])
TEXTS = st.text("xy'%\n ä\udc80", min_size=1, max_size=9)
POINTS = st.builds(
    Metric,
    NAMES,
    st.floats(-1e9, 1e9) | st.sampled_from([0.1, 1e-300, math.inf, -math.inf]),
    st.integers(0, 2**40),
    st.integers(-3, 2**40),
)
STATUSES = st.sampled_from(["RUNNING", "FINISHED", "FAILED", "KILLED"])
OPERATIONS = st.one_of(
    st.tuples(st.just("points"), st.lists(POINTS, max_size=4)),
    st.tuples(st.just("param"), st.tuples(NAMES, TEXTS)),
    st.tuples(st.just("tag"), st.tuples(NAMES, TEXTS)),
    st.tuples(st.just("no tag"), NAMES),
    st.tuples(st.just("end"), STATUSES),
    st.tuples(st.just("rename"), st.sampled_from(["one", "two"])),
    st.tuples(st.just("dataset"), NAMES),
    st.tuples(st.just("delete"), st.booleans()),
)


def apply(client, run_id, operation, value):
    """Apply one operation, and return the code of the error that it ends with, or None."""
    try:
        match operation:
            case "points":
                client.log_batch(run_id, metrics=value)
            case "param":
                client.log_batch(run_id, params=[Param(*value)])
            case "tag":
                client.log_batch(run_id, tags=[RunTag(*value)])
            case "no tag":
                client.delete_tag(run_id, value)
            case "end":
                client.set_terminated(run_id, value, end_time=7)
            case "rename":
                client.update_run(run_id, name=value)
            case "dataset":
                dataset = Dataset(value, "digest", "local", "{}", profile='{"n": 1}')
                tags = [InputTag("mlflow.data.context", "training")]
                client.log_inputs(run_id, [DatasetInput(dataset, tags)])
            case "delete" if value:
                client.delete_run(run_id)
            case "delete":
                client.restore_run(run_id)
    except MlflowException as error:
        return error.error_code
    return None


def describe(client, run_id):
    run = client.get_run(run_id)
    info = run.info
    return {
        "info": (info.run_name, info.status, info.start_time, info.end_time, info.lifecycle_stage),
        "params": run.data.params,
        "tags": run.data.tags,
        "latest": run.data.metrics,
        "points": {
            key: sorted(
                (p.step, p.timestamp, p.value) for p in client.get_metric_history(run_id, key)
            )
            for key in run.data.metrics
        },
        "inputs": sorted(i.dataset.name for i in run.inputs.dataset_inputs),
    }


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(operations=st.lists(OPERATIONS, max_size=12))
@pytest.mark.slow
def test_it_does_what_mlflows_store_does(store, experiment_id, tmp_path_factory, operations):
    client, offline_id = create_offline_folder(tmp_path_factory.mktemp("x") / "recorded")
    pairs = [(store, experiment_id), (client, offline_id)]
    runs = [c.create_run(e, start_time=5, run_name="one").info.run_id for c, e in pairs]
    for operation, value in operations:
        codes = [apply(c, i, operation, value) for (c, _), i in zip(pairs, runs, strict=True)]
        assert codes[0] == codes[1] or None not in codes, (operation, value)
    expected, described = (describe(c, i) for (c, _), i in zip(pairs, runs, strict=True))
    assert described == expected


@pytest.mark.parametrize(
    ("operation", "value"),
    [
        ("points", [Metric("loss", math.inf, 1, 0), Metric("loss", -math.inf, 1, 1)]),
        ("points", [Metric("a?b", 1.0, 1, 0)]),
        ("points", [Metric("a", 1.0, -1, 0)]),
        ("points", [Metric("a", 1.0, 1, 2**63)]),
        ("param", ("a" * 251, "x")),
        ("param", ("a", "x" * 7000)),
        ("param", ("a", "\udc80")),
        ("tag", ("a", "\udc80")),
        ("tag", ("../a", "x")),
        ("tag", ("a", "x" * 20_000_000)),
    ],
)
def test_no_value_makes_a_run_unreadable(store, experiment_id, tmp_path, operation, value):
    client, offline_id = create_offline_folder(tmp_path / "recorded")
    results = []
    for store_client, experiment in ((store, experiment_id), (client, offline_id)):
        run = store_client.create_run(experiment, start_time=5, run_name="one").info
        is_refused = apply(store_client, run.run_id, operation, value) is not None
        results.append((is_refused, describe(store_client, run.run_id)))
    assert results[1] == results[0]


def test_the_params_of_a_run_are_limited_as_its_files_are(tmp_path, monkeypatch):
    monkeypatch.setattr(offline_store, "MAX_ENTRY_BYTES", 20_000)
    client, experiment_id = create_offline_folder(tmp_path / "recorded")
    run_id = client.create_run(experiment_id).info.run_id
    for number in range(3):
        client.log_param(run_id, str(number), "x" * 6000)
    with pytest.raises(MlflowException, match="params of a run in an offline folder may have up"):
        client.log_param(run_id, "3", "x" * 6000)
    assert len(client.get_run(run_id).data.params) == 3


@pytest.mark.parametrize("name", ["00000001-tags.json", "00000003-params.json"])
def test_a_damaged_run_is_named_and_the_others_are_searched(tmp_path, capsys, name):
    client, experiment_id = create_offline_folder(tmp_path / "recorded")
    runs = [client.create_run(experiment_id, tags={"a": "b"}).info.run_id for _ in range(2)]
    folder = tmp_path / "recorded" / runs[0]
    (folder / name).write_text("{")
    assert [run.info.run_id for run in client.search_runs([experiment_id])] == runs[1:]
    assert f"{folder} is not used: " in capsys.readouterr().err


def test_runs_are_searched_as_in_mlflows_store(store, experiment_id, tmp_path):
    client, offline_id = create_offline_folder(tmp_path / "recorded")
    for c, e in ((store, experiment_id), (client, offline_id)):
        for seed in range(7):
            run_id = c.create_run(e, start_time=100 - seed, run_name=f"run {seed}").info.run_id
            c.log_param(run_id, "seed", seed)
            c.set_tag(run_id, "strategy", "ab"[seed % 2])
            c.log_metric(run_id, "loss", 1 / (seed + 1))
            if seed == 5:
                c.delete_run(run_id)

    def search(c, e, condition, **options):
        names, token = [], None
        while True:
            page = c.search_runs([e], condition, max_results=2, page_token=token, **options)
            names += [run.info.run_name for run in page]
            if not (token := page.token):
                return names

    for condition in (
        "",
        "tags.strategy = 'a'",
        "params.seed != '3' and metrics.loss < 0.4",
        "attributes.run_name LIKE '%2'",
        "attributes.status = 'RUNNING' and tags.`strategy` = 'b'",
        "tags.nothing = 'x'",
    ):
        for options in (
            {"order_by": ["attributes.start_time DESC"]},
            {"order_by": ["metrics.loss ASC"]},
            {"order_by": ["params.seed"], "run_view_type": ViewType.ALL},
        ):
            expected, names = (
                search(c, e, condition, **options)
                for c, e in ((store, experiment_id), (client, offline_id))
            )
            assert names == expected, (condition, options)


def test_experiments_are_created_once(tmp_path):
    client, experiment_id = create_offline_folder(tmp_path / "recorded")
    with pytest.raises(MlflowException) as taken:
        client.create_experiment("offline")
    assert taken.value.error_code == "RESOURCE_ALREADY_EXISTS"
    client.set_experiment_tag(experiment_id, "view", "x")
    assert client.get_experiment(experiment_id).tags == {"view": "x"}
    experiments = client.search_experiments(order_by=["name"])
    assert [(e.experiment_id, e.name) for e in experiments] == [
        ("0", "Default"),
        (experiment_id, "offline"),
    ]
    for unknown in ("99", "../0", "x"):
        with pytest.raises(MlflowException):
            client.get_experiment(unknown)


def test_what_else_a_script_logs_with_mlflow_is_recorded(own_cache, tmp_path, monkeypatch):
    _, experiment_id = create_offline_folder(tmp_path / "recorded")
    use_store(monkeypatch, format_offline_uri(tmp_path / "recorded"))
    with mlflow.start_run(run_name="mine", experiment_id=experiment_id) as parent:
        for step in range(3):
            mlflow.log_metric("loss", 1 / (step + 1), step=step)
        mlflow.log_params({"lr": 0.1})
        mlflow.log_text("hello", "notes/hello world.txt")
        mlflow.log_dict({"a": 1}, "a.json")
        with mlflow.start_run(nested=True, experiment_id=experiment_id) as child:
            mlflow.set_tag("part", "one")
        with pytest.raises(MlflowException, match="clear-mlflow sync"):
            mlflow.create_external_model(name="model")
    client = MlflowClient()
    run = client.get_run(parent.info.run_id)
    assert (run.info.status, run.data.metrics["loss"]) == ("FINISHED", 1 / 3)
    assert mlflow.artifacts.load_text(f"{run.info.artifact_uri}/notes/hello world.txt") == "hello"
    assert {f.path for f in client.list_artifacts(parent.info.run_id)} == {"notes", "a.json"}
    stored = client.get_run(child.info.run_id)
    assert stored.data.tags["mlflow.parentRunId"] == parent.info.run_id


class Killed(BaseException):
    """Ends the process in a test."""


def test_a_kill_at_any_write_leaves_what_was_before_or_after(tmp_path, monkeypatch):
    def act(client, experiment_id, run_id):
        for points in ([Metric("m", 0.5, 1, 1)], [Metric("m", 0.25, 2, 2), Metric("n", 1, 2, 2)]):
            client.log_batch(run_id, metrics=points)
            yield
        for value in "12":
            client.set_tag(run_id, "t", value)
            yield
        client.log_param(run_id, "p", "1")
        yield
        client.delete_tag(run_id, "t")
        yield
        client.update_run(run_id, name="other")
        yield
        client.set_terminated(run_id, "FINISHED", end_time=9)
        yield

    def run_until(limit):
        """Return the contents after each call, and the content after a kill at write *limit*."""
        folder = tmp_path / f"killed at {limit}"
        client, experiment_id = create_offline_folder(folder)
        run_id = client.create_run(experiment_id, start_time=5, run_name="one").info.run_id
        calls = SimpleNamespace(number=0)

        def count_calls(function):
            def call(*arguments, **options):
                calls.number += 1
                if calls.number == limit:
                    raise Killed
                return function(*arguments, **options)

            return call

        states = [describe(client, run_id)]
        with monkeypatch.context() as patch:
            patch.setattr(offline_store, "write_durably", count_calls(disk.write_durably))
            patch.setattr(run_folder.Entry, "remove", count_calls(run_folder.Entry.remove))
            try:
                for _ in act(client, experiment_id, run_id):
                    states.append(describe(client, run_id))
            except Killed:
                return states, describe(MlflowClient(format_offline_uri(folder)), run_id)
        return states, None

    states, _ = run_until(None)
    assert len(states) == 9
    assert (states[-1]["params"], states[-1]["tags"]["mlflow.runName"]) == ({"p": "1"}, "other")
    for limit in range(1, 100):
        reached, killed = run_until(limit)
        if killed is None:
            break
        assert reached == states[: len(reached)]
        # Renaming also sets a tag, in a file of its own: the next call writes both again.
        before, after = states[len(reached) - 1 : len(reached) + 1]
        if after["info"][0] == before["info"][0]:
            assert killed in (before, after), limit
    assert limit > 12


def write_much(folder, number):
    client = MlflowClient(format_offline_uri(folder))
    (run,) = client.search_runs(["0"], "tags.shared = 'yes'")
    for step in range(20):
        client.log_batch(
            run.info.run_id,
            metrics=[Metric(f"m{number}", step, step, step)],
            params=[Param(f"p{number}.{step}", "1")],
            tags=[RunTag(f"t{number}.{step}", "1")],
        )
    for each in range(3):
        client.create_run("0", run_name=f"{number}.{each}")
    with suppress(MlflowException):
        client.create_experiment("one for all")


@pytest.mark.slow
def test_several_processes_write_to_one_folder(tmp_path):
    folder = tmp_path / "recorded"
    client, _ = create_offline_folder(folder)
    run_id = client.create_run("0", tags={"shared": "yes"}).info.run_id
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_much, args=(folder, n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    run = client.get_run(run_id)
    assert len(run.data.params) == 80
    assert len([tag for tag in run.data.tags if tag.startswith("t")]) == 80
    points = [(p.key, p.step) for p in read_points(folder / run_id)]
    assert len(points) == len(set(points)) == 80
    assert len(client.search_runs(["0"])) == 13
    assert [e.name for e in client.search_experiments()].count("one for all") == 1


def test_a_folder_can_be_moved_and_copied(tmp_path):
    client, experiment_id = create_offline_folder(tmp_path / "here")
    run_id = client.create_run(experiment_id).info.run_id
    client.log_text(run_id, "x", "a.txt")
    folder = shutil.move(tmp_path / "here", tmp_path / "there 100%")
    moved = MlflowClient(format_offline_uri(folder))
    assert str(folder) in moved.download_artifacts(run_id, "a.txt", str(folder))
    assert moved.get_run(run_id).info.artifact_uri.startswith(folder.as_uri())
