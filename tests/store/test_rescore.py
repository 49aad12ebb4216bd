"""Re-scoring many runs: damage, new definitions, interruptions and concurrency."""

import re
import signal
import subprocess
import time

import pytest
from commands import invoke
from forked import Forked
from stored_runs import artifact_folder, change, histories, rows_folder, stored_run

import clear_mlflow
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.metrics import METRICS, Metric
from clear_mlflow.store import names
from clear_mlflow.store.search import select_runs


def worst_bucket(matrix: AccuracyMatrix) -> float:
    return float(matrix.values[-1].min())


OWN = Metric(name="lab/bucket", function=worst_bucket)


def search(client, **options):
    runs = select_runs(client, experiment="test")
    return list(rescore_runs(client, runs, **options))


def group_by_name(verdicts):
    return {verdict.run_name: verdict for verdict in verdicts}


@pytest.fixture
def many(store, experiment_id):
    def make(*run_names, **options):
        return [stored_run(store, experiment_id, name=name, **options) for name in run_names]

    return make


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("scored_before", [False, True])
def test_each_damaged_run_is_named_and_every_other_is_scored(store, many, jobs, scored_before):
    correct = [[10 + i + j for j in range(10)] for i in range(11)]
    run_names = ("whole 1", "whole 2", "corrupted", "foreign", "gap", "newer")
    runs = dict(zip(run_names, many(*run_names, correct=correct), strict=True))
    if scored_before:
        search(store)
    files = {name: rows_folder(run) / "row_004.json" for name, run in runs.items()}
    files["corrupted"].write_bytes(files["corrupted"].read_bytes()[:-30] + b"\x00" * 30)
    change(files["foreign"], dataset={"name": "digits", "digest": "sha256:" + "cd" * 32})
    files["gap"].unlink()
    change(files["newer"], schema={"name": "clear_mlflow/accuracy_row", "version": "2.0"})
    verdicts = group_by_name(search(store, jobs=jobs))
    for name, message in {
        "corrupted": "row_004.json: is not JSON",
        "foreign": "row_000.json and row_004.json contradict each other: dataset digest",
        "newer": "row_004.json: has version '2.0' of the format; this clear_mlflow reads 1.x",
        "gap": "are missing from its artifacts (row_004.json" if scored_before else "missing row 4",
    }.items():
        assert verdicts[name].is_problem
        assert message in verdicts[name].detail
        assert "\n" not in verdicts[name].detail
        is_scored = name == "gap" and not scored_before
        assert verdicts[name].action == ("scored" if is_scored else "failed")
        has_metrics = bool(store.get_run(runs[name].info.run_id).data.metrics)
        assert has_metrics == (scored_before or is_scored)
    for name in ("whole 1", "whole 2"):
        assert not verdicts[name].is_problem
        metrics = store.get_run(runs[name].info.run_id).data.metrics
        assert metrics["clear/in_domain_accuracy"] == pytest.approx((11 + 29) / 200)


def test_another_metric_writes_only_that_metric(store, many):
    (run,) = many("one")
    search(store)
    before = histories(store, run.info.run_id)
    files = {p: p.stat().st_mtime_ns for p in rows_folder(run).parent.rglob("*") if p.is_file()}
    (verdict,) = search(store, metrics=(*METRICS, OWN))
    assert verdict.action == "scored"
    assert [point.key for point in verdict.scores.changes.metric_values] == ["lab/bucket"] * 4
    after = histories(store, run.info.run_id)
    assert [value for _, _, value in after.pop("lab/bucket")] == [0.60, 0.71, 0.80, 0.70]
    assert after == before
    assert files == {
        p: p.stat().st_mtime_ns for p in rows_folder(run).parent.rglob("*") if p.is_file()
    }
    for metrics in ((*METRICS, OWN), METRICS):
        assert [v.action for v in search(store, metrics=metrics)] == ["unchanged"]


def evaluate_command(*options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Forked("evaluate", "--runs", "test", *options, **pipes)


@pytest.mark.slow
def test_ctrl_c_reports_progress_and_the_next_call_does_the_rest(store, many, experiment_id):
    many(*map(str, range(48)))
    process = evaluate_command()
    scored = f"tags.`{names.SCORED_TAG}` != ''"
    while not store.search_runs([experiment_id], scored, max_results=1):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGINT, (out, err)
    assert "scored" in out
    assert "stopped: the same command does the rest" in out
    # Python tells, and forgets, an interrupt that falls into its own callback.
    assert "Traceback" not in re.sub(
        r"Exception ignored in.*?KeyboardInterrupt: \n", "", err, flags=re.S
    )
    done = len(store.search_runs([experiment_id], scored))
    assert 0 < done < 48
    out, _ = evaluate_command("--jobs", "2").communicate(timeout=240)
    assert f"{48 - done} scored, {done} unchanged" in out


def test_the_summary_of_many_runs_names_incomplete_ones(store, many, capsys):
    from clear_mlflow.cli.evaluate import print_results

    early, damaged, complete_run = many("early", "damaged", "whole")
    (rows_folder(early) / "row_004.json").unlink()
    (rows_folder(damaged) / "row_004.json").write_text("{")
    print_results([*search(store), *search(store) * 17], 0, False, is_stopped=False)
    out, _ = capsys.readouterr()
    for text in (early.info.run_id, damaged.info.run_id, "3 of 4 rows", "18 runs lack rows"):
        assert text in out
    assert complete_run.info.run_id not in out
    assert "18 failed, 2 scored, 34 unchanged" in out


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("log", ["log_counts", "log_accuracies"])
def test_a_loop_need_not_measure_its_untrained_model(store, experiment_id, first, log):
    with clear_mlflow.track(buckets=3, num_instances=10) as loop:
        for row in range(first, 4):
            getattr(loop, log)(row, [9, 8, 7] if log == "log_counts" else [0.9, 0.8, 0.7])
    missing = [*range(1, first)]
    assert [*loop.record.missing] == [*clear_mlflow.load(loop.run_id).record.missing] == missing
    run = store.get_run(loop.run_id)
    page = (artifact_folder(run) / names.REPORT_HTML).read_text()
    note = run.data.tags[names.MLFLOW_NOTE]
    done = invoke("evaluate", loop.run_id)
    if missing:
        assert "Not stored: row 1." in page
        assert "rows not stored 1" in note
        assert "missing row 1" in done.output
    else:
        assert "ot stored" not in page + note
        assert "missing" not in done.output
    assert done.exit_code == (2 if missing else 0)
    assert "row 0" not in done.output


def test_a_training_without_its_row_0_lacks_it(store, many):
    (run,) = many("one")
    store.log_param(run.info.run_id, "used/arithmetic", "float32")  # as trainings log it
    (rows_folder(run) / "row_000.json").unlink()
    (verdict,) = search(store)
    assert "missing row 0" in verdict.detail
    assert "rows not stored 0" in store.get_run(run.info.run_id).data.tags[names.MLFLOW_NOTE]
