"""Compare runs: read them back, and open a run that holds what the comparison shows."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Param, Run, RunTag
from mlflow.utils.mlflow_tags import (
    MLFLOW_LOGGED_ARTIFACTS,
    MLFLOW_RUN_NAME,
    MLFLOW_RUN_NOTE,
)
from mlflow.utils.time import get_current_time_millis

from clear_mlflow.api.bundle import is_bundle
from clear_mlflow.api.compared import ComparedRuns, LeftOut
from clear_mlflow.api.load import Runs, chosen, open_store, those_there
from clear_mlflow.comparison.arrangement import arrange, default_group_by, only_score
from clear_mlflow.comparison.arrangement import at_equal as equal_runs
from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.build import compare as tested_groups
from clear_mlflow.comparison.figures import figures
from clear_mlflow.comparison.groups import NOT_SAID, cut
from clear_mlflow.comparison.note import comparison_note
from clear_mlflow.comparison.page import comparison_page
from clear_mlflow.comparison.subjects import RowlessRun, Subject
from clear_mlflow.comparison.tables import (
    latex_table,
    leader_numbers,
    leaderboard_csv,
    leaderboard_json,
)
from clear_mlflow.core.errors import ClearError, ConfigError, FailedMetricError
from clear_mlflow.core.record import Record
from clear_mlflow.core.score import Score
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.version import __version__
from clear_mlflow.grids.next_grids import next_grids
from clear_mlflow.learning.parameters.config import is_tuned
from clear_mlflow.learning.parameters.logged import find_method_parameters, unlogged_parameters
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.metrics import (
    COST_METRICS,
    METRICS,
    PREDICTIONS,
    Metric,
    Predictions,
    explain_undefined,
    load_metrics,
)
from clear_mlflow.scoring.run_record import read_predictions, read_test_values
from clear_mlflow.store import names
from clear_mlflow.store.client import is_missing, mlflow_errors, preflight
from clear_mlflow.store.compat import is_generated
from clear_mlflow.store.matrices import NO_ROWS, read_matrices
from clear_mlflow.store.pool import mapped
from clear_mlflow.store.search import MissingRun, experiment_for, mark_run_of_project
from clear_mlflow.store.ui_urls import artifact_link, comparison_links, run_addresses
from clear_mlflow.tracking.lifecycle import create_run, end

# Ids of 32 characters: MLflow cuts a tag off at 8,000, silently; an artifact has all of them.
_MOST_LISTED = 200
_LONGEST_NAME = 120
# Requests under way at once.
_JOBS = 8


def compare(
    runs: Runs = None,
    *,
    filter: str | None = None,  # noqa: A002
    group_by: str | Sequence[str] | None = None,
    rank_by: str | None = None,
    lower_is_better: bool | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    metrics: str | Sequence[Any] = (),
    at_equal: str | None = None,
    log: bool = True,
) -> ComparedRuns:
    """Set runs side by side: a leaderboard, matrices, curves, and which differences are real.

    Runs tested on other data or by another protocol are grouped apart and never tested against
    each other.

    Args:
        runs: an experiment's name, or runs: objects, ids, bundles. None: of all experiments, those
            that *filter* finds.
        filter: of an experiment's runs, in MLflow's search syntax.
        group_by: parameters or tags that the seeds of one method share; (): each run for itself;
            None: strategy, dataset and all parameters that affect results and differ.
        rank_by: metric of ranking and verdicts; ``clear/challenge_score`` where it is defined.
        lower_is_better: direction of *rank_by* if it is a function that does not declare it.
        baseline: the group that all others are tested against, by its name or a label.
        margin: the largest difference that does not matter, in percentage points, or in the
            score's own unit; verdicts then also say what is equivalent.
        metrics: further families by name, and metrics of your own: functions, or
            ``"package.module:function"``.
        at_equal: compare only runs that cost the same within 1 %: ``training_flops``, ``images``,
            ``stored_bytes`` or ``seconds`` (docs/cost.md).
        log: open a run that holds it all in the experiment of the compared ones.

    Raises:
        ConfigError: nothing was chosen that can be compared, or a value is none that it can be.
        TrackingError: the store does not answer, or lacks a run.
    """
    metrics = metrics.split(",") if isinstance(metrics, str) else metrics
    requested = load_metrics(metrics)
    for metric in requested:
        if metric.needs == PREDICTIONS:
            raise ConfigError(
                f"metric {metric.name} is computed from predictions, and runs are compared by "
                "metrics of the matrix; leave it out"
            )
    all_metrics = {metric.name: metric for metric in (*METRICS, *requested)}
    if lower_is_better is not None:
        ranking = all_metrics.get(rank_by or "")
        if ranking is None or ranking.higher_is_better is not None:
            raise ConfigError(
                f"lower_is_better is {lower_is_better}, but rank_by is {rank_by}, whose direction "
                "is known; leave lower_is_better out"
            )
        all_metrics[ranking.name] = replace(ranking, higher_is_better=not lower_is_better)
    client = open_store()
    own_run = mark_run_of_project(client, names.KIND_COMPARE) if log else None
    found, named = chosen(client, runs, filter=filter)
    comparison, left_out, experiment_id = read_comparison(
        client,
        found,
        group_by=group_by.split(",") if isinstance(group_by, str) else group_by,
        rank_by=rank_by,
        metrics=tuple(all_metrics.values()),
        baseline=baseline,
        margin=margin,
        at_equal=at_equal,
        named=named,
    )
    if not log:
        return ComparedRuns(comparison, tuple(left_out))
    if is_missing(client.tracking_uri):
        client = preflight()  # only bundles were compared: creates the store
    experiment_names = runs if isinstance(runs, str) else None
    if isinstance(runs, (tuple, list)):
        experiment_names = ",".join(map(str, runs))
    given = {
        "experiment": None if named else experiment_names,
        "filter": filter,
        "metrics": ",".join(name if isinstance(name, str) else "own" for name in metrics),
        "baseline": baseline,
        "margin": None if margin is None else f"{margin:.15g}",
        "at_equal": at_equal,
        "lower_is_better": None if lower_is_better is None else str(lower_is_better),
    }
    run = write_comparison(
        client,
        comparison,
        left_out,
        experiment_id=experiment_id or experiment_for(client),
        run_id=own_run,
        params={
            "group_by": ",".join(comparison.group_by) or NONE,
            "rank_by": rank_by or AUTO,
            **{name: text for name, text in given.items() if text},
        },
    )
    links = tuple(comparison_links(client, run))
    return ComparedRuns(comparison, tuple(left_out), str(run.info.run_id), links)


def read_comparison(
    client: MlflowClient,
    runs: Iterable[Run | MissingRun],
    *,
    group_by: Sequence[str] | None,
    rank_by: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    metrics: Sequence[Metric] = METRICS,
    at_equal: str | None = None,
    named: bool,
    read_files: bool | None = None,
    over_images: bool = True,
) -> tuple[Comparison, list[LeftOut], str]:
    """Read runs and compare them; gives, too, those left out, and the first one's experiment."""
    metrics = tuple({m.name: m for m in (*metrics, *COST_METRICS)}.values())
    left_out: list[LeftOut] = []
    subjects: list[Subject] = []
    rowless: list[RowlessRun] = []
    experiment_id = ""
    refused: list[str] = []
    there = those_there(runs, "compare")
    bundled = {run.info.run_id: run for run in there if is_bundle(run)}
    for stored in read_matrices(client, there, metrics=metrics, read_files=read_files):
        if stored.record is None:
            reason = str(stored.problem)
            if reason == NO_ROWS and _has_diverged(stored.run):
                rowless.append(_rowless(stored.run))
            elif reason != NO_ROWS or named:
                left_out.append(LeftOut(stored.run.info.run_id, _name(stored.run), reason))
            continue
        if not is_bundle(stored.run):
            experiment_id = experiment_id or stored.run.info.experiment_id
        try:
            test_values = read_test_values(client, stored.run, stored.record)
        except ClearError as error:
            test_values = {}
            run_name = cut(_name(stored.run))
            refused.append(f"Tests inside buckets of {run_name} are not used: {error}.")
        subjects.append(_subject(stored.run, stored.record, {**stored.summary, **test_values}))
    if not subjects:
        why = f": {left_out[0].run_id} {left_out[0].reason}" if left_out else ""
        raise ConfigError(f"none of the chosen runs holds rows of an accuracy matrix{why}")
    if group_by is None:
        group_by = default_group_by(subjects, rowless)
    subjects, others = _of_one_score(subjects, named=named)
    if at_equal is not None:
        subjects, unequal = equal_runs(subjects, at_equal, group_by)
        others += unequal
    if margin is not None:
        is_accuracy = only_score(subjects).is_accuracy
        most, what = (100, "percentage points") if is_accuracy else (sys.float_info.max, "a number")
        if not isinstance(margin, Real) or not 0 < margin <= most:
            raise ConfigError(
                f"margin is {safe_repr(margin)}; expected {what} above 0, for example 1 or 0.5"
            )
        margin = margin / 100 if is_accuracy else margin
    arrangement = arrange(
        subjects,
        group_by,
        rank_by=rank_by,
        baseline=baseline,
        margin=margin,
        rowless=rowless,
        metrics=metrics,
        tuned=filter(is_tuned, group_by),
    )
    hits = {}
    tested = arrangement.wants_predictions() if over_images else []
    for subject, found, problem in mapped(partial(_correctness, client, bundled), tested, _JOBS):
        if found is not None:
            hits[subject.run_id] = found
        elif problem is not None:
            refused.append(f"Predictions of {cut(subject.name)} are not used: {problem}.")
    comparison = tested_groups(arrangement, hits)
    passed_over = [
        f"Left out: {cut(run.run_name)} ({cut(run.run_id[:8])}), {run.reason}." for run in left_out
    ]
    return (
        replace(
            comparison,
            warnings=(
                *passed_over,
                *others,
                *dict.fromkeys(refused),
                *_failures(subjects, metrics),
                *comparison.warnings,
            ),
        ),
        left_out,
        experiment_id,
    )


def _of_one_score(subjects: list[Subject], *, named: bool) -> tuple[list[Subject], list[str]]:
    """The runs of the most common score where a search found them, and a sentence on the others."""
    by_score: dict[Score, list[Subject]] = {}
    for subject in subjects:
        by_score.setdefault(subject.record.matrix.score, []).append(subject)
    if named or len(by_score) < 2:
        return subjects, []
    kept = max(by_score, key=lambda score: len(by_score[score]))
    told = [
        f"{len(runs)} run{'s are' if len(runs) > 1 else ' is'} left out, of another score: "
        f"{score.name} ({score.better} is better), and what is compared is {kept.name}."
        for score, runs in by_score.items()
        if score != kept
    ]
    return by_score[kept], told


def _failures(subjects: Sequence[Subject], metrics: Sequence[Metric]) -> Iterator[str]:
    """A sentence for each of a user's own metrics that fails on some run, with its first reason."""
    first: dict[str, str] = {}
    runs: Counter[str] = Counter()
    for subject in subjects:
        errors = explain_undefined(subject.record.matrix, subject.record.protocol, metrics)
        for name, error in errors.items():
            if isinstance(error, FailedMetricError):
                first.setdefault(name, cut(str(error)))
                runs[name] += 1
    for name, reason in first.items():
        yield f"{name} is left out of {runs[name]} of {len(subjects)} runs: {reason}."


def _correctness(
    client: MlflowClient, bundled: Mapping[str, Run], subject: Subject
) -> tuple[Subject, Predictions | None, str | None]:
    """A run's hits, None where it stored no predictions, and why they cannot be used."""
    try:
        with mlflow_errors(f"read run {subject.run_id}"):
            run = bundled.get(subject.run_id) or client.get_run(subject.run_id)
        found = read_predictions(client, run, subject.record)
        if found is None:
            return subject, None, None
        # Right and wrong is what is compared: probabilities would be a hundred times as much.
        rows = {row: replace(x, probabilities=None) for row, x in found.rows.items()}
        return subject, replace(found, rows=rows), None
    except ClearError as error:
        return subject, None, str(error)


def _name(run: Run) -> str:
    return str(run.info.run_name or run.info.run_id)


def _has_diverged(run: Run) -> bool:
    return bool(run.data.tags.get(names.DIVERGED_TAG) == "true")


def _subject(run: Run, record: Record, summary: Mapping[str, float]) -> Subject:
    tested = {
        "dataset": record.dataset.name,
        "protocol": record.protocol,
        "split": record.split,
        "seed": "none" if record.seed is None else str(record.seed),
    }
    return Subject(
        run_id=run.info.run_id,
        name=_name(run),
        record=record,
        summary=summary,
        labels={**tested, **_labels(run)},
        method_params=_method_params(run),
        params=_unquoted_params(run),
        diverged=_has_diverged(run),
        test_every=run.data.tags.get(names.ANYTIME_TAG),
    )


def _rowless(run: Run) -> RowlessRun:
    labels = _labels(run)
    seed = labels.get("seed", "")
    return RowlessRun(
        run_id=run.info.run_id,
        name=_name(run),
        seed=int(seed) if seed.isascii() and seed.isdecimal() and len(seed) < 20 else None,
        labels=labels,
        method_params=_method_params(run),
    )


def _unquoted_params(run: Run) -> dict[str, str]:
    return {name: _unquoted(text) for name, text in run.data.params.items()}


def _method_params(run: Run) -> dict[str, str]:
    return find_method_parameters(_unquoted_params(run), NOT_SAID)


def _labels(run: Run) -> dict[str, str]:
    """What a run may be grouped by: its parameters and its tags."""
    params, tags = run.data.params, run.data.tags
    return {
        **unlogged_parameters(params),
        **_unquoted_params(run),
        **{n: text for n, text in tags.items() if not n.startswith(("mlflow.", "clear_mlflow."))},
        # What a run really used overrides what was asked for, which may be "auto".
        **{n.removeprefix("used/"): text for n, text in params.items() if n.startswith("used/")},
        **_method_params(run),
    }


def _unquoted(text: str) -> str:
    """A parameter as it was meant: ``mlflow run`` logs it quoted for the shell (mlflow #6811)."""
    with suppress(ValueError):
        words = shlex.split(text)
        if len(words) == 1 and shlex.quote(words[0]) == text:
            return words[0]
    return text


def write_comparison(
    client: MlflowClient,
    comparison: Comparison,
    left_out: Sequence[LeftOut],
    *,
    experiment_id: str,
    run_id: str | None = None,
    params: Mapping[str, str],
) -> Run:
    """Store a comparison in a run of its own, or in one that is there, which is left open."""
    name, opened = comparison_name(comparison), run_id
    now = get_current_time_millis()
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="clear_mlflow_"))
        # Before any run is opened: what cannot be drawn leaves nothing half done.
        addresses = run_addresses(client.tracking_uri)
        _write_files(comparison, left_out, Path(scratch), name, addresses)
        stack.enter_context(mlflow_errors("store the comparison"))
        if opened is None:
            kind = {names.KIND_TAG: names.KIND_COMPARE}
            opened = create_run(client, experiment_id, name, kind)
        status = "FAILED"
        try:
            run = client.get_run(opened)
            tags = _tags(comparison, artifact_link(run, names.COMPARISON_PAGE))
            if run_id is not None and is_generated(run.info.run_name):
                tags[MLFLOW_RUN_NAME] = name
            missing = [Param(k, text) for k, text in params.items() if k not in run.data.params]
            client.log_batch(
                opened,
                metrics=[
                    # Under names that no run's own have: a list of runs shows both.
                    MlflowMetric(f"{names.LEADER_METRICS}{metric}", value, now, 0)
                    for metric, value in leader_numbers(comparison).items()
                ],
                params=missing,
                tags=[RunTag(key, text) for key, text in tags.items()],
            )
            client.log_artifacts(opened, scratch)
            status = "FINISHED"
        finally:
            if run_id is None:
                end(client, opened, status)
        return client.get_run(opened)


def _write_files(
    comparison: Comparison,
    left_out: Sequence[LeftOut],
    folder: Path,
    title: str,
    run_address: Callable[[str], str] | None,
) -> None:
    """Write all artifacts of a comparison run into a folder."""
    grids = next_grids(comparison)
    now = datetime.now(timezone.utc).isoformat(timespec="minutes").replace("+00:00", " UTC")
    page = comparison_page(
        comparison,
        title=title,
        footer=f"clear_mlflow {__version__}, {now.replace('T', ' ')}",
        more_seeds=names.MORE_SEEDS if names.MORE_SEEDS in grids else None,
        chosen=names.CHOSEN if names.CHOSEN in grids else None,
        run_address=run_address,
    )
    content = ComparedRuns(comparison, tuple(left_out)).to_dict()
    texts = {
        names.COMPARISON_PAGE: page,
        names.LEADERBOARD_TABLE: leaderboard_json(comparison),
        names.LEADERBOARD_CSV: leaderboard_csv(comparison),
        names.LEADERBOARD_TEX: latex_table(comparison),
        names.COMPARED_JSON: json.dumps(content, indent=2) + "\n",
        **grids,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    pictures = folder / names.FIGURES_FOLDER
    pictures.mkdir()
    for name, picture in figures(comparison):
        (pictures / name).write_bytes(picture)


def comparison_name(comparison: Comparison) -> str:
    """What the comparison is of: its leading groups, and how many there are."""
    groups = [cut(group.name) for group in comparison.groups]
    runs = len(comparison.subjects)
    on = ", validation" if comparison.is_validation else ""
    if len(groups) == 1:
        return f"{groups[0]}: {runs} run{'s' if runs > 1 else ''}{on}"
    sides = " vs ".join(groups[:3])
    if len(groups) > 3 or len(sides) > _LONGEST_NAME:
        sides = f"{groups[0]} vs {len(groups) - 1} other{'s' if len(groups) > 2 else ''}"
    return f"compare {sides} ({runs} runs{on})"


def _tags(comparison: Comparison, page: str) -> dict[str, str]:
    table = {"path": names.LEADERBOARD_TABLE, "type": "table"}
    leader = (
        {names.LEADER_TAG: cut(comparison.groups[0].name)} if leader_numbers(comparison) else {}
    )
    return {
        **leader,
        names.KIND_TAG: names.KIND_COMPARE,
        names.COMPARED_TAG: listed([subject.run_id for subject in comparison.subjects]),
        names.COMPARED_COUNT_TAG: str(len(comparison.subjects)),
        names.VERSION_TAG: __version__,
        MLFLOW_RUN_NOTE: comparison_note(comparison, page=page),
        MLFLOW_LOGGED_ARTIFACTS: json.dumps([table]),
    }


def listed(ids: Sequence[str]) -> str:
    """As many ids as a tag holds."""
    return ",".join([*ids[:_MOST_LISTED], *(["..."] if ids[_MOST_LISTED:] else [])])
