"""Groups, names, ranking, tests and warnings of comparisons, also at an equal cost."""

import csv
import dataclasses
import io
import itertools
import json
import re
from functools import partial
from itertools import islice

import numpy as np
import pytest
from comparisons import BY, NUM_TEST, SCORE, compare, compared_run, counts
from comparisons import build_cost_runs as cost_runs
from comparisons import build_seed_runs as seeds_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from one_line_errors import check_error
from rich.table import Table
from stored_values import build_images, build_row_predictions

from clear_mlflow.comparison import pairs
from clear_mlflow.comparison.figures import plot_history, render_figures
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.pairs import compare_groups
from clear_mlflow.comparison.ranking import rank_groups, select_equal_cost
from clear_mlflow.comparison.tables import (
    build_comparison_dict,
    format_description,
    format_latex,
    format_leaderboard_csv,
    format_leaderboard_json,
    format_markdown,
)
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.score import RowCost
from clear_mlflow.metrics import Predictions
from clear_mlflow.statistics import ImageBootstrap

FLOPS = "training_flops"
NAMES = "dataset (clear10 and photos)"
CELLS = {"a": counts(180, 0), "b": counts(120, 0)}
MINIMUM = "continual_evaluation/minimum_accuracy"


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Use few bootstrap resamples. The bootstrap is tested in test_statistics_bootstrap.py."""
    monkeypatch.setattr(pairs, "ImageBootstrap", partial(ImageBootstrap, resamples=50))


def predict(correct, *, classes=("wrong", "right")):
    counts = (NUM_TEST,) * len(correct[0])
    images = build_images(counts, np.ones(sum(counts)), classes)
    labels = [np.concatenate([np.arange(NUM_TEST) < right for right in row]) for row in correct]
    return Predictions(images, build_row_predictions(images, dict(enumerate(labels))))


def test_the_better_group_leads():
    runs = [*seeds_of("naive", 120, [0]), *seeds_of("replay", 180, [0])]
    assert [g.name for g in compare(runs).groups] == ["replay", "naive"]
    same = [compared_run("a", counts(180, s), seed=7, run_id=f"run{s}") for s in range(3)]
    assert len({group.name for group in compare(same, by=()).groups}) == 3
    by_forgetting = compare(runs, rank_by="renate/forgetting").groups
    values = [g.metrics["renate/forgetting"].mean for g in by_forgetting]
    assert values == sorted(values)


@pytest.mark.parametrize("scenario", ["domain", "class", "task"])
def test_new_classes_are_ranked_by_average_accuracy(scenario):
    """The challenge score includes cells of future classes."""
    runs = seeds_of("naive", 120, [0, 1], params={"scenario": scenario})
    expected = SCORE if scenario == "domain" else "renate/average_accuracy"
    assert compare(runs).ranked_by == expected


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"digest": "sha256:" + "cd" * 32}, "dataset digest (abababab and cdcdcdcd)"),
        ({"protocol": "streaming"}, "protocol (iid and streaming)"),
        ({"split": "validation"}, "split (test and validation)"),
        ({"buckets": ["a", "b", "c", "d"]}, "buckets"),
    ],
)
def test_different_test_sets_are_never_in_one_group(other, message):
    runs = [*seeds_of("replay", 180, range(7)), *seeds_of("replay", 120, range(7, 14), **other)]
    comparison = compare(runs)
    assert [len(group.members) for group in comparison.groups] == [7, 7]
    assert len({group.name for group in comparison.groups}) == 2
    assert comparison.pairs == ()
    (warning,) = (text for text in comparison.warnings if "different conditions" in text)
    assert message in warning


def test_a_repeated_run_counts_once():
    runs = seeds_of("replay", 180, range(3))
    copy = compared_run("replay", counts(180, 1), seed=1, run_id="copy")
    comparison = compare([*runs, runs[0], copy])
    (group,) = comparison.groups
    assert [run.run_id for run in group.members] == ["replay-0", "replay-1", "replay-2"]
    assert any("repeats" in warning and "copy" in warning for warning in comparison.warnings)
    others = [compared_run("replay", counts(180, i), seed=i, run_id=f"copy {i}") for i in range(3)]
    (warning,) = (text for text in compare([*runs, *others]).warnings if "repeat" in text)
    assert warning.startswith("3 runs repeat another one, the same seed and the same matrix; each")


def test_a_repeated_seed_with_different_numbers_is_reported():
    """Its spread is not one over seeds."""
    other = compared_run("replay", counts(170, 5), seed=1, run_id="x")
    comparison = compare([*seeds_of("replay", 180, [1]), other])
    assert len(comparison.groups[0].members) == 2
    assert any("seed 1 more than once" in warning for warning in comparison.warnings)


def test_one_run_only():
    comparison = compare(seeds_of("replay", 180, [0]))
    assert comparison.pairs == ()
    assert comparison.groups[0].metrics[SCORE].interval is None
    assert "has only one run (replay)" in comparison.warnings[0]
    assert comparison.get_interval(comparison.groups[0], SCORE) == (None, False)
    run = comparison.groups[0].members[0]
    comparison = compare_groups(rank_groups([run], BY), {run.run_id: predict(counts(180, 0))})
    interval, is_over_images = comparison.get_interval(comparison.groups[0], SCORE)
    assert is_over_images
    assert interval.low < comparison.groups[0].metrics[SCORE].mean < interval.high


def test_a_run_that_ended_early_is_left_out_of_means():
    whole = seeds_of("replay", 180, range(3))
    early = compared_run("replay", counts(180, 9)[:3], seed=9)
    comparison = compare([*whole, early])
    (group,) = comparison.groups
    assert group.metrics[SCORE].n == 3
    assert group.metrics[SCORE].mean == compare(whole).groups[0].metrics[SCORE].mean
    assert group.seeds_per_cell.tolist() == [[4] * 4] * 3 + [[3] * 4] * 2
    assert any("trained on 2 of 4 buckets" in warning for warning in comparison.warnings)


def test_streaming_shows_only_valid_cells():
    runs = seeds_of("replay", 180, range(2), protocol="streaming")
    (group,) = compare(runs).groups
    assert np.isnan(group.grid[1:][np.tri(4, dtype=bool)]).all()
    assert SCORE not in group.metrics
    assert "clear/next_domain_accuracy" in group.metrics


def test_predictions_of_single_runs_are_paired_if_the_images_are_the_same():
    ranked = rank_groups([compared_run(name, c) for name, c in CELLS.items()], BY)
    assert {run.name for run in ranked.list_runs_to_bootstrap()} == {"a seed 0", "b seed 0"}
    predictions = {f"{name}-0": predict(correct) for name, correct in CELLS.items()}
    comparison = compare_groups(ranked, predictions)
    (verdict,) = comparison.pairs
    assert (verdict.unit, verdict.outcome) == ("images", "different")
    a, b = (group.metrics[SCORE].mean for group in comparison.groups)
    assert verdict.difference == pytest.approx(a - b)
    # Images of another content, although the digest of the dataset is the same.
    predictions = {f"{n}-0": predict(c, classes=(n, "right")) for n, c in CELLS.items()}
    comparison = compare_groups(ranked, predictions)
    assert comparison.pairs == ()
    assert any("different test images" in warning for warning in comparison.warnings)


def test_runs_without_the_label_are_an_error():
    runs = seeds_of("replay", 180, [0])
    with pytest.raises(ConfigError, match=r"group_by names 'memory'.*there are dataset, strategy"):
        rank_groups(runs, ["memory"])
    with pytest.raises(ConfigError, match=r"rank_by .*is 'speed'"):
        rank_groups(runs, BY, rank_by="speed")
    check_error(ConfigError, "nothing to compare", rank_groups, [], BY)


def with_tests(name, level, seed, every):
    """Return a run with a minimum over tests within its buckets."""
    run = compared_run(name, counts(level, seed), seed=seed)
    summary = {**run.summary, MINIMUM: level * (1 - seed / 100) / 400}
    return dataclasses.replace(run, summary=summary, test_every=every)


def test_metrics_of_tests_within_buckets_are_compared():
    runs = [with_tests("naive", 120, seed, "2") for seed in range(3)]
    runs += [with_tests("replay", 160, seed, "2") for seed in range(3)]
    comparison = compare(runs, rank_by=MINIMUM)
    assert {pair.metric for pair in comparison.pairs} == {MINIMUM}
    assert not any("test_every" in text for text in comparison.warnings)
    comparison = compare([*runs, *seeds_of("er_ace", 150, range(2))])
    assert [MINIMUM in group.metrics for group in comparison.groups] == [True, False, True]
    (line,) = [text for text in comparison.warnings if "test_every" in text]
    assert line.startswith("2 of 8 runs have no tests within buckets (test_every): ")


def test_different_test_intervals_are_shown_but_not_tested():
    """A shorter interval finds lower minima."""
    runs = [with_tests("naive", 120, seed, "2") for seed in range(3)]
    runs += [with_tests("replay", 160, seed, "1") for seed in range(3)]
    comparison = compare(runs)
    assert any("(test_every: '1', '2')" in text for text in comparison.warnings)
    assert all(MINIMUM in group.metrics for group in comparison.groups)
    assert comparison.pairs
    assert compare(runs, rank_by=MINIMUM).pairs == ()


def test_the_copy_with_tests_within_buckets_counts():
    run = with_tests("naive", 120, 0, "2")
    plain = dataclasses.replace(run, run_id="plain", test_every=None)
    for compared in ([run, plain], [plain, run]):
        ranked = rank_groups(compared, BY)
        assert [member.test_every for member in ranked.runs] == ["2"]
        assert any("repeats" in note for note in ranked.warnings)


def list_names_by_output(comparison):
    tables = [part for part in render_comparison(comparison) if isinstance(part, Table)]
    page = render_comparison_page(comparison, title="", footer="")
    content = build_comparison_dict(comparison)
    # The dots, and curves for each of the conditions; the PDF that follows takes long.
    figures = islice(render_figures(comparison), 1 + len(comparison.conditions))
    svgs = [svg.decode() for _, svg in figures]
    note = format_description(comparison, page="")
    return {
        "terminal": [str(cell) for cell in tables[0].columns[0].cells],
        "page": re.findall(r'<th scope="row" data-value="[^"]*">(.*?)</th>', page, re.DOTALL),
        "page's legend": re.findall(r"</svg><span>(.*?)</span></li>", page)[
            : len(comparison.groups)
        ],
        "Markdown": re.findall(r"^\| (.*?) \| \d", format_markdown(comparison), re.M),
        "description": re.findall(r"^\| (.*?) \| \d", note, re.M),
        "LaTeX": re.findall(r"^(.*?) & \d", format_latex(comparison), re.M),
        "CSV": list_names(
            csv.DictReader(io.StringIO(format_leaderboard_csv(comparison), newline=""))
        ),
        "JSON": [row[0] for row in json.loads(format_leaderboard_json(comparison))["data"]],
        "compared_runs.json": [group["name"] for group in content["groups"]],
        "verdicts": list(itertools.chain(*((v["a"], v["b"]) for v in content["verdicts"]))),
        "figure": [text.get_text() for text in plot_history(comparison).legends[0].get_texts()][:2],
        "dots": re.findall(r'text-anchor="end">(.*?)</text>', svgs[0])[:2],
        "curves": re.findall(r'<text class="name"[^>]*>(.*?)</text>', "".join(svgs[1:])),
    }


def list_names(rows):
    return [*dict.fromkeys(row["group"] for row in rows)]


SHARED = "name=w2,licence=none,order=none,labels=auto,image_size=32,"
ONE_FIXTURE = [HealthCheck.function_scoped_fixture]  # for all examples
LONG_STARTS = st.sampled_from(["", "a" * 70])
texts = st.one_of(
    st.text(max_size=12),
    st.text("_'=+$%&<|\\~^{}(2) \n\t\x1b🚌é", min_size=1, max_size=6),
    st.builds("{}{}{}".format, LONG_STARTS, st.text("xy _", max_size=3), st.just("b" * 70)),
    st.sampled_from([f"{SHARED}{text}" for text in ("times=1", "times=2", "z=1", "none")]),
)


@settings(max_examples=12, phases=[Phase.generate], suppress_health_check=ONE_FIXTURE)
@given(
    first=st.tuples(texts, texts, texts),
    second=st.tuples(texts, texts, texts),
    by=st.sampled_from([("strategy",), ("strategy", "dataset_args"), ("strategy/x", "note"), ()]),
    digest=st.sampled_from(["ab", "cd"]),
)
def test_two_groups_have_two_names_in_every_output(first, second, by, digest):
    compared = []
    for number, (labels, level) in enumerate(((first, 180), (second, 120))):
        names = {"dataset_args": labels[1], "strategy/x": labels[2], "note": labels[1]}
        options = {"labels": names, "digest": f"sha256:{('ab', digest)[number] * 32}"}
        compared += [
            compared_run(labels[0], counts(level, s), seed=s, run_id=f"{number}{s}" * 8, **options)
            for s in range(3 if by else 1)
        ]
    comparison = compare(compared, by=by)
    if len(comparison.groups) == 1:
        return
    for output, names in list_names_by_output(comparison).items():
        expected = 2 * bool(comparison.pairs) if output == "verdicts" else 2
        assert len(names) == len({*names}) == expected, (output, names)


def name_groups(*labels, by, **conditions):
    runs = [
        compared_run(
            text["strategy"],
            counts(180 - 5 * i, 0),
            labels=text,
            run_id=f"{i}" * 32,
            **{n: v[i] for n, v in conditions.items()},
        )
        for i, text in enumerate(labels)
    ]
    groups = rank_groups(runs, by).groups
    by_run = {group.members[0].run_id: group.name for group in groups}
    return [by_run[run.run_id] for run in runs]


def test_names_have_only_the_arguments_that_differ_within_a_strategy():
    naive = {"strategy": "naive", "strategy_args": "none"}
    replay = {"strategy": "replay", "strategy_args": "buffer=class_balanced,alpha=none"}
    by = ("strategy", "strategy_args")
    ewc = [{"strategy": "ewc", "strategy_args": f"strength={s},decay=0.9"} for s in (1, 10)]
    assert name_groups(naive, replay, ewc[0], by=by) == ["naive", "replay", "ewc"]
    names = name_groups(naive, replay, *ewc, by=by)
    assert names == ["naive", "replay", "ewc, strength=1", "ewc, strength=10"]
    single = [{"strategy": "ewc", "strategy/strength": s, "strategy/decay": "0.9"} for s in "12"]
    by_single = ("strategy", "strategy/strength", "strategy/decay")
    names = name_groups({"strategy": "naive"}, *single, by=by_single)
    assert names == ["naive", "ewc, strength=1", "ewc, strength=2"]
    for option in ("dataset_args", "scenario_args"):
        streams = [{"strategy": "cumulative", option: f"{SHARED}times={n}"} for n in (1, 2)]
        assert name_groups(*streams, by=("strategy", option)) == ["times=1", "times=2"]


def test_equal_labels_are_told_apart_by_test_conditions_or_runs():
    """A number would need a key."""
    both = [{"strategy": "naive"}] * 2
    for condition, values, ends in (
        ("digest", ["sha256:" + x * 64 for x in "ab"], ["dataset digest=" + x * 8 for x in "ab"]),
        ("protocol", ["iid", "streaming"], ["protocol=iid", "protocol=streaming"]),
        ("dataset", ["vec", "photos"], ["dataset=vec", "dataset=photos"]),
    ):
        names = name_groups(*both, by=("strategy",), **{condition: values})
        assert names == [f"naive, {end}" for end in ends]
    assert name_groups(*both, by=()) == ["naive seed 0, run=00000000", "naive seed 0, run=11111111"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({}, "in the name of the dataset (clear10 and photos), not in its content."),
        ({"protocol": "streaming"}, f"in {NAMES}, protocol (iid and streaming)."),
        ({"digest": "sha256:" + "cd" * 32}, f"in {NAMES}, dataset digest (abababab and cdcdcdcd)."),
    ],
)
def test_another_name_of_the_same_dataset_is_called_that(other, message):
    runs = seeds_of("replay", 180, range(3))
    runs += seeds_of("naive", 120, range(3), dataset="photos", **other)
    assert any(f"They differ {message}" in text for text in compare(runs).warnings)
    unknown = seeds_of("a", 180, [0], digest="unknown")
    unknown += seeds_of("b", 120, [0], digest="unknown", dataset="photos")
    assert "They differ in dataset (clear10 and photos)." in compare(unknown).warnings[0]


@pytest.mark.parametrize(("split", "is_warned"), [("test", True), ("validation", False)])
def test_values_that_were_chosen_on_test_images_are_a_warning(split, is_warned):
    runs = [
        compared_run(
            f"naive {lr}",
            counts(level, seed),
            seed=seed,
            split=split,
            labels={"strategy": "naive", "lr": lr},
        )
        for lr, level in (("0.1", 150), ("0.2", 170))
        for seed in range(2)
    ]
    runs = [dataclasses.replace(run, tuned=frozenset({"lr"})) for run in runs]
    warnings = " ".join(compare(runs, ("strategy", "lr")).warnings)
    assert ("2 groups differ only in lr and were measured on test images" in warnings) == is_warned


def test_equal_cost_selects_the_most_runs():
    naive, replay = cost_runs("naive", 120, 1000), cost_runs("replay", 180, 1005)
    derpp, old = cost_runs("derpp", 190, 2800), cost_runs("si", 110, None)
    runs = [*naive, *replay, *derpp, *old]
    remaining, messages = select_equal_cost(runs, FLOPS, ["strategy"])
    assert {run.labels["strategy"] for run in remaining} == {"naive", "replay"}
    assert messages == [
        "3 of 12 runs are left out: they logged no cost/training_flops.",
        "The 6 runs are within 1 % of cost/training_flops 4e+03; left out: derpp 1.12e+04.",
    ]
    for by in (["strategy"], []):
        messages = select_equal_cost([*naive, *replay], "images", by)[1]
        assert messages == ["The 6 runs are within 1 % of cost/images 48."]
    for runs, cost, message in (
        ([*naive, *derpp], FLOPS, "no two methods are within 1 % of each other (naive 4e"),
        (old, "images", "no run has logged its cost/images"),
    ):
        check_error(ConfigError, message, select_equal_cost, runs, cost, ["strategy"])


def test_equal_cost_prefers_two_methods_to_many_seeds_of_one():
    many = cost_runs("lwf", 110, 500, range(10))
    others = [run for i in range(7) for run in cost_runs(f"own{i}", 120, 10000 * 2**i, [0])]
    pair = [*cost_runs("naive", 120, 1000), *cost_runs("replay", 180, 1005)]
    remaining, (messages,) = select_equal_cost([*many, *pair, *others], FLOPS, ["strategy"])
    assert {run.labels["strategy"] for run in remaining} == {"naive", "replay"}
    assert "lwf 2e+03, own0 4e+04" in messages
    assert messages.endswith("and 2 more.")


def test_equal_seconds_are_those_of_one_device():
    runs = [*cost_runs("naive", 120, 1), *cost_runs("replay", 180, 1), *cost_runs("lwf", 110, 1)]
    for run, device in zip(runs, "A" * 6 + "B" * 3, strict=True):
        costs = [RowCost(seconds=2.0, device=device)] * 4
        run.record.masked_matrix.__dict__["costs"] = tuple(costs)
        run.summary["cost/seconds"] = 8.0
    (message,) = select_equal_cost(runs, "seconds", ["strategy"])[1]
    assert message == ("The 6 runs are within 1 % of cost/seconds 8 on A; left out: lwf 8 on B.")
    with pytest.raises(ConfigError, match="of each other on one device"):
        select_equal_cost(runs[5:7], "seconds", ["strategy"])
