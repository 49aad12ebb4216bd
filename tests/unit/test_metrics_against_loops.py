"""Every metric, compared with literal loops, published numbers, and authors' programs."""

import math
from dataclasses import replace
from functools import partial

import courses
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import SECOND_PLACE

from clear_mlflow import AccuracyMatrix, metrics
from clear_mlflow.core.errors import UndefinedMetricError
from clear_mlflow.core.matrix import stack_all_rows, stack_cells
from clear_mlflow.core.score import Score
from clear_mlflow.metrics import ALL_METRICS, FAMILIES, Metric, wild_time
from clear_mlflow.metrics._metric import COSTS

# Of every family that there is, those that a user adds included.
explain = partial(courses.explain, metrics=ALL_METRICS)
series = partial(courses.series, metrics=ALL_METRICS)
summarize = partial(metrics.summarize, metrics=ALL_METRICS)
# Families that compute_by_loops computes; one that is added brings its own twin.
TWINS = ("clear", "renate", "gem", "chaudhry", "diaz_rodriguez", "wild_time", "tic", "capymoa")
TWINS += ("icarl", "worst_bucket", "zscl", "coda_prompt", "published", "deployment")

# Test images of 40 classified correctly: what the authors' programs were run on. One bucket is
# known better before it was trained on than after, and some are known better later on.
BEFORE = [5, 3, 6, 4, 2, 7]
CORRECT = [
    [30, 22, 17, 12, 38, 9],
    [24, 33, 26, 19, 13, 16],
    [31, 29, 35, 28, 21, 18],
    [19, 25, 31, 36, 30, 23],
    [22, 20, 28, 34, 37, 27],
    [16, 26, 23, 32, 33, 38],
]
EXAMPLE = AccuracyMatrix(np.array(CORRECT) / 40, np.array(BEFORE) / 40)
# The same columns, each sorted: a model that only ever gains.
GAINING = AccuracyMatrix(np.sort(np.array(CORRECT), axis=0) / 40)
SAME = {
    "gem/average_accuracy": "renate/average_accuracy",
    "gem/backward_transfer": "renate/backward_transfer",
    "gem/forward_transfer": "renate/forward_transfer",
    "chaudhry/average_accuracy": "renate/average_accuracy",
    "chaudhry/forgetting": "renate/forgetting",
    "diaz_rodriguez/accuracy": "clear/accuracy",
    "diaz_rodriguez/forward_transfer": "clear/forward_transfer",
    "tic/in_domain": "clear/in_domain_accuracy",
    "tic/backward_transfer": "clear/backward_transfer",
    "tic/forward_transfer": "clear/forward_transfer",
    "capymoa/forward_transfer": "clear/forward_transfer",
    "capymoa/accuracy_seen_avg": "icarl/average_incremental_accuracy",
    "zscl/average": "capymoa/accuracy_all_avg",
    "zscl/last": "capymoa/accuracy_final",
}


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def harmonic(first, second):
    return 2 / (1 / first + 1 / second) if first and second else 0


def iter_published(values, counts):
    """Yield name and value of the variants in published.py, as their sources compute them."""
    k = len(values)
    rows, last = range(k), k - 1

    def best(j, end):
        return max(values[i][j] for i in range(j, end))

    def pool(i):
        hits = sum(counts[j] * values[i][j] for j in range(i + 1))
        return hits / sum(counts[: i + 1])

    if k >= 1:
        yield "lander_forgetting", mean(max(values[i][: i + 1]) - values[last][i] for i in rows)
        if counts is not None:
            yield "weighted_incremental_accuracy", mean(pool(i) for i in rows)
    if k < 2:
        return
    end = values[last]
    yield "forgetting_with_last", mean(best(j, k) - end[j] for j in range(last))
    yield "forgetting_of_all_buckets", mean(best(j, k) - end[j] for j in rows)
    highest = [max(row[j] for row in values) for j in range(last)]
    yield "forgetting_over_all_rows", mean(highest[j] - end[j] for j in range(last))
    yield "forgetting_since_own_row", mean(values[j][j] - end[j] for j in range(last))
    steps = [mean(best(j, i) - values[i][j] for j in range(i)) for i in range(1, k)]
    yield "forgetting_over_steps", mean(steps)
    drops = [best(j, last) - end[j] for j in range(last)] + [0 - end[last]]
    yield "podnet_forgetting", sum(drops) / len(["total", *rows])
    yield "evoprompt_forgetting", sum(drops) / len(["total", *rows, "average_accuracy"])
    apart = sum(values[i][j] - values[j][j] for i in range(k) for j in range(i - 1))
    yield "continuum_backward_transfer", apart / (k * (k - 1) / 2)
    yield "continuum_forgetting", sum(best(j, k - 2) - end[j] for j in range(k - 2)) / (k - 1)
    yield "gem_backward_transfer", sum(end[j] - values[j][j] for j in range(last)) / k
    yield "incremental_accuracy_after_first", mean(mean(values[i][: i + 1]) for i in rows[1:])
    old, new = mean(end[:last]), end[last]
    yield "old_accuracy", old
    yield "new_accuracy_after_first", mean(values[i][i] for i in rows[1:])
    yield "largest_forgetting", max(best(j, last) - end[j] for j in range(last))
    if all(values[j][j] > 0 for j in range(last)):
        shares = [(values[j][j] - end[j]) / values[j][j] for j in range(last)]
        yield "relative_forgetting", mean(shares)
    yield "first_bucket_drop", values[0][0] - end[0]
    yield "average_drop", values[0][0] - mean(end[j] for j in rows)
    yield "old_new_harmonic_mean", harmonic(old, new)
    yield "base_harmonic_mean", harmonic(end[0], mean(end[1:k]))
    if counts is not None:
        yield "weighted_average_drop", values[0][0] - pool(last)
        weighted = sum(counts[j] * drops[j] for j in range(last))
        yield "weighted_forgetting", weighted / sum(counts[:last])


def compute_by_loops(values, initial, counts, width) -> dict[str, float]:
    k = len(values)
    rows, last, split = range(k), k - 1, math.ceil(width / 2) - 1
    cells = [(i, j) for i in rows for j in range(width)]
    change = mean(values[i][j] - values[j][j] for i, j in cells if j < i)
    by_name = {
        "clear/in_domain_accuracy": mean(values[i][j] for i, j in cells if i == j),
        "clear/next_domain_accuracy": mean(values[i][j] for i, j in cells if j == i + 1),
        "clear/backward_transfer": mean(values[i][j] for i, j in cells if j < i),
        "clear/forward_transfer": mean(values[i][j] for i, j in cells if j > i),
        "clear/accuracy": mean(values[i][j] for i, j in cells if j <= i),
        "capymoa/accuracy_all_avg": mean(values[i][j] for i, j in cells),
        "capymoa/backward_transfer": change,
        "icarl/average_incremental_accuracy": mean(
            sum(values[i][j] for j in range(i + 1)) / (i + 1) for i in rows
        ),
    }
    first_four = list(by_name.values())[:4]
    by_name["clear/challenge_score"] = None if None in first_four else mean(first_four)
    if k >= 1:
        by_name["renate/average_accuracy"] = mean(values[last][j] for j in rows)
        by_name["capymoa/accuracy_final"] = mean(values[last])
        by_name["worst_bucket/final_accuracy"] = min(values[last][j] for j in rows)
        by_name["worst_bucket/lowest_accuracy"] = min(values[i][j] for i, j in cells if j <= i)
        if counts is not None:
            hits = sum(counts[j] * values[last][j] for j in rows)
            by_name["renate/micro_average_accuracy"] = hits / sum(counts[j] for j in rows)
            losses = sum(counts[j] * (values[j][j] - values[last][j]) for j in rows)
            by_name["deployment/lost_accuracy"] = losses / sum(counts[j] for j in rows)
            arriving = range(1, min(k + 1, width))
            if arriving:
                hits = sum(counts[j] * values[j - 1][j] for j in arriving)
                total = sum(counts[j] for j in arriving)
                by_name["deployment/deployed_accuracy"] = hits / total
    if k >= 2:
        best = [max(values[i][j] for i in range(last)) for j in range(last)]
        by_name["renate/forgetting"] = mean(best[j] - values[last][j] for j in range(last))
        losses = [values[last][j] - values[j][j] for j in range(last)]
        by_name["renate/backward_transfer"] = mean(losses)
        by_name["diaz_rodriguez/remembering"] = 1 - abs(min(change, 0))
        by_name["diaz_rodriguez/positive_backward_transfer"] = max(change, 0)
        if initial is not None:
            gains = [values[j - 1][j] - initial[j] for j in range(1, k)]
            by_name["renate/forward_transfer"] = mean(gains)
        since = [max(values[i][j] for i in range(j, last)) for j in range(last)]
        drops = [since[j] - values[last][j] for j in range(last)]
        by_name["chaudhry/forgetting_since_trained"] = mean(drops)
        steps = [mean(values[i - 1][j] - values[i][j] for j in range(i)) for i in range(1, k)]
        by_name["coda_prompt/forgetting"] = mean(steps)
    by_name |= {f"published/{name}": value for name, value in iter_published(values, counts)}
    if k >= 1 and width >= 2:
        columns = [mean(values[i][j] for i in rows if i < j) for j in range(1, width)]
        by_name["zscl/transfer"] = mean(columns)
    if k > split:
        if counts is not None:
            hits = sum(counts[j] * values[split][j] for j in range(split + 1))
            by_name["wild_time/fix_id_accuracy"] = hits / sum(counts[: split + 1])
        if after := values[split][split + 1 :]:
            by_name["wild_time/fix_ood_average"] = mean(after)
            by_name["wild_time/fix_ood_worst"] = min(after)
    if ahead := [[values[i][i + d] for d in (1, 2, 3)] for i in rows if i + 3 < width]:
        by_name["wild_time/stream_average"] = mean(mean(near) for near in ahead)
        by_name["wild_time/stream_worst"] = mean(min(near) for near in ahead)
    by_name |= {name: by_name.get(other) for name, other in SAME.items()}
    return {name: value for name, value in by_name.items() if value is not None}


fractions = st.integers(0, 1000).map(lambda n: n / 1000)


@st.composite
def measured_matrices(draw):
    width = draw(st.integers(1, 8))
    k = draw(st.integers(0, width))
    row = st.lists(fractions, min_size=width, max_size=width)
    values = draw(st.lists(row, min_size=k, max_size=k))
    counts = draw(st.none() | st.lists(st.integers(1, 2**40), min_size=width, max_size=width))
    return values, draw(st.none() | row), counts, width


def select_twins(names):
    return {name: value for name, value in names.items() if name.split("/")[0] in TWINS}


def build(values, initial, counts, width) -> AccuracyMatrix:
    return AccuracyMatrix(np.array(values, dtype=float).reshape(-1, width), initial, counts)


@pytest.mark.slow
@given(measured_matrices())
def test_the_summary_equals_literal_loops(case):
    matrix = build(*case)
    summary, reasons = summarize(matrix), explain(matrix)
    assert select_twins(summary) == pytest.approx(compute_by_loops(*case), abs=1e-12)
    assert all(type(value) is float for value in summary.values())
    assert summary.keys().isdisjoint(reasons)
    assert summary.keys() | reasons.keys() == {metric.name for metric in ALL_METRICS}
    assert all(reason and "\n" not in reason for reason in reasons.values())
    for name, other in SAME.items():
        assert summary.get(name) == summary.get(other)
        assert reasons.get(name) == reasons.get(other)


@st.composite
def stacked_matrices(draw):
    """Draw a matrix and others with different values in the same cells, untrained model first."""
    width = draw(st.integers(1, 7))
    k = draw(st.integers(1, width))
    tested = draw(st.sampled_from(("all", "past", "some")))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32)))
    cells = numbers.integers(0, 40, (draw(st.integers(1, 5)), width + 1, width)) / 40
    if tested == "past":  # tests of future buckets are missing
        cells[:, 1:][:, np.triu(np.ones((width, width), bool), 1)] = np.nan
    elif tested == "some":  # also complete rows
        cells[:, numbers.random((width + 1, width)) < 0.2] = np.nan
        cells[:, numbers.random(width + 1) < 0.2] = np.nan
    counts = draw(st.none() | st.lists(st.integers(1, 2**40), min_size=width, max_size=width))
    return [AccuracyMatrix(x[1 : k + 1], x[0], counts) for x in cells], cells


@pytest.mark.slow
@given(stacked_matrices(), st.sampled_from(("iid", "streaming")), st.booleans())
def test_stacked_matrices_have_the_values_of_single_ones(case, protocol, is_accuracy):
    matrices, cells = case
    if not is_accuracy:
        rmse = Score("rmse", higher_is_better=False)
        matrices = [
            AccuracyMatrix(m.values, m.initial, m.num_instances, score=rmse) for m in matrices
        ]
    masked = [matrix.mask(protocol) for matrix in matrices]
    stack = stack_cells(matrices[0], cells).mask(protocol)
    for metric in metrics.adapt_metrics(ALL_METRICS, matrices[0].score):
        values = metric.compute_stack(stack)
        loop = replace(metric, is_vectorized=False).compute_stack(stack)
        single = [metrics.compute_values(matrix, [metric])[0] for matrix in masked]
        expected = [value.get(metric.name, math.nan) for value in single]
        assert loop.tolist() == pytest.approx(expected, nan_ok=True, abs=0)
        assert values.tolist() == pytest.approx(expected, nan_ok=True, abs=1e-15, rel=1e-15)


def test_every_metric_of_the_matrix_computes_stacked_matrices():
    assert {m.name for m in ALL_METRICS if m.is_vectorized == (m.needs == COSTS)} == set()


def test_a_custom_metric_of_one_matrix_is_computed_for_each_of_several():
    rising = replace(FAMILIES["clear"][0], name="lab/renamed")
    near = Metric(name="lab/near", function=partial(wild_time.stream_average, ahead=1))
    cells = np.stack([stack_all_rows(EXAMPLE)[: 1 + EXAMPLE.num_rows], np.ones((7, 6))])
    stack = stack_cells(EXAMPLE, cells)
    for metric in metrics.load_custom_metrics([rising, near, rows_above_half]):
        expected = [metric.compute(EXAMPLE), metric.compute(AccuracyMatrix(np.ones((6, 6))))]
        assert metric.compute_stack(stack).tolist() == expected


def rows_above_half(matrix):
    return sum(1 for row in matrix.values if row.mean() > 0.5)


@pytest.mark.slow
@given(measured_matrices())
def test_a_series_equals_the_summary_of_truncated_runs(case):
    values, *rest = case
    results = series(build(*case))
    for k in range(1, len(values) + 1):
        at_k = {name: steps[k] for name, steps in results.items() if k in steps}
        assert select_twins(at_k) == pytest.approx(compute_by_loops(values[:k], *rest), abs=1e-12)
        assert at_k == summarize(build(values[:k], *rest))
    last = {name: steps[max(steps)] for name, steps in results.items() if len(values) in steps}
    assert last == summarize(build(*case))


@pytest.mark.slow
@given(measured_matrices())
def test_streaming_keeps_metrics_of_future_buckets(case):
    matrix = build(*case)
    remaining = {"clear/next_domain_accuracy", "renate/forward_transfer", "gem/forward_transfer"}
    remaining |= {"clear/forward_transfer", "tic/forward_transfer", "capymoa/forward_transfer"}
    remaining |= {f"wild_time/{name}" for name in ("fix_ood_average", "fix_ood_worst")}
    remaining |= {f"wild_time/{name}" for name in ("stream_average", "stream_worst")}
    remaining |= {"diaz_rodriguez/forward_transfer", "zscl/transfer"}
    remaining |= {"deployment/deployed_accuracy"}
    everything, streaming = summarize(matrix), summarize(matrix, "streaming")
    assert streaming.items() <= everything.items()
    assert select_twins(streaming) == {n: v for n, v in everything.items() if n in remaining}
    steps = {name: steps for name, steps in series(matrix).items() if name in streaming}
    assert series(matrix, "streaming") == steps
    reasons = explain(matrix, "streaming")
    message = "under the streaming protocol cells with j <= i score training images"
    assert all(reasons[name] == message for name in everything.keys() - streaming.keys())


@pytest.mark.slow
@given(measured_matrices(), st.data())
def test_an_unmeasured_cell_affects_only_metrics_that_use_it(case, data):
    values, initial, counts, width = case
    if not values:
        return
    i = data.draw(st.integers(0, len(values) - 1))
    j = data.draw(st.integers(0, width - 1))
    low, high, gap = (np.array(values, dtype=float) for _ in range(3))
    low[i, j], high[i, j], gap[i, j] = 0.0, 1.0, math.nan
    if np.isnan(gap[-1]).all():  # the last row would be dropped: another run, not a gap
        return
    matrices = [AccuracyMatrix(cells, initial, counts) for cells in (low, high, gap)]
    with_low, with_high, with_gap = map(summarize, matrices)
    reasons = explain(matrices[-1])
    for name, value in with_low.items():
        if with_high[name] != value:
            assert name not in with_gap
            gap = f"row {i + 1}, column {j + 1} was not measured"
            assert reasons[name].partition(";")[0] == gap
    for name, value in with_gap.items():
        assert value == with_low[name] == with_high[name]


@pytest.mark.parametrize("width", [2, 3, 5, 8])
def test_rounded_cells_change_a_value_by_at_most_its_sensitivity(width):
    """Of accuracies of at least 0.5, which is what the sensitivity of a share assumes."""
    generator = np.random.default_rng(width)
    for _ in range(20):
        cells = generator.uniform(0.501, 0.999, (width + 1, width))
        moved = cells + 0.001 * generator.choice([-1, 0, 1], cells.shape)
        before, after = (
            summarize(AccuracyMatrix(array[1:], array[0], [*range(1, width + 1)]))
            for array in (cells, moved)
        )
        for metric in ALL_METRICS:
            if metric.needs == "matrix" and metric.name in before:
                difference = abs(after[metric.name] - before[metric.name])
                assert difference <= metric.sensitivity * 0.001 + 1e-12, metric.name


def test_the_published_matrix_has_the_published_numbers():
    matrix = AccuracyMatrix(np.array(SECOND_PLACE))
    expected = {
        "clear/in_domain_accuracy": 0.9228127,
        "clear/next_domain_accuracy": 0.9168179,
        "clear/backward_transfer": 0.9387415,
        "clear/forward_transfer": 0.8865838,
        "clear/accuracy": 0.9358454,
        "renate/average_accuracy": 0.9510467,
    }
    summary = summarize(matrix)
    assert {name: summary[name] for name in expected} == pytest.approx(expected, abs=6e-8)
    assert round(summary["clear/challenge_score"], 3) == 0.916
    assert round(summary["renate/backward_transfer"], 2) == 0.03


@pytest.mark.parametrize(
    ("family", "published"),
    [
        # confusion_matrix in float64, 34c6b8e: its means count one bucket more, as 0.
        (
            "gem",
            {
                "average_accuracy": 0.6999999999999998,
                "backward_transfer": -0.1708333333333333 * 6 / 5,
                "forward_transfer": 0.46249999999999997 * 6 / 5,
            },
        ),
        # average_acc_stats_across_runs (in percent) and compute_fgt of agem, 4542149;
        # forgetting of Continuum, 43ba009, as forgetting_since_trained.
        (
            "chaudhry",
            {"average_accuracy": 0.7, "forgetting": 0.215, "forgetting_since_trained": 0.21},
        ),
        # statistics() of ZSCL's results.ipynb, b96e714, without its cut of one data set.
        ("zscl", {"transfer": 0.5363333333333333, "average": 0.6395833333333333, "last": 0.7}),
        # calc_forgetting of CODA-Prompt, 6417d4f.
        ("coda_prompt", {"forgetting": 0.07558333333333335}),
        # OCLMetrics as _OCLEvaluator.build fills it, in float64, 095caba.
        (
            "capymoa",
            {
                "accuracy_all_avg": 0.6395833333333333,
                "accuracy_seen_avg": 0.725486111111111,
                "accuracy_final": 0.6999999999999998,
                "forward_transfer": 0.5316666666666666,
                "backward_transfer": -0.1716666666666667,
            },
        ),
    ],
)
def test_a_family_equals_its_authors_program(family, published):
    results = metrics.summarize(EXAMPLE, metrics=FAMILIES[family])
    expected = {f"{family}/{name}": value for name, value in published.items()}
    assert results == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("matrix", "published"),
    [
        (EXAMPLE, (0.7166666666666666, 0.8283333333333334, 0.0)),
        (GAINING, (0.7285714285714285, 1.0, 0.15666666666666665)),
    ],
)
def test_diaz_rodriguez_equals_continuum(matrix, published):
    """``accuracy_A``, ``remembering``, ``positive_backward_transfer`` of Continuum, 43ba009."""
    results = metrics.summarize(matrix, metrics=FAMILIES["diaz_rodriguez"])
    names = ("accuracy", "remembering", "positive_backward_transfer")
    values = [results[f"diaz_rodriguez/{name}"] for name in names]
    assert values == pytest.approx(published, abs=1e-9)


@pytest.mark.parametrize(
    ("ahead", "average", "worst"),
    [(1, 0.665, 0.665), (2, 0.58125, 0.5), (3, 0.48888888888888893, 0.3583333333333)],
)
def test_eval_stream_equals_its_authors_program(ahead, average, worst):
    """``evaluate_online`` of Wild-Time with ``eval_next_timesteps``, 1875f1e."""
    assert wild_time.stream_average(EXAMPLE, ahead) == pytest.approx(average, abs=1e-9)
    assert wild_time.stream_worst(EXAMPLE, ahead) == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize(
    ("split", "counts", "known_value", "average", "worst"),
    [
        (1, [40] * 6, 0.7125, 0.4625, 0.325),
        (2, [40] * 6, 0.7916666666666666, 0.5583333333333333, 0.45),
        (4, [40] * 6, 0.705, 0.675, 0.675),
        # 31 of 40, 29 of 80 and 35 of 50 images.
        (2, [40, 80, 50, 40, 40, 40], 0.5588235294117647, 0.5583333333333333, 0.45),
    ],
)
def test_eval_fix_equals_its_authors_program(split, counts, known_value, average, worst):
    """``evaluate_offline`` with ``update_historical`` of Wild-Time's yearbook, 1875f1e."""
    matrix = AccuracyMatrix(np.array(CORRECT) / counts, num_instances=counts)
    assert wild_time.fix_id_accuracy(matrix, split) == pytest.approx(known_value, abs=1e-9)
    assert wild_time.fix_ood_average(matrix, split) == pytest.approx(average, abs=1e-9)
    assert wild_time.fix_ood_worst(matrix, split) == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize(("width", "split"), [(1, 0), (2, 0), (7, 3), (8, 3), (10, 4), (16, 7)])
def test_the_stream_is_split_in_the_middle(width, split):
    """As in their scripts: after 4 of HuffPost's 7, 4 of Drug-BA's 8, 8 of FMoW's 16."""
    cells = np.linspace(0, 1, width * width).reshape(width, width)
    accuracy = wild_time.fix_id_accuracy(AccuracyMatrix(cells, num_instances=[1] * width))
    assert accuracy == pytest.approx(cells[split, : split + 1].mean(), abs=1e-12)


NAN = math.nan
PAST_ONLY = [[0.9, NAN, NAN], [0.7, 0.8, NAN], [0.8, 0.6, 0.9]]
PAST = "needs a past bucket: k >= 2 (trained on 1)"
NEED_PAST = ("clear/backward_transfer", "clear/challenge_score", "capymoa/backward_transfer")
NEED_PAST += ("renate/forgetting", "renate/backward_transfer", "chaudhry/forgetting_since_trained")
NEED_PAST += ("coda_prompt/forgetting", "diaz_rodriguez/remembering")
NEED_PAST += ("diaz_rodriguez/positive_backward_transfer",)
SECOND = "needs a second trained bucket: k >= 2 (trained on 1)"
SPLIT = "needs the row of the split: k >= 3 (trained on 1)"
FULL = [[0.8, 0.6], [0.7, 0.9]]
TWO_AHEAD = AccuracyMatrix([[0.5, 0.5]])
HALF_INITIAL = AccuracyMatrix(FULL, initial=[0.1, NAN])
MISSING_ROW = AccuracyMatrix([[0.8] * 4, [math.nan] * 4, [0.8] * 4])


@pytest.mark.parametrize(
    ("matrix", "reasons"),
    [
        (
            AccuracyMatrix([[0.5] * 5]),
            {
                **dict.fromkeys(NEED_PAST, PAST),
                "renate/forward_transfer": SECOND,
                "renate/micro_average_accuracy": "needs test counts per bucket",
                "deployment/deployed_accuracy": "needs test counts per bucket",
                "deployment/lost_accuracy": "needs test counts per bucket",
                "wild_time/fix_id_accuracy": SPLIT,
                "wild_time/fix_ood_average": SPLIT,
                "wild_time/fix_ood_worst": SPLIT,
            },
        ),
        (
            AccuracyMatrix([[0.5]], initial=[0.1], num_instances=[9]),
            {
                "clear/next_domain_accuracy": "needs a future bucket: T >= 2",
                "renate/forgetting": PAST,
                "wild_time/fix_ood_worst": "needs a bucket after the split",
                "wild_time/stream_average": "needs a future bucket: T >= 2",
            },
        ),
        (TWO_AHEAD, {"wild_time/stream_worst": "needs 3 buckets ahead: T > 3 (T is 2)"}),
        (AccuracyMatrix(FULL), {"renate/forward_transfer": "needs the initialisation row"}),
        (HALF_INITIAL, {"renate/forward_transfer": "row 0, column 2 was not measured"}),
        (MISSING_ROW, {"clear/in_domain_accuracy": "row 2, column 2 was not measured"}),
    ],
)
def test_undefined_metrics_have_a_reason(matrix, reasons):
    reasons_given = explain(matrix)
    assert reasons.items() <= reasons_given.items()
    if len(reasons) > 10:  # the first case is all that is undefined there
        others = {name for name in reasons_given if name.startswith(("cost/", "published/"))}
        assert reasons_given.keys() - reasons.keys() == ({*SAME} & reasons_given.keys()) | others


def test_forgetting_of_a_lower_triangular_matrix():
    matrix = AccuracyMatrix(PAST_ONLY)
    assert summarize(matrix)["chaudhry/forgetting_since_trained"] == pytest.approx(0.15)
    reasons = explain(matrix)
    reason = "row 1, column 2 was not measured; chaudhry/forgetting_since_trained does not need it"
    assert reasons["renate/forgetting"] == reasons["chaudhry/forgetting"] == reason
    values = matrix.values.copy()
    values[1, 0] = NAN
    reasons = explain(AccuracyMatrix(values))
    for name in ("renate/forgetting", "chaudhry/forgetting_since_trained"):
        assert reasons[name] == "row 2, column 1 was not measured"


@pytest.mark.parametrize(
    ("rows", "protocol", "defined"),
    [
        (PAST_ONLY, "iid", "since"),
        ([[0.9, NAN, NAN, 0.1], [0.7, 0.8, 0.1, 0.1], [0.8, 0.6, 0.9, 0.1]], "iid", "since"),
        ([[0.9, 0.1, NAN], [0.7, 0.8, NAN], [0.8, 0.6, 0.9]], "iid", "over all"),
        (PAST_ONLY[:2], "iid", "over all"),
        ([[0.9, NAN, NAN], [NAN, 0.8, NAN], [0.8, 0.6, 0.9]], "iid", "none"),
        (PAST_ONLY[:1], "iid", "none"),
        (PAST_ONLY, "streaming", "none"),
    ],
)
def test_forgetting_since_trained_is_added_if_future_tests_are_missing(rows, protocol, defined):
    name, results = "chaudhry/forgetting_since_trained", metrics.scores(rows, protocol)
    assert (name in results) == (defined == "since")
    assert (results["renate/forgetting"].value is not None) == (defined == "over all")
    if defined == "since":
        assert results[name].series.keys() == {2, 3}
    assert name not in metrics.scores(rows, protocol, "clear")
    assert name in metrics.scores(rows, protocol, "renate,chaudhry")


def test_a_missing_row_leaves_gaps_in_the_series():
    results = series(MISSING_ROW)
    assert results["renate/average_accuracy"] == {1: 0.8, 3: pytest.approx(0.8)}
    assert results["clear/in_domain_accuracy"] == {1: 0.8}


@pytest.mark.parametrize("split", [None, 2])
def test_micro_average_accuracy_needs_counts(split):
    with pytest.raises(UndefinedMetricError, match="needs test counts per bucket"):
        wild_time.fix_id_accuracy(EXAMPLE, split)
