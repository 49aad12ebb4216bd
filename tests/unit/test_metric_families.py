"""The families beyond CLEAR's and Renate's: against loops, and against their authors' programs."""

import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import SECOND_PLACE

from clear_mlflow import AccuracyMatrix, explain, series, summarize
from clear_mlflow.core.errors import ConfigError, UndefinedMetricError
from clear_mlflow.metrics import (
    ALL_METRICS,
    DEFAULT_FAMILIES,
    FAMILIES,
    METRICS,
    chaudhry,
    family_names,
    of_families,
    wild_time,
)

ROOT = Path(__file__).parents[2]

TWINS = ("gem", "chaudhry", "diaz_rodriguez", "wild_time", "tic", "capymoa", "icarl")
TWINS += ("worst_bucket",)
NEW = of_families(TWINS)

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


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def by_loops(values, initial, width) -> dict[str, float]:
    """The definitions as loops over plain lists; every cell is measured, no joint run is named."""
    k = len(values)
    if not k:
        return {}
    last = k - 1
    rows = range(k)
    of_row = [mean(values[i][j] for j in range(i + 1)) for i in rows]
    future = mean(values[i][j] for i in rows for j in range(width) if j > i)
    past = mean(values[i][j] for i in rows for j in range(width) if j < i)
    changes = [values[i][j] - values[j][j] for i in rows for j in range(i)]
    change = mean(changes)
    found = {
        "gem/average_accuracy": of_row[last],
        "chaudhry/average_accuracy": of_row[last],
        "diaz_rodriguez/accuracy": mean(values[i][j] for i in rows for j in range(i + 1)),
        "diaz_rodriguez/forward_transfer": future,
        "tic/in_domain": mean(values[i][i] for i in rows),
        "tic/backward_transfer": past,
        "tic/forward_transfer": future,
        "capymoa/accuracy_all_avg": mean(mean(values[i]) for i in rows),
        "capymoa/accuracy_seen_avg": mean(of_row),
        "capymoa/accuracy_final": mean(values[last]),
        "capymoa/forward_transfer": future,
        "capymoa/backward_transfer": change,
        "icarl/average_incremental_accuracy": mean(of_row),
        "worst_bucket/final_accuracy": min(values[last][j] for j in range(k)),
        "worst_bucket/lowest_accuracy": min(values[i][j] for i in rows for j in range(i + 1)),
    }
    if change is not None:
        found["diaz_rodriguez/remembering"] = 1 - abs(min(change, 0))
        found["diaz_rodriguez/positive_backward_transfer"] = max(change, 0)
        found["gem/backward_transfer"] = mean(values[last][j] - values[j][j] for j in range(last))
        found["chaudhry/forgetting"] = mean(
            max(values[i][j] for i in range(last)) - values[last][j] for j in range(last)
        )
        if initial is not None:
            gains = [values[j - 1][j] - initial[j] for j in range(1, k)]
            found["gem/forward_transfer"] = mean(gains)
    split = math.ceil(width / 2) - 1
    if k > split:
        after = [values[split][j] for j in range(split + 1, width)]
        if after:
            found["wild_time/fix_ood_average"] = mean(after)
            found["wild_time/fix_ood_worst"] = min(after)
    ahead = [[values[i][i + d] for d in (1, 2, 3)] for i in rows if i + 3 < width]
    if ahead:
        found["wild_time/stream_average"] = mean(mean(near) for near in ahead)
        found["wild_time/stream_worst"] = mean(min(near) for near in ahead)
    return {name: value for name, value in found.items() if value is not None}


fractions = st.integers(0, 1000).map(lambda n: n / 1000)


@st.composite
def measured_matrices(draw):
    width = draw(st.integers(1, 8))
    k = draw(st.integers(0, width))
    row = st.lists(fractions, min_size=width, max_size=width)
    return draw(st.lists(row, min_size=k, max_size=k)), draw(st.none() | row), width


def build(values, initial, width) -> AccuracyMatrix:
    return AccuracyMatrix(np.array(values, dtype=float).reshape(-1, width), initial)


@settings(deadline=None)
@given(measured_matrices())
def test_families_are_what_loops_compute(case):
    """Of the whole run and of every run cut off; what has no value has a reason."""
    values, initial, width = case
    matrix = build(*case)
    summary, reasons = summarize(matrix, metrics=NEW), explain(matrix, metrics=NEW)
    assert summary == pytest.approx(by_loops(*case), abs=1e-12)
    assert summary.keys() == by_loops(*case).keys()
    assert all(type(value) is float for value in summary.values())
    assert reasons.keys() == {metric.name for metric in NEW} - summary.keys()
    assert all(reason and "\n" not in reason for reason in reasons.values())
    over_steps = series(matrix, metrics=NEW)
    for k in range(1, len(values) + 1):
        at_k = {name: steps[k] for name, steps in over_steps.items() if k in steps}
        assert at_k == pytest.approx(by_loops(values[:k], initial, width), abs=1e-12)


@settings(deadline=None)
@given(measured_matrices(), st.data())
def test_a_cell_that_matters_and_was_not_measured_undefines(case, data):
    """A metric has a value without a cell only where changing that cell does not change it."""
    values, initial, width = case
    if not values:
        return
    i = data.draw(st.integers(0, len(values) - 1))
    j = data.draw(st.integers(0, width - 1))
    low, high, gap = (np.array(values, dtype=float) for _ in range(3))
    low[i, j], high[i, j], gap[i, j] = 0.0, 1.0, math.nan
    if np.isnan(gap[-1]).all():  # the last row would be dropped: another run, not a gap
        return
    with_low, with_high, with_gap = (
        summarize(AccuracyMatrix(cells, initial), metrics=NEW) for cells in (low, high, gap)
    )
    for name, value in with_low.items():
        if with_high[name] != value:
            assert name not in with_gap
            assert explain(AccuracyMatrix(gap, initial), metrics=NEW)[name] == (
                f"R[{i}, {j}] was not measured"
            )
    for name, value in with_gap.items():
        assert value == with_low[name] == with_high[name]


SIGNED = {"gem/backward_transfer", "gem/forward_transfer", "capymoa/backward_transfer"}
SIGNED |= {"chaudhry/forgetting"}


@settings(deadline=None)
@given(measured_matrices())
def test_values_stay_in_their_ranges(case):
    """Differences lie in [-1, 1], all else in [0, 1]; what is worst is no better than the mean."""
    found = summarize(build(*case), metrics=NEW)
    for name, value in found.items():
        assert (-1 if name in SIGNED else 0) - 1e-12 <= value <= 1 + 1e-12
    for worst, average in (
        ("wild_time/fix_ood_worst", "wild_time/fix_ood_average"),
        ("wild_time/stream_worst", "wild_time/stream_average"),
        ("worst_bucket/final_accuracy", "gem/average_accuracy"),
        ("worst_bucket/lowest_accuracy", "worst_bucket/final_accuracy"),
        ("worst_bucket/lowest_accuracy", "diaz_rodriguez/accuracy"),
    ):
        if worst in found:
            assert found[worst] <= found[average] + 1e-12


@settings(deadline=None)
@given(st.integers(1, 8), st.data())
def test_a_model_that_never_changes(width, data):
    """Every accuracy is that one number, nothing is gained, lost or forgotten: REM is 1."""
    k, accuracy = data.draw(st.integers(1, width)), data.draw(fractions)
    found = summarize(build([[accuracy] * width] * k, [accuracy] * width, width), metrics=NEW)
    expected = {
        name: 0.0 if name in SIGNED or name.endswith("positive_backward_transfer") else accuracy
        for name in found
    }
    expected |= {name: 1.0 for name in found if name.endswith("remembering")}
    assert found == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(measured_matrices(), st.randoms(use_true_random=False))
def test_what_is_of_the_last_row_alone_knows_no_order(case, random):
    """Renaming the buckets of a finished run leaves its final accuracies as they are."""
    values, _, width = case
    if len(values) < width:
        return
    order = random.sample(range(width), width)
    shuffled = [*values[:-1], [values[-1][j] for j in order]]
    chosen = [
        metric
        for metric in NEW
        if metric.name.endswith(("/average_accuracy", "/accuracy_final", "/final_accuracy"))
    ]
    assert len(chosen) == 4
    before, after = (summarize(build(v, None, width), metrics=chosen) for v in (values, shuffled))
    assert after == pytest.approx(before, abs=1e-12)


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
}


@settings(deadline=None)
@given(measured_matrices())
def test_names_that_mean_the_same(case):
    """On every matrix the same value, or the same reason why there is none."""
    matrix = build(*case)
    summary, reasons = (of(matrix, metrics=ALL_METRICS) for of in (summarize, explain))
    for name, other in SAME.items():
        assert summary.get(name) == summary.get(other)
        assert reasons.get(name) == reasons.get(other)
    # Diaz-Rodriguez's two numbers are the two halves of one, CapyMOA's.
    if "capymoa/backward_transfer" in summary:
        lost = summary["diaz_rodriguez/remembering"] - 1
        gained = summary["diaz_rodriguez/positive_backward_transfer"]
        assert lost + gained == pytest.approx(summary["capymoa/backward_transfer"], abs=1e-12)


def test_names_that_do_not_mean_the_same():
    """All others differ somewhere in one run: no two more are one definition under two names."""
    found = series(EXAMPLE, metrics=(*METRICS, *NEW))
    kept = [
        tuple((k, round(value, 9)) for k, value in steps.items())
        for name, steps in found.items()
        if name not in SAME
    ]
    assert len(set(kept)) == len(kept)


def test_gem_is_what_its_authors_program_computes():
    """``confusion_matrix`` in float64, 34c6b8e: its means count one bucket more, as 0."""
    theirs = (0.6999999999999998, -0.1708333333333333, 0.46249999999999997)
    found = summarize(EXAMPLE, metrics=FAMILIES["gem"])
    assert found["gem/average_accuracy"] == pytest.approx(theirs[0], abs=1e-9)
    assert found["gem/backward_transfer"] * 5 / 6 == pytest.approx(theirs[1], abs=1e-9)
    assert found["gem/forward_transfer"] * 5 / 6 == pytest.approx(theirs[2], abs=1e-9)


def test_chaudhry_is_what_its_authors_program_computes():
    """``average_acc_stats_across_runs`` (in percent) and ``compute_fgt`` of agem, 4542149."""
    found = summarize(EXAMPLE, metrics=FAMILIES["chaudhry"])
    assert found["chaudhry/average_accuracy"] * 100 == pytest.approx(70.0, abs=1e-9)
    assert found["chaudhry/forgetting"] == pytest.approx(0.215, abs=1e-9)
    # Continuum, 43ba009, cites the same paper, and leaves out rows before a bucket was trained on.
    assert found["chaudhry/forgetting"] - 0.21 == pytest.approx((38 - 37) / 40 / 5, abs=1e-9)


@pytest.mark.parametrize(
    ("matrix", "theirs"),
    [
        (EXAMPLE, (0.7166666666666666, 0.8283333333333334, 0.0)),
        (GAINING, (0.7285714285714285, 1.0, 0.15666666666666665)),
    ],
)
def test_diaz_rodriguez_is_what_continuum_computes(matrix, theirs):
    """``accuracy_A``, ``remembering``, ``positive_backward_transfer`` of Continuum, 43ba009."""
    found = summarize(matrix, metrics=FAMILIES["diaz_rodriguez"])
    names = ("accuracy", "remembering", "positive_backward_transfer")
    assert [found[f"diaz_rodriguez/{name}"] for name in names] == pytest.approx(theirs, abs=1e-9)


def test_capymoa_is_what_its_program_computes():
    """``OCLMetrics`` as ``_OCLEvaluator.build`` fills it, in float64, 095caba."""
    assert summarize(EXAMPLE, metrics=FAMILIES["capymoa"]) == pytest.approx(
        {
            "capymoa/accuracy_all_avg": 0.6395833333333333,
            "capymoa/accuracy_seen_avg": 0.725486111111111,
            "capymoa/accuracy_final": 0.6999999999999998,
            "capymoa/forward_transfer": 0.5316666666666666,
            "capymoa/backward_transfer": -0.1716666666666667,
        },
        abs=1e-9,
    )


@pytest.mark.parametrize(
    ("ahead", "average", "worst"),
    [
        (1, 0.665, 0.665),
        (2, 0.58125, 0.49999999999999994),
        (3, 0.48888888888888893, 0.3583333333333),
    ],
)
def test_eval_stream_is_what_its_authors_program_computes(ahead, average, worst):
    """``evaluate_online`` of Wild-Time with ``eval_next_timesteps``, 1875f1e."""
    assert wild_time.stream_average(EXAMPLE, ahead) == pytest.approx(average, abs=1e-9)
    assert wild_time.stream_worst(EXAMPLE, ahead) == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize(
    ("split", "counts", "known", "average", "worst"),
    [
        (1, [40] * 6, 0.7125, 0.4625, 0.325),
        (2, [40] * 6, 0.7916666666666666, 0.5583333333333333, 0.45),
        (4, [40] * 6, 0.705, 0.675, 0.675),
        # 31 of 40, 29 of 80 and 35 of 50 images.
        (2, [40, 80, 50, 40, 40, 40], 0.5588235294117647, 0.5583333333333333, 0.45),
    ],
)
def test_eval_fix_is_what_its_authors_program_computes(split, counts, known, average, worst):
    """``evaluate_offline`` with ``update_historical`` of Wild-Time's yearbook, 1875f1e."""
    matrix = AccuracyMatrix(np.array(CORRECT) / counts, num_instances=counts)
    assert wild_time.fix_id_accuracy(matrix, split) == pytest.approx(known, abs=1e-9)
    assert wild_time.fix_ood_average(matrix, split) == pytest.approx(average, abs=1e-9)
    assert wild_time.fix_ood_worst(matrix, split) == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize(("width", "split"), [(1, 0), (2, 0), (7, 3), (8, 3), (10, 4), (16, 7)])
def test_the_stream_is_split_in_the_middle(width, split):
    """After 4 of HuffPost's 7, 4 of Drug-BA's 8, 8 of FMoW's 16: where their scripts split."""
    cells = np.linspace(0, 1, width * width).reshape(width, width)
    known = wild_time.fix_id_accuracy(AccuracyMatrix(cells, num_instances=[1] * width))
    assert known == pytest.approx(cells[split, : split + 1].mean(), abs=1e-12)


def test_intransigence_is_of_the_bucket_just_trained():
    """At each step against the joint run's row of that step."""
    joint = AccuracyMatrix([[0.8, 0.1, 0.2], [0.8, 0.95, 0.3]])
    of_joint = partial(chaudhry.intransigence, joint=joint)
    matrix = AccuracyMatrix([[0.7, 0.6, 0.4], [0.6, 1.0, 0.3], [0.5, 0.6, 0.95]])
    assert of_joint(matrix.after(1)) == pytest.approx(0.1)
    assert of_joint(matrix.after(2)) == pytest.approx(-0.05)
    with pytest.raises(UndefinedMetricError, match=r"row 3 of the joint run .*trained on 2"):
        of_joint(matrix)
    unmeasured = AccuracyMatrix([[math.nan, 0.1, 0.2]])
    with pytest.raises(UndefinedMetricError, match=r"J\[0, 0\] was not measured"):
        chaudhry.intransigence(matrix.after(1), unmeasured)


def test_what_is_undefined_says_why():
    """Never 0: one bucket trained of four, then a stream of one."""
    reasons = explain(AccuracyMatrix([[0.5] * 5]), metrics=NEW)
    past = "needs a past bucket: k >= 2 (trained on 1)"
    assert reasons == {
        "chaudhry/forgetting": past,
        "chaudhry/intransigence": "needs a joint run (--joint-run)",
        "diaz_rodriguez/remembering": past,
        "diaz_rodriguez/positive_backward_transfer": past,
        "gem/backward_transfer": past,
        "gem/forward_transfer": "needs a second trained bucket: k >= 2 (trained on 1)",
        "tic/backward_transfer": past,
        "capymoa/backward_transfer": past,
        "wild_time/fix_id_accuracy": "needs the row of the split: k >= 3 (trained on 1)",
        "wild_time/fix_ood_average": "needs the row of the split: k >= 3 (trained on 1)",
        "wild_time/fix_ood_worst": "needs the row of the split: k >= 3 (trained on 1)",
    }
    alone = explain(AccuracyMatrix([[0.5]], initial=[0.1]), metrics=NEW)
    assert alone["wild_time/fix_ood_worst"] == "needs a bucket after the split"
    assert alone["wild_time/stream_average"] == "needs a future bucket: T >= 2"
    two = explain(AccuracyMatrix([[0.5, 0.5]]), metrics=NEW)
    assert two["wild_time/stream_worst"] == "needs 3 buckets ahead: T > 3 (T is 2)"
    no_row_0 = explain(AccuracyMatrix([[0.5, 0.5], [0.5, 0.5]]), metrics=NEW)
    assert no_row_0["gem/forward_transfer"] == "needs the initialisation row"


@settings(deadline=None)
@given(measured_matrices())
def test_streaming_keeps_what_needs_no_training_image(case):
    """Means of future buckets alone; everything else is told to be of training images."""
    matrix = build(*case)
    kept = summarize(matrix, "streaming", NEW)
    future = ("/forward_transfer", "/stream_average", "/stream_worst", "/fix_ood_average")
    future += ("/fix_ood_worst",)
    everything = summarize(matrix, metrics=NEW)
    assert kept == {n: v for n, v in everything.items() if n.endswith(future)}


def test_the_default_is_what_it_always_was():
    """CLEAR's and Renate's, in this order, and they lead the list of all."""
    assert DEFAULT_FAMILIES == ("clear", "renate")
    assert of_families(DEFAULT_FAMILIES) == METRICS == ALL_METRICS[: len(METRICS)]
    assert [*FAMILIES] == ["clear", "renate", *sorted(FAMILIES.keys() - {"clear", "renate"})]
    assert {name.split("/")[0] for name in summarize(EXAMPLE)} == {"clear", "renate"}


@pytest.mark.parametrize("text", ["", "claer", "clear,,gem", "clear gem", "clear/accuracy"])
def test_unknown_families_are_one_line_with_the_list(text):
    """What arrived, and what there is."""
    with pytest.raises(ConfigError, match="expected some of clear, renate, ") as error:
        family_names(text)
    assert "\n" not in str(error.value)


def table_of_words():
    """Lines of docs/metrics.md's table of names that share a word: the names, and their number."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    table = page.split("| word | names that are the same number |")[1].split("\n\n")[0]
    lines = [line.split("|")[2:4] for line in table.splitlines()[2:]]
    return [(re.findall(r"`([^`]+)`", told), number.strip()) for told, number in lines]


def test_the_page_sets_in_one_line_what_is_one_number():
    """Every name once; together stand those, and only those, that agree on every matrix."""
    lines = [names for names, _ in table_of_words()]
    listed = [name for names in lines for name in names]
    assert len(set(listed)) == len(listed)
    one = {name: SAME.get(name, name) for name in listed}
    assert all(len({one[name] for name in names}) == 1 for names in lines)
    assert len({one[names[0]] for names in lines}) == len(lines)
    left_out = {metric.name for metric in NEW} - {*listed}
    # Those need an initialisation, a joint run, and counts of test images: the matrix has none.
    assert left_out == {
        *("gem/forward_transfer", "chaudhry/intransigence", "wild_time/fix_id_accuracy")
    }


def test_the_published_matrix_in_loops():
    """The matrix of the challenge's second place: loops, and the three published means."""
    cells = np.array(SECOND_PLACE)
    found = summarize(AccuracyMatrix(cells), metrics=NEW)
    assert found == pytest.approx(by_loops(cells.tolist(), None, 10), abs=1e-12)
    for name, published in (
        ("tic/in_domain", 0.9228127),
        ("tic/backward_transfer", 0.9387415),
        ("tic/forward_transfer", 0.8865838),
    ):
        assert found[name] == pytest.approx(published, abs=6e-8)


def test_the_page_shows_what_the_published_matrix_gives():
    """Each number of the table, in its four digits."""
    found = summarize(AccuracyMatrix(np.array(SECOND_PLACE)), metrics=ALL_METRICS)
    for names, number in table_of_words():
        assert {f"{found[name]:.4f}" for name in names} == {number}


def test_every_family_has_a_source_in_the_documentation(project):
    """A row of the table that no program writes."""
    page = (project / "docs" / "metrics.md").read_text(encoding="utf-8")
    table = page.partition("## Families and their sources")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) >= set(FAMILIES)
