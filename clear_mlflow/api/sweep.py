"""Train the runs of a sweep that are not done, compare all, and store the result."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlflow.entities import Run
from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clear_mlflow.api.compared import ComparedRuns, compare_stored_runs, split_group_by
from clear_mlflow.api.comparison_run import store_comparison
from clear_mlflow.core.errors import ClearError, ConfigError
from clear_mlflow.core.text import format_count, safe_repr
from clear_mlflow.journal.run_folder import Outcome, Status
from clear_mlflow.journal.uploader import store_outcome
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.process.signals import StoppingSignals
from clear_mlflow.store import names
from clear_mlflow.store.client import (
    connect_store,
    is_missing_store,
    log_tags,
    mlflow_errors,
    open_store,
    resolve_store_uri,
    set_up_mlflow,
)
from clear_mlflow.store.search import find_or_create_experiment, read_project_run, select_runs
from clear_mlflow.store.ui_urls import format_comparison_links, parse_sweep_comparison
from clear_mlflow.sweeps.grid import (
    DONE,
    DONE_BEFORE,
    FAILED,
    NOT_DONE,
    Grid,
    SweepRun,
    build_grid,
    hash_json,
    parse_yaml,
)
from clear_mlflow.sweeps.local import LocalEngine
from clear_mlflow.sweeps.run import (
    Engine,
    build_engine,
    check_and_hash_runs,
    print_line,
    read_checked_grid,
    train_runs,
)
from clear_mlflow.sweeps.store import SweepStore, close_parent_run, open_parent_run
from clear_mlflow.sweeps.study import (
    COMPLETE,
    Study,
    StudyReport,
    build_report,
    choose_parameters,
    compute_mean,
    drop_repeated_runs,
    format_choices,
    get_metric_values,
    iter_combinations,
    read_study,
)


@dataclass(frozen=True, repr=False)
class SweepResult:
    """The runs of a sweep and their comparison, which ``print`` shows.

    ``clear_mlflow.runs(EXPERIMENT)`` returns the runs as objects.
    """

    run_id: str  # of the parent run
    runs: tuple[SweepRun, ...]
    comparison: ComparedRuns | None = None
    problems: tuple[str, ...] = ()  # one line each, about anything except single runs
    study: StudyReport | None = None  # None for other files than a study

    @property
    def counts(self) -> Counter[str]:
        """Number of runs by state."""
        return Counter(run.state for run in self.runs)

    @property
    def is_complete(self) -> bool:
        """True if every run is done, and nothing else went wrong."""
        return not self.problems and all(run.state in (DONE, DONE_BEFORE) for run in self.runs)

    @property
    def compared(self) -> ComparedRuns:
        """The comparison of the runs. Raises ConfigError if nothing was compared."""
        if self.comparison is None:
            problem = f"nothing was compared in {self.summary}"
            raise ConfigError("; ".join([problem, *self.problems]))
        return self.comparison

    @property
    def summary(self) -> str:
        """Number of runs by state, in one line."""
        counts = ", ".join(f"{count} {state}" for state, count in sorted(self.counts.items()))
        return f"sweep {self.run_id}: {counts or 'no runs'}"

    def __repr__(self) -> str:
        return f"SweepResult({self.summary})"

    def __str__(self) -> str:
        results = [str(part) for part in (self.comparison, self.study) if part is not None]
        return "\n\n".join([self.summary, *self.problems, *results])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in (self.summary, *self.problems))
        lines += "" if self.comparison is None else self.comparison._repr_html_()
        return lines if self.study is None else f"{lines}<pre>{html.escape(str(self.study))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Return runs with states, the comparison and problems for JSON."""
        return {
            "run_id": self.run_id,
            "runs": [run.to_dict() for run in self.runs],
            "compared": None if self.comparison is None else self.comparison.to_dict(),
            "problems": list(self.problems),
            "study": None if self.study is None else self.study.to_dict(),
        }


@dataclass(frozen=True)
class SweepOptions:
    """Where and how the grids of a sweep are trained and compared.

    See :func:`clear_mlflow.sweep`. The caller has entered the engine. should_stop: called
    repeatedly; if it returns True, active runs are stopped and scored.
    """

    store: SweepStore
    engine: Engine
    retries: int = 2
    group_by: str | Sequence[str] = AUTO
    rank_by: str = AUTO
    run_name: str | None = None
    should_stop: Callable[[], bool] = lambda: False


def run_sweep(
    grid: Mapping[str, Any] | str | Path | None,
    *,
    experiment: str | None,
    run_name: str | None,
    retries: int,
    group_by: str | Sequence[str],
    rank_by: str,
    regret: bool = False,
    **engine_options: Any,
) -> tuple[SweepResult, StoppingSignals]:
    """Train and compare the runs of a grid, like :func:`clear_mlflow.sweep`.

    Prints a line to standard error when a run starts or ends. Also returns the received signals:
    a signal such as SIGINT ends the sweep early, and does not raise.

    engine_options: the other arguments of :func:`build_engine`.
    """
    if retries < 0:
        raise ConfigError(
            f"retries is {retries}; expected a whole number of at least 0", parameter="retries"
        )
    study, checked_grid = _read_sweep(grid, engine_options["engine"])
    if regret and study is None:
        raise ConfigError(
            "regret is on, but the grid lacks the sections tune and test; pass a study, or leave "
            "it out",
            parameter="regret",
        )
    engine = build_engine(checked_grid, **engine_options)
    set_up_mlflow()
    client = connect_store(experiment=experiment)
    # MLflow may have opened a run for this process, in another experiment.
    project_run = None if experiment else read_project_run(client, names.KIND_SWEEP)
    store = SweepStore(
        client,
        find_or_create_experiment(client, experiment)
        if project_run is None
        else str(project_run.info.experiment_id),
    )
    store.read_states(checked_grid)
    if study is None and not checked_grid.num_waiting:
        engine = LocalEngine()  # no cluster is started without need
    # The engine is entered first: Ray takes the signals for itself when it starts.
    with engine, StoppingSignals() as signals:
        if num_waiting := checked_grid.num_waiting:
            num_runs, capacity = len(checked_grid.runs), engine.describe_capacity()
            print_line(f"{num_waiting} of {format_count(num_runs, 'run')} to train, {capacity}")
        options = SweepOptions(
            store, engine, retries, group_by, rank_by, run_name, lambda: bool(signals.received)
        )
        if study is None:
            return train_and_compare(checked_grid, options), signals
        engine_name = engine_options["engine"]
        return _run_study(study, checked_grid, options, engine_name, with_regret=regret), signals


def _read_sweep(
    grid: Mapping[str, Any] | str | Path | None, engine: str
) -> tuple[Study | None, Grid]:
    """Return the study or None, and its checked tuning runs or grid."""
    study = None
    if grid is not None:
        study = read_study(grid if isinstance(grid, Mapping) else Path(grid))
    if study is None:
        return None, read_checked_grid(grid, engine)
    for method in study.methods:  # an invalid test is an error before anything is trained
        _plan_checked(study, study.test, [method.defaults, *method.draws], engine)
    draws = (draw for method in study.methods for draw in method.draws)
    return study, drop_repeated_runs(_plan_checked(study, study.tune, draws, engine))


def _plan_checked(
    study: Study,
    stream: Mapping[str, Sequence[str]],
    combinations: Iterable[Mapping[str, str]],
    engine: str,
) -> Grid:
    """Return checked runs of combinations on a stream, which may repeat."""
    grid = study.build_grid(stream, combinations)
    check_and_hash_runs(grid, engine)
    return grid


def _run_study(
    study: Study, tune_grid: Grid, options: SweepOptions, engine: str, *, with_regret: bool
) -> SweepResult:
    """Train the tuning runs, choose, and only then train the test runs.

    Ends with the result so far if a run was not trained or nothing can be chosen: the next call
    continues. engine: "local" or "ray".
    """
    store, client = options.store, options.store.client
    by_metric = study.metric if study.select_on == COMPLETE else AUTO
    tuned = train_and_compare(tune_grid, replace(options, group_by=AUTO, rank_by=by_metric))
    # What is passed as rank_by is the metric that the section search names.
    texts = [text.replace(": rank_by is", ": metric of search is") for text in tuned.problems]
    tuned = replace(tuned, problems=tuple(texts))
    try:
        if unfinished := [run for run in tuned.runs if not _is_compared(store, run)]:
            raise ConfigError(
                f"{len(unfinished)} of {format_count(len(tuned.runs), 'tuning run')} "
                f"{'is' if len(unfinished) == 1 else 'are'} not done, such as "
                f"{safe_repr(unfinished[0].name)}; repeat the command, or leave it out of the file"
            )
        comparison = tuned.compared.comparison
        draws = (draw for method in study.methods for draw in method.draws)
        tune_runs = _plan_checked(study, study.tune, draws, engine).runs
        choices, metric = choose_parameters(study, comparison, tune_runs, tuned.runs)
        chosen = format_choices(study, comparison, choices, metric)
    except ClearError as error:
        return replace(tuned, problems=(*tuned.problems, f"nothing was chosen: {error}"))
    stream = comparison.conditions[0]
    tags = {names.TUNED_ON: stream.name, names.TUNED_ON_DIGEST: stream.digest}
    with mlflow_errors(f"store the choice in run {tuned.run_id}"):
        client.log_text(tuned.run_id, chosen, names.CHOSEN)
        log_tags(client, tuned.run_id, tags)
    chosen_grid = build_grid(chosen, parse_yaml(chosen))
    check_and_hash_runs(chosen_grid, engine)
    for choice, runs in zip(choices, iter_combinations(chosen_grid.runs, study.test), strict=True):
        print_line(f"chosen on {stream.name}: {choice} ({metric} {choice.mean:.4f})")
        num_draws = str(len(choice.method.draws))
        for run in runs:
            run.tags = {**tags, names.TUNED_DRAWS: num_draws, names.TUNED_IN: tuned.run_id}
    test_grid = drop_repeated_runs(chosen_grid)
    store.read_states(test_grid)
    tested = train_and_compare(test_grid, options)
    result = replace(tested, runs=(*tuned.runs, *tested.runs))
    if any(run.state == NOT_DONE for run in tested.runs) or tested.comparison is None:
        return result
    grids = [
        _plan_checked(study, study.test, choice.list_tested(with_regret=with_regret), engine)
        for choice in choices
    ]
    hashes = {run.config_hash for run in test_grid.runs}
    others = [run for grid in grids for run in grid.runs if run.config_hash not in hashes]
    values = get_metric_values(tested.comparison.comparison, tested.runs)
    if others:
        other_grid = drop_repeated_runs(replace(grids[0], runs=tuple(others)))
        store.read_states(other_grid)
        untuned = train_and_compare(other_grid, replace(options, group_by=AUTO, rank_by=AUTO))
        problems = (*result.problems, *untuned.problems)
        result = replace(result, runs=(*result.runs, *untuned.runs), problems=problems)
        if any(run.state == NOT_DONE for run in untuned.runs):
            return result
        if untuned.comparison is not None:
            values |= get_metric_values(untuned.comparison.comparison, untuned.runs)
    means = [
        [compute_mean(runs, values, metric) for runs in iter_combinations(grid.runs, study.test)]
        for grid in grids
    ]
    is_higher_better = tested.comparison.comparison.is_higher_better(metric)
    report = build_report(choices, means, metric, stream.name, sign=1 if is_higher_better else -1)
    with mlflow_errors(f"store the report in run {tested.run_id}"):
        client.log_text(tested.run_id, study.text, names.STUDY_FILE)
        client.log_text(tested.run_id, json.dumps(report.to_dict(), indent=2), names.STUDY_JSON)
        if report.tau is not None:
            client.log_metric(tested.run_id, names.STUDY_TAU, report.tau)
    return replace(result, study=report)


def plan_sweep(
    grid: Mapping[str, Any] | str | Path | None, **engine_options: Any
) -> tuple[Grid, str]:
    """Return a grid with its runs' states, and its capacity in words.

    The text is empty if no run would be trained. Writes nothing to the store. Connects to the Ray
    cluster, or starts one, if the engine is ray and runs would be trained.

    engine_options: arguments of :func:`build_engine`.
    """
    _, checked_grid = _read_sweep(grid, engine_options["engine"])
    engine = build_engine(checked_grid, **engine_options)
    client, name = open_store(), MLFLOW_EXPERIMENT_NAME.get()
    if not is_missing_store(client.tracking_uri) and (
        not name or client.get_experiment_by_name(name) is not None
    ):
        SweepStore(client, find_or_create_experiment(client)).read_states(checked_grid)
    if not checked_grid.num_waiting:
        return checked_grid, ""
    with engine:
        return checked_grid, engine.describe_capacity()


def train_and_compare(grid: Grid, options: SweepOptions) -> SweepResult:
    """Train the open runs of a grid, and compare all.

    Stores the result. Prints a line to standard error when a run starts or ends. The parent run is
    opened, and closed with the comparison. If an error is raised, it is FAILED.

    grid: its runs have their states in the store.
    """
    store, engine = options.store, options.engine
    client = store.client
    engine.check_store(resolve_store_uri(client.tracking_uri))
    store.parent_id = open_parent_run(client, store.experiment_id, grid, options.run_name)
    try:
        train_runs(store, grid.runs, engine, options.retries, options.should_stop)
        result, comparison_run = SweepResult(store.parent_id, grid.runs), None
        if not options.should_stop():
            labels = split_group_by(options.group_by)
            labels = grid.group_by if labels is None else labels
            result, comparison_run = _compare(store, result, labels, options.rank_by)
        status: Status = "FINISHED" if result.is_complete else "FAILED"
        status = "KILLED" if options.should_stop() else status
        close_parent_run(client, store.parent_id, grid.runs, status, comparison_run)
        return result
    except BaseException:
        with suppress(ClearError):
            store_outcome(client, store.parent_id, Outcome("FAILED"))
        raise


def _compare(
    store: SweepStore, result: SweepResult, labels: Sequence[str], rank_by: str
) -> tuple[SweepResult, Run | None]:
    """Compare the runs, and store that, unless it is stored already.

    A stored comparison of the same runs is reused. If the runs cannot be compared, the error
    is added to the problems of the result, and the run is None.
    """
    client = store.client
    run_ids = tuple(str(run.run_id) for run in result.runs if _is_compared(store, run))
    if not run_ids:
        return result, None
    params = {"group_by": ",".join(labels) or NONE, "rank_by": rank_by}
    digest = hash_json(json.dumps([sorted(run_ids), params], sort_keys=True))
    try:
        compared = compare_stored_runs(
            client,
            select_runs(client, run_ids=run_ids),
            group_by=labels,
            rank_by=None if rank_by == AUTO else rank_by,
            explicit=True,
        )
        run = _find_comparison(store, digest)
        if run is None:
            run = store_comparison(
                client, compared, experiment_id=store.experiment_id, params=params
            )
            with mlflow_errors(f"tag run {run.info.run_id}"):
                client.set_tag(run.info.run_id, MLFLOW_PARENT_RUN_ID, result.run_id)
                reference = json.dumps({"run_id": run.info.run_id, "of": digest})
                client.set_tag(result.run_id, names.SWEEP_COMPARISON_TAG, reference)
        links = tuple(format_comparison_links(client, run))
        compared = replace(compared, run_id=str(run.info.run_id), links=links)
        return replace(result, comparison=compared), run
    except ClearError as error:
        return replace(result, problems=(f"the runs were not compared: {error}",)), None


def _is_compared(store: SweepStore, run: SweepRun) -> bool:
    """Return True if a run is done or diverged."""
    if run.run_id is None or run.state != FAILED:
        return run.state in (DONE, DONE_BEFORE)
    with mlflow_errors(f"read run {run.run_id}"):
        tags = store.client.get_run(run.run_id).data.tags
    return bool(tags.get(names.DIVERGED_TAG) == "true")


def _find_comparison(store: SweepStore, digest: str) -> Run | None:
    with mlflow_errors(f"read run {store.parent_id}"):
        tags = store.client.get_run(str(store.parent_id)).data.tags
    reference = parse_sweep_comparison(tags)
    if reference.get("of") != digest:
        return None
    (run,) = select_runs(store.client, run_ids=[str(reference.get("run_id"))])
    return run if isinstance(run, Run) else None
