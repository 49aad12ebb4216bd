"""Finding the formula of a published number: cases of issues and logs, and every definition."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from one_line_errors import check_error
from published import SECOND_PLACE

from clear_mlflow import AccuracyMatrix, Score, identify, scores
from clear_mlflow.api.identify import Match
from clear_mlflow.core.errors import ConfigError, DataError, RecordError
from clear_mlflow.metrics import ALL_METRICS, MATRIX, summarize


def build_lower(*rows: str, unit=100, **fields) -> AccuracyMatrix:
    values = np.full((len(rows), len(rows)), np.nan)
    for i, row in enumerate(rows):
        values[i, : len(row.split())] = np.array(row.split(), dtype=float) / unit
    return AccuracyMatrix(values, **fields)


def list_names(identification) -> set[str]:
    return {name for match in identification.matches for name in match.names}


def list_exact(identification) -> list[Match]:
    """Return the matches that do not need the rounding of the cells."""
    return [match for match in identification.matches if match.rounding != "within cells"]


# Estrella-fugaz/CVPR25-DUCT, logs/CDDB/Reproduce_1993_mbtc_vit_cddb_2_2_2024-05-09-03_28_25.log
# of its first commit, c264236.
CDDB = build_lower(
    "54.44",
    "56.67 88.75",
    "53.33 91.5 92.12",
    "53.33 80.5 93.75 75.86",
    "53.33 73.75 94.88 72.37 97.7",
)
# xialeiliu/GFR-IL, issue 1: CIFAR-100, 50 classes and then five in each task.
GFR = build_lower(
    ".780",
    ".714 .706",
    ".699 .658 .630",
    ".673 .588 .502 .644",
    unit=1,
    num_instances=[5000, 500, 500, 500],
)
# The same repository, logs/ at ecfb579: DomainNet, 2026-01-16.
DOMAINNET = build_lower(
    "73.95",
    "78.94 44.13",
    "79.18 44.89 76.63",
    "79.05 42.54 75.67 61.23",
    "77.62 41.25 72.14 57.65 87.04",
    "75.29 40.3 70.76 55.84 86.19 69.84",
)
# The log that the author of arthurdouillard/dytox issue 12 posted in its issue 2; continuum 1.2.4.
DYTOX = build_lower("92.5", "87.7 83.4", "80.0 74.0 82.0")
# ours/nohup_ours.log of weiguoPian/AV-CIL_ICCV2023, 15098a8, for issue 8. It prints the accuracy on
# all videos of 4 tasks (104, 106, 105 and 79) and the forgetting at each step. Rows 1 to 3 are the
# only numbers of correct videos that fit both, and row 4 is the first of two solutions.
AV_CIL = build_lower(
    f"{83 / 104}",
    f"{75 / 104} {87 / 106}",
    f"{66 / 104} {85 / 106} {74 / 105}",
    f"{61 / 104} {83 / 106} {81 / 105} {42 / 79}",
    unit=1,
)
# Continvvm/continuum, tests/test_metrics.py, 43ba009.
CONTINUUM = AccuracyMatrix([[1, 0.25], [0.25, 0.25]])
CHALLENGE = AccuracyMatrix(np.array(SECOND_PLACE))
# InfLoRA issue 5: the last row.
LAST_ROW = [0.927, 0.856, 0.866, 0.85, 0.912, 0.785, 0.837, 0.878, 0.915, 0.799]
INFLORA = AccuracyMatrix([[math.nan] * 10] * 9 + [LAST_ROW])


@pytest.mark.parametrize(
    ("matrix", "number", "changed", "expected", "step"),
    [
        # DUCT issue 7 asks how 6.145 was computed; VIL issue 1 asks whether the same line takes
        # the maximum of the row, or the bucket's own accuracy.
        (CDDB, "6.145", "6.146", {"published/forgetting_with_last"}, 5),
        (DOMAINNET, "4.118", "4.119", {"published/forgetting_with_last"}, 6),
        # dytox issue 12 and continuum issue 281: forgetting, bwt and fwt of the same line.
        (DYTOX, "6.25", "6.26", {"published/continuum_forgetting"}, 3),
        (DYTOX, "-4.17", "-4.15", {"published/continuum_backward_transfer"}, 3),
        (DYTOX, "80.57", "80.58", {"clear/backward_transfer"}, 3),
        # AV-CIL issue 8: "Average Forgetting", which was not used to find the matrix.
        (AV_CIL, "0.076319", "0.076317", {"published/forgetting_over_steps"}, 4),
        # GFR-IL issues 1 and 7: "Average" and the class-weighted "Weighted Average".
        (GFR, "0.651", "0.652", {"renate/micro_average_accuracy"}, 4),
        (GFR, "0.662", "0.663", {"renate/average_accuracy"}, 3),
        # continuum issue 281: the repaired forgetting, as its own test has it.
        (CONTINUUM, ".75", ".74", {"chaudhry/forgetting_since_trained"}, 2),
        # The numbers of the challenge's second place, as its organisers published them.
        (CHALLENGE, "0.9228127", "0.9228128", {"clear/in_domain_accuracy"}, 10),
        # l2p issue 29: avg_acc is the mean of the last row. InfLoRA issue 5, by whose author its
        # ACC is L2P's, has such a row and the average.
        (INFLORA, "86.25", "86.24", {"renate/average_accuracy"}, 10),
    ],
)
def test_the_formula_of_a_published_number_is_found(matrix, number, changed, expected, step):
    result, other = identify(matrix, [number, changed])
    names = {name for match in list_exact(result) if match.step == step for name in match.names}
    assert expected <= names
    assert list_exact(other) == []
    assert str(other).startswith(f"{changed}: none of ")


def test_a_number_tells_variants_of_forgetting_apart():
    """The definition that VIL issue 1 proposes does not produce 6.145."""
    (result,) = identify(CDDB, ["6.145"])
    (match,) = list_exact(result)
    assert match.names == ("published/forgetting_with_last",)
    assert match == result.matches[0]
    assert (match.step, match.orientation, match.scale) == (5, "rows", "percent")
    assert match.formula.startswith("mean over j < last of (max over j <= i <= last")
    assert result.expected_by_chance < 0.01


# The final matrix of one of MANGO's logs on CLEAR-10, and the final accuracy that it prints.
MANGO = build_lower(
    "42.9",
    "48.4 67.3",
    "44.6 48.5 68.3",
    "46.0 50.5 56.1 74.2",
    "55.8 57.8 62.9 72.7 88.0",
    "48.9 52.5 54.7 57.8 62.9 78.1",
    "51.2 53.2 57.4 60.9 63.2 69.8 85.2",
    "54.8 57.5 60.2 63.6 67.0 68.1 74.4 91.9",
    "51.8 53.3 56.8 58.0 60.1 60.5 61.2 68.6 84.6",
    "54.2 55.9 59.5 62.3 62.6 62.9 64.3 67.1 74.2 91.9",
)


def test_a_number_is_found_within_the_rounding_of_the_cells():
    (result,) = identify(MANGO, ["65.48"])
    assert list_exact(result) == []
    match = result.matches[0]
    assert "renate/average_accuracy" in match.names
    assert (match.step, match.rounding) == (10, "within cells")
    assert match.value == pytest.approx(65.49)
    assert str(result).startswith("65.48: none of ")
    assert "within the rounding of the cells, +- 0.05: 2 more; by chance: about 0." in str(result)
    assert result.expected_within_cells > 5 * result.expected_by_chance


def test_cells_that_are_not_rounded_have_no_tolerance():
    """Counts of correct images, digits of floats, and means over runs of rounded cells."""
    counts = AccuracyMatrix([[0.9, 0.5], [0.7, 0.8]], num_instances=[50, 20])
    thirds = AccuracyMatrix([[1 / 3, 0.5], [0.7, 0.8]])
    for matrix, number in ((counts, "0.76"), (thirds, "0.76")):
        (result,) = identify(matrix, [number])
        assert (result.cell_error, result.expected_within_cells) == (0, 0)
        assert "cells" not in str(result)
        assert list_exact(result) == list(result.matches)
    rounded = AccuracyMatrix(counts.values, num_instances=[5000, 2000])
    (result,) = identify(rounded, ["0.747"])
    assert result.cell_error == 0.005
    assert "renate/average_accuracy" in list_names(result)


def test_the_number_of_matches_by_chance_counts_what_is_listed():
    """At a value that several definitions have, each of them counts."""
    matrix = AccuracyMatrix([[1 / 3, 0.2], [0.6, 1 / 7]])
    (result,) = identify(matrix, ["33.333"])
    assert len(result.matches) > 5
    assert result.expected_by_chance > 5 * 1.5 * 0.001 / 8.1  # within 5 % of about 81 points


def build_seeds(num_seeds, decimals=2, generator_seed=0) -> list[AccuracyMatrix]:
    generator = np.random.default_rng(generator_seed)
    mean = np.tril(generator.uniform(0.4, 0.9, (4, 4))) + np.triu(np.full((4, 4), np.nan), 1)
    noise = generator.normal(0, 0.01, (num_seeds, 4, 4))
    return [AccuracyMatrix((mean + error).round(2 + decimals)) for error in noise]


@pytest.mark.parametrize("num_seeds", [2, 3, 10])
@pytest.mark.parametrize(
    ("statistic", "compute"),
    [
        ("standard deviation (n - 1)", lambda x: np.std(x, ddof=1)),
        ("standard deviation (n)", np.std),
        ("standard error", scipy.stats.sem),
        (
            "half of a 95 % interval (t)",
            lambda x: scipy.stats.t(len(x) - 1).ppf(0.975) * scipy.stats.sem(x),
        ),
        ("half of a 95 % interval (normal)", lambda x: 1.96 * scipy.stats.sem(x)),
    ],
)
@pytest.mark.parametrize("name", ["renate/backward_transfer", "icarl/average_incremental_accuracy"])
def test_a_mean_and_its_deviation_over_seeds_are_found(num_seeds, statistic, compute, name):
    matrices = build_seeds(num_seeds, decimals=6)
    values = [100 * scores(matrix, metrics=name.split("/")[0])[name].value for matrix in matrices]
    number = f"{np.mean(values):.3f} +- {compute(values):.3f}"
    result, other = identify(matrices, [number, f"{np.mean(values):.3f}±{9 * compute(values):.3f}"])
    match = next(match for match in list_exact(result) if name in match.names)
    assert statistic in match.statistic
    assert (match.matrix, match.step) == (f"mean of {num_seeds}", 4)
    assert match.value == pytest.approx(np.mean(values))
    assert match.deviation == pytest.approx(compute(values), abs=0.0005)
    assert result.expected_by_chance < 0.05
    assert list_exact(other) == []
    assert other.nearest.names == match.names
    assert other.nearest.deviation == pytest.approx(np.std(values, ddof=1))


def test_the_mean_over_seeds_of_rounded_cells_is_found_within_their_rounding():
    exact = build_seeds(3, decimals=6)
    coarse = [AccuracyMatrix(matrix.values.round(3)) for matrix in exact]
    values = [100 * scores(matrix)["renate/average_accuracy"].value for matrix in exact]
    (result,) = identify(coarse, [f"{np.mean(values):.2f} +/- {np.std(values):.2f}"])
    (match,) = (m for m in result.matches if "renate/average_accuracy" in m.names and m.step == 4)
    assert "standard deviation (n)" in match.statistic
    assert result.cell_error == 0.05
    (mean,) = identify(coarse, [f"{np.mean(values):.2f}"])
    assert match.names in {other.names for other in mean.matches}
    assert mean.matches[0].deviation is None


def test_a_number_with_the_other_sign_is_named():
    (result,) = identify(CDDB, ["-6.145"])
    assert result.matches == ()
    assert result.nearest.is_negated
    assert "published/forgetting_with_last" in result.nearest.names
    expected = "(the nearest is published/forgetting_with_last with the other sign: -6.145)"
    assert expected in str(result)
    assert identify(CDDB, ["6.145"])[0].nearest is None
    (far,) = identify(CHALLENGE, ["0.9228111"])
    assert far.nearest.names[0] == "clear/in_domain_accuracy"
    assert "(the nearest is clear/in_domain_accuracy: 0.922813)" in str(far)


@pytest.mark.parametrize(
    ("matrix", "number", "message"),
    [
        (CDDB, "66.91 +- 1.20", "a mean over seeds; pass a matrix for each seed"),
        ([CDDB], "66.91 +- 1.20", "a mean over seeds; pass a matrix for each seed"),
        ([CDDB, DYTOX], "66.91 +- -1", "expected numbers such as 6.145"),
        ([CDDB, DYTOX], "66.91 +-", "expected numbers such as 6.145"),
        ([CDDB, DYTOX], "1 +- 2 +- 3", "expected numbers such as 6.145"),
        ([], "0.5", "matrix is empty"),
        ([CDDB, ""], "0.5", "expected a file of results"),
        ([CDDB, [DYTOX]], "0.5", "expected a file of results"),
    ],
)
def test_seeds_that_do_not_fit_are_a_one_line_error(matrix, number, message):
    check_error(ConfigError, message, identify, matrix, [number])
    check_error(ConfigError, "values is empty", identify, CDDB, [])


@pytest.mark.parametrize("value", [np.eye(3), np.zeros((2, 2, 2)), [np.eye(2), np.eye(2)]])
def test_an_error_about_an_array_is_one_line(value):
    check_error(ConfigError, "matrix is ", identify, value, [0.5])
    check_error(ConfigError, "expected numbers such as 6.145", identify, CDDB, [value])


def test_a_matrix_without_a_trained_row_is_a_one_line_error():
    untrained = AccuracyMatrix(np.empty((0, 2)), [0.1, 0.2])
    check_error(RecordError, "share no row after training", identify, untrained, ["0.15"])


@pytest.mark.slow
@given(st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=4, max_size=4))
def test_continuum_logs_no_forgetting_after_two_buckets(values):
    """Issue 12 of dytox: "forgetting metric to be 0.0" after two tasks, whatever the matrix."""
    (result,) = identify(AccuracyMatrix(np.array(values).reshape(2, 2)), ["0.0"])
    names = {name for match in result.matches if match.step == 2 for name in match.names}
    assert "published/continuum_forgetting" in names


fractions = st.integers(0, 1000).map(lambda n: n / 1000)


@st.composite
def square_matrices(draw):
    size = draw(st.integers(2, 5))
    values = draw(st.lists(fractions, min_size=size**2, max_size=size**2))
    counts = draw(st.lists(st.integers(1, 1000), min_size=size, max_size=size))
    return AccuracyMatrix(np.array(values).reshape(size, size), num_instances=counts)


@pytest.mark.slow
@given(square_matrices(), st.integers(2, 6), st.sampled_from([1, 100]), st.booleans(), st.data())
def test_values_of_a_definition_are_identified_as_it(matrix, digits, factor, transpose, data):
    step = data.draw(st.integers(1, matrix.num_rows))
    metrics = [metric for metric in ALL_METRICS if metric.needs == MATRIX]
    values = sorted(summarize(matrix.after(step), metrics=metrics).items())
    name, value = data.draw(st.sampled_from(values))
    stored = AccuracyMatrix(matrix.values.T, None, matrix.num_instances) if transpose else matrix
    (result,) = identify(stored, [f"{value * factor:.{digits}f}"])
    assert any(
        name in match.names
        and match.step == step
        and match.orientation == ("columns" if transpose else "rows")
        and match.scale == {1: "fraction", 100: "percent"}[factor]
        and match.value == pytest.approx(value * factor)
        for match in result.matches
    )


def test_truncated_numbers_rank_below_rounded_ones():
    result, cut_off = identify(AccuracyMatrix([[0.86667]]), ["86.7", "86.6"])
    assert {match.rounding for match in result.matches} == {"rounded"}
    assert {match.rounding for match in cut_off.matches} == {"cut off"}


def test_definitions_that_explain_more_numbers_rank_first():
    matrix = AccuracyMatrix([[0.5, 0.31], [0.72, 0.5]])
    single = identify(matrix, ["0.5"])[0]
    together = identify(matrix, ["0.5", "-0.19"])[0]
    assert single.matches[0].orientation == "rows"
    assert together.matches[0].orientation == "columns"
    assert {m.orientation for m in together.matches} == {"rows", "columns"}


def test_matches_by_chance_fall_with_digits():
    results = identify(CHALLENGE, ["0.923", "0.9228", "0.92281"])
    expected = [result.expected_by_chance for result in results]
    assert expected[0] > 1 > expected[1] > expected[2]
    assert expected[0] == pytest.approx(10 * expected[1], rel=0.1)


def test_another_score_has_no_percent():
    rmse = AccuracyMatrix([[2.1, 3.8], [2.6, 2.2]], score=Score("rmse", higher_is_better=False))
    result, in_percent = identify(rmse, ["2.4", "240"])
    assert "renate/average_rmse" in list_names(result)
    assert {match.scale for match in result.matches} == {"score"}
    assert in_percent.matches == ()


def test_counts_allow_weighted_averages(tmp_path):
    file = tmp_path / "gfr.csv"
    np.savetxt(file, np.nan_to_num(GFR.values), delimiter=",", fmt="%.3f")
    counts = identify(file, ["0.651"], future="not-tested", num_instances="5000, 500, 500, 500")
    assert counts == identify(GFR, ["0.651"])
    classes = identify(AccuracyMatrix(GFR.values), ["0.651"], num_instances="50,5,5,5")
    assert classes == counts
    equal = identify(GFR, ["0.602"], num_instances="1")
    assert "renate/micro_average_accuracy" in list_names(equal[0])
    assert identify(file, ["0.651"], future="not-tested")[0].matches == ()


def test_files_are_read_as_import_reads_them(tmp_path):
    file = tmp_path / "cddb.csv"
    rows = np.nan_to_num(CDDB.values * 100)
    np.savetxt(file, rows, delimiter=",", fmt="%.2f")
    options = {"scale": "percent", "future": "not-tested"}
    assert identify(str(file), ["6.145"], **options) == identify(CDDB, ["6.145"])
    check_error(RecordError, "percent", identify, file, ["6.145"])
    with pytest.raises(DataError, match=r"'missing\.csv' is not a file"):
        identify(tmp_path / "missing.csv", ["6.145"])
    with pytest.raises(ConfigError, match="num_instances is '5,x'; expected numbers"):
        identify(file, ["6.145"], num_instances="5,x", **options)


@pytest.mark.parametrize("number", ["x", "", "nan", "inf", "1e999", None, "6,145"])
def test_a_value_other_than_a_number_is_a_one_line_error(number):
    check_error(ConfigError, "expected numbers such as 6.145", identify, CDDB, [number])


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ("", "expected a file of results, the id of a run, or a bundle"),
        (np.eye(3), "expected a list or an object of AccuracyMatrix or a path or a string"),
    ],
)
def test_a_matrix_of_another_type_is_a_one_line_error(matrix, message):
    with pytest.raises(ConfigError, match=message):
        identify(matrix, [0.5])
