"""Studies: reading and drawing, and choices whose results are computed by hand."""

import math
from dataclasses import replace

import pytest
from comparisons import compare, compared_run
from one_line_errors import check_error

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.sweeps.study import (
    build_report,
    choose_parameters,
    compute_mean,
    drop_repeated_runs,
    format_choices,
    get_metric_values,
    iter_combinations,
    read_study,
)

A, C = 0.9, math.log(0.01)
SCORE = "clear/in_domain_accuracy"
LRS = ["0.005", "0.01", "0.02"]
STUDY = {
    "tune": {"dataset": "digits-writers", "seed": [0]},
    "test": {"dataset": "digits", "seed": [0, 1]},
    "search": {"metric": SCORE},
    "methods": [{"strategy": "naive", "lr": LRS}, {"strategy": "ncm", "memory": [50, 60]}],
}


def stub_accuracy(lr, best):
    return max(0.0, A - (math.log(lr) - best) ** 2)


def train_stub(study, stream, combinations, accuracy, diverged=()):
    grid = study.build_grid(stream, combinations)
    distinct = drop_repeated_runs(grid)
    compared = []
    for number, run in enumerate(distinct.runs):
        run.run_id = f"run{number}"
        matrix = accuracy(run) if callable(accuracy) else accuracy
        counts = [[round(cell * 10**6) for cell in row] for row in matrix]
        compared.append(
            compared_run(
                run.config.strategy,
                counts,
                run_id=run.run_id,
                labels={"lr": str(run.config.lr), "memory": str(run.config.memory)},
                seed=run.config.seed,
                dataset=run.config.stream_name,
                num_test=[10**6] * len(counts[0]),
                diverged=run.config.strategy in diverged,
            )
        )
    by = ["strategy", "dataset", "lr", "memory"]
    return grid.runs, distinct.runs, compare(compared, by)


def fill(value):
    return [[0.1] * 3] + [[value] * 3] * 3


def list_draws(study):
    return [draw for method in study.methods for draw in method.draws]


def test_choice_and_regret_follow_from_the_stubs_accuracy():
    """Chosen at c of the tuning stream, 0.01; the test stream has its best at 0.02."""
    study = read_study(STUDY)

    def tune(run):
        return fill(stub_accuracy(run.config.lr, C) if run.config.strategy == "naive" else 0.5)

    runs, trained, comparison = train_stub(study, study.tune, list_draws(study), tune)
    assert len(trained) == len(runs) - 1  # ncm ignores memory
    choices, metric = choose_parameters(study, comparison, runs, trained)
    assert [str(choice) for choice in choices] == [
        "strategy=naive lr=0.01",
        "strategy=ncm memory=50",
    ]
    assert metric == SCORE
    assert choices[0].mean == pytest.approx(0.9)

    def test(run):
        best = math.log(0.02)
        return fill(stub_accuracy(run.config.lr, best) if run.config.strategy == "naive" else 0.4)

    means = []
    for choice in choices:
        tested = choice.list_tested(with_regret=True)
        runs, trained, comparison = train_stub(study, study.test, tested, test)
        values = get_metric_values(comparison, trained)
        means.append(
            [compute_mean(seeds, values, SCORE) for seeds in iter_combinations(runs, study.test)]
        )
    report = build_report(choices, means, SCORE, "digits-writers", sign=1)
    naive, ncm = report.methods
    assert naive["chosen"] == {"lr": "0.01"}
    assert naive["draws"] == 3
    assert naive["tested"] == pytest.approx(0.9 - math.log(2) ** 2, abs=1e-6)
    assert naive["best"] == pytest.approx(0.9, abs=1e-6)
    assert naive["regret"] == pytest.approx(math.log(2) ** 2, abs=1e-6)
    assert ncm["tested"] == ncm["defaults"] == ncm["best"] == pytest.approx(0.4)
    assert ncm["regret"] == 0
    assert report.tau == pytest.approx(1)
    assert "0.4805" in str(report)


def test_the_defaults_may_be_the_best():
    """Also where lower is better, and if the value of the chosen one is undefined."""
    study = read_study({**STUDY, "methods": STUDY["methods"][:1]})
    runs, trained, comparison = train_stub(study, study.tune, list_draws(study), fill(0.5))
    choices, metric = choose_parameters(study, comparison, runs, trained)
    for means, sign, best, regret in (
        ([0.5, 0.8, 0.5, 0.6, 0.4], 1, 0.8, 0.3),
        ([0.5, 0.2, 0.5, 0.6, 0.4], -1, 0.2, 0.3),
        ([None, 0.8, None, 0.6, 0.4], 1, 0.8, None),
    ):
        (method,) = build_report(choices, [means], metric, "digits", sign=sign).methods
        assert method["best"] == best
        assert method["regret"] == (None if regret is None else pytest.approx(regret))


@pytest.mark.parametrize("draws", [2, 3, 30])
def test_a_method_with_fewer_combinations_than_draws_trains_each_once(draws):
    study = read_study({**STUDY, "search": {"draws": draws}})
    runs = [
        run for method in study.methods for run in study.build_grid(study.tune, method.draws).runs
    ]
    assert [len(method.draws) for method in study.methods] == [min(draws, 3), 2]
    assert len({run.name for run in runs}) == len(runs) == min(draws, 3) + 2


@pytest.mark.parametrize(
    ("tested", "tau"),
    [([0.3, 0.2, 0.1], 1), ([0.1, 0.2, 0.3], -1), ([0.3, 0.1, 0.2], 1 / 3), ([0.2] * 3, None)],
)
def test_tau_counts_pairs_in_the_same_order(tested, tau):
    methods = [{"strategy": name} for name in ("naive", "ewc", "si")]
    study = read_study({**STUDY, "methods": methods})
    level = {"naive": 0.9, "ewc": 0.8, "si": 0.7}
    runs, trained, comparison = train_stub(
        study, study.tune, list_draws(study), lambda run: fill(level[run.config.strategy])
    )
    choices, metric = choose_parameters(study, comparison, runs, trained)
    report = build_report(choices, [[x, x] for x in tested], metric, "digits-writers", sign=1)
    assert report.tau == (None if tau is None else pytest.approx(tau))
    assert "regret" not in report.methods[0]
    # Regret is positive also where lower values are better.
    report = build_report(choices, [[x, x, x - 0.1] for x in tested], metric, "", sign=-1)
    assert report.methods[0]["regret"] == pytest.approx(0.1)


def test_of_equal_means_the_earlier_is_chosen():
    for lrs in (LRS, LRS[::-1]):
        study = read_study({**STUDY, "methods": [{"strategy": "naive", "lr": lrs}]})
        runs, trained, comparison = train_stub(study, study.tune, list_draws(study), fill(0.5))
        (choice,), _ = choose_parameters(study, comparison, runs, trained)
        assert choice.parameters["lr"] == lrs[0]


# Rows: 0.01 is best after bucket 1, 0.005 in the first half, 0.02 in the complete matrix.
CELLS = {"0.005": [0.6, 0.9, 0.1, 0.1], "0.01": [0.9, 0.5, 0.1, 0.1], "0.02": [0.1, 0.1, 0.9, 0.9]}


@pytest.mark.parametrize(
    ("select_on", "chosen"), [("first", "0.01"), ("past", "0.005"), ("complete", "0.02")]
)
def test_a_choice_reads_only_the_rows_and_columns_of_its_part(select_on, chosen):
    study = read_study({**STUDY, "methods": STUDY["methods"][:1], "select_on": select_on})

    def matrix(run):
        diagonal = CELLS[str(run.config.lr)]
        return [[0.1] * 4] + [
            [diagonal[i] if i == j else 0.05 * i for j in range(4)] for i in range(4)
        ]

    runs, trained, comparison = train_stub(study, study.tune, list_draws(study), matrix)
    (choice,), metric = choose_parameters(study, comparison, runs, trained)
    assert (choice.parameters["lr"], metric) == (chosen, SCORE)
    # By default, the metric is the first that this part defines.
    automatic = read_study({**STUDY, "select_on": select_on, "search": {}})
    metric = choose_parameters(
        replace(automatic, methods=study.methods), comparison, runs, trained
    )[1]
    assert metric == (
        "renate/average_accuracy" if select_on == "first" else "clear/challenge_score"
    )


def test_runs_without_the_metric_are_not_chosen():
    """If a method lacks other runs, it is an error."""
    study = read_study(STUDY)
    runs, trained, comparison = train_stub(study, study.tune, list_draws(study), fill(0.5))
    with pytest.raises(ConfigError, match="metric of search is 'nope', which no tuning run"):
        choose_parameters(replace(study, metric="nope"), comparison, runs, trained)
    changed = replace(study, metric="clear/challenge_score", select_on="first")
    with pytest.raises(ConfigError, match="challenge_score', which no tuning run defines for sel"):
        choose_parameters(changed, comparison, runs, trained)
    runs, trained, comparison = train_stub(
        study, study.tune, list_draws(study), fill(0.5), diverged=["naive"]
    )
    with pytest.raises(ConfigError, match="method naive lacks a combination with"):
        choose_parameters(replace(study, select_on="complete"), comparison, runs, trained)


def test_chosen_parameters_travel_without_the_recipe_of_their_stream():
    study = read_study({**STUDY, "fixed": {"epochs": 3}, "methods": STUDY["methods"][:1]})
    runs, trained, comparison = train_stub(study, study.tune, list_draws(study), fill(0.5))
    choices, metric = choose_parameters(study, comparison, runs, trained)
    text = format_choices(study, comparison, choices, metric)
    assert "# Chosen on digits-writers, sha256:abab" in text
    assert text.endswith(
        "runs:\n- strategy: naive\n  dataset: digits\n  epochs: 3\n  lr: 0.005\n"
        "  seed:\n  - 0\n  - 1\n"
    )


def test_each_method_gets_the_same_number_of_different_draws():
    methods = [
        {"strategy": "naive", "lr": LRS},
        {"strategy": "ewc", "lr": LRS, "strategy_args": ["strength=1", "strength=10"]},
    ]
    for seed in range(20):
        search = {"draws": 2, "seed": seed}
        study = read_study({**STUDY, "methods": methods, "search": search})
        for method, size in zip(study.methods, (3, 6), strict=True):
            texts = [str(draw) for draw in method.draws]
            assert len(set(texts)) == 2
            grid = [
                str(d) for d in read_study({**STUDY, "methods": methods}).methods[size == 6].draws
            ]
            assert len(grid) == size
            assert texts == [text for text in grid if text in texts]  # in the order of the file
        # A method's draws do not depend on other methods.
        study = read_study({**STUDY, "methods": methods[1:], "search": search})
        assert [str(draw) for draw in study.methods[0].draws] == texts
    assert {"lr": "0.02", "strategy": "ewc", "strategy_args": "strength=1"} in [
        dict(draw) for draw in read_study({**STUDY, "methods": methods}).methods[1].draws
    ]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (
            {"nope": 1},
            "has a section 'nope'; expected tune, test, fixed, search, select_on, methods",
        ),
        ({"search": {"drawn": 3}}, "search has 'drawn'; expected draws, seed, metric"),
        ({"search": {"draws": 0}}, "search: draws is '0'; expected an integer from 1"),
        ({"search": [3]}, "search is ['3']; expected draws, seed, metric"),
        ({"search": {"metric": [3]}}, "search: metric is ['3']; expected one value"),
        ({"select_on": "last"}, "select_on is 'last'; expected complete, first or past"),
        ({"select_on": [1]}, "select_on is ['1']; expected complete, first or past"),
        ({"methods": []}, "methods is []; expected a list of methods"),
        ({"methods": None}, "methods is"),
        ({"methods": [{"lr": [1], "seed": [0]}]}, "methods, entry 1 has seed, which belongs to"),
        ({"fixed": {"dataset": "digits"}}, "has dataset, which belongs to tune and test"),
        ({"methods": [{"strategy": ["naive", "ewc"]}]}, "entry 1 has several strategies; write"),
        ({"methods": [{"strategy": "nope"}]}, "strategy is 'nope'; expected one of"),
        ({"tune": {"dataset": ["digits", "weather"]}}, "tune: 'dataset' has 2 values; pass one"),
        ({"tune": {"split": "auto"}}, "tune has split='auto', which measures on test images"),
        ({"test": {"split": "validation"}}, "test has split='validation', which measures on val"),
        ({"tune": None}, "tune is "),
        ({"test": {}}, "test is empty; expected parameters"),
    ],
)
def test_errors_are_one_line(content, part):
    check_error(ConfigError, part, read_study, {**STUDY, **content})


def test_methods_with_one_strategy_have_different_names():
    methods = [{"strategy": "replay", "memory": memory} for memory in (0.1, 0.2)]
    study = read_study({**STUDY, "methods": [*methods, {"strategy": "ewc"}]})
    assert [method.name for method in study.methods] == [
        "replay, entry 1",
        "replay, entry 2",
        "ewc",
    ]


def test_runs_tuned_on_different_streams_are_never_one_group():
    """Neither by default nor by request, nor if only the digest differs, nor with untuned runs."""
    tags = [
        {"tuned_on": "digits-writers", "tuned_on_digest": "sha256:11"},
        {"tuned_on": "weather", "tuned_on_digest": "sha256:22"},
        {"tuned_on": "weather", "tuned_on_digest": "sha256:33"},
        {},
    ]
    runs = [
        compared_run(
            "naive", [[9, 9], [99, 99], [99, 99]], run_id=f"{i} {seed}", labels=labels, seed=seed
        )
        for i, labels in enumerate(tags)
        for seed in range(2)
    ]
    comparison = compare(runs, ["strategy"])
    groups = [sorted(run.run_id for run in group.members) for group in comparison.groups]
    assert sorted(groups) == [[f"{i} 0", f"{i} 1"] for i in range(4)]
    assert {group.name for group in comparison.groups} == {
        "naive, tuned_on=digits-writers (11)",
        "naive, tuned_on=weather (22)",
        "naive, tuned_on=weather (33)",
        "naive, not tuned",
    }


def test_a_file_without_sections_of_a_study_is_a_grid(tmp_path):
    path = tmp_path / "study.yaml"
    for content in ("grid: {seed: [0]}", "runs: []", "[1]", ""):
        path.write_text(content)
        assert read_study(path) is None
    path.write_text("tune: {dataset: digits}")
    with pytest.raises(ConfigError, match=r"study\.yaml: test is None; expected parameters"):
        read_study(path)


@pytest.mark.parametrize(
    ("scenario", "metric"),
    [("domain", "clear/challenge_score"), ("class", "renate/average_accuracy")],
)
def test_a_part_of_new_classes_is_chosen_by_a_metric_for_them(scenario, metric):
    """As a comparison ranks complete runs."""
    methods = [{"strategy": "naive", "lr": LRS}]
    study = read_study({**STUDY, "methods": methods, "select_on": "past", "search": {}})
    runs, trained, comparison = train_stub(
        study, study.tune, list_draws(study), [[0.1] * 4] + [[0.5] * 4] * 4
    )
    for run in comparison.runs:
        run.params["scenario"] = scenario
    assert choose_parameters(study, comparison, runs, trained)[1] == metric
