"""Verdicts for each value of a parameter, and what they have in common."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from comparisons import build_seed_runs, compare, compared_run, counts
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clear_mlflow.cli import output
from clear_mlflow.comparison.across import (
    compute_kendalls_w,
    describe_across,
    estimate_share,
    list_input_warnings,
    summarize_across,
)
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.ranking import add_varying
from clear_mlflow.comparison.result import BETTER, UNDECIDED, UNTESTED, WORSE, PairAcross
from clear_mlflow.comparison.tables import build_comparison_dict
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.report.terminal_tables import render_text

BY = ("strategy", "borders")
SEEDS = (0, 1, 2, 3)


def build_runs(levels, seeds=SEEDS):
    return [
        compared_run(
            strategy,
            counts(level, seed),
            run_id=f"{strategy}-{borders}-{seed}",
            labels={"borders": borders},
            digest=f"sha256:{number:064x}",
            seed=seed,
        )
        for number, (borders, by_strategy) in enumerate(levels.items())
        for strategy, level in by_strategy.items()
        for seed in seeds
    ]


def summarize(levels, **options):
    return summarize_across(compare(build_runs(levels, **options), BY), "borders")


def test_a_verdict_that_is_reversed_depends_on_the_parameter():
    across = summarize(
        {
            "year": {"naive": 120, "replay": 170},
            "half": {"naive": 125, "replay": 170},
            "quarter": {"naive": 170, "replay": 120},
        }
    )
    (pair,) = across.pairs
    assert {pair.a, pair.b} == {"naive", "replay"}
    sign = 1 if pair.a == "replay" else -1
    better = BETTER if sign == 1 else WORSE
    assert pair.outcomes == {
        "year": better,
        "half": better,
        "quarter": {BETTER, WORSE}.difference({better}).pop(),
    }
    assert [np.sign(d) for d in pair.differences.values()] == [sign, sign, -sign]
    assert "depends on the borders" in pair.sentence
    assert pair.share > 0.99
    assert across.values == ("year", "half", "quarter")


def test_the_page_and_the_terminal_have_a_cell_for_each_value():
    levels = {"year": {"naive": 120, "replay": 170}, "half": {"naive": 170, "replay": 120}}
    comparison = compare(build_runs(levels), BY)
    across = summarize_across(comparison, "borders")
    comparison = dataclasses.replace(comparison, across=across)
    page = render_comparison_page(comparison, title="t", footer="f")
    section = page[page.index('<section id="across">') :].partition("</section>")[0]
    (pair,) = across.pairs
    printed = render_text(*render_comparison(comparison))
    for difference in pair.differences.values():
        assert f"<strong>{100 * difference:+.1f}</strong>" in section
        assert f"{100 * difference:+.1f} {'✓' if difference > 0 else '✗'}" in printed
    assert '<th scope="col">share</th>' in section
    assert pair.sentence in section
    assert f"{pair.sentence}." in printed
    (content,) = build_comparison_dict(comparison)["across"]["pairs"]
    assert (content["better"], content["worse"], content["not_decided"]) == (1, 1, 0)
    one_seed = compare(build_runs(levels, seeds=(0,)), BY)
    one_seed = dataclasses.replace(one_seed, across=summarize_across(one_seed, "borders"))
    assert '<th scope="col">share</th>' not in render_comparison_page(
        one_seed, title="t", footer="f"
    )


@pytest.mark.parametrize(
    ("parameter", "standardise", "is_warned"),
    [("borders", "first", True), ("borders", "none", False), ("dataset", "first", False)],
)
def test_borders_that_change_inputs_are_a_warning(parameter, standardise, is_warned):
    runs = build_runs({"year": {"naive": 120}, "half": {"naive": 125}})
    runs[3:] = [
        dataclasses.replace(run, params={"dataset/standardise": standardise}) for run in runs[3:]
    ]
    sentences = list_input_warnings(compare(runs, BY), parameter)
    assert [sentence[:43] for sentence in sentences] == (
        ["5 of 8 runs have standardise=first, which s"] if is_warned else []
    )


def test_the_order_of_a_pair_is_the_same_for_all_values():
    levels = {"year": {"naive": 120, "replay": 170}, "half": {"naive": 170, "replay": 120}}
    (pair,) = summarize(levels).pairs
    turned = {borders: dict(reversed(by.items())) for borders, by in levels.items()}
    (other,) = summarize(turned).pairs
    assert (pair.a, pair.b, pair.differences) == (other.a, other.b, other.differences)
    assert pair.outcomes == {"year": BETTER, "half": WORSE}


def test_identical_methods_are_never_decided():
    across = summarize({key: {"naive": 120, "copy": 120} for key in ("year", "half")})
    (pair,) = across.pairs
    assert set(pair.outcomes.values()) <= {UNDECIDED, UNTESTED}
    assert pair.count(BETTER) == pair.count(WORSE) == 0
    assert pair.share is None
    assert across.agreement is None


def test_one_seed_each_is_not_tested_without_predictions():
    across = summarize({key: {"naive": 120, "replay": 170} for key in ("year", "half")}, seeds=(0,))
    assert across.pairs == ()
    assert across.agreement == 1


@pytest.mark.parametrize(
    ("differences", "mean"),
    [({"a": 0.0, "b": 0.0}, 0.0), ({"a": 0.5, "b": None}, 0.5), ({"a": None}, None)],
)
def test_a_mean_of_zero_is_no_missing_mean(differences, mean):
    outcomes = dict.fromkeys(differences, UNDECIDED)
    pair = PairAcross(
        a="x", b="y", outcomes=outcomes, differences=differences, share=None, sentence=""
    )
    assert pair.to_dict()["mean_difference"] == mean


def test_a_parameter_that_does_not_differ_is_an_error():
    runs = build_runs({"year": {"naive": 120, "replay": 170}})
    for name in ("borders", "unknown"):
        with pytest.raises(ConfigError, match=f"across is '{name}', in which the compared runs"):
            summarize_across(compare(runs, BY), name)


def test_several_test_sets_for_one_value_are_an_error():
    levels = {"year": {"naive": 120}, "half": {"naive": 125}}
    runs = [*build_runs(levels), *build_seed_runs("naive", 100, SEEDS, labels={"borders": "half"})]
    with pytest.raises(ConfigError, match="one value, half, and different test sets"):
        summarize_across(compare(runs, BY), "borders")


def compare_with(levels, **options):
    """Compare runs of strategies that differ in epochs and have one test set."""
    runs = [
        run
        for epochs, by_strategy in levels.items()
        for strategy, level in by_strategy.items()
        for run in build_seed_runs(strategy, level, SEEDS, labels={"epochs": epochs})
    ]
    by = add_varying(runs, ("strategy",), "epochs")
    runs = [dataclasses.replace(run, run_id=str(i)) for i, run in enumerate(runs)]
    return compare(runs, by, across="epochs", **options)


LEVELS = {
    "1": {"naive": 120, "replay": 150, "ewc": 130},
    "5": {"naive": 160, "replay": 130, "ewc": 145},
    "9": {"naive": 170, "replay": 140, "ewc": 155},
}


@pytest.mark.parametrize(
    ("values", "options", "num_pairs"),
    [(("1", "5"), {}, 3), (LEVELS, {}, 3), (LEVELS, {"baseline": "naive"}, 2)],
)
def test_methods_are_tested_for_each_value_also_on_one_test_set(values, options, num_pairs):
    """Groups with different values were tested against each other, as pairs of one value."""
    levels = {value: LEVELS[value] for value in values}
    comparison = compare_with(levels, **options)
    assert len(comparison.pairs) == num_pairs * len(levels)
    across = summarize_across(comparison, "epochs")
    assert len(across.pairs) == num_pairs
    for pair in across.pairs:
        assert pair.a != pair.b
        for value, difference in pair.differences.items():
            expected = (levels[value][pair.a] - levels[value][pair.b]) / 200
            assert difference == pytest.approx(expected, abs=0.02)
            assert pair.outcomes[value] == (BETTER if expected > 0 else WORSE)


def test_a_value_that_differs_within_a_group_separates_it():
    """A group had the value of its first run."""
    runs = build_seed_runs("naive", 120, SEEDS, labels={"site": "a"})
    runs += build_seed_runs("naive", 150, SEEDS, labels={"site": "b"})
    assert add_varying(runs, ("strategy",), "site") == ("strategy", "site")
    assert add_varying(runs, ("strategy", "site"), "site") == ("strategy", "site")
    assert add_varying(runs, ("strategy",), "dataset") == ("strategy",)
    apart = build_runs({"year": {"naive": 120}, "half": {"naive": 125}})
    assert add_varying(apart, ("strategy",), "borders") == ("strategy",)


def test_values_are_no_markup_of_the_terminal(capsys):
    levels = {name: {"naive": 120, "replay": 170} for name in ("[/]", "[bold]1", ":cat:")}
    comparison = compare(build_runs(levels), BY)
    comparison = dataclasses.replace(comparison, across=summarize_across(comparison, "borders"))
    text = render_text(*render_comparison(comparison))
    output.print_comparison(comparison)
    for printed in (text, capsys.readouterr().out):
        assert all(re.search(rf"\s{re.escape(name)}\s", printed) for name in levels)


@pytest.mark.parametrize(
    ("by", "message"), [((), "group_by is none"), (("borders",), "differ in nothing else")]
)
def test_without_methods_nothing_can_be_compared_across(by, message):
    runs = build_runs({"year": {"naive": 120}, "half": {"naive": 125}})
    with pytest.raises(ConfigError, match=message):
        summarize_across(compare(runs, by), "borders")


def test_labels_that_follow_from_the_value_are_no_other_method():
    """A model that depends on the dataset; two models for each dataset are two methods."""
    levels = {"year": {"naive": 120, "replay": 170}, "half": {"naive": 125, "replay": 170}}
    for models, count in (({"year": "a", "half": "b"}, 1), ({"naive": "a", "replay": "b"}, 1)):
        runs = build_runs(levels)
        for run in runs:
            key = run.labels["borders"] if "year" in models else run.labels["strategy"]
            run.labels["model"] = models[key]
        across = summarize_across(compare(runs, (*BY, "model")), "borders")
        assert len(across.pairs) == count
        assert len(across.pairs[0].outcomes) == 2


@pytest.mark.parametrize(
    ("outcomes", "sentence"),
    [
        ([BETTER] * 3, "a is better than b under all 3 values of borders"),
        ([WORSE] * 3, "b is better than a under all 3 values of borders"),
        (
            [WORSE, UNDECIDED, WORSE],
            "b is better than a under 2 of 3 values of borders, and never worse",
        ),
        ([BETTER, UNTESTED], "a is better than b under 1 tested value of borders"),
        ([UNDECIDED, UNTESTED], "a and b: not decided under the 1 tested value of borders"),
        ([UNDECIDED] * 2, "a and b: not decided under any of the 2 values of borders"),
        (
            [BETTER, WORSE, WORSE, WORSE],
            "a against b depends on the borders: better under 1, worse under 3 of 4",
        ),
    ],
)
def test_sentences(outcomes, sentence):
    assert describe_across("a", "b", outcomes, "borders") == sentence


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(2, 6), st.integers(2, 6)),
        elements=st.floats(-1, 1).map(lambda x: round(x, 3)),
    )
)
def test_the_share_is_that_of_a_loop(differences):
    seeds, values = differences.shape
    mean = differences.mean()
    of_value = [differences[:, b].mean() for b in range(values)]
    of_seed = [differences[s].mean() for s in range(seeds)]
    between = seeds * sum((d - mean) ** 2 for d in of_value) / (values - 1)
    rest = sum(
        (differences[s, b] - of_value[b] - of_seed[s] + mean) ** 2
        for s, b in itertools.product(range(seeds), range(values))
    ) / ((values - 1) * (seeds - 1))
    variance = max(0, (between - rest) / seeds)
    share = estimate_share(differences)
    if variance + rest < 1e-20:
        assert share is None or 0 <= share <= 1
    else:
        assert share == pytest.approx(variance / (variance + rest), abs=1e-9)


def test_without_an_effect_the_share_is_small():
    draws = np.random.default_rng(0).normal(size=(2000, 5, 4))
    assert np.mean([estimate_share(draw) for draw in draws]) < 0.12


@pytest.mark.parametrize(
    ("values", "agreement"),
    [
        ([[3, 2, 1], [3, 2, 1]], 1.0),
        ([[3, 2, 1], [1, 2, 3]], 0.0),
        # Siegel and Castellan 1988, Nonparametric Statistics, section 9.7: W = .16.
        ([[1, 6, 3, 2, 5, 4], [1, 5, 6, 4, 2, 3], [6, 3, 2, 5, 4, 1]], 0.162),
        # The ranks of the second judge are 1.5, 1.5 and 3: W = 12 * 6.5 / (96 - 12).
        ([[1, 2, 3], [1, 1, 2]], 0.929),
        ([[1, 1], [1, 1]], None),
    ],
)
def test_agreement_of_rankings(values, agreement):
    expected = agreement if agreement is None else pytest.approx(agreement, abs=0.001)
    assert compute_kendalls_w(np.array(values, float)) == expected


@pytest.mark.parametrize(
    ("across", "varied", "warned"),
    [
        ("epochs", ["epochs"], ""),
        ("strategy_args", ["strategy/alpha"], ""),
        ("epochs", ["epochs", "lr"], "8 groups differ only in lr and were"),
        (None, ["epochs", "lr"], "8 groups differ only in epochs, lr and were"),
    ],
)
def test_nothing_is_selected_among_the_values_of_the_parameter(across, varied, warned):
    runs = [
        dataclasses.replace(
            compared_run(
                strategy,
                counts(level, seed),
                run_id=f"{strategy}-{values}-{seed}",
                labels=dict(zip(varied, values, strict=True)),
                seed=seed,
            ),
            tuned=frozenset(varied),
        )
        for strategy, level in (("naive", 120), ("replay", 170))
        for values in itertools.product(("1", "2"), repeat=len(varied))
        for seed in SEEDS
    ]
    comparison = compare(runs, ("strategy", *varied), across=across)
    warnings = [text for text in comparison.warnings if "selected on the test set" in text]
    assert [text.startswith(warned) for text in warnings] == [True] * bool(warned)


def test_an_argument_of_an_option_is_its_own_value():
    """Not with an equals sign before it, nor with arguments whose names begin alike."""
    levels = {"year": {"naive": 120, "replay": 170}, "half": {"naive": 170, "replay": 120}}
    runs = [
        dataclasses.replace(
            run, labels={**run.labels, "dataset/buckets": run.labels["borders"], "dataset/b": "1"}
        )
        for run in build_runs(levels)
    ]
    comparison = compare(runs, ("strategy", "dataset/buckets", "dataset/b"))
    assert {*summarize_across(comparison, "dataset/buckets").values} == {"half", "year"}
