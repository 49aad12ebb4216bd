"""A study: parameters of each method are chosen on one stream and tested on another.

The choice follows "Hyperparameters in continual learning: a reality check" (arXiv 2403.09066); with
``select_on: first`` it uses the first bucket only (arXiv 2404.06466).
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from clear_mlflow.core.errors import ConfigError, UndefinedMetricError
from clear_mlflow.core.matrix import AccuracyMatrix, get_divided_split, get_measured_split
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.core.untrusted import MAX_RUNS
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.sweeps.grid import (
    Grid,
    SweepRun,
    build_grid,
    format_yaml,
    parse_lists,
    read_content,
    sweep_errors,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from clear_mlflow.comparison.groups import ComparedRun
    from clear_mlflow.comparison.result import Comparison

COMPLETE, FIRST, PAST = "complete", "first", "past"
_SECTIONS = ("tune", "test", "fixed", "search", "select_on", "methods")


@dataclass(frozen=True)
class Method:
    """A method of a study, and its combinations of parameters to try.

    Attributes:
        name: its strategy, and what tells it apart from others with the same one.
        defaults: parameters with one value in the file: the others have their defaults.
        draws: combinations in the order of the file, each with the parameters in *defaults*.
    """

    name: str
    defaults: Mapping[str, str]
    draws: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Study:
    """A study's file. tune, test: lists of stream parameters, with ``seed``."""

    text: str
    tune: Mapping[str, Sequence[str]]
    test: Mapping[str, Sequence[str]]
    metric: str  # or "auto"
    select_on: str
    methods: tuple[Method, ...]

    @property
    def num_tuning_runs(self) -> int:
        """Number of tuning runs, with repetitions."""
        return sum(len(method.draws) for method in self.methods) * len(self.tune["seed"])

    @property
    def is_same_stream(self) -> bool:
        """True if test images come from the stream that tunes parameters."""
        tune = {**self.tune, "split": [get_divided_split(self.tune["split"][0])]}
        return {**tune, "seed": []} == {"split": [AUTO], **self.test, "seed": []}

    def build_grid(
        self, stream: Mapping[str, Sequence[str]], combinations: Iterable[Mapping[str, str]]
    ) -> Grid:
        """Build the runs of all combinations and seeds on a stream."""
        content = {"runs": [self.build_entry(stream, values) for values in combinations]}
        return build_grid(format_yaml(content), content)

    def build_entry(
        self, stream: Mapping[str, Sequence[str]], values: Mapping[str, str]
    ) -> dict[str, Any]:
        """Build a sweep's entry from parameters of a stream and a method."""
        texts = {name: texts[0] for name, texts in stream.items() if name != "seed"}
        strategy = {"strategy": values["strategy"]} if "strategy" in values else {}
        return {**strategy, **texts, **values, "seed": list(stream["seed"])}


def read_study(grid: Path | Mapping[str, Any]) -> Study | None:
    """Read and check a study, or return None for other files.

    grid: YAML file, or a dictionary with the same content. Raises ConfigError if the file cannot be
    read, or a section, method or run is invalid.
    """
    text, content = read_content(grid)
    if not isinstance(content, dict) or not {"tune", "test", "methods"} & content.keys():
        return None
    with sweep_errors(grid):
        if unknown := [name for name in content if name not in _SECTIONS]:
            expected = ", ".join(_SECTIONS)
            raise ConfigError(f"has a section {safe_repr(unknown[0], 100)}; expected {expected}")
        tune = {"split": ["validation"], **_parse_stream(content, "tune")}
        test = _parse_stream(content, "test")
        for name, stream, expected in (("tune", tune, "validation"), ("test", test, "test")):
            split = stream.get("split", [AUTO])[0]
            if get_measured_split(split) != expected:
                raise ConfigError(
                    f"{name} has split={safe_repr(split)}, which measures on "
                    f"{get_measured_split(split)} images; expected {expected} images"
                )
        metric, num_draws, seed = _parse_search(content.get("search") or {})
        select_on = content.get("select_on", COMPLETE)
        if select_on not in (COMPLETE, FIRST, PAST):
            raise ConfigError(
                f"select_on is {safe_repr(select_on)}; expected {COMPLETE}, {FIRST} or {PAST}"
            )
        fixed = parse_lists(content["fixed"], "fixed") if content.get("fixed") else {}
        methods = _parse_methods(content.get("methods"), fixed, {*tune, *test}, num_draws, seed)
        study = Study(text, tune, test, metric, select_on, methods)
        for method in methods:  # an invalid run is an error before anything is trained
            study.build_grid(tune, method.draws)
            study.build_grid(test, [*method.draws, method.defaults])
    return study


@dataclass(frozen=True)
class Choice:
    """A method's chosen parameters, runs, and mean on the tuning stream."""

    method: Method
    parameters: Mapping[str, str]
    runs: Sequence[SweepRun]
    mean: float

    def list_tested(self, *, with_regret: bool) -> list[Mapping[str, str]]:
        """Return the combinations to test: chosen, defaults, and all if requested."""
        draws = self.method.draws if with_regret else ()
        return [self.parameters, self.method.defaults, *draws]

    def __str__(self) -> str:
        return " ".join(f"{name}={text}" for name, text in self.parameters.items())


def choose_parameters(
    study: Study, comparison: Comparison, runs: Sequence[SweepRun], trained: Sequence[SweepRun]
) -> tuple[list[Choice], str]:
    """Choose each method's parameters by its tuning runs, and the metric.

    Returns the choices, best first, and the name of the metric. Of equal means, the earlier in the
    file is chosen. A combination with a run that diverged, or whose metric is undefined, is not
    chosen. Raises ConfigError if that is so for all of a method.

    runs: runs in the order of the methods' draws, seed by seed. trained: those that train
    something else than an earlier one, with the ids of their MLflow runs.
    """
    values = get_metric_values(comparison, trained, study.select_on)
    metric = _choose_metric(study, comparison, values.values())
    sign = 1 if comparison.is_higher_better(metric) else -1
    trained_runs = {run.config_hash: run for run in trained}
    runs_of_draws = iter_combinations([trained_runs[run.config_hash] for run in runs], study.tune)
    choices = []
    for method in study.methods:
        candidates = []
        for draw in method.draws:
            mean = compute_mean(runs_of_draw := next(runs_of_draws), values, metric)
            if mean is not None:
                candidates.append(Choice(method, draw, runs_of_draw, mean))
        if not candidates:
            raise ConfigError(
                f"method {method.name} lacks a combination with {metric} for all seeds of tune "
                f"(of {len(method.draws)}): its runs diverged, or the metric is undefined"
            )
        # The first of equal ones.
        choices.append(max(candidates, key=lambda choice: sign * choice.mean))
    return sorted(choices, key=lambda choice: -sign * choice.mean), metric


def format_choices(
    study: Study, comparison: Comparison, choices: Sequence[Choice], metric: str
) -> str:
    """Return the YAML that tests the choices, ConfigError for different streams."""
    from clear_mlflow.sweeps.next_grids import (
        find_sweep_parameters,
        format_chosen,
        undo_split,
    )

    if len(digests := {conditions.digest for conditions in comparison.conditions}) > 1:
        raise ConfigError(f"the tuning runs have {len(digests)} different streams; expected one")
    stream, entries = comparison.conditions[0], []
    for choice in choices:
        entry = study.build_entry(study.test, choice.parameters)
        if study.is_same_stream:  # another one has its own recipe: only what the file sets travels
            run_ids = {run.run_id for run in choice.runs}
            groups = (g for g in comparison.groups if g.members[0].run_id in run_ids)
            logged = find_sweep_parameters(next(groups))
            entry = entry if logged is None else {**undo_split(logged), "seed": entry["seed"]}
        entries.append(entry)
    source = f"# Chosen on {one_line(stream.name)}, {one_line(stream.digest)}.\n"
    return str(format_chosen(metric, "" if study.is_same_stream else source, entries))


def iter_combinations(
    runs: Sequence[SweepRun], stream: Mapping[str, Sequence[str]]
) -> Iterator[Sequence[SweepRun]]:
    """Yield the runs of each combination, one for each seed of *stream*."""
    num_seeds = len(stream["seed"])
    for first in range(0, len(runs), num_seeds):
        yield runs[first : first + num_seeds]


def get_metric_values(
    comparison: Comparison, runs: Sequence[SweepRun], select_on: str = COMPLETE
) -> dict[str, Mapping[str, float]]:
    """Return the runs' metrics by config hash, without diverged runs."""
    compared = {run.run_id: run for run in comparison.runs if not run.diverged}
    return {
        run.config_hash: _get_values(select_on, comparison, compared[run.run_id])
        for run in runs
        if run.run_id in compared
    }


def compute_mean(
    runs: Sequence[SweepRun], values_by_hash: Mapping[str, Mapping[str, float]], metric: str
) -> float | None:
    """Return a metric's mean over runs, or None if one lacks it."""
    values = [values_by_hash.get(run.config_hash, {}).get(metric) for run in runs]
    return None if None in values else fmean(value for value in values if value is not None)


def drop_repeated_runs(grid: Grid) -> Grid:
    """Return a grid without later runs that train the same."""
    runs: dict[str, SweepRun] = {}
    for run in grid.runs:
        runs.setdefault(run.config_hash, run)
    return replace(grid, runs=tuple(runs.values()))


@dataclass(frozen=True, repr=False)
class StudyReport:
    """What a study found.

    Attributes:
        metric: name of the metric of all values.
        tuned_on: name of the stream that parameters were chosen on.
        methods: one dictionary a method, best on the tuning stream first: its name, the number of
            combinations (``draws``), what was chosen, its mean on the tuning stream (``tuned``) and
            on the test stream (``tested``), the mean of the defaults there, and, if requested, the
            best of all of these there and the ``regret``: how much better the best is than what was
            chosen. A
            value is None if a run lacks it.
        tau: Kendall's tau-b between the methods' rankings on the two streams, or None if it is
            undefined.
    """

    metric: str
    tuned_on: str
    methods: tuple[Mapping[str, Any], ...]
    tau: float | None

    @property
    def frame(self) -> DataFrame:
        """Data frame with one row for each method."""
        from pandas import DataFrame

        return DataFrame(list(self.methods))

    def to_dict(self) -> dict[str, Any]:
        """Return the report's fields as JSON types."""
        return {
            "metric": self.metric,
            "tuned_on": self.tuned_on,
            "methods": [dict(method) for method in self.methods],
            "kendall_tau": self.tau,
        }

    def __str__(self) -> str:
        frame = self.frame
        frame["chosen"] = [
            " ".join(f"{n}={text}" for n, text in chosen.items()) or "-"
            for chosen in frame["chosen"]
        ]
        table = frame.to_string(index=False, na_rep="-", float_format=lambda value: f"{value:.4f}")
        tau = "undefined" if self.tau is None else f"{self.tau:.2f}"
        return (
            f"{self.metric}, chosen on {self.tuned_on} (tuned), then tested\n{table}\n"
            f"Kendall's tau between the rankings on the two streams: {tau}"
        )


def build_report(
    choices: Sequence[Choice],
    tested: Sequence[Sequence[float | None]],
    metric: str,
    tuned_on: str,
    *,
    sign: int,
) -> StudyReport:
    """Build the report of a study from means on the test stream.

    tested: means on the test stream of what each choice tests (:meth:`Choice.list_tested`). sign:
    -1 if lower values are better.
    """
    from scipy.stats import kendalltau  # takes most of the time of a start

    rows = []
    for choice, (result, default, *draws) in zip(choices, tested, strict=True):
        method = choice.method
        chosen = {n: t for n, t in choice.parameters.items() if n not in method.defaults}
        row: dict[str, Any] = {
            "method": method.name,
            "draws": len(method.draws),
            "chosen": chosen,
            "tuned": choice.mean,
            "tested": result,
            "defaults": default,
        }
        if draws:
            values = [value for value in (result, default, *draws) if value is not None]
            row["best"] = best = max(values, key=lambda value: sign * value, default=None)
            row["regret"] = None if best is None or result is None else sign * (best - result)
        rows.append(row)
    pairs = [(row["tuned"], row["tested"]) for row in rows if row["tested"] is not None]
    tau = float(kendalltau(*zip(*pairs, strict=True)).statistic) if len(pairs) > 1 else math.nan
    return StudyReport(metric, tuned_on, tuple(rows), None if math.isnan(tau) else tau)


def _get_values(select_on: str, comparison: Comparison, run: ComparedRun) -> Mapping[str, float]:
    """Return a run's metrics, or compute them on its first buckets."""
    if select_on == COMPLETE:
        return run.summary
    matrix = run.record.masked_matrix
    size = 1 if select_on == FIRST else max(1, matrix.num_buckets // 2)
    part = AccuracyMatrix(
        matrix.values[:size, :size],
        None if matrix.initial is None else matrix.initial[:size],
        None if matrix.num_instances is None else matrix.num_instances[:size],
        matrix.buckets[:size],
        matrix.score,
    )
    values = {}
    for metric in comparison.definitions:
        try:
            if metric.needs == "matrix":
                values[metric.name] = metric.compute(part)
        except UndefinedMetricError:
            continue
    return values


def _choose_metric(
    study: Study, comparison: Comparison, values: Iterable[Mapping[str, float]]
) -> str:
    """Return the metric of the study or comparison, or raise ConfigError."""
    from clear_mlflow.comparison.ranking import choose_ranking_metric  # late: it loads pandas

    counts = Counter(name for run_values in values for name in run_values)
    metric = study.metric if study.metric in counts else None
    if study.metric == AUTO:
        metric = comparison.ranked_by
        if study.select_on != COMPLETE:
            metric = choose_ranking_metric(comparison.definitions, counts, comparison.runs)
    if metric is not None:
        return metric
    raise ConfigError(
        f"metric of search is {safe_repr(study.metric)}, which no tuning run defines for "
        f"select_on={study.select_on}; there are {', '.join(sorted(counts)) or 'none'}"
    )


def _parse_stream(content: Mapping[str, Any], section: str) -> dict[str, list[str]]:
    lists = parse_lists(content.get(section), section)
    for name, values in lists.items():
        if name != "seed" and len(values) > 1:
            raise ConfigError(
                f"{section}: {safe_repr(name, 100)} has {len(values)} values; pass one"
            )
    return {"seed": ["0"], **lists}


def _parse_search(search: Any) -> tuple[str, int | None, int]:
    """Parse texts into metric, number of draws or None, and their seed."""
    if not isinstance(search, dict):
        raise ConfigError(f"search is {safe_repr(search, 100)}; expected draws, seed, metric")
    numbers = {"draws": None, "seed": 0}
    for name, text in search.items():
        minimum = {"draws": 1, "seed": 0}.get(name)
        if not isinstance(text, str) or not text:
            raise ConfigError(f"search: {name} is {safe_repr(text, 100)}; expected one value")
        if minimum is not None:
            if not re.fullmatch("[0-9]{1,9}", text) or int(text) < minimum:
                raise ConfigError(
                    f"search: {name} is {safe_repr(text, 100)}; expected an integer from {minimum}"
                )
            numbers[name] = int(text)
        elif name != "metric":
            raise ConfigError(f"search has {safe_repr(name, 100)}; expected draws, seed, metric")
    return search.get("metric", AUTO), numbers["draws"], numbers["seed"] or 0


def _parse_methods(
    entries: Any,
    fixed: Mapping[str, list[str]],
    stream_parameters: set[str],
    num_draws: int | None,
    seed: int,
) -> tuple[Method, ...]:
    """Return the methods with their combinations of parameters, or raise ConfigError."""
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"methods is {safe_repr(entries, 100)}; expected a list of methods")
    all_lists = []
    for number, entry in enumerate(entries, start=1):
        own = parse_lists(entry, where := f"methods, entry {number}")
        strategy = {"strategy": own["strategy"]} if "strategy" in own else {}
        lists = {**strategy, **fixed, **own}
        if both := sorted(lists.keys() & {*stream_parameters, "seed", "split", "dataset"}):
            raise ConfigError(f"{where} has {both[0]}, which belongs to tune and test")
        if len(lists.get("strategy", [])) > 1:
            raise ConfigError(f"{where} has several strategies; write an entry for each")
        all_lists.append(lists)
    strategies = [lists.get("strategy", ["naive"])[0] for lists in all_lists]
    methods = []
    for number, (name, lists) in enumerate(zip(strategies, all_lists, strict=True), start=1):
        name = name if strategies.count(name) == 1 else f"{name}, entry {number}"
        if (total := math.prod(map(len, lists.values()))) > MAX_RUNS:
            raise ConfigError(f"{name} has {total} combinations; expected at most {MAX_RUNS}")
        draws = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
        if num_draws is not None and num_draws < total:
            # The same draws for a method, whatever the other methods are.
            indices = random.Random(seed).sample(range(total), num_draws)  # noqa: S311
            draws = [draws[index] for index in sorted(indices)]
        defaults = {n: values[0] for n, values in lists.items() if len(values) == 1}
        methods.append(Method(name, defaults, tuple(draws)))
    return tuple(methods)
