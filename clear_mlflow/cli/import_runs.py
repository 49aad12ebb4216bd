"""``clear-mlflow import``: runs of other programs, from their files of results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from clear_mlflow.cli.help import Command, Option
from clear_mlflow.cli.interrupt import stoppable
from clear_mlflow.cli.options import METRICS, json_option, option
from clear_mlflow.cli.output import console, plain_table, print_json, print_places
from clear_mlflow.core.errors import ClearError, DataError
from clear_mlflow.core.matrix import PROTOCOLS, SPLITS, TEST
from clear_mlflow.core.score import ACCURACY, Score
from clear_mlflow.core.text import one_line, shown
from clear_mlflow.core.untrusted import MAX_IMPORTED_FILES
from clear_mlflow.data.files import is_folder
from clear_mlflow.importers import FORMATS, Reading, load, passed_over, read_runs, recognise
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.parameters.values import whole
from clear_mlflow.metrics import DEFAULT_FAMILIES, family_names

if TYPE_CHECKING:
    from clear_mlflow.api.import_ import Importer

_WHERE, _READ = "Where the runs go", "How the file is read"
_SAID = "What the file may not say of its runs"
_FAILED = "failed"
# File, run id, run name, what became of it, and a detail.
_Line: TypeAlias = tuple[str, str, str, str, str]
# In a folder, a file that ends so is one of results; any other may be anything.
_ENDINGS = (".csv", ".tsv", ".npy", ".npz", ".json", ".pyd")


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
    to="kind",
)
@option("--dataset", "NAME", "What was tested on; auto: as in the file.", default=AUTO, under=_SAID)
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
    parse=family_names,
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
def import_runs(
    paths: tuple[str, ...],
    experiment: str | None,
    name: str | None,
    kind: str,
    score: str,
    lower_is_better: bool,
    again: bool,
    as_json: bool,
    **said: Any,
) -> None:
    """Make MLflow runs out of the result files of other programs, and score them.

    Plain matrices (CSV, TSV, NumPy, JSON) and what Avalanche, Renate and mammoth write;
    docs/import.md says what is read of each. Nothing in a file is executed. A folder is searched
    for files; one that cannot be read is named, the others are imported, and the exit code is 2.
    """
    how = {name: said.pop(name) for name in ("scale", "initial", "future", "num_instances")}
    score_of_all = Score(score, higher_is_better=not lower_is_better)
    reading = Reading(score=score_of_all, buckets=said.pop("buckets"), **how)

    from clear_mlflow.api.import_ import Importer, ImportMetadata
    from clear_mlflow.store.client import preflight, set_up_mlflow

    set_up_mlflow()
    lines: list[_Line] = []
    with stoppable() as received, suppress(KeyboardInterrupt):
        client = preflight(experiment=experiment)
        importer = Importer(client, experiment, ImportMetadata(**said), again=again)
        for path, label, reason in _files(paths):
            if reason:
                lines.append((label, "", "", "passed over", reason))
                continue
            try:
                for line in _import(importer, path, label, kind, reading, name):
                    lines.append(line)
            except ClearError as error:  # the others are imported all the same
                lines.append((label, "", "", _FAILED, str(error)))
    _show(lines, as_json=as_json, stopped=bool(received))
    if not as_json and (made := [run_id for _, run_id, *_ in lines if run_id]):
        print_places(client, made)
    if received:
        sys.exit(128 + received[0])
    if not lines or any(verdict == _FAILED for *_, verdict, _ in lines):
        sys.exit(2)


def _import(
    importer: Importer, path: Path, label: str, kind: str, reading: Reading, name: str | None
) -> Iterator[_Line]:
    """Import the runs of one file, one after the other."""
    source = load(path)
    found = recognise(source) if kind == AUTO else FORMATS[kind]
    runs = read_runs(source, kind=found.name if found else AUTO, reading=reading)
    for run in runs:
        title = " ".join(filter(None, (name or str(Path(label).with_suffix("")), run.label)))
        done = importer.take(run, file=path.name, kind=found.name if found else "", run_name=title)
        rows = f"{run.matrix.num_rows} of {run.matrix.num_buckets} rows"
        verdict, detail = (
            ("there already", "its content was imported before (--again imports it once more)")
            if done.num_metrics is None
            else ("imported", f"{rows}, {done.num_metrics} metrics")
        )
        yield label, done.run_id, done.run_name, verdict, detail


def _files(paths: tuple[str, ...]) -> Iterator[tuple[Path, str, str | None]]:
    """The files to import: path, label, why one is passed over; no hidden ones, no links."""
    for root in map(Path, paths):
        if not is_folder(root):
            yield root, root.name, None
            continue
        for seen, path in enumerate(sorted(root.rglob("*"))):
            if seen > MAX_IMPORTED_FILES:
                raise DataError(
                    f"{shown(root.name)} holds more than {MAX_IMPORTED_FILES} files; import its "
                    "folders one by one"
                )
            label = path.relative_to(root)
            hidden = any(part.startswith(".") for part in label.parts)
            if not hidden and path.is_file() and not path.is_symlink():
                yield path, str(label), _reason(path)


def _reason(path: Path) -> str | None:
    """Why a file of a folder is no file of results; None where it is to be imported."""
    if reason := passed_over(path.name, [f.name for f in path.parent.iterdir()]):
        return reason
    if path.suffix.lower() in _ENDINGS:
        return None  # whoever reads it says what is wrong with it
    try:
        return None if recognise(load(path)) else "of no format that is read"
    except DataError as error:
        return str(error)


def _show(lines: list[_Line], *, as_json: bool, stopped: bool) -> None:
    counts = Counter(verdict for *_, verdict, _ in lines)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    with suppress(OSError):  # whoever reads this may have gone
        if as_json:
            fields = ("file", "run_id", "run_name", "outcome", "detail")
            named = ((*(text or None for text in line[:3]), *line[3:]) for line in lines)
            print_json({"files": [dict(zip(fields, line, strict=True)) for line in named]})
        elif lines:
            console().print(plain_table(("file", "run", "name", "verdict", "detail"), lines))
        rest = "; stopped: the same command does the rest" if stopped else ""
        if not as_json:
            click.echo(f"\n{summary or 'no files'}{rest}")
    for file, _, _, verdict, detail in lines:
        if verdict == _FAILED:
            name = shown(Path(file).name, 120)
            detail = " ".join(detail.split())
            text = detail.removeprefix(name) if detail.startswith(name) else f": {detail}"
            click.echo(f"error: {one_line(file + text)}", err=True)
    if not lines and not stopped:
        click.echo("error: no file was found; name files, or a folder that holds some", err=True)
