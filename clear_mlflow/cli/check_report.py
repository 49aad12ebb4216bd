"""What ``clear-mlflow data check`` prints for people."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from clear_mlflow.cli.output import console
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
    splits = list(dict.fromkeys(count.split for count in findings.counts))
    table = Table(box=None, pad_edge=False)
    table.add_column("bucket")
    for split in splits:
        table.add_column(f"{split} images", justify="right")
        table.add_column("per class", justify="right")
    total: Counter[str] = Counter()
    for bucket in findings.buckets:
        row = [_escaped(bucket)]
        for split in splits:
            images = [
                count.images
                for count in findings.counts
                if (count.split, count.bucket) == (split, bucket)
            ]
            total[split] += sum(images)
            row += [str(sum(images)), f"{min(images)} to {max(images)}"] if images else ["-", "-"]
        table.add_row(*(Text(cell) for cell in row))
    table.add_section()
    table.add_row("all", *(cell for split in splits for cell in (str(total[split]), "")))
    return table


def _line(problem: Problem, root: Path) -> str:
    line = f"{_below(problem.path, root)}: {_escaped(problem.detail)}"
    others = ", ".join(_below(path, root) for path in problem.others)
    return f"{line}; also {others}" if others else line


def _below(path: Path, root: Path) -> str:
    return path_text(Path(os.path.relpath(path, root)))


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
