"""Scoring one run from its stored rows: what is logged, at which times."""

from dataclasses import replace

from courses import series
from stored_runs import histories, row_texts, rows_folder, stored_run
from trainings import NUM_TEST

from clear_mlflow import AccuracyMatrix
from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.metrics import METRICS, Metric
from clear_mlflow.scoring.run_log import log_results, read_scores, score
from clear_mlflow.scoring.run_record import compute_times, read_record
from clear_mlflow.store.rows import parse_rows


def read_steps(store, run_id):
    steps = {}
    for name, points in histories(store, run_id).items():
        for step, _, value in points:
            steps.setdefault(name, {}).setdefault(step, []).append(value)
    return steps


def add_rows(run, correct):
    for name, text in row_texts(correct).items():
        if not (rows_folder(run) / name).exists():
            (rows_folder(run) / name).write_text(text)


def build_matrix(correct):
    rows = [[c / NUM_TEST for c in row] for row in correct]
    return AccuracyMatrix(rows[1:], rows[0], [NUM_TEST] * len(rows[0]))


def test_every_point_of_many_is_stored_once(store, experiment_id):
    correct = [[(7 * i + 3 * j) % 11 for j in range(30)] for i in range(31)]
    run = stored_run(store, experiment_id, correct[:-1])
    score(store, run.info.run_id)
    add_rows(run, correct)
    score(store, run.info.run_id)
    stored_steps = read_steps(store, run.info.run_id)
    matrix = build_matrix(correct)
    expected = series(matrix)
    for j in range(30):
        cells = enumerate([matrix.initial[j], *matrix.values[:, j]])
        expected[f"test_accuracy/bucket_{j + 1:02d}"] = dict(cells)
    for name, steps in expected.items():
        assert stored_steps[name] == {step: [value] for step, value in steps.items()}
    assert sum(len(steps) for steps in stored_steps.values()) > 1000


def test_rows_that_come_later_are_scored_though_nothing_changes(store, experiment_id):
    same = [[5, 5, 5]] * 4
    run = stored_run(store, experiment_id, same[:2])
    for num_rows in (2, 4):
        add_rows(run, same[:num_rows])
        score(store, run.info.run_id)
        stored_steps = read_steps(store, run.info.run_id)
        assert stored_steps["test_accuracy/bucket_02"].keys() == set(range(num_rows))
    for name, steps in series(build_matrix(same)).items():
        assert stored_steps[name].keys() == steps.keys()


def lowest(matrix):
    if matrix.num_rows < 1:
        raise UndefinedMetricError("needs a row")
    return float(matrix.values[:, 0].min())


FIRST = Metric(name="lab/first", function=lowest)


def score_with(store, run_id, metric):
    scores = read_scores(store, store.get_run(run_id), (*METRICS, metric))
    log_results(store, scores)
    return scores


def test_the_first_scoring_changes_no_value(store, experiment_id):
    run_id = stored_run(store, experiment_id, [[5, 5, 5]] * 4).info.run_id
    store.log_metric(run_id, "clear/accuracy", 0.1, step=1)
    assert score(store, run_id).changes.changed == ()


def test_a_new_definition_is_stored_at_every_step(store, experiment_id):
    """Even if its last value is equal."""
    correct = [[10] * 3, [50, 20, 20], [60, 30, 20], [40, 70, 20]]
    run_id = stored_run(store, experiment_id, correct).info.run_id
    last = Metric(name="lab/first", function=lambda matrix: float(matrix.values[-1, 0]))
    score_with(store, run_id, last)
    assert read_steps(store, run_id)["lab/first"] == {1: [0.5], 2: [0.6], 3: [0.4]}
    score_with(store, run_id, replace(FIRST, version=2))
    history = store.get_metric_history(run_id, "lab/first")
    newest_values = {m.step: m.value for m in sorted(history, key=lambda m: m.timestamp)}
    assert newest_values == {1: 0.5, 2: 0.5, 3: 0.4}
    highest = replace(FIRST, function=lambda matrix: float(matrix.values[:, 0].max()), version=3)
    assert score_with(store, run_id, highest).changes.changed == ("lab/first",)
    assert store.get_run(run_id).data.metrics["lab/first"] == 0.6
    assert score_with(store, run_id, highest).changes.is_empty


def test_a_step_has_the_time_of_its_row_or_the_previous_one(store, experiment_id):
    texts = row_texts()
    first, last = (
        parse_rows({n: texts[n].encode()})[n].written_at for n in ("row_000.json", "row_004.json")
    )
    assert (first, last) == ("2026-01-31T00:00:00.123+00:00", "2026-01-31T00:04:00.123+00:00")
    run = stored_run(store, experiment_id)
    for name in ("row_000.json", "row_003.json"):
        (rows_folder(run) / name).unlink()
    stored = read_record(store, run)
    start = 1_769_817_600_123  # 2026-01-31T00:00:00.123 UTC, in milliseconds
    minutes = [1, 1, 2, 2, 4]
    assert compute_times(stored.rows, 4) == {k: start + 60_000 * m for k, m in enumerate(minutes)}
