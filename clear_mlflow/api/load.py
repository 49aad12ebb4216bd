"""Stored runs as objects, and the choice of runs by id, experiment or path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

from mlflow.entities import Run as MlflowRun

from clear_mlflow.core.batch_record import PrequentialRecord
from clear_mlflow.core.errors import ConfigError, RecordError, TrackingError
from clear_mlflow.core.record import Record
from clear_mlflow.core.text import one_line, safe_repr, show_blank
from clear_mlflow.metrics import MATRIX, MetricResult, MetricResults, Predictions
from clear_mlflow.report.displayed_run import DisplayedRun
from clear_mlflow.scoring import Scores, load_scores
from clear_mlflow.scoring.run_record import get_configuration
from clear_mlflow.store.client import MlflowClient, is_missing_store, open_store
from clear_mlflow.store.offline import ARCHIVE, get_bundle_path, is_bundle, is_offline_folder
from clear_mlflow.store.rows import NO_ROWS, read_records
from clear_mlflow.store.search import MissingRun, expand_run_id, has_experiment, select_runs
from clear_mlflow.store.ui_urls import format_run_links

_RUN_ID = re.compile(r"[0-9a-f]{32}")
# A run as an object, by its id or by at least the first six digits; an experiment by its name; a
# bundle by its path; several of these; None for all experiments.
Runs: TypeAlias = "str | Path | Run | Iterable[str | Path | Run] | None"


class Run(DisplayedRun):
    """A stored run, returned by :func:`clear_mlflow.load` and similar functions.

    Attributes are read from the store when they are first used. A notebook shows the heat map,
    metrics and links; ``print`` shows the same as tables.
    """

    def __init__(
        self,
        client: MlflowClient,
        run: MlflowRun,
        *,
        scores: Scores | None = None,
        record: Record | None = None,
    ) -> None:
        self._client, self._run = client, run
        if scores is not None:
            self.__dict__["scores"] = scores
        if record is not None:
            self.__dict__["record"] = record

    @property
    def run_id(self) -> str:
        """The id of the MLflow run."""
        return str(self._run.info.run_id)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the MLflow run."""
        return str(self._run.info.run_name or self.run_id)

    @property
    def status(self) -> str:
        """MLflow's status: FINISHED, FAILED, KILLED or RUNNING."""
        return str(self._run.info.status)

    @property
    def tags(self) -> Mapping[str, str]:
        """The run's tags, without MLflow's own tags."""
        return {k: v for k, v in self._run.data.tags.items() if not k.startswith("mlflow.")}

    @property
    def config(self) -> Mapping[str, str]:
        """All parameters of the training, with ``auto`` resolved."""
        # Imported here and in other methods: show needs only the rows and metrics of a stored run.
        from clear_mlflow.learning.parameters.logged import list_unlogged_defaults

        params = self._run.data.params
        return get_configuration({**list_unlogged_defaults(params), **params})

    @property
    def entity(self) -> MlflowRun:
        """The MLflow entity of the run."""
        return self._run

    @property
    def is_bundle(self) -> bool:
        """True if the run was read from a bundle or folder."""
        return is_bundle(self._run)

    @property
    def links(self) -> tuple[str, ...]:  # type: ignore[override]
        """Lines: how to open the run, or its bundle's path.

        Without a server, the lines have commands instead of URLs.
        """
        if self.is_bundle:
            return (f"bundle   {get_bundle_path(self._run)}",)
        return tuple(format_run_links(self._client, self._run))

    @cached_property
    def record(self) -> Record:  # type: ignore[override]
        """The stored rows: accuracy matrix, protocol, split, dataset and seed.

        Raises:
            RecordError: the run lacks rows, or a row is damaged.
            TrackingError: the store cannot be reached.
        """
        if self.scores.record is None:
            raise RecordError(f"run {self.run_id} {NO_ROWS}")
        return self.scores.record

    @cached_property
    def metrics(self) -> Mapping[str, MetricResult]:
        """All metrics by name: value, history and interval, or a reason.

        The intervals (95 %, bootstrap over test images) need stored predictions, and accuracy as
        the score; metrics without them have None.
        """
        from clear_mlflow.statistics import ImageBootstrap

        results = self._results
        if self.predictions is None or not self.matrix.score.is_accuracy:
            return results
        metrics = [metric for metric in self.scores.stored.metrics if metric.needs == MATRIX]
        intervals = ImageBootstrap(metrics=metrics).intervals(self.predictions)
        return MetricResults(
            (name, replace(result, interval=intervals.get(name)))
            for name, result in results.items()
        )

    @property
    def _results(self) -> MetricResults:  # type: ignore[override]
        return self.scores.results

    @property
    def predictions(self) -> Predictions | None:
        """The predicted class of each test image after each row.

        It is None if predictions are not stored, or if they are damaged.
        """
        return self.scores.stored.predictions

    @property
    def prequential(self) -> PrequentialRecord | None:
        """Batches in the order of training, with those predicted right before.

        It is None if the run was trained without ``prequential``, or if the file is damaged.
        """
        return self.scores.stored.prequential

    def to_dict(self) -> dict[str, Any]:
        """Return the run in the format of ``show --json``, which docs/json.md describes.

        Raises the errors of :attr:`record`.
        """
        record = self.record
        return {
            "run_id": self.run_id,
            "name": self.name,
            "status": self.status,
            "dataset": {"name": record.dataset.name, "digest": record.dataset.digest},
            "protocol": record.dataset.protocol,
            "split": record.dataset.split,
            "seed": record.seed,
            "is_complete": record.is_complete,
            "matrix": self.matrix.to_dict(),
            "cost": [None if cost is None else cost.to_dict() for cost in self.matrix.costs],
            "metrics": {name: result.to_dict() for name, result in self.metrics.items()},
            "config": dict(self.config),
            "tags": dict(self.tags),
            "links": list(self.links),
        }

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.run_id}, {self.status})"

    def _describe_problem(self) -> str | None:
        try:
            self.record  # noqa: B018
        except RecordError as error:
            return one_line(f"{self.name} {self.status}: {error}")
        return None

    @cached_property
    def scores(self) -> Scores:
        """The stored rows and predictions, and the metrics, computed from them.

        Raises RecordError if a row is damaged, and TrackingError if the store cannot be reached.
        """
        return load_scores(self._client, self._run)


def load(run: str | Path) -> Run:
    """Return a stored run by its id, or a bundle's path.

    The first six digits of an id are enough if no other run starts with them. The path may also
    name an offline folder with one run, or a run of it: ``offline_runs/RUN``.

    Raises:
        ConfigError: the path contains no bundle or several runs, or an experiment was named.
        RecordError: the bundle was changed.
        TrackingError: the run does not exist, or the store cannot be reached.
    """
    client = open_store()
    runs, are_runs = choose_runs(client, [run])
    if not are_runs:
        examples = ", ".join(
            f"{r.info.run_id} ({safe_repr(r.info.run_name)})"
            for r in list_existing(islice(runs, 3), "load")
        )
        raise ConfigError(
            f"{safe_repr(str(run))} is an experiment; pass the id of one of its runs"
            + (f", for example {examples}" if examples else "")
        )
    first_run, *others = list_existing(runs, "load")
    if others:
        raise ConfigError(
            f"{run} contains {len(others) + 1} runs; name one, for example "
            f"{get_bundle_path(first_run)}, or load all: clear_mlflow.runs({str(run)!r})"
        )
    return Run(client, first_run)


def runs(
    experiment: str | Path | None = None,
    filter: str | None = None,  # noqa: A002
) -> list[Run]:
    """Return an experiment's runs with an accuracy matrix, newest first.

    Runs with damaged rows are left out. The runs of bundles are in the order of the bundles' names.

    Args:
        experiment: name or id of an experiment, or path of bundles. None means all experiments.
        filter: condition in MLflow's search syntax, for example ``"tags.strategy = 'replay'"``.

    Raises:
        ConfigError: the path is not a bundle, or a filter is passed with it.
        RecordError: the bundle was changed.
        TrackingError: the experiment does not exist, or the store cannot be reached.
    """
    client = open_store()
    if experiment is None:
        selected = select_runs(client, filter=filter)
    else:
        selected, _ = choose_runs(client, experiment, filter=filter)
    stored_runs = list_existing(selected, "read")
    pairs = zip(stored_runs, read_records(client, stored_runs), strict=True)
    return [Run(client, run, record=r) for run, r in pairs if isinstance(r, Record)]


def list_existing(runs: Iterable[MlflowRun | MissingRun], verb: str) -> list[MlflowRun]:
    """Return the runs as a list. Raises TrackingError if one is missing.

    verb: what the caller does with them, for the message, for example "export".
    """
    all_runs = list(runs)
    if missing := [run for run in all_runs if isinstance(run, MissingRun)]:
        others = f" (and {len(missing) - 1} more)" if missing[1:] else ""
        raise TrackingError(
            f"cannot {verb} run {show_blank(missing[0].run_id)}{others}: {missing[0].problem}"
        )
    return [run for run in all_runs if isinstance(run, MlflowRun)]


def choose_runs(
    client: MlflowClient,
    requested: Runs,
    *,
    filter: str | None = None,  # noqa: A002
    unscored_only: bool = False,
) -> tuple[Iterator[MlflowRun | MissingRun], bool]:
    """Return the chosen runs, and True if ids or bundles were named.

    Runs of experiments come first, then named runs, then bundles. Bundles are read at once, other
    runs during the iteration; a run that the store lacks is a MissingRun. If bundles were passed,
    copies of a run are dropped by :func:`clear_mlflow.api.bundle.drop_copies`.

    Args:
        client: client of the store.
        requested: runs, ids, names of experiments or paths of bundles, or None for all
            experiments.
        filter: condition in MLflow's search syntax, for experiments.
        unscored_only: leave out runs that already have metrics. Not applied to bundles.

    Raises:
        ConfigError: no run is chosen, filter is passed with named runs, or a path lacks bundles.
        RecordError: a bundle was changed.
        TrackingError: an experiment does not exist, several runs start with the digits of an id, or
            the store cannot be reached.
    """
    if requested is None and not filter and not unscored_only:
        raise ConfigError(
            "no runs are chosen; pass ids of runs or the name of an experiment, or filter=TEXT"
        )
    if requested is None:
        return select_runs(client, filter=filter, unscored_only=unscored_only), False
    ids: list[str] = []
    bundled: list[MlflowRun] = []
    experiments: list[str] = []
    is_one = isinstance(requested, (Run, Path, str)) or not isinstance(requested, Iterable)
    names: Iterable[Any] = [requested] if is_one else requested  # type: ignore[assignment]
    for name in names:
        if isinstance(name, Run):
            if name.is_bundle:
                bundled.append(name.entity)
            else:
                ids.append(name.run_id)
        elif not isinstance(name, (str, Path)) or name == "":
            raise ConfigError(
                f"runs contains {safe_repr(name)}; expected runs, their ids, or paths"
            )
        elif not _is_path(name) and _RUN_ID.fullmatch(str(name)):
            ids.append(str(name))
        # A folder of bundles may have the name of an experiment; a path always names the folder.
        elif not _is_path(name) and _is_experiment(client, str(name)):
            experiments.append(str(name))
        elif bundles := _read_bundles(Path(name)):
            bundled += bundles
        elif isinstance(name, str) and _is_experiment(client, name):  # such as /Users/me/paper
            experiments.append(name)
        elif _is_path(name):
            raise ConfigError(
                f"{safe_repr(str(name), 200)} is neither a bundle nor a folder that contains any"
            )
        elif (run_id := expand_run_id(client, str(name))) == name == requested:
            experiments.append(run_id)  # reported with the names of all experiments
        else:
            ids.append(run_id)
    if not (ids or bundled or experiments):
        raise ConfigError("no run was passed; pass runs, their ids, or an experiment's name")
    if filter is not None and (ids or bundled):
        raise ConfigError(
            f"filter is {safe_repr(filter)} together with named runs; pass one of them",
            parameter="filter",
        )
    runs_by_name = select_runs(client, run_ids=ids, unscored_only=unscored_only) if ids else ()
    runs_of_experiments = [
        select_runs(client, experiment=name, filter=filter, unscored_only=unscored_only)
        for name in experiments
    ]
    runs = chain(*runs_of_experiments, runs_by_name, bundled)
    if not bundled:
        return runs, bool(ids)
    from clear_mlflow.api.bundle import drop_copies

    return drop_copies(client, runs), True


def _read_bundles(path: Path) -> list[MlflowRun]:
    """Read the runs of bundles and offline folders at a path."""
    from clear_mlflow.api.bundle import list_bundles, read_bundles

    return [run for bundle in list_bundles(path) for run in read_bundles(bundle)]


def _is_path(name: str | Path) -> bool:
    """Return True if a name cannot be an experiment or run id."""
    is_spelled_as_path = isinstance(name, Path) or "/" in name or name.endswith(ARCHIVE)
    return is_spelled_as_path or is_offline_folder(Path(name))


def _is_experiment(client: MlflowClient, name: str) -> bool:
    return not is_missing_store(client.tracking_uri) and has_experiment(client, name)
