"""``clear-mlflow data``: fetching datasets, and looking them over. Local work without MLflow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import TaskID

    from clear_mlflow.data.checking.findings import Findings

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import dataset_args_option, json_option, option, wants_json
from clear_mlflow.cli.output import print_json
from clear_mlflow.core.cache_dir import default_cache_dir, default_data_dir
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.progress import can_show_bars


@click.group()
def data() -> None:
    """Download a dataset, check one, or compute features of one."""


@data.command(
    cls=Command,
    examples=(
        "clear-mlflow data download clear10",
        "clear-mlflow data download clear10 ~/data/clear10",
    ),
)
@click.argument("dataset", type=click.Choice(["clear10", "clear100"]))
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
@option("--revision", "TEXT", "Branch, tag or commit of the hub's repository.", default="main")
def download(dataset: str, folder: Path | None, revision: str) -> None:
    """Fetch CLEAR-10 or CLEAR-100 to DIR; then train with data_root=DIR.

    Without DIR it goes below CLEAR_MLFLOW_DATA, where training looks for it, and which is "data" in
    the cache folder unless it is set. After an interruption, the same command resumes the download.
    HF_ENDPOINT names a mirror, HF_TOKEN a token.
    """
    from clear_mlflow.data.fetching.download import RELEASES
    from clear_mlflow.data.fetching.download import download as fetch
    from clear_mlflow.data.files import path_text

    folder = folder or default_data_dir() / dataset
    with Steps(of_bytes=True) as progress:
        unpacked = fetch(RELEASES[dataset], folder, revision=revision, on_progress=progress.tell)
    where = path_text(folder)
    done = f"unpacked {' and '.join(unpacked)} to" if unpacked else "is already there, in"
    click.echo(f"{dataset} {done} {where}")


@data.command(
    cls=Command,
    examples=(
        "clear-mlflow data check clear10",
        "clear-mlflow data check ~/data/clear10",
    ),
)
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
@json_option
@option(
    "--dataset",
    "NAME",
    "As for train, where DIR is a stream of your own; auto: CLEAR.",
    default=AUTO,
    type=str,
)
@dataset_args_option
def check(folder: Path | None, dataset: str, dataset_args: str) -> None:
    """List what the dataset in DIR contains, and everything that is wrong with it.

    For DIR, clear10 and clear100 name what was downloaded below CLEAR_MLFLOW_DATA.
    """
    from clear_mlflow.cli.check_report import print_findings
    from clear_mlflow.data.checking.findings import check as look_over
    from clear_mlflow.data.sources import CLEAR

    if str(folder) in CLEAR:
        folder = default_data_dir() / str(folder)

    if folder is None and dataset == AUTO:
        raise ConfigError("expected a dataset's folder, or --dataset")
    with Steps() as progress:
        if dataset == AUTO and folder is not None:
            findings = look_over(folder, on_progress=progress.tell)
        else:
            findings = _check_own(folder, dataset, dataset_args, progress)
    if wants_json():
        print_json(findings.as_json())
    else:
        print_findings(findings)
    sys.exit(1 if findings.problems else 0)


def _check_own(folder: Path | None, dataset: str, dataset_args: str, progress: Steps) -> Findings:
    from clear_mlflow.data.checking.findings import check_own
    from clear_mlflow.data.sources import is_own_stream, needs_folder
    from clear_mlflow.learning.arguments import named_dataset

    root = AUTO if folder is None else str(folder)
    name, arguments = named_dataset(dataset, root, dataset_args)
    if not is_own_stream(name) or (folder is None and needs_folder(name)):
        raise ConfigError(
            f"dataset is {name}; expected DIR and a stream of your own, as folder, or no dataset "
            "for CLEAR's layouts"
        )
    return check_own(
        name, root, arguments, cache_dir=default_cache_dir(), on_progress=progress.tell
    )


class Steps:
    """One step of work after another on standard error: bars on a terminal, else a line each."""

    def __init__(self, *, of_bytes: bool = False) -> None:
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        self._is_seen = can_show_bars(sys.stderr)
        self._what = ""
        self._tasks: dict[str, TaskID] = {}
        whole = Column(no_wrap=True)
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=None),
            progress.DownloadColumn(binary_units=True, table_column=whole)
            if of_bytes
            else progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(table_column=whole),
            console=Console(file=sys.stderr, force_terminal=self._is_seen),
            redirect_stdout=False,
            expand=True,
            disable=not self._is_seen,
        )

    def __enter__(self) -> Steps:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def tell(self, what: str, done: int, total: int | None) -> None:
        """So much of *what* is done; of 0 where it is mere news."""
        if not self._is_seen or total == 0:
            if what != self._what:
                self._bars.console.print(what, markup=False, highlight=False, soft_wrap=True)
        else:
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(what, total=total)
            self._bars.update(self._tasks[what], completed=done, total=total)
        self._what = what
