"""What ``clear-mlflow data check`` prints for people."""

from __future__ import annotations

import os
from collections import defaultdict
from functools import partial
from itertools import chain
from pathlib import Path

from rich.table import Table

from clear_mlflow.cli.output import console, plain_table
from clear_mlflow.data.checking.findings import Findings
from clear_mlflow.data.files import path_text
from clear_mlflow.data.problems import KINDS, Problem


def print_findings(findings: Findings) -> None:
    """The dataset in a few lines, its buckets in a table, and every problem under its kind."""
    out = console()
    # Whole lines, whatever the terminal's width: paths are copied from here.
    show = partial(out.print, soft_wrap=True, markup=False, highlight=False)
    for name, value in _facts(findings):
        show(f"{name:<8} {value}")
    out.print()
    out.print(_bucket_table(findings))
    show("" if findings.problems else "\nnothing is wrong")
    by_kind: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in findings.problems:
        by_kind[problem.kind].append(problem)
    for kind, problems in by_kind.items():
        show(f"{kind}: {KINDS[kind]} ({len(problems)})", style="bold")
        for problem in problems:
            also = ", ".join(_below(path, findings.root) for path in problem.others)
            line = f"  {_below(problem.path, findings.root)}: {_escaped(problem.detail)}"
            show(f"{line}; also {also}" if also else line)
    if number := len(findings.problems):
        show(f"\n{number} {'problem' if number == 1 else 'problems'}")


def _facts(findings: Findings) -> list[tuple[str, str]]:
    return [
        ("folder", path_text(findings.root)),
        ("layout", findings.layout),
        ("digest", findings.digest or "none: the dataset cannot be trained on as it is"),
        ("buckets", f"{len(findings.buckets)}: {_escaped(', '.join(findings.buckets))}"),
        ("classes", f"{len(findings.class_names)}: {_escaped(', '.join(findings.class_names))}"),
    ]


def _bucket_table(findings: Findings) -> Table:
    """Images in each bucket and split, and the least and the most that a class has there."""
    images: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # of each class
    for count in findings.counts:
        images[count.split, count.bucket].append(count.images)
    splits = list(dict.fromkeys(split for split, _ in images))
    lines = []
    for bucket in findings.buckets:
        found = [images[split, bucket] for split in splits]
        cells = [(f"{sum(n)}", f"{min(n)} to {max(n)}") if n else ("-", "-") for n in found]
        lines.append((_escaped(bucket), *chain(*cells)))
    totals = [sum(sum(n) for (of, _), n in images.items() if of == split) for split in splits]
    lines.append(("all", *chain(*((str(total), "") for total in totals))))
    heads = ("bucket", *chain(*((f"{split} images", "per class") for split in splits)))
    return plain_table(heads, lines, numbers_from=1)


def _below(path: Path, root: Path) -> str:
    return path_text(Path(os.path.relpath(path, root)))


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
