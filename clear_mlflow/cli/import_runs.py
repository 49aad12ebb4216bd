"""``clear-mlflow import``: make runs of the result files of other programs."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clear_mlflow.api.import_options import ImportOptions
from clear_mlflow.cli import output
from clear_mlflow.cli.command import METRICS, command
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr, show_blank
from clear_mlflow.process.signals import interrupt_on_signal

if TYPE_CHECKING:
    from clear_mlflow.scoring import ActionResult


@command(
    ImportOptions,
    name="import",
    arguments={"paths": "[FILE|DIR|RUN|EXPERIMENT]..."},
    headings={
        "Where the runs go": "experiment name again store",
        "How the files are read": "format scale score lower_is_better initial future orientation "
        "columns row_labels rows table row_metric num_instances buckets",
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
def import_runs(*, store: str | None, **values: Any) -> None:
    """Import result files of other programs and bundles as MLflow runs, and score them.

    Reads plain matrices (CSV, TSV, NumPy, JSON) and the files of Avalanche, Renate, mammoth, PyCIL,
    PILOT, C3Box, LibContinual, CLArena, ZSCL, MoE-Adapters4CL and DyTox, as docs/import.md
    describes. Nothing in a file is executed. A folder is imported with all its files. If a file
    cannot be read, the error is printed, the other files are imported, and the exit code is 2. Runs
    of bundles, which export writes, are copied unless the store already contains them.

    Args:
        store: another store whose runs are copied.
        **values: fields of :class:`ImportOptions`.
    """
    options = ImportOptions(**values)
    if store is not None and (passed := options.list_passed()):
        raise ConfigError(
            f"{passed[0]} is passed for runs of a store, which are copied as they are; leave it "
            "out",
            parameter=passed[0],
        )
    from clear_mlflow.api import import_ as api
    from clear_mlflow.store.client import open_store
    from clear_mlflow.tracking.copy_runs import FAILED

    files: list[ActionResult] = []
    with interrupt_on_signal() as received, suppress(KeyboardInterrupt):
        files.extend(  # keeps those before Ctrl-C
            api.import_runs(options)
            if store is None
            else api.copy_runs(store, options.paths or (), options.experiment)
        )
    failed = [file for file in files if file.action == FAILED]
    with suppress(OSError):  # the reader may be gone
        if output.wants_json():
            output.print_json({"files": [_convert_to_json(file) for file in files]})
        elif files or received:
            output.print_actions(files, empty="no files", is_stopped=bool(received))
    for file in failed:
        # Most details begin with the file's name, which its path contains.
        name = safe_repr(Path(file.source).name, 120)
        is_named = file.detail.startswith(name)
        output.print_error(
            show_blank(file.source)
            + (file.detail[len(name) :] if is_named else f": {file.detail}"),
            file.parameter,
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
