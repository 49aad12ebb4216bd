"""``clear-mlflow import``: make runs of the result files of other programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from clear_mlflow.cli import output
from clear_mlflow.cli.command import METRICS, command
from clear_mlflow.core.text import safe_repr
from clear_mlflow.importers import FORMATS
from clear_mlflow.process.signals import interrupt_on_signal

if TYPE_CHECKING:
    from clear_mlflow.scoring import ActionResult

    _Format = str
else:
    _NAMES = ("auto", *FORMATS)
    _Format = Literal[_NAMES]


@command(
    name="import",
    arguments={"paths": "[FILE|DIR|RUN|EXPERIMENT]..."},
    headings={
        "Where the runs go": "experiment name again store",
        "How the files are read": "format scale score lower_is_better initial future orientation "
        "columns row_labels rows num_instances buckets",
        "What the files may not contain": "dataset same_data_as strategy seed protocol split",
        METRICS: "metrics",
    },
    options=[
        output.JSON_OPTION,
        click.Option(
            ["--from", "store"],
            metavar="STORE",
            help="Copy complete runs from another store: a tracking URI, an offline folder or an "
            "mlruns folder. Pass run ids and names of experiments, or nothing to copy all runs. "
            "Without --experiment, each run goes to the experiment of the same name.",
        ),
    ],
    examples=(
        "clear-mlflow import results.csv --dataset clear10 --strategy replay --seed 0",
        "clear-mlflow import --from sqlite:///his/mlflow.db --experiment his",
        "clear-mlflow import results/ --experiment published --future not-tested",
        "clear-mlflow import supplement.tar.xz --experiment theirs",
    ),
)
def import_runs(
    paths: Sequence[str] | None,
    *,
    store: str | None,
    experiment: str | None = None,
    name: str | Literal["auto"] = "auto",
    again: bool = False,
    format: _Format = "auto",  # noqa: A002
    scale: Literal["auto", "fraction", "percent"] = "auto",
    score: str = "accuracy",
    lower_is_better: bool = False,
    initial: Literal["auto", "first-row"] = "auto",
    future: Literal["auto", "tested", "not-tested"] = "auto",
    orientation: Literal["auto", "rows", "columns"] = "auto",
    columns: Sequence[str] | Literal["auto"] = "auto",
    row_labels: Literal["auto", "use", "ignore"] = "auto",
    rows: str | None = None,
    num_instances: str | None = None,
    buckets: str | Literal["auto"] = "auto",
    dataset: str | Literal["auto"] = "auto",
    same_data_as: str | None = None,
    strategy: str | Literal["auto"] = "auto",
    seed: int | Literal["auto"] = "auto",
    protocol: Literal["iid", "streaming"] = "iid",
    split: Literal["test", "validation"] = "test",
    metrics: Sequence[str] | Literal["auto"] = "auto",
) -> None:
    """Import result files of other programs and bundles as MLflow runs, and score them.

    Reads plain matrices (CSV, TSV, NumPy, JSON) and the files of Avalanche, Renate, mammoth, PyCIL,
    PILOT, C3Box, LibContinual, CLArena, ZSCL, MoE-Adapters4CL and DyTox, as docs/import.md
    describes. Nothing in a file is executed. A folder is imported with all its files. If a file
    cannot be read, the error is printed, the other files are imported, and the exit code is 2. Runs
    of bundles, which export writes, are copied unless the store already contains them.

    Args:
        paths: files, folders and bundles; with --from, runs and experiments.
        store: another store whose runs are copied.
        experiment: experiment that gets the runs; created if it does not exist. None means the
            experiment of MLFLOW_EXPERIMENT_NAME, else Default.
        name: name of the runs. auto: the file's name.
        again: import a matrix that the experiment already contains once more, as a new run.
        format: format of the files. auto: detected from each file.
        scale: unit of the accuracies. auto: defined by the format or proven by averages in the
            file, else fractions; a value above 1 is an error.
        score: what the numbers are: accuracy, or another score, for example rmse.
        lower_is_better: state that smaller values of the score are better.
        initial: first-row if the first row is the test of the untrained model. auto: only a row
            that the file marks as such.
        future: meaning of zeros above the diagonal: tested with accuracy 0, or not tested. auto:
            defined by the format; otherwise they are an error.
        orientation: rows if each row is the test after one bucket, columns if each column is. auto:
            what the file shows by names, zeros, empty cells or averages; else an error. rows also
            accepts the log of a run that stopped early.
        columns: columns that are buckets, in the order of the stream, by name or, in a table
            without names, by number from 1. auto: all except epoch, avg, mean, std and the like.
        row_labels: what to do with the first column. use: it labels and orders the rows. ignore:
            it labels the rows, which are in order. auto: use, if it contains names.
        rows: regular expression that finds the rows in the lines of a log: its one group is the
            list of accuracies. Search time is limited.
        num_instances: numbers of test images of the buckets, separated by commas, or one for all.
        buckets: names of the buckets, separated by commas. auto: as in the file, else 1 to T.
        dataset: name of the test data. auto: as in the file.
        same_data_as: run that was tested on the same images. The files take its dataset, buckets
            and numbers of test images.
        strategy: strategy, to group runs by. auto: as in the file.
        seed: seed of the runs. auto: as in the file.
        protocol: streaming if each bucket was tested on its own training data.
        split: images that were tested on. Runs on validation images are compared separately.
        metrics: families of metrics to log (docs/metrics.md). auto: the default families.
    """
    options = {name: value for name, value in locals().items() if name not in ("paths", "store")}
    from clear_mlflow.api import import_ as api
    from clear_mlflow.store.client import open_store
    from clear_mlflow.tracking.copy_runs import FAILED

    files: list[ActionResult] = []
    with interrupt_on_signal() as received, suppress(KeyboardInterrupt):
        for file in (
            api.import_runs(map(Path, paths or ()), **options)
            if store is None
            else api.copy_runs(store, paths or (), experiment)
        ):
            files.append(file)
    failed = [file for file in files if file.action == FAILED]
    with suppress(OSError):  # the reader may be gone
        if output.wants_json():
            output.print_json({"files": [_convert_to_json(file) for file in files]})
        else:
            output.print_actions(files, empty="no files", is_stopped=bool(received))
    for file in failed:
        # Most details begin with the file's name, which its path contains.
        name = safe_repr(Path(file.source).name, 120)
        is_named = file.detail.startswith(name)
        output.print_error(
            file.source + (file.detail[len(name) :] if is_named else f": {file.detail}")
        )
    if not files and not received:
        output.print_error(
            "no files; pass files, or a folder that contains files"
            if store is None
            else "the store contains no such runs with rows; pass ids of runs, names of "
            "experiments, or neither for all"
        )
    if not output.wants_json() and (run_ids := [file.run_id for file in files if file.run_id]):
        output.print_run_links(open_store(), run_ids)
    if received:
        sys.exit(128 + received[0])
    if failed or not files:
        sys.exit(2)


def _convert_to_json(file: ActionResult) -> dict[str, str | None]:
    """Return the keys that docs/json.md lists."""
    return {
        "file": file.source,
        "run_id": file.run_id,
        "run_name": file.run_name or None,
        "outcome": file.action,
        "detail": file.detail,
    }
