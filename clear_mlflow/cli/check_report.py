"""What ``clear-mlflow data check`` prints for people."""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import chain
from pathlib import Path

from rich.table import Table
from rich.text import Text

from clear_mlflow.cli.output import console, plain_table
from clear_mlflow.data.checking.findings import Findings
from clear_mlflow.data.files import path_text
from clear_mlflow.data.problems import KINDS, Problem


def print_findings(findings: Findings) -> None:
    """The dataset in a few lines, its buckets in a table, and every problem under its kind."""
    out = console()
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(findings):
        facts.add_row(name, Text(value))
    out.print(facts)
    out.print()
    out.print(_bucket_table(findings))
    out.print()
    if not findings.problems:
        out.print("nothing is wrong")
        return
    by_kind: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in findings.problems:
        by_kind[problem.kind].append(problem)
    for kind, problems in by_kind.items():
        out.print(Text(f"{kind}: {KINDS[kind]} ({len(problems)})", style="bold"))
        for problem in problems:
            # Whole lines, whatever the terminal's width: paths are copied from here.
            out.print(Text(f"  {_line(problem, findings.root)}"), soft_wrap=True)
    number = len(findings.problems)
    out.print(f"\n{number} {'problem' if number == 1 else 'problems'}", highlight=False)


def _facts(findings: Findings) -> list[tuple[str, str]]:
    return [
        ("folder", path_text(findings.root)),
        ("layout", findings.layout),
        ("digest", findings.digest or "none: the dataset cannot be trained on as it is"),
        ("buckets", f"{len(findings.buckets)}: {_escaped(', '.join(findings.buckets))}"),
        ("classes", f"{len(findings.class_names)}: {_escaped(', '.join(findings.class_names))}"),
        ("width", _spread(findings.widths)),
        ("height", _spread(findings.heights)),
        ("modes", ", ".join(f"{mode} {count}" for mode, count in findings.modes.items()) or "none"),
    ]


def _spread(values: tuple[int, float, int] | None) -> str:
    if values is None:
        return "no image can be decoded"
    least, median, greatest = values
    return f"{least} to {greatest} pixels, median {median:g}"


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
    heads = ("bucket", *chain(*((f"{split} images", "per class") for split in splits)))
    table = plain_table(heads, lines, numbers_from=1)
    table.add_section()
    totals = [sum(sum(n) for (of, _), n in images.items() if of == split) for split in splits]
    table.add_row("all", *chain(*((str(total), "") for total in totals)))
    return table


def _line(problem: Problem, root: Path) -> str:
    line = f"{_below(problem.path, root)}: {_escaped(problem.detail)}"
    others = ", ".join(_below(path, root) for path in problem.others)
    return f"{line}; also {others}" if others else line


def _below(path: Path, root: Path) -> str:
    return path_text(Path(os.path.relpath(path, root)))


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
