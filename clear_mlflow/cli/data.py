"""``clear-mlflow data``: download a dataset, check one, compute features. Needs no MLflow."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from clear_mlflow.cli import output
from clear_mlflow.cli.command import command
from clear_mlflow.core.disk import default_cache_dir, default_data_dir
from clear_mlflow.core.errors import ConfigError, check_unused, require_package
from clear_mlflow.core.text import format_count, printable, safe_repr
from clear_mlflow.data.files import path_text
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.learning.parameters.values import parse_feature_name
from clear_mlflow.learning.progress import LineInterval, can_show_bars

if TYPE_CHECKING:
    from rich.progress import TaskID

    from clear_mlflow.data.check import Findings


@command(
    arguments={"dataset": "clear10|clear100", "folder": "[DIR]"},
    examples=(
        "clear-mlflow data download clear10",
        "clear-mlflow data download clear10 ~/data/clear10",
    ),
)
def download(
    dataset: Literal["clear10", "clear100"], folder: Path | None = None, *, revision: str = "main"
) -> None:
    """Download CLEAR-10 or CLEAR-100 to DIR, to train with data_root=DIR.

    Without DIR, the dataset is stored below CLEAR_MLFLOW_DATA, where training looks for it; if that
    is not set, below "data" in the cache folder. After an interruption, the same command resumes
    the download. HF_ENDPOINT names a mirror, HF_TOKEN a token.

    Args:
        dataset: name of the dataset.
        folder: folder that the dataset is stored in.
        revision: branch, tag or commit of the hub's repository.
    """
    from clear_mlflow.data.download import RELEASES
    from clear_mlflow.data.download import download as fetch

    folder = folder or default_data_dir() / dataset
    with _show_steps() as report:
        unpacked = fetch(RELEASES[dataset], folder, revision=revision, on_progress=report)
    done = f"unpacked {' and '.join(unpacked)} to" if unpacked else "is already there, in"
    click.echo(f"{dataset} {done} {path_text(folder)}")


@command(
    arguments={"folder": "[DIR]"},
    options=[output.JSON_OPTION],
    examples=("clear-mlflow data check clear10", "clear-mlflow data check ~/data/clear10"),
)
def check(
    folder: Path | None = None,
    *,
    dataset: str = "auto",
    dataset_args: str = "none",
    borders: str = "none",
) -> None:
    """List what the dataset in DIR contains, and all problems of it.

    The names clear10 and clear100 are short for the folders of downloaded datasets. The exit code
    is 1 if there are problems.

    Args:
        folder: folder of the dataset. May be left out if --dataset reads no folder.
        dataset: your own stream (see train), if DIR is not in a layout of CLEAR. auto: CLEAR.
        dataset_args: arguments of your own stream, name=value,name=value.
        borders: how your own stream is divided into buckets, as for train. Several, separated by
            commas: their buckets are compared.
    """
    from clear_mlflow.data.check import check_dataset
    from clear_mlflow.data.sources import CLEAR, is_custom_stream, needs_folder
    from clear_mlflow.learning.arguments import parse_dataset_arguments
    from clear_mlflow.learning.parameters.config import parse_parameter

    if str(folder) in CLEAR:
        folder = default_data_dir() / str(folder)
    if folder is None and dataset == AUTO:
        raise ConfigError("expected a dataset's folder, or --dataset")
    root = AUTO if folder is None else str(folder)
    arguments: dict[str, Any] = {}
    if dataset == AUTO:
        check_unused(
            {"dataset_args": (dataset_args, NONE), "borders": (borders, NONE)},
            ", but no custom stream is named; pass dataset=NAME as well, or leave it out",
        )
    else:
        dataset, arguments = parse_dataset_arguments(dataset, root, dataset_args)
        if not is_custom_stream(dataset) or (folder is None and needs_folder(dataset)):
            raise ConfigError(
                f"dataset is {dataset}; expected DIR and a custom stream, for example folder, or "
                "no dataset for CLEAR's layouts",
                parameter="dataset",
            )
    with _show_steps() as report:
        findings = check_dataset(
            root,
            dataset,
            arguments,
            borders=[
                parse_parameter("borders", text) for text in borders.split(",") if text != NONE
            ],
            cache_dir=default_cache_dir(),
            on_progress=report,
        )
    if output.wants_json():
        output.print_json(findings.as_json())
    else:
        _print_findings(findings)
    sys.exit(1 if findings.problems else 0)


def _print_findings(findings: Findings) -> None:
    from clear_mlflow.data.check import PROBLEM_TYPES

    def format_path(path: Path) -> str:
        return path_text(Path(os.path.relpath(path, findings.root)))

    click.echo(f"folder   {path_text(findings.root)}")
    click.echo(f"layout   {findings.layout}")
    click.echo(f"digest   {findings.digest or 'none: the dataset cannot be trained on as it is'}")
    click.echo(f"images   {sum(findings.counts.values())}")
    for label, names in ("buckets", findings.buckets), ("classes", findings.class_names):
        click.echo(f"{label}  {len(names)}: {printable(', '.join(names))}")
    click.echo()
    images: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # a number for each class
    for (split, bucket, _), number in findings.counts.items():
        images[bucket, split].append(number)
    rows = [(*key, f"{sum(n)}", f"{min(n)} to {max(n)}") for key, n in images.items()]
    output.print_table(("bucket", "split", "images", "per class"), rows, numbers_from=2)
    if findings.drifts:
        _print_label_drift(findings)
    click.echo("" if findings.problems else "\nnothing is wrong")
    for problem_type in dict.fromkeys(problem.type for problem in findings.problems):
        problems = [problem for problem in findings.problems if problem.type == problem_type]
        click.secho(f"{problem_type}: {PROBLEM_TYPES[problem_type]} ({len(problems)})", bold=True)
        for problem in problems:
            others = ", ".join(map(format_path, problem.others))
            line = f"  {format_path(problem.path)}: {printable(problem.detail)}"
            click.echo(f"{line}; also {others}" if others else line)
    if total := len(findings.problems):
        click.echo(f"\n{format_count(total, 'problem')}")


def _print_label_drift(findings: Findings) -> None:
    click.echo("\nchange of labels (total variation, from 0 to 1)\n")
    changes = [
        (drift.borders, bucket, f"{previous:.3f}", f"{before:.3f}")
        for drift in findings.drifts
        for bucket, previous, before in zip(
            drift.buckets[1:], drift.from_previous, drift.from_all_before, strict=True
        )
    ]
    heads = ("borders", "bucket", "from the previous", "from all before")
    output.print_table(heads, changes, numbers_from=2)
    differences = [
        (drift.borders, f"borders moved by {shift:g} of a bucket", f"{value:.3f}")
        for drift in findings.drifts
        for shift, value in drift.sensitivity.items()
    ]
    differences += [(a, b, f"{value:.3f}") for (a, b), value in findings.distances.items()]
    if differences:
        click.echo()
        output.print_table(("borders", "compared with", "difference"), differences, numbers_from=2)


@command(
    arguments={"folder": "[DIR]"},
    examples=(
        "clear-mlflow data features ~/data/clear10 --backbone resnet50",
        "clear-mlflow data features DIR --backbone timm:vit_small_patch14_dinov2",
    ),
)
def features(
    folder: str = "auto",
    *,
    backbone: str,
    weights: str = "DEFAULT",
    dataset: str = "clear10",
    dataset_args: str = "none",
    borders: str = "none",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    name: str = "auto",
    protocol: Literal["iid", "streaming"] = "iid",
    split: str = "auto",
) -> None:
    """Compute the features of all images in DIR, for 'train --features NAME'.

    They are stored in the cache folder by the images' content: a second call only reads the image
    files, and an interrupted call is resumed.

    Args:
        folder: folder of the dataset.
        backbone: classification model of torchvision, or timm: and a model of timm. Its head is
            left out.
        weights: path of a state dict. DEFAULT: the library's own, downloaded. none: random ones,
            for trying things out.
        dataset: dataset in DIR, as for train.
        dataset_args: arguments of your own stream, name=value,name=value.
        borders: how your own stream is divided into buckets, as for train.
        device: device to compute on. auto: cuda if there is a GPU.
        name: name for train's --features. auto: the backbone's name, with timm- for timm.
        protocol: protocol as for train. streaming: only the training images have features.
        split: split as for train. With protocol iid, a number keeps a released test set unchanged.
    """
    if name == NONE:
        raise ConfigError(
            "name is 'none'; for train, that means no features: pass another name", parameter="name"
        )
    name = backbone.replace(":", "-") if name == AUTO else name
    try:
        parse_feature_name(name)
    except ValueError as error:
        raise ConfigError(f"name is {safe_repr(name)}; {error}", parameter="name") from None
    from clear_mlflow.data.stream import check_split
    from clear_mlflow.learning.parameters.config import parse_parameter

    check_split(parse_parameter("protocol", protocol), parse_parameter("split", split))

    with require_package("torch", "feature extraction"):
        import torch

    from clear_mlflow.data import load_stream
    from clear_mlflow.data.download import fetch_clear
    from clear_mlflow.data.sources import CLEAR
    from clear_mlflow.learning.arguments import parse_dataset_arguments
    from clear_mlflow.learning.device import resolve_device
    from clear_mlflow.learning.inference.backbones import extract_features, load_backbone

    if folder in CLEAR:
        dataset, folder = folder, AUTO
    dataset, arguments = parse_dataset_arguments(dataset, folder, dataset_args)
    if folder == AUTO and dataset in CLEAR:
        with _show_steps() as report:
            fetch_clear(dataset, report)
    torch_device = torch.device(resolve_device(device))
    cache_dir = default_cache_dir()
    frozen = load_backbone(backbone, weights)
    with _show_steps() as report:
        stream = load_stream(
            dataset,
            folder,
            cache_dir=cache_dir,
            arguments=arguments,
            borders=parse_parameter("borders", borders),
            protocol=protocol,
            split=split,
            on_image=partial(report, "hashing images"),
        )
        stored = extract_features(
            stream,
            frozen,
            name=name,
            cache_dir=cache_dir,
            device=torch_device,
            on_image=lambda done, total: report(f"features {name}", done, total),
        )
    click.echo(f"features {name} of {stream.dataset.name}: {stored}")


data = click.Group(
    "data",
    commands=[download, check, features],
    help="Download a dataset, check one, or compute features of one.",
)


@contextmanager
def _show_steps() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show progress on standard error: bars on a terminal, otherwise lines.

    A line for each step, and one a minute with how much of it is done.

    Yields a function that takes the name of a step, how much of it is done, and its total: None if
    the total is unknown, or 0 to print only the name.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    shows_bars = can_show_bars(sys.stderr)
    console = Console(file=sys.stderr, force_terminal=shows_bars, emoji=False)
    tasks: dict[str, TaskID] = {}
    interval = LineInterval()
    print_line = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    with Progress(console=console, redirect_stdout=False, disable=not shows_bars) as bars:

        def report(step: str, done: int, total: int | None) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(escape(step), total=total)
                if not shows_bars or total == 0:
                    print_line(step)
            elif not shows_bars and interval.restart_if_over():
                print_line(f"{step}: {done / total:.0%}" if total else f"{step}: {done:,}")
            bars.update(tasks[step], completed=done, total=total, visible=total != 0)

        yield report
