"""The families of metrics of a run: chosen at its start, and extended later."""

import json

import pytest
from commands import invoke, run_command
from comparisons import counts, log_predictions, log_run, row_records
from courses import reasons, series, values
from stored_runs import histories, only_run
from trainings import EXPECTED, FOUR_BUCKETS, NUM_TEST, KnownTraining

import clear_mlflow
from clear_mlflow.adapters._run import Adapter
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.record import assemble, format_row_file_name
from clear_mlflow.metrics import FAMILIES, get_family_metrics, summarize
from clear_mlflow.store import names
from clear_mlflow.tracking.tracked_training import train_in_process


def select_matrix_names(names):
    return {name: value for name, value in names.items() if name.split("/")[0] in FAMILIES}


def steps(store, run_id):
    matrix_points = select_matrix_names(histories(store, run_id))
    in_steps = {name: {step: value for step, _, value in h} for name, h in matrix_points.items()}
    assert {n: len(h) for n, h in matrix_points.items()} == {n: len(h) for n, h in in_steps.items()}
    return in_steps


def build_matrix(correct):
    rows = row_records(correct)
    return assemble({format_row_file_name(row.row.row): row for row in rows}).matrix


def read_scored_families(store, run_id):
    data = store.get_run(run_id).data
    families = {name.split("/")[0] for name in select_matrix_names(data.metrics)}
    return families, data.tags.get(names.METRICS_TAG)


@pytest.mark.slow
def test_a_training_logs_the_requested_families(store, experiment_id):
    training = KnownTraining(FOUR_BUCKETS, metrics="gem,worst_bucket")
    train_in_process(store, training, {"metrics": "gem,worst_bucket"})
    run = only_run(store, experiment_id)
    chosen = get_family_metrics(("gem", "worst_bucket"))
    assert select_matrix_names(run.data.metrics) == summarize(EXPECTED, metrics=chosen)
    assert steps(store, run.info.run_id) == series(EXPECTED, metrics=chosen)
    assert run.data.tags[names.METRICS_TAG] == "gem,worst_bucket"
    assert run.data.params["metrics"] == "gem,worst_bucket"
    note = run.data.tags["mlflow.note.content"]
    assert "`gem/forward_transfer`" in note
    assert "`clear/accuracy`" not in note
    assert json.loads(run.data.tags[names.VERSIONS_TAG]).keys() >= {m.name for m in chosen}


def test_a_custom_loop_logs_the_requested_families(store, experiment_id):
    loop = {"buckets": 4, "num_instances": NUM_TEST}
    with clear_mlflow.track(**loop, metrics=["renate", "tic"]) as run:
        for row, correct in enumerate(FOUR_BUCKETS):
            run.log_counts(row, correct)
        assert {name.split("/")[0] for name in values(run.metrics)} == {"renate", "tic"}
        assert {name.split("/")[0] for name in reasons(run.metrics)} <= {"renate", "tic"}
    stored = only_run(store, experiment_id)
    expected = series(EXPECTED, metrics=get_family_metrics(("renate", "tic")))
    assert steps(store, stored.info.run_id) == expected
    assert stored.data.tags[names.METRICS_TAG] == "renate,tic"
    message = "the family 'tick' does not exist; did you mean"
    with pytest.raises(ConfigError, match=message):
        clear_mlflow.track(**loop, metrics="tick")
    with pytest.raises(ConfigError, match=message):
        Adapter({"metrics": "tick"})
    for options in ({"metrics": "tic"}, {}):
        Adapter(options)


@pytest.mark.slow
def test_evaluate_adds_families_to_old_runs(store, experiment_id):
    correct = counts(150, 0)
    run_id = log_run(store, experiment_id, "naive", correct, strategy="naive").info.run_id
    run_command("evaluate", "--runs", "test")
    before = steps(store, run_id)
    run_command("evaluate", "--runs", "test", "--metrics", "wild_time,gem")
    after = steps(store, run_id)
    assert before.items() <= after.items()
    families = ("clear", "renate", "wild_time", "gem")
    assert after == series(build_matrix(correct), metrics=get_family_metrics(families))
    assert read_scored_families(store, run_id) == ({*families}, "clear,renate,wild_time,gem")
    for again in (("--metrics", "gem,wild_time"), ()):
        done = invoke("evaluate", "--runs", "test", *again)
        assert "1 unchanged" in " ".join(done.output.split()), done.output
    # What a run is scored by is its own choice from now on: a metric that is lost comes back.
    assert "wild_time/stream_worst" in invoke("evaluate", run_id).output


def test_a_family_of_a_later_version_is_preserved(store, experiment_id):
    tags = {names.METRICS_TAG: "gem,of_tomorrow"}
    run = log_run(store, experiment_id, "a", counts(150, 0), strategy="a", tags=tags)
    for options, families, tag in (
        ((), {"gem"}, "gem,of_tomorrow"),
        (("--metrics", "clear"), {"gem", "clear"}, "gem,of_tomorrow,clear"),
    ):
        run_command("evaluate", "--runs", "test", *options)
        assert read_scored_families(store, run.info.run_id) == (families, tag)


@pytest.mark.slow
def test_a_run_with_an_unknown_family_is_shown_with_its_intervals(store, experiment_id, tmp_path):
    tags = {names.METRICS_TAG: "gem,of_tomorrow"}
    correct = counts(150, 0)
    run = log_run(store, experiment_id, "a", correct, strategy="a", tags=tags)
    log_predictions(store, run, correct, tmp_path)
    store.set_tag(run.info.run_id, names.PREDICTIONS_TAG, "labels")
    metrics = clear_mlflow.load(run.info.run_id).metrics
    assert metrics["gem/average_accuracy"].interval is not None
    run_command("show", run.info.run_id, "--json")


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "--runs", "test"),
        ("compare", "--runs", "test"),
        ("import", __file__),
        ["train"],
    ],
)
def test_an_unknown_family_is_a_one_line_error_with_the_list(command):
    done = invoke(*command, "--metrics", "clear,rennate")
    error = done.exception if isinstance(done.exception, ConfigError) else done.output
    message = " ".join(str(error).split())
    assert "the family 'rennate' does not exist; did you mean renate? " in message


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("renate/forgetting", "'renate/forgetting' is not a family; pass renate, with all metrics"),
        ("forgetting", "pass renate or chaudhry or coda_prompt, with all metrics of the family"),
        ("cost/seconds", "pass cost, with all metrics of the family"),
        ("calibration/brier", "computed for every run that has what they need; leave"),
        ("wildtime", "does not exist; did you mean wild_time? expected some of clear, "),
    ],
)
def test_the_name_of_a_metric_is_answered_with_its_family(name, advice):
    for command in (("evaluate", "test"), ("compare", "test")):
        done = invoke(*command, "--metrics", f"clear,{name}")
        assert done.exit_code == 2
        assert advice in " ".join(done.output.split())
