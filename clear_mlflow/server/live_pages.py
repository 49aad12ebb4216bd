"""The report of a run and the comparison of an experiment's runs, as they are now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from itertools import islice

from mlflow import MlflowClient
from mlflow.entities import Run, RunStatus

from clear_mlflow.api.compared import compare_stored_runs
from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.page.charts import shorten
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.comparison.wording import build_comparison_name
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.text import format_count, printable
from clear_mlflow.core.version import __version__
from clear_mlflow.report.page import render_page
from clear_mlflow.report.page.run_page import render_run_page
from clear_mlflow.scoring import evaluate
from clear_mlflow.scoring.run_log import build_report
from clear_mlflow.scoring.run_record import (
    list_test_sizes,
    read_predictions_and_tests,
    read_record,
)
from clear_mlflow.server.request_store import hide_addresses
from clear_mlflow.store import names
from clear_mlflow.store.client import map_in_threads
from clear_mlflow.store.rows import list_row_sizes
from clear_mlflow.store.search import search_runs

# Runs that one page lists and compares, which bounds the cost of a request.
MAX_RUNS = 500
_THREADS = 8
_RUN_TEMPLATE = "clear_mlflow.server/page/run"
# Tags that change while nothing changes that a page shows.
_HEARTBEAT_TAGS = frozenset({names.PROCESS_TAG, names.HOLDER_TAG})


@dataclass(frozen=True, kw_only=True)
class ComparisonQuery:
    """The runs and options in the address of a comparison page.

    Without *run_id_prefixes*, all runs that match the filter are compared; with them, only runs
    whose id starts with one of them.
    """

    experiment_id: str
    experiment_name: str
    workspace: str = ""  # empty: the default one, or a server without workspaces
    filter_string: str = ""  # in MLflow's search syntax
    group_by: tuple[str, ...] | None = None  # parameters; None: the default ones
    run_id_prefixes: tuple[str, ...] = ()  # of the selected runs; empty: all runs

    def is_selected(self, run: Run) -> bool:
        """Return True if the address selects a run for the comparison."""
        return not self.run_id_prefixes or run.info.run_id.startswith(self.run_id_prefixes)


def list_runs(client: MlflowClient, query: ComparisonQuery) -> tuple[list[Run], list[list[object]]]:
    """Return the newest runs that match a query, and :func:`describe_state` of each.

    There are at most MAX_RUNS + 1, which shows that there are more than MAX_RUNS.
    """
    runs = search_runs(client, [query.experiment_id], query.filter_string)
    newest = list(islice(runs, MAX_RUNS + 1))
    return newest, list(map_in_threads(partial(describe_state, client), newest, _THREADS))


def render_live_comparison(
    client: MlflowClient, query: ComparisonQuery, listed_runs: list[Run]
) -> str:
    """Return the HTML page that compares the runs that a query selects.

    listed_runs: runs that match the query's filter. Only the first MAX_RUNS are used, without
    sweeps, ensembles and other runs that only refer to other runs.
    """
    runs = [
        run
        for run in listed_runs[:MAX_RUNS]
        if run.data.tags.get(names.KIND_TAG) not in names.WITHOUT_ROWS
    ]
    selected = [run for run in runs if query.is_selected(run)]
    comparison = compare_stored_runs(
        client,
        selected,
        group_by=query.group_by,
        explicit=bool(query.run_id_prefixes),
        is_live=True,
    ).comparison
    notes = _iter_notes(query, runs, comparison, has_more_runs=len(listed_runs) > MAX_RUNS)
    warnings = tuple(hide_addresses(text) for text in (*notes, *comparison.warnings))
    group_by = query.group_by
    return render_comparison_page(
        replace(comparison, warnings=warnings),
        title=build_comparison_name(comparison),
        footer=f"clear_mlflow {__version__}, as of {datetime.now(timezone.utc):%F %T} UTC",
        extension="clear_mlflow.server/page/compare",
        chooser={
            "experiment_id": query.experiment_id,
            "experiment": shorten(query.experiment_name),
            "workspace": query.workspace,
            "filter": query.filter_string,
            "group_by": "" if group_by is None else ",".join(group_by) or "none",
            "default_group_by": ",".join(comparison.group_by),
            "summary": f"{len(selected)} of {format_count(len(runs), 'run')} ticked",
            "choices": [_describe_run(query, run) for run in runs],
        },
    )


def _iter_notes(
    query: ComparisonQuery, runs: Sequence[Run], comparison: Comparison, *, has_more_runs: bool
) -> Iterator[str]:
    if has_more_runs:
        yield f"These are the newest {MAX_RUNS} runs; a filter shows others."
    missing = [
        prefix
        for prefix in query.run_id_prefixes
        if not any(run.info.run_id.startswith(prefix) for run in runs)
    ]
    if missing:
        prefixes = ", ".join(printable(prefix[:8]) for prefix in missing[:10])
        yield f"{len(missing)} of the ticked runs are not on this page: {prefixes}."
    if any(len(group.results) == 1 for group in comparison.groups):
        yield (
            "Single runs are neither tested here nor have intervals: clear-mlflow compare computes "
            "both over their test images."
        )


def _describe_run(query: ComparisonQuery, run: Run) -> dict[str, object]:
    """Return JSON values of a run for the page's checkboxes."""
    details = [] if run.info.status == "FINISHED" else [run.info.status.lower()]
    if run.data.tags.get(names.DIVERGED_TAG) == "true":
        details.append("diverged")
    return {
        "id": run.info.run_id,
        "name": shorten(run.info.run_name or run.info.run_id),
        "started": format_start(run),
        "details": ", ".join(details),
        "ticked": query.is_selected(run),
    }


def describe_state(client: MlflowClient, run: Run) -> list[object]:
    """Return JSON values that differ if a run's report would differ.

    They contain its status, parameters, tags, and the sizes of its row files. If the files cannot
    be listed, the values contain the error message.
    """
    info, tags = run.info, run.data.tags
    state: list[object] = [
        *(info.run_id, info.run_name, info.status, info.end_time),
        run.data.params,
        {name: value for name, value in tags.items() if name not in _HEARTBEAT_TAGS},
    ]
    if names.MATRIX_TAG not in tags or not _has_ended(run):
        try:
            state.append(list_row_sizes(client, run))
            if names.ANYTIME_TAG in tags:
                state.append(list_test_sizes(client, run))
        except ClearError as error:
            state.append(str(error))
    return state


def hash_state(state: object) -> str:
    """Return a hash, 16 hexadecimal digits, of JSON values."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]


def format_start(run: Run) -> str:
    """Return a run's start in UTC, for example ``2026-11-24 09:30``."""
    return f"{datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc):%Y-%m-%d %H:%M}"


def render_live_run(client: MlflowClient, run: Run, state: list[object], workspace: str) -> str:
    """Return a run's report, which reloads itself when *state* has changed.

    A run without rows gets a page that states this. Raises RecordError if a row is damaged.

    state: result of :func:`describe_state`. workspace: name of MLflow's workspace, for links; empty
    for the default one.
    """
    page_links = {
        "run_id": run.info.run_id,
        "experiment_id": run.info.experiment_id,
        "workspace": workspace,
        "status": run.info.status.lower(),
        "state": hash_state(state),
        "is_followed": not _has_ended(run),
    }
    stored = read_record(client, run, read_files=False)
    stored = read_predictions_and_tests(client, stored, is_live_page=True)
    if stored.record is None:
        return render_page(
            "clear_mlflow.server/page/no_rows",
            extension=_RUN_TEMPLATE,
            title=shorten(stored.run_name, 160),
            subtitle="No row of an accuracy matrix is stored in this run.",
            warnings=(),
            footer=f"Run {run.info.run_id}.",
            links=page_links,
        )
    problems = {name: hide_addresses(reason) for name, reason in stored.problems.items()}
    stored = replace(stored, problems=problems)
    return render_run_page(
        build_report(stored, evaluate(stored)), extension=_RUN_TEMPLATE, links=page_links
    )


def _has_ended(run: Run) -> bool:
    return bool(RunStatus.is_terminated(RunStatus.from_string(run.info.status)))
