"""Read stored runs, and compare them: the comparison as an object."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.api.load import list_existing
from clear_mlflow.comparison.across import list_input_warnings, summarize_across
from clear_mlflow.comparison.figures import plot_history
from clear_mlflow.comparison.groups import NOT_LOGGED, ComparedRun, RunWithoutRows, truncate_name
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.pairs import compare_groups
from clear_mlflow.comparison.published_results import select_published
from clear_mlflow.comparison.ranking import (
    add_varying,
    get_common_score,
    get_default_group_by,
    rank_groups,
    select_equal_cost,
)
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.comparison.scratch import add_scratch_metrics
from clear_mlflow.comparison.tables import (
    build_comparison_dict,
    build_leaderboard_frame,
    build_metrics_frame,
    format_latex,
    format_markdown,
)
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.core.errors import ClearError, ConfigError, FailedMetricError, RecordError
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import format_count
from clear_mlflow.core.untrusted import MAX_TAG_BYTES, convert, parse_json_object
from clear_mlflow.core.version import __version__
from clear_mlflow.metrics import (
    METRICS,
    PREDICTIONS,
    Metric,
    Predictions,
    adapt_metrics,
    add_matrix_metrics,
    compute_values,
    load_metrics,
)
from clear_mlflow.report.terminal_tables import render_text
from clear_mlflow.scoring.run_log import read_prequential_values, read_test_values
from clear_mlflow.scoring.run_record import read_predictions
from clear_mlflow.store import names
from clear_mlflow.store.client import map_in_threads
from clear_mlflow.store.rows import NO_ROWS, read_records
from clear_mlflow.store.search import MissingRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_READ_JOBS = 8  # runs whose predictions are read at a time
# A parameter of another program with one of these words in its name does not affect results.
_RUN_WORDS = {"seed", "seeds", "run", "experiment", "dir", "folder", "host", "hostname", "workers"}
_RUN_WORDS |= {"device", "devices", "gpu", "gpus", "asked"}
# Those that are usually chosen by their results.
_TUNED = {"lr", "learning_rate", "momentum", "weight_decay", "batch_size", "epochs", "optimizer"}
_TEST_SET = ("dataset", "protocol", "split", "score", "strategy", "local_rank")
_ARGUMENTS = ("strategy/", "dataset/", "scenario/")  # each is a logged parameter


@dataclass(frozen=True, eq=False)
class ComparedRuns:
    """A comparison of runs, in groups of seeds, as :func:`clear_mlflow.compare` returns it.

    A notebook shows the comparison's page, ``print`` its tables.

    Attributes:
        comparison: groups, tests and warnings, as they were computed.
        left_out: runs that were chosen but are not compared, with the problem.
        run_id: id of the MLflow run that stores the comparison, or None if it was not stored.
        links: lines that show where to look at that run, or why it was not stored.
        problem: why the comparison of stored runs was not stored, or None.
    """

    comparison: Comparison
    left_out: tuple[MissingRun, ...] = ()
    run_id: str | None = None
    links: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def missing_baselines(self) -> list[str]:
        """Simple baselines that the compared trainings lack, such as from_scratch or joint."""
        # Late, here and below: it loads the parameters of trainings.
        from clear_mlflow.sweeps.next_grids import find_missing_baselines

        return [*find_missing_baselines(self.comparison)]

    @cached_property
    def next_sweeps(self) -> Mapping[str, str]:
        """Sweeps that continue: file name, such as baselines.yaml, to the file's content."""
        from clear_mlflow.sweeps.next_grids import build_next_grids

        return build_next_grids(self.comparison)

    def leaderboard(self, metrics: str | Sequence[str] | None = None) -> DataFrame:
        """Return a row for each group of seeds, best first.

        The frame has the means of metrics.

        Args:
            metrics: names of metrics, or None for the metric of the ranking, the most important
                ones, and those that were requested in addition.

        Raises:
            ConfigError: no run defines one of the metrics.
        """
        return build_leaderboard_frame(self.comparison, metrics)

    def runs(self) -> DataFrame:
        """Return a row for each run: group, seed, parameters and metrics."""
        return self.comparison.runs_frame

    def verdicts(self) -> DataFrame:
        """Return a row for each pair that was tested or lacks seeds.

        Two groups of one run each are tested over test images, others over seeds. Columns: outcome,
        difference a - b, interval, p-value, test, numbers of seeds, and a sentence, among others.
        Interval and p-value are adjusted for the number of comparisons.
        """
        return self.comparison.pairs_frame

    def to_frame(self) -> DataFrame:
        """Return groups by metric: mean, std, 95 % interval, and n."""
        return build_metrics_frame(self.comparison)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON, as docs/json.md describes the fields."""
        return {
            **build_comparison_dict(self.comparison),
            "missing_baselines": self.missing_baselines,
            "next_sweeps": dict(self.next_sweeps),
            "left_out": [
                {"run_id": run.run_id, "run_name": run.run_name, "reason": run.problem}
                for run in self.left_out
            ],
            "run_id": self.run_id,
            "links": list(self.links),
        }

    def to_latex(self, metrics: str | Sequence[str] | None = None) -> str:
        """Return the leaderboard as a LaTeX table for booktabs.

        Cells are mean ± standard deviation. Fractions are in percent, and arrows show the better
        direction. Bold is a mean that is significantly better than all others. metrics: see
        :meth:`leaderboard`.
        """
        return format_latex(self.comparison, metrics)

    def to_markdown(self, metrics: str | Sequence[str] | None = None) -> str:
        """Return the leaderboard in Markdown: mean ± standard deviation.

        Bold is a mean that is significantly better than all others. metrics: see
        :meth:`leaderboard`.
        """
        return format_markdown(self.comparison, metrics)

    def plot(self, metric: str | None = None, *, width: float | None = None) -> Figure:
        """Plot a metric over the buckets: means over seeds with intervals.

        Args:
            metric: name of a metric, or None for the metric of the ranking.
            width: width in inches, at least 1.5, or None for 5. Letters have 8 points at any width.

        Raises:
            ConfigError: the metric is not computed from the matrix, or the width is too small.
        """
        return plot_history(self.comparison, metric, width=width)

    def page(self) -> str:
        """Return the comparison as a self-contained HTML page."""
        footer = f"clear_mlflow {__version__}"
        return render_comparison_page(self.comparison, title="Comparison", footer=footer)

    def _repr_html_(self) -> str:
        # In its own frame, so that its style and script do not affect the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self.page())}" sandbox="allow-scripts" '
            'style="width:100%;height:720px;border:0" title="Comparison"></iframe>'
        )

    def __str__(self) -> str:
        return render_text(*render_comparison(self.comparison), *self.links)

    def __repr__(self) -> str:
        return f"ComparedRuns({format_count(len(self.comparison.runs), 'run')})"


def load_matrix_metrics(metrics: Sequence[Any]) -> tuple[Metric, ...]:
    """Return the default metrics and requested ones, by name or as functions.

    Raises ConfigError if one is computed from predictions.
    """
    requested = load_metrics(metrics) if metrics else ()
    for metric in requested:
        if metric.needs == PREDICTIONS:
            raise ConfigError(
                f"metric {metric.name} is computed from predictions, and runs are compared by "
                "metrics of the matrix; leave it out"
            )
    return (*METRICS, *requested)


def split_group_by(group_by: str | Sequence[str]) -> Sequence[str] | None:
    """Return the names in *group_by*, a sequence or a text with commas.

    Returns () for "none", and None for "auto".
    """
    names = group_by.split(",") if isinstance(group_by, str) else group_by
    labels = tuple(name.strip() for name in names)
    if labels == ("auto",):
        return None
    return () if labels == ("none",) else labels


def compare_stored_runs(
    client: MlflowClient,
    runs: Iterable[Run | MissingRun],
    *,
    group_by: Sequence[str] | None,
    rank_by: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    metrics: Sequence[Metric] = METRICS,
    at_equal: str | None = None,
    oracle: str | None = None,
    across: str | None = None,
    explicit: bool,
    is_live: bool = False,
) -> ComparedRuns:
    """Read the matrices of runs and compare them, without storing the result.

    Args:
        client: client of the store.
        runs: stored runs; a MissingRun, for a run that the store lacks, is an error.
        group_by: parameters or tags; () to make each run its own group, None for the default.
        rank_by: name of the metric that ranks, or None for the default.
        baseline: name or label of the group that all others are tested against, or None.
        margin: largest difference that does not matter, in percentage points or the score's unit.
        metrics: metrics of the matrix; cost metrics are added if a run has costs.
        at_equal: cost that compared runs must share within 1 %, or None.
        oracle: label of runs that were trained from scratch, which all are measured against, or
            None.
        across: parameter or tag for whose values verdicts are counted, or None.
        explicit: True if the user named the runs one by one: a run without rows is then listed as
            left out, and runs with different scores are a ConfigError. False: the former are
            skipped, and only the runs with the most common score are compared.
        is_live: read the rows from tags where these are complete, and do not read predictions, so
            that groups of one run are not tested over images.

    Raises:
        ConfigError: no run has rows, or an argument has an invalid value.
        TrackingError: the store cannot be reached, or lacks a run.
    """
    left_out: list[MissingRun] = []
    compared_runs: list[ComparedRun] = []
    diverged_runs: list[RunWithoutRows] = []
    warnings: list[str] = []
    failures: dict[str, list[str]] = {}  # name of a custom metric to the error of each run
    existing_runs = list_existing(runs, "compare")
    records = [*read_records(client, existing_runs, read_files=False if is_live else None)]
    for record in records:
        if isinstance(record, Record):
            metrics = add_matrix_metrics(metrics, record.masked_matrix)
    for run, record in zip(existing_runs, records, strict=True):
        if record is None and has_diverged(run):
            diverged_runs.append(build_run_without_rows(run))
        elif isinstance(record, ClearError) or (record is None and explicit):
            reason = str(record or NO_ROWS)
            left_out.append(MissingRun(run.info.run_id, get_run_name(run), reason))
        if not isinstance(record, Record):
            continue
        test_values: dict[str, float] = {}
        for tag, label, read_values in (
            (names.ANYTIME_TAG, "Tests within buckets", read_test_values),
            (names.PREQUENTIAL_TAG, "Predictions before training", read_prequential_values),
        ):
            if tag not in run.data.tags:
                continue
            try:
                test_values |= read_values(client, run, record)
            except ClearError as error:
                name = truncate_name(get_run_name(run))
                warnings.append(f"{label} of {name} are not used: {error}.")
        adapted = adapt_metrics(metrics, record.matrix.score)
        values, errors = compute_values(record.masked_matrix, adapted)
        for name, failure in errors.items():
            if isinstance(failure, FailedMetricError):
                failures.setdefault(name, []).append(truncate_name(str(failure)))
        compared_runs.append(build_compared_run(run, record, {**values, **test_values}))
    if not compared_runs:
        reason = f": {left_out[0].run_id} {left_out[0].problem}" if left_out else ""
        raise ConfigError(f"none of the chosen runs has rows of an accuracy matrix{reason}")
    if group_by is None:
        group_by = get_default_group_by(compared_runs, diverged_runs)
    if across is not None and group_by:
        group_by = add_varying(compared_runs, group_by, across)
    notes = [
        f"Left out: {truncate_name(run.run_name)} ({truncate_name(run.run_id[:8])}), {run.problem}."
        for run in left_out
    ]
    if not explicit:
        compared_runs, other_scores = _keep_most_common_score(compared_runs)
        notes += other_scores
    if at_equal is not None:
        compared_runs, unequal = select_equal_cost(compared_runs, at_equal, group_by)
        notes += unequal
    if oracle is not None:
        compared_runs, undefined = add_scratch_metrics(compared_runs, oracle)
        notes += undefined
    if margin is not None:
        margin = _convert_margin(margin, get_common_score(compared_runs))
    ranked = rank_groups(
        compared_runs,
        group_by,
        rank_by=rank_by,
        baseline=baseline,
        margin=margin,
        across=across,
        without_rows=diverged_runs,
        metrics=metrics,
    )
    runs_to_bootstrap = [] if is_live else ranked.list_runs_to_bootstrap()
    runs_by_id = {run.info.run_id: run for run in existing_runs}

    def read_classes(compared_run: ComparedRun) -> Predictions | ClearError | None:
        run = runs_by_id[compared_run.run_id]
        try:
            predictions = read_predictions(client, run, compared_run.record)
        except ClearError as error:
            return error
        if predictions is None:
            return None
        # Only right or wrong is compared; probabilities would take a hundred times the memory.
        rows = {row: replace(x, probabilities=None) for row, x in predictions.rows.items()}
        return replace(predictions, rows=rows)

    predictions_by_run = {}
    results = map_in_threads(read_classes, runs_to_bootstrap, _READ_JOBS)
    for compared_run, result in zip(runs_to_bootstrap, results, strict=True):
        if isinstance(result, Predictions):
            predictions_by_run[compared_run.run_id] = result
        elif result is not None:
            name = truncate_name(compared_run.name)
            warnings.append(f"Predictions of {name} are not used: {result}.")
    comparison = compare_groups(ranked, predictions_by_run)
    if across is not None:
        comparison = replace(comparison, across=summarize_across(comparison, across))
        notes += list_input_warnings(comparison, across)
    failed = (
        f"{name} is left out of {len(reasons)} of {format_count(len(compared_runs), 'run')}: "
        f"{reasons[0]}."
        for name, reasons in failures.items()
    )
    warnings = [*notes, *dict.fromkeys(warnings), *failed, *comparison.warnings]
    return ComparedRuns(replace(comparison, warnings=tuple(warnings)), tuple(left_out))


def add_published(compared: ComparedRuns) -> ComparedRuns:
    """Add published results for the streams to a copy, or a warning."""
    comparison = compared.comparison
    selected = select_published(comparison.conditions, comparison.metrics)
    warnings = comparison.warnings
    if not selected:
        warnings += ("No result is published for this stream, protocol and metrics.",)
    comparison = replace(comparison, published=selected, warnings=warnings)
    return replace(compared, comparison=comparison)


def _keep_most_common_score(
    compared_runs: list[ComparedRun],
) -> tuple[list[ComparedRun], list[str]]:
    """Return the runs with the most common score, and a warning.

    A score is, for example, accuracy or rmse. A tie keeps the first score.
    """
    by_score: dict[Score, list[ComparedRun]] = {}
    for compared_run in compared_runs:
        by_score.setdefault(compared_run.record.matrix.score, []).append(compared_run)
    most_common = max(by_score, key=lambda score: len(by_score[score]))
    sentences = [
        f"{format_count(len(runs), 'run is', 'runs are')} left out because the score is "
        f"{score.name} ({score.better} is better), while {most_common.name} is compared."
        for score, runs in by_score.items()
        if score != most_common
    ]
    return by_score[most_common], sentences


def _convert_margin(margin: float, score: Score) -> float:
    """Convert a margin from percentage points to the score's unit.

    Raises ConfigError if the margin is not above 0, or above 100 percentage points.
    """
    maximum, unit = (100.0, "percentage points") if score.is_accuracy else (inf, "a number")
    if not 0 < margin <= maximum:
        raise ConfigError(
            f"margin is {margin}; expected {unit} above 0, for example 1 or 0.5", parameter="margin"
        )
    return margin / 100 if score.is_accuracy else margin


def get_run_name(run: Run) -> str:
    """Return a run's name, or its id without one."""
    return str(run.info.run_name or run.info.run_id)


def has_diverged(run: Run) -> bool:
    """Return True if a run is tagged as diverged."""
    return bool(run.data.tags.get(names.DIVERGED_TAG) == "true")


def build_compared_run(run: Run, record: Record, summary: Mapping[str, float]) -> ComparedRun:
    """Return a run with labels and parameters.

    summary: values by metric name.
    """
    test_conditions = {
        "dataset": record.dataset.name,
        "protocol": record.dataset.protocol,
        "split": record.dataset.split,
        "seed": "none" if record.seed is None else str(record.seed),
    }
    params, described = _get_params(run), _read_described(run)
    return ComparedRun(
        run_id=run.info.run_id,
        name=get_run_name(run),
        record=record,
        summary=summary,
        labels={**test_conditions, **_get_labels(run, params, described)},
        method_params=_find_method_parameters(run, params, described),
        tuned=frozenset(described.get("tuned", _TUNED)),
        params=params,
        diverged=has_diverged(run),
        test_every=run.data.tags.get(names.ANYTIME_TAG),
    )


def build_run_without_rows(run: Run) -> RunWithoutRows:
    """Return a diverged run without rows as comparisons list it."""
    params, described = _get_params(run), _read_described(run)
    labels = _get_labels(run, params, described)
    seed = labels.get("seed", "")
    return RunWithoutRows(
        run_id=run.info.run_id,
        name=get_run_name(run),
        seed=int(seed) if seed.isascii() and seed.isdecimal() and len(seed) < 20 else None,
        labels=labels,
        method_params=_find_method_parameters(run, params, described),
    )


def _read_described(run: Run) -> dict[str, dict[str, str | None]]:
    """Return the parameters that a training described, {} without any."""
    with suppress(RecordError):
        content = parse_json_object(run.data.tags.get(names.PARAMETERS_TAG, "{}"), MAX_TAG_BYTES)
        described: dict[str, dict[str, str | None]] = convert(
            content, dict[str, dict[str, str | None]], names.PARAMETERS_TAG
        )
        return described
    return {}


def _get_labels(
    run: Run, params: Mapping[str, str], described: Mapping[str, Mapping[str, str | None]]
) -> dict[str, str]:
    """Return a run's parameters and tags by name, for groups.

    Skips tags of MLflow and this package. ``auto`` is replaced by the value that was used, and a
    value without effect in the run by "not logged".
    """
    tags = run.data.tags
    return {
        **{name: text or NOT_LOGGED for name, text in described.get("unlogged", {}).items()},
        **params,
        **{n: tag for n, tag in tags.items() if not n.startswith(("mlflow.", "clear_mlflow."))},
        **{n.removeprefix("used/"): text for n, text in params.items() if n.startswith("used/")},
        **_find_method_parameters(run, params, described),
    }


def _find_method_parameters(
    run: Run, params: Mapping[str, str], described: Mapping[str, Mapping[str, str | None]]
) -> dict[str, str]:
    """Return the parameters that affect results, or "not logged" by name.

    Adds the stream that they were tuned on, if it is tagged. Of other programs' runs, returns all
    but those whose names are about the test set, seeds, folders or machines.
    """
    tags = {n: tag for n, tag in run.data.tags.items() if n == names.TUNED_ON}
    if described:
        stated = {**described.get("method", {}), **described.get("tuned", {})}
        return {
            **{name: NOT_LOGGED if text is None else text for name, text in stated.items()},
            **{name: text for name, text in params.items() if name.startswith(_ARGUMENTS)},
            **tags,
        }
    words = {name: {*re.split(r"[^a-z0-9]+", name.lower())} for name in params}
    return {
        name.removeprefix("used/"): params[name]
        for name in sorted(params, key=lambda name: name.startswith("used/"))
        if name not in _TEST_SET and not words[name] & _RUN_WORDS
    } | tags


def _get_params(run: Run) -> dict[str, str]:
    """Return parameters without the shell quotes that ``mlflow run`` adds (mlflow #6811)."""
    return {
        name: _remove_shell_quotes(value) if value.startswith("'") else value
        for name, value in run.data.params.items()
    }


def _remove_shell_quotes(value: str) -> str:
    """Return a value as it was before shlex.quote."""
    with suppress(ValueError):
        words = shlex.split(value)
        if len(words) == 1 and shlex.quote(words[0]) == value:
            return words[0]
    return value
