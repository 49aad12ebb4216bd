"""Writes every file that follows from another; ``--check`` writes nothing and says what is due."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from badges import licence_badge, python_badge
from hosting import citation, notebook, readme
from metrics_table import metrics_page
from mlproject import mlproject, mlproject_in_a_container
from parameters import parameters_page
from program_output import page_with_outputs, update_outputs
from python_reference import python_page
from reference import reference
from signatures import train_options

ROOT = Path(__file__).parent.parent

GENERATED: dict[str, Callable[[], str]] = {
    "README.md": lambda: update_outputs(readme()),
    "CITATION.cff": citation,
    "MLproject": mlproject,
    "examples/docker/MLproject": mlproject_in_a_container,
    "clear_mlflow/learning/parameters/options.py": train_options,
    "examples/notebook.ipynb": notebook,
    "docs/images/python.svg": python_badge,
    "docs/images/licence.svg": licence_badge,
    "docs/reference.md": reference,
    "docs/metrics.md": metrics_page,
    "docs/parameters.md": parameters_page,
    "docs/python.md": python_page,
    "docs/statistics.md": partial(page_with_outputs, "statistics.md"),
}


def main(arguments: list[str]) -> int:
    """Write what differs, or say so."""
    if arguments not in ([], ["--check"]):
        print("expected nothing, or --check", file=sys.stderr)
        return 2
    differs = False
    for path, write in GENERATED.items():
        file, text = ROOT / path, write()
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        differs = True
        if arguments:
            print(f"{path} is not what it follows from; run python tools/generate.py")
        else:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 1 if differs and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
