"""``clear-mlflow import``: runs of other programs, from their files of results."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clear_mlflow.cli.help import Command, Option, spell_options
from clear_mlflow.cli.options import METRICS, json_option, names, option, wants_json
from clear_mlflow.cli.output import console, plain_table, print_json, print_places
from clear_mlflow.core.matrix import PROTOCOLS, SPLITS, TEST
from clear_mlflow.core.score import ACCURACY
from clear_mlflow.core.text import one_line, safe_repr
from clear_mlflow.importers import FORMATS
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.parameters.values import whole
from clear_mlflow.metrics import DEFAULT_FAMILIES, split_families
from clear_mlflow.process.signals import interrupt_on_signal

if TYPE_CHECKING:
    from clear_mlflow.api.import_ import ImportedFile

_WHERE, _READ = "Where the runs go", "How the file is read"
_SAID = "What the file may not say of its runs"


def _counts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 16 for part in parts):
        raise ValueError("expected numbers of test images, for example 550, or 550,545")
    return tuple(map(int, parts))


@click.command(
    name="import",
    cls=Command,
    examples=(
        "clear-mlflow import results.csv --dataset clear10 --strategy replay --seed 0",
        "clear-mlflow import results/ --experiment published --future not-tested",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR...")
@option(
    "--experiment",
    "NAME",
    "The experiment that gets the runs; created where there is none. none: that of "
    "MLFLOW_EXPERIMENT_NAME, else Default.",
    under=_WHERE,
)
@option("--name", "TEXT", "Name of the runs; auto: the file's.", default=AUTO, under=_WHERE)
@option(
    "--format",
    [AUTO, *FORMATS],
    "Format of the files; auto: found by looking at each.",
    under=_READ,
    to="format_name",
)
@option("--dataset", "NAME", "What was tested on; auto: as in the file.", default=AUTO, under=_SAID)
@option(
    "--same-data-as",
    "RUN",
    "A run that was tested on the same images: the files take over its dataset, buckets and test "
    "counts.",
    under=_SAID,
)
@option("--strategy", "NAME", "To group runs by; auto: as in the file.", default=AUTO, under=_SAID)
@option(
    "--seed",
    "N",
    "Of the runs; auto: as in the file.",
    default=AUTO,
    under=_SAID,
    parse=whole(least=-(2**63)),
)
@option(
    "--protocol",
    PROTOCOLS,
    "streaming: buckets were tested on their own training data.",
    under=_SAID,
)
@option(
    "--split",
    SPLITS,
    "What was measured on; numbers on validation images are compared apart.",
    default=TEST,
    under=_SAID,
)
@option(
    "--scale",
    [AUTO, "fraction", "percent"],
    "Unit of the accuracies. auto: the format's, else fractions; a value above 1 is refused.",
    under=_READ,
)
@option(
    "--score",
    "NAME",
    "What the numbers are, where that is no accuracy, for example rmse.",
    default=ACCURACY.name,
    under=_READ,
)
@click.option("--lower-is-better", cls=Option, group=_READ, is_flag=True, help="Less is better.")
@option(
    "--initial",
    [AUTO, "first-row"],
    "Which row is of the untrained model: the first; auto: the one that the format marks.",
    under=_READ,
)
@option(
    "--future",
    [AUTO, "tested", "not-tested"],
    "What zeros above the diagonal mean: tested with accuracy 0, or not tested. auto: what the "
    "format defines; else they are refused.",
    under=_READ,
)
@option(
    "--orientation",
    [AUTO, "rows", "columns"],
    "Whether a row or a column is one test after training. auto: as names, zeros or empty cells "
    "prove, else a row.",
    under=_READ,
)
@option(
    "--columns",
    "NAME[,NAME...]",
    "The columns that are buckets, in the order of the stream; a table without names has numbers "
    "from 1. auto: all except epoch, avg, mean, std and the like.",
    default=AUTO,
    under=_READ,
    parse=names,
)
@option(
    "--row-labels",
    [AUTO, "use", "ignore"],
    "The first column. use: it labels and orders the rows; ignore: it labels them, but they are in "
    "order. auto: use, if it contains names.",
    under=_READ,
)
@option(
    "--num-instances",
    "N[,N...]",
    "Test images of each bucket; one number is for all.",
    under=_READ,
    parse=_counts,
)
@option(
    "--buckets",
    "KEY[,KEY...]",
    "Keys of the buckets; auto: as in the file, else 1 to T.",
    default=AUTO,
    under=_READ,
    parse=lambda text: tuple(key.strip() for key in text.split(",")),
)
@option(
    "--metrics",
    "FAMILY[,FAMILY...]",
    "Families of metrics to log; see docs/metrics.md.",
    default=",".join(DEFAULT_FAMILIES),
    under=METRICS,
    parse=split_families,
    to="families",
)
@click.option(
    "--again",
    cls=Option,
    group=_WHERE,
    is_flag=True,
    help="Import once more what the experiment holds already.",
)
@json_option
def import_runs(paths: tuple[str, ...], **options: Any) -> None:
    """Make MLflow runs out of the result files of other programs, and score them.

    Plain matrices (CSV, TSV, NumPy, JSON) and what Avalanche, Renate and mammoth write;
    docs/import.md lists what is read of each. Nothing in a file is executed. A folder is searched
    for files; one that cannot be read is named, the others are imported, and the exit code is 2.
    """
    from clear_mlflow.api import import_ as api
    from clear_mlflow.api.load import open_store

    files: list[ImportedFile] = []
    with interrupt_on_signal() as received, suppress(KeyboardInterrupt):
        for file in api.import_runs(map(Path, paths), **options):
            files.append(file)
    _show(files, as_json=wants_json(), stopped=bool(received))
    if not wants_json() and (run_ids := [file.run_id for file in files if file.run_id]):
        print_places(open_store(), run_ids)
    if received:
        sys.exit(128 + received[0])
    if not files or any(file.outcome == api.FAILED for file in files):
        sys.exit(2)


def _show(found: list[ImportedFile], *, as_json: bool, stopped: bool) -> None:
    from clear_mlflow.api.import_ import FAILED

    counts = Counter(one.outcome for one in found)
    summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    with suppress(OSError):  # whoever reads this may have gone
        if as_json:
            print_json({"files": [asdict(one) for one in found]})
        elif found:
            lines = ([text or "" for text in astuple(one)] for one in found)
            console().print(plain_table(("file", "run", "name", "verdict", "detail"), lines))
        rest = "; stopped: the same command does the rest" if stopped else ""
        if not as_json:
            click.echo(f"\n{summary or 'no files'}{rest}")
    for one in found:
        if one.outcome == FAILED:
            name = safe_repr(Path(one.file).name, 120)
            detail = " ".join(one.detail.split())
            text = detail.removeprefix(name) if detail.startswith(name) else f": {detail}"
            click.echo(f"error: {one_line(one.file + spell_options(text))}", err=True)
    if not found and not stopped:
        click.echo("error: no file was found; name files, or a folder that holds some", err=True)
