"""Read runs for a comparison, store a comparison in a run, and the comparison as an object."""

from __future__ import annotations

import html
import json
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlflow import MlflowClient
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Param, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS, MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.api.load import list_existing
from clear_mlflow.comparison.figures import plot_history, render_figures
from clear_mlflow.comparison.groups import NOT_LOGGED, ComparedRun, RunWithoutRows, truncate_name
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.pairs import compare_groups
from clear_mlflow.comparison.ranking import (
    get_common_score,
    get_default_group_by,
    rank_groups,
    select_equal_cost,
)
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.comparison.scratch import add_scratch_metrics
from clear_mlflow.comparison.tables import (
    build_comparison_dict,
    build_leader_metrics,
    build_leaderboard_frame,
    build_metrics_frame,
    build_pairs_frame,
    format_description,
    format_latex,
    format_leaderboard_csv,
    format_leaderboard_json,
    format_markdown,
)
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.core.errors import ClearError, ConfigError, TrackingError
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.core.version import __version__
from clear_mlflow.journal.run_folder import Outcome
from clear_mlflow.journal.uploader import store_outcome
from clear_mlflow.learning.parameters.config import is_tuned
from clear_mlflow.learning.parameters.logged import find_method_parameters, list_unlogged_parameters
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.metrics import (
    COST_METRICS,
    FORGETTING_SINCE_TRAINED,
    METRICS,
    PREDICTIONS,
    Metric,
    Predictions,
    compute_values,
    lacks_future_tests,
    load_metrics,
)
from clear_mlflow.report.terminal_tables import render_text
from clear_mlflow.scoring.run_log import read_test_values
from clear_mlflow.scoring.run_record import read_predictions
from clear_mlflow.store import names
from clear_mlflow.store.client import (
    is_generated_name,
    is_missing_store,
    map_in_threads,
    mlflow_errors,
    preflight,
)
from clear_mlflow.store.offline import is_bundle
from clear_mlflow.store.rows import NO_ROWS, read_matrices
from clear_mlflow.store.search import MissingRun, get_or_create_experiment
from clear_mlflow.store.ui_urls import (
    format_artifact_link,
    format_comparison_links,
    make_run_url_builder,
)
from clear_mlflow.sweeps.next_grids import build_next_grids
from clear_mlflow.tracking.lifecycle import create_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Ids have 32 characters, and MLflow silently truncates a tag at 8,000. An artifact lists all ids.
_MAX_LISTED_IDS = 200
_MAX_NAME_LENGTH = 120
_READ_JOBS = 8  # runs whose predictions are read at a time


@dataclass(frozen=True)
class LeftOut:
    """A run that was chosen but could not be compared, and the reason."""

    run_id: str
    run_name: str
    reason: str


@dataclass(frozen=True, eq=False)
class ComparedRuns:
    """A comparison of runs, in groups of seeds, as :func:`clear_mlflow.compare` returns it.

    A notebook shows the comparison's page, ``print`` its tables.

    Attributes:
        comparison: groups, tests and warnings, as they were computed.
        left_out: runs that were chosen but are not compared, with the reason.
        run_id: id of the MLflow run that stores the comparison, or None if it was not stored.
        links: lines that show where to look at that run.
    """

    comparison: Comparison
    left_out: tuple[LeftOut, ...] = ()
    run_id: str | None = None
    links: tuple[str, ...] = ()

    def leaderboard(self, metrics: str | Sequence[str] | None = None) -> DataFrame:
        """Return a data frame with a row for each group of seeds, best first: means of metrics.

        Args:
            metrics: names of metrics, or None for the metric of the ranking, the most important
                ones, and those that were requested in addition.

        Raises:
            ConfigError: no run defines one of the metrics.
        """
        return build_leaderboard_frame(self.comparison, metrics)

    def runs(self) -> DataFrame:
        """Return a data frame with a row for each run: group, seed, parameters and metrics."""
        return self.comparison.runs_frame

    def verdicts(self) -> DataFrame:
        """Return a data frame with a row for each pair of groups that was tested or lacks seeds.

        Two groups of one run each are tested over test images, others over seeds. Columns: outcome,
        difference a - b, interval, p-value, test, numbers of seeds, and a sentence, among others.
        Interval and p-value are adjusted for the number of comparisons.
        """
        return build_pairs_frame(self.comparison)

    def to_frame(self) -> DataFrame:
        """Return a data frame: group, metric, mean, std, 95 % interval over seeds, and n."""
        return build_metrics_frame(self.comparison)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON, as docs/json.md describes the fields."""
        return {
            **build_comparison_dict(self.comparison),
            "left_out": [asdict(run) for run in self.left_out],
            "run_id": self.run_id,
            "links": list(self.links),
        }

    def to_latex(self, metrics: str | Sequence[str] | None = None) -> str:
        """Return the leaderboard as a LaTeX table for booktabs: mean ± standard deviation.

        Fractions are in percent, and arrows show the better direction. Bold is a mean that is
        significantly better than all others. metrics: see :meth:`leaderboard`.
        """
        return format_latex(self.comparison, metrics)

    def to_markdown(self, metrics: str | Sequence[str] | None = None) -> str:
        """Return the leaderboard in Markdown: mean ± standard deviation.

        Bold is a mean that is significantly better than all others. metrics: see
        :meth:`leaderboard`.
        """
        return format_markdown(self.comparison, metrics)

    def plot(self, metric: str | None = None, *, width: float | None = None) -> Figure:
        """Plot a metric over the buckets, a line for each group: mean over seeds, 95 % interval.

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
        """Return the comparison as HTML, for notebooks."""
        # In its own frame, so that its style and script do not affect the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self.page())}" sandbox="allow-scripts" '
            'style="width:100%;height:720px;border:0" title="Comparison"></iframe>'
        )

    def __str__(self) -> str:
        return render_text(*render_comparison(self.comparison), *self.links)

    def __repr__(self) -> str:
        return f"ComparedRuns({len(self.comparison.runs)} runs)"


def load_matrix_metrics(metrics: Sequence[Any]) -> tuple[Metric, ...]:
    """Return the default metrics and requested ones, by name or as functions.

    Raises ConfigError if one is computed from predictions.
    """
    requested = load_metrics(metrics)
    for metric in requested:
        if metric.needs == PREDICTIONS:
            raise ConfigError(
                f"metric {metric.name} is computed from predictions, and runs are compared by "
                "metrics of the matrix; leave it out"
            )
    return (*METRICS, *requested)


def log_comparison(
    client: MlflowClient,
    compared: ComparedRuns,
    runs: Sequence[Run | MissingRun],
    *,
    run_id: str | None,
    params: Mapping[str, str | None],
) -> ComparedRuns:
    """Store a comparison in a run, and return it with the run's id and links.

    If only bundles are compared and the store cannot be written, no error is raised: the result's
    run id is None, and its links state the problem.

    runs: those that were chosen. run_id: run to write to, or None for a new one. params: parameters
    to log, except those that are None or empty.
    """
    compared_ids = {run.run_id for run in compared.comparison.runs}
    experiment_ids = (
        run.info.experiment_id
        for run in runs
        if isinstance(run, Run) and run.info.run_id in compared_ids and not is_bundle(run)
    )
    experiment_id = next(experiment_ids, None)
    try:
        if is_missing_store(client.tracking_uri):
            client = preflight()  # only bundles were compared, and the store does not exist yet
        run = store_comparison(
            client,
            compared,
            experiment_id=experiment_id or get_or_create_experiment(client),
            run_id=run_id,
            params={name: value for name, value in params.items() if value},
        )
        links = tuple(format_comparison_links(client, run))
    except TrackingError as error:
        if experiment_id is not None:
            raise
        return replace(compared, links=(f"the comparison is not stored: {error}",))
    return replace(compared, run_id=str(run.info.run_id), links=links)


def split_group_by(group_by: str | Sequence[str]) -> Sequence[str] | None:
    """Return the names in *group_by*, a sequence or a text with commas.

    Returns () for "none", and None for "auto".
    """
    labels = group_by.split(",") if isinstance(group_by, str) else group_by
    special: dict[tuple[str, ...], Sequence[str] | None] = {(AUTO,): None, (NONE,): ()}
    stripped = tuple(label.strip() for label in labels)
    return special.get(stripped, stripped)


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
        metrics: metrics of the matrix; cost metrics are added.
        at_equal: cost that compared runs must share within 1 %, or None.
        oracle: label of runs that were trained from scratch, which all are measured against, or
            None.
        explicit: True if the user named the runs one by one: a run without rows is then listed as
            left out, and runs with different scores are a ConfigError. False: the former are
            skipped, and only the runs with the most common score are compared.
        is_live: read the rows from tags where these are complete, and do not read predictions, so
            that groups of one run are not tested over images.

    Raises:
        ConfigError: no run has rows, or an argument has an invalid value.
        TrackingError: the store cannot be reached, or lacks a run.
    """
    metrics = tuple({metric.name: metric for metric in (*metrics, *COST_METRICS)}.values())
    left_out: list[LeftOut] = []
    compared_runs: list[ComparedRun] = []
    diverged_runs: list[RunWithoutRows] = []
    warnings: list[str] = []
    failures: dict[str, list[str]] = {}  # name of a custom metric to the error of each run
    existing_runs = list_existing(runs, "compare")
    read_files = False if is_live else None
    for stored in read_matrices(client, existing_runs, metrics=metrics, read_files=read_files):
        run, record = stored.run, stored.record
        if record is None:
            reason = str(stored.problem)
            if reason == NO_ROWS and _has_diverged(run):
                diverged_runs.append(_build_run_without_rows(run))
            elif reason != NO_ROWS or explicit:
                left_out.append(LeftOut(run.info.run_id, _get_run_name(run), reason))
            continue
        try:
            test_values = read_test_values(client, run, record)
        except ClearError as error:
            test_values = {}
            name = truncate_name(_get_run_name(run))
            warnings.append(f"Tests within buckets of {name} are not used: {error}.")
        for name, message in stored.failures.items():
            failures.setdefault(name, []).append(truncate_name(message))
        compared_runs.append(_build_compared_run(run, record, {**stored.summary, **test_values}))
    if not compared_runs:
        reason = f": {left_out[0].run_id} {left_out[0].reason}" if left_out else ""
        raise ConfigError(f"none of the chosen runs has rows of an accuracy matrix{reason}")
    if any(lacks_future_tests(run.record.masked_matrix) for run in compared_runs):
        compared_runs = list(map(_add_forgetting_since_trained, compared_runs))
        metrics = tuple(dict.fromkeys((*metrics, FORGETTING_SINCE_TRAINED)))
    if group_by is None:
        group_by = get_default_group_by(compared_runs, diverged_runs)
    notes = [
        f"Left out: {truncate_name(run.run_name)} ({truncate_name(run.run_id[:8])}), {run.reason}."
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
        without_rows=diverged_runs,
        metrics=metrics,
        tuned=filter(is_tuned, group_by),
    )
    runs_to_bootstrap = [] if is_live else ranked.list_runs_to_bootstrap()
    runs_by_id = {run.info.run_id: run for run in existing_runs}

    def read_classes(compared_run: ComparedRun) -> Predictions | ClearError | None:
        run = runs_by_id[compared_run.run_id]
        try:
            return _read_predicted_classes(client, run, compared_run.record)
        except ClearError as error:
            return error

    predictions_by_run = {}
    results = map_in_threads(read_classes, runs_to_bootstrap, _READ_JOBS)
    for compared_run, result in zip(runs_to_bootstrap, results, strict=True):
        if isinstance(result, Predictions):
            predictions_by_run[compared_run.run_id] = result
        elif result is not None:
            name = truncate_name(compared_run.name)
            warnings.append(f"Predictions of {name} are not used: {result}.")
    comparison = compare_groups(ranked, predictions_by_run)
    failed = (
        f"{name} is left out of {len(reasons)} of {len(compared_runs)} runs: {reasons[0]}."
        for name, reasons in failures.items()
    )
    all_warnings = (*notes, *dict.fromkeys(warnings), *failed, *comparison.warnings)
    return ComparedRuns(replace(comparison, warnings=all_warnings), tuple(left_out))


def _add_forgetting_since_trained(run: ComparedRun) -> ComparedRun:
    """Return a run with ``chaudhry/forgetting_since_trained`` in its summary, if it is defined."""
    matrix = run.record.masked_matrix
    values, _ = compute_values(matrix, [FORGETTING_SINCE_TRAINED.adapt(matrix.score)])
    return replace(run, summary={**run.summary, **values})


def _keep_most_common_score(
    compared_runs: list[ComparedRun],
) -> tuple[list[ComparedRun], list[str]]:
    """Return the runs with the most common score, and a sentence on the runs of each other score.

    A score is, for example, accuracy or rmse. A tie keeps the first score.
    """
    by_score: dict[Score, list[ComparedRun]] = {}
    for compared_run in compared_runs:
        by_score.setdefault(compared_run.record.matrix.score, []).append(compared_run)
    most_common = max(by_score, key=lambda score: len(by_score[score]))
    sentences = [
        f"{len(runs)} run{'s are' if len(runs) > 1 else ' is'} left out because the score is "
        f"{score.name} ({score.better} is better), while {most_common.name} is compared."
        for score, runs in by_score.items()
        if score != most_common
    ]
    return by_score[most_common], sentences


def _convert_margin(margin: float, score: Score) -> float:
    """Convert a margin to the score's unit: percentage points of accuracy become a fraction.

    Raises ConfigError if the margin is not above 0, or above 100 percentage points.
    """
    maximum, unit = (100.0, "percentage points") if score.is_accuracy else (inf, "a number")
    if not 0 < margin <= maximum:
        raise ConfigError(
            f"margin is {margin}; expected {unit} above 0, for example 1 or 0.5", parameter="margin"
        )
    return margin / 100 if score.is_accuracy else margin


def _read_predicted_classes(client: MlflowClient, run: Run, record: Record) -> Predictions | None:
    """Read the predicted classes of a run, without probabilities, or return None if not stored.

    Raises RecordError if they are damaged, and TrackingError if the store cannot be reached.
    """
    predictions = read_predictions(client, run, record)
    if predictions is None:
        return None
    # Only right or wrong is compared; probabilities would take a hundred times the memory.
    rows = {row: replace(x, probabilities=None) for row, x in predictions.rows.items()}
    return replace(predictions, rows=rows)


def _get_run_name(run: Run) -> str:
    """Return the name of a run, or its id if it has none."""
    return str(run.info.run_name or run.info.run_id)


def _has_diverged(run: Run) -> bool:
    """Return True if a run is tagged as diverged: its loss or output was not finite."""
    return bool(run.data.tags.get(names.DIVERGED_TAG) == "true")


def _build_compared_run(run: Run, record: Record, summary: Mapping[str, float]) -> ComparedRun:
    """Return a run as the comparison needs it: matrix, labels to group by, and parameters.

    summary: values of its metrics by name.
    """
    test_conditions = {
        "dataset": record.dataset.name,
        "protocol": record.dataset.protocol,
        "split": record.dataset.split,
        "seed": "none" if record.seed is None else str(record.seed),
    }
    return ComparedRun(
        run_id=run.info.run_id,
        name=_get_run_name(run),
        record=record,
        summary=summary,
        labels={**test_conditions, **_get_labels(run)},
        method_params=find_method_parameters(_get_params(run), NOT_LOGGED),
        params=_get_params(run),
        diverged=_has_diverged(run),
        test_every=run.data.tags.get(names.ANYTIME_TAG),
    )


def _build_run_without_rows(run: Run) -> RunWithoutRows:
    """Return a diverged run as a comparison lists it. Its seed is None if none is logged."""
    labels = _get_labels(run)
    seed = labels.get("seed", "")
    return RunWithoutRows(
        run_id=run.info.run_id,
        name=_get_run_name(run),
        seed=int(seed) if seed.isascii() and seed.isdecimal() and len(seed) < 20 else None,
        labels=labels,
        method_params=find_method_parameters(_get_params(run), NOT_LOGGED),
    )


def _get_labels(run: Run) -> dict[str, str]:
    """Return parameters and tags of a run by name, to group runs by.

    Skips tags of MLflow and this package. ``auto`` is replaced by the value that was used, and a
    value without effect in the run by "not logged".
    """
    params, tags = run.data.params, run.data.tags
    return {
        **list_unlogged_parameters(params),
        **_get_params(run),
        **{n: tag for n, tag in tags.items() if not n.startswith(("mlflow.", "clear_mlflow."))},
        **{n.removeprefix("used/"): text for n, text in params.items() if n.startswith("used/")},
        **find_method_parameters(_get_params(run), NOT_LOGGED),
    }


def _get_params(run: Run) -> dict[str, str]:
    """Return parameters without the shell quotes that ``mlflow run`` adds (mlflow #6811)."""
    return {name: _remove_shell_quotes(value) for name, value in run.data.params.items()}


def _remove_shell_quotes(value: str) -> str:
    """Return a value as it was before shlex.quote. Other values are returned unchanged."""
    with suppress(ValueError):
        words = shlex.split(value)
        if len(words) == 1 and shlex.quote(words[0]) == value:
            return words[0]
    return value


def store_comparison(
    client: MlflowClient,
    compared: ComparedRuns,
    *,
    experiment_id: str,
    run_id: str | None = None,
    params: Mapping[str, str],
) -> Run:
    """Store a comparison in an MLflow run, and return the run.

    run_id: existing run to write to, which stays open, and is renamed if MLflow generated its name;
    None to open a run and close it. params: parameters to log, unless the run has them. Raises
    TrackingError if the store cannot be written; a new run is then closed as FAILED.
    """
    comparison = compared.comparison
    name, opened_run_id = build_comparison_name(comparison), run_id
    now = get_current_time_millis()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="clear_mlflow_"))
        # Before a run is opened, so that an error here leaves no empty run.
        _write_files(compared, Path(folder), name, make_run_url_builder(client.tracking_uri))
        stack.enter_context(mlflow_errors("store the comparison"))
        if opened_run_id is None:
            tags = {names.KIND_TAG: names.KIND_COMPARE}
            opened_run_id = create_run(client, experiment_id, name, tags)
        status: Literal["FINISHED", "FAILED"] = "FAILED"
        try:
            run = client.get_run(opened_run_id)
            tags = _build_tags(comparison, format_artifact_link(run, names.COMPARISON_PAGE))
            if run_id is not None and is_generated_name(run.info.run_name):
                tags[MLFLOW_RUN_NAME] = name
            client.log_batch(
                opened_run_id,
                metrics=[
                    # Their own prefix: a list of runs shows them next to metrics of trained runs.
                    MlflowMetric(f"{names.LEADER_METRICS}{metric}", value, now, 0)
                    for metric, value in build_leader_metrics(comparison).items()
                ],
                params=[Param(k, v) for k, v in params.items() if k not in run.data.params],
                tags=[RunTag(key, value) for key, value in tags.items()],
            )
            client.log_artifacts(opened_run_id, folder)
            status = "FINISHED"
        finally:
            if run_id is None:
                store_outcome(client, opened_run_id, Outcome(status))
        return client.get_run(opened_run_id)


def _write_files(
    compared: ComparedRuns,
    folder: Path,
    title: str,
    run_address: Callable[[str], str] | None,
) -> None:
    """Write page, tables, figures and JSON of a comparison into a folder.

    Also writes the YAML files of sweeps that would continue it, if there are any.

    run_address: returns the URL of a run by its id; None for no links.
    """
    comparison = compared.comparison
    grids = build_next_grids(comparison)
    now = datetime.now(timezone.utc).strftime("%F %H:%M UTC")
    page = render_comparison_page(
        comparison,
        title=title,
        footer=f"clear_mlflow {__version__}, {now}",
        more_seeds=names.MORE_SEEDS if names.MORE_SEEDS in grids else None,
        chosen=names.CHOSEN if names.CHOSEN in grids else None,
        run_address=run_address,
    )
    content_by_name = {
        names.COMPARISON_PAGE: page,
        names.LEADERBOARD_TABLE: format_leaderboard_json(comparison),
        names.LEADERBOARD_CSV: format_leaderboard_csv(comparison),
        names.LEADERBOARD_TEX: format_latex(comparison),
        names.COMPARED_JSON: json.dumps(compared.to_dict(), indent=2) + "\n",
        **grids,
    }
    for name, content in content_by_name.items():
        (folder / name).write_text(content, encoding="utf-8")
    (folder / names.FIGURES_FOLDER).mkdir()
    for name, image in render_figures(comparison):
        (folder / names.FIGURES_FOLDER / name).write_bytes(image)


def build_comparison_name(comparison: Comparison) -> str:
    """Return a run name for a comparison, for example "compare replay vs naive (6 runs)".

    One group results in "replay: 3 runs". With more than three groups, or if their names are too
    long, it is "compare replay vs 3 others (12 runs)".
    """
    groups = [group.name for group in comparison.groups]
    num_runs = len(comparison.runs)
    split = ", validation" if comparison.is_validation else ""
    if len(groups) == 1:
        return f"{groups[0]}: {num_runs} run{'s' if num_runs > 1 else ''}{split}"
    sides = " vs ".join(groups[:3])
    if len(groups) > 3 or len(sides) > _MAX_NAME_LENGTH:
        sides = f"{groups[0]} vs {len(groups) - 1} other{'s' if len(groups) > 2 else ''}"
    return f"compare {sides} ({num_runs} runs{split})"


def _build_tags(comparison: Comparison, page: str) -> dict[str, str]:
    """Return the tags of a run that stores a comparison. page: link to its HTML page."""
    table = {"path": names.LEADERBOARD_TABLE, "type": "table"}
    has_leader = bool(build_leader_metrics(comparison))
    return {
        **({names.LEADER_TAG: comparison.groups[0].name} if has_leader else {}),
        names.KIND_TAG: names.KIND_COMPARE,
        names.COMPARED_TAG: join_run_ids([compared_run.run_id for compared_run in comparison.runs]),
        names.COMPARED_COUNT_TAG: str(len(comparison.runs)),
        names.VERSION_TAG: __version__,
        MLFLOW_RUN_NOTE: format_description(comparison, page=page),
        MLFLOW_LOGGED_ARTIFACTS: json.dumps([table]),
    }


def join_run_ids(run_ids: Sequence[str]) -> str:
    """Join run ids with commas. After the first 200, ``...`` replaces the rest."""
    return ",".join([*run_ids[:_MAX_LISTED_IDS], *(["..."] if run_ids[_MAX_LISTED_IDS:] else [])])
