"""The comparison of an experiment's runs as they are now, drawn anew when one of them changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from itertools import islice

from mlflow import MlflowClient
from mlflow.entities import Run

from clear_mlflow.api.compared import build_comparison_name, read_comparison
from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.page import comparison_page
from clear_mlflow.comparison.page.wording import many, short
from clear_mlflow.core.text import printable
from clear_mlflow.core.version import __version__
from clear_mlflow.server.kept_pages import KeptPages
from clear_mlflow.server.mlflow_hooks import without_addresses
from clear_mlflow.server.run_state import minute, state_of
from clear_mlflow.store import names
from clear_mlflow.store.client import map_in_threads
from clear_mlflow.store.search import search_runs

# Runs that one page lists and compares: what a request may cost.
MOST_RUNS = 500
_JOBS = 8


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be compared."""

    experiment_id: str
    experiment: str
    workspace: str = ""  # that the address names
    wanted: str = ""  # a filter in MLflow's search syntax
    group_by: tuple[str, ...] | None = None  # None: the usual ones
    runs: tuple[str, ...] = ()  # beginnings of ids that are ticked; none: all that are found

    def includes(self, run_id: str) -> bool:
        """Whether a run is ticked."""
        return not self.runs or run_id.startswith(self.runs)


def live_comparison(store: MlflowClient, question: Question, kept: KeptPages) -> str:
    """The page as the runs are now; what it costs is bounded by how many it lists."""
    found = search_runs(store, [question.experiment_id], question.wanted)
    runs = list(islice(found, MOST_RUNS + 1))
    states = list(map_in_threads(partial(state_of, store), runs, _JOBS))
    return kept.get([asdict(question), *states], lambda: _drawn(store, question, runs))


def _drawn(store: MlflowClient, question: Question, found: Sequence[Run]) -> str:
    runs = [
        run
        for run in found[:MOST_RUNS]
        if run.data.tags.get(names.KIND_TAG) not in names.WITHOUT_ROWS
    ]
    ticked = [run for run in runs if question.includes(run.info.run_id)]
    group_by = question.group_by
    comparison = read_comparison(
        store,
        ticked,
        group_by=group_by,
        explicit=bool(question.runs),
        # A scored run's rows are in its tag, which the listing brought; else files are read.
        read_files=False,
        over_images=False,
    ).comparison
    notes = _notes(question, runs, comparison, is_cut=len(found) > MOST_RUNS)
    warnings = tuple(without_addresses(text) for text in (*notes, *comparison.warnings))
    return comparison_page(
        replace(comparison, warnings=warnings),
        title=build_comparison_name(comparison),
        footer=f"clear_mlflow {__version__}, as of {datetime.now(timezone.utc):%F %T} UTC",
        over="clear_mlflow.server.page/compare",
        chooser={
            "experiment_id": question.experiment_id,
            "experiment": short(question.experiment),
            "workspace": question.workspace,
            "filter": question.wanted,
            "group_by": "" if group_by is None else ",".join(group_by) or "none",
            "default_group_by": ",".join(comparison.group_by),
            "summary": f"{len(ticked)} of {many(len(runs), 'run')} ticked",
            "choices": [_choice(question, run) for run in runs],
        },
    )


def _notes(
    question: Question, runs: Sequence[Run], comparison: Comparison, *, is_cut: bool
) -> Iterator[str]:
    if is_cut:
        yield f"These are the newest {MOST_RUNS} runs; a filter shows others."
    lost = [
        start
        for start in question.runs
        if not any(run.info.run_id.startswith(start) for run in runs)
    ]
    if lost:
        listed = ", ".join(printable(start[:8]) for start in lost[:10])
        yield f"{len(lost)} of the runs asked for are not among those found: {listed}."
    if any(group.is_alone for group in comparison.groups):
        yield (
            "Single runs are neither tested here nor have intervals: clear-mlflow compare computes "
            "both over their test images."
        )


def _choice(question: Question, run: Run) -> dict[str, object]:
    info = run.info
    details = [] if info.status == "FINISHED" else [info.status.lower()]
    if run.data.tags.get(names.DIVERGED_TAG) == "true":
        details.append("diverged")
    return {
        "id": info.run_id,
        "name": short(info.run_name or info.run_id),
        "started": minute(run),
        "details": ", ".join(details),
        "ticked": question.includes(info.run_id),
    }
