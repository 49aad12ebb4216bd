"""Writes every file that follows from another: ``python tools/generate.py``.

A test says when that is due; so does ``python tools/generate.py --check``, which writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from concept_matrix import picture
from environment import environment_page
from metrics_table import metrics_page
from mlproject import mlproject, mlproject_in_a_container
from parameters import parameters_page
from reference import reference
from signatures import api
from stored_names import names_page

ROOT = Path(__file__).parent.parent

GENERATED: dict[str, Callable[[], str]] = {
    "MLproject": mlproject,
    "examples/docker/MLproject": mlproject_in_a_container,
    "clear_mlflow/api.py": api,
    "docs/reference.md": reference,
    "docs/environment.md": environment_page,
    "docs/metrics.md": metrics_page,
    "docs/names.md": names_page,
    "docs/parameters.md": parameters_page,
    "docs/images/matrix-4x4.svg": picture,
}


def outdated() -> list[str]:
    """Paths of the files that are not what they follow from."""
    return [path for path, write in GENERATED.items() if _text(path) != write()]


def _text(path: str) -> str:
    file = ROOT / path
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("expected nothing, or --check", file=sys.stderr)
        return 2
    found = outdated()
    for path in found:
        if arguments:
            print(f"{path} is not what it follows from; run python tools/generate.py")
        else:
            (ROOT / path).write_text(GENERATED[path](), encoding="utf-8")
            print(f"wrote {path}")
    return 1 if found and arguments else 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
