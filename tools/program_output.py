"""Write the program output that pages show, by running the commands that print it.

A comment in front of a block names the command and, after bars, how each paragraph to show starts:

    <!-- output: clear-mlflow compare paper.tar.xz --baseline naive | replay is better -->

``python tools/generate.py`` runs these commands, which read stored runs and print the same
everywhere. A comment that starts with ``trained output`` names a training, whose digits depend on
the processor: only ``python tools/program_output.py`` runs it again.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from functools import cache
from pathlib import Path

from hosting import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WIDTH = 96


def update_outputs(text: str, *, comment: str = "output") -> str:
    """Return a page's text with the output of every marked command as it is printed now."""
    block = rf"(<!-- {comment}: (.+?) -->\n```text\n).*?(^```$)"
    return re.sub(block, _replace_block, text, flags=re.S | re.M)


def _replace_block(block: re.Match[str]) -> str:
    command, *starts = block[2].split(" | ")
    paragraphs = re.split(r"\n\s*\n", run_command(command))
    parts = []
    for start in starts:
        matches = [text for text in paragraphs if text.lstrip("✓–! ").startswith(start)]
        if len(matches) != 1:
            raise ValueError(f"{len(matches)} paragraphs of {command!r} start with {start!r}")
        parts.append(matches[0] if "──" in matches[0] else _wrap(matches[0]))
    return block[1] + "\n\n".join(parts) + "\n" + block[3]


def _wrap(paragraph: str) -> str:
    sentences = re.split(r"\n(?=  \S)", paragraph)  # a verdict, and indented remarks below it
    return "\n".join(
        textwrap.fill(" ".join(sentence.split()), WIDTH, initial_indent="  " * (at > 0))
        for at, sentence in enumerate(sentences)
    )


@cache
def run_command(command: str) -> str:
    """Return what a command prints in an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "benchmarks").symlink_to(ROOT / "benchmarks")
        words = shlex.split(command.replace("mlflow run .", f"mlflow run {ROOT}"))
        done = subprocess.run(  # noqa: S603  (a command of our own pages)
            [sys.executable, "-m", words[0].replace("-", "_"), *words[1:]],
            cwd=folder,
            env={
                **os.environ,
                "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
                "PYTHONPATH": str(ROOT),
                "COLUMNS": "80",
            },
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


if __name__ == "__main__":
    for page in PAGES:
        current = page.read_text(encoding="utf-8")
        page.write_text(update_outputs(current, comment="trained output"), encoding="utf-8")
