"""Do the tests see a statement that is missing or misplaced? Each of a list is tried in a copy.

    python tools/mutations/run.py             # all of mutations.yaml
    python tools/mutations/run.py fsync store # those of a room, or whose reason holds the word

mutmut, which changes operators, numbers and arguments by itself, is set up in pyproject.toml for
rooms without torch and MLflow. Exit code 1: a mistake survives its tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutations.yaml")
SECONDS = 900  # of one mistake's tests; a mistake that makes them hang is seen, too


def read_list(words: list[str]) -> list[dict[str, Any]]:
    """The mistakes of the list; with words, of these rooms or with one in their reason."""
    listed = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    return [m for m in listed if not words or {*words} & {m["room"], *m["why"].split()}]


def module_of(mutation: dict[str, Any], root: Path) -> Path:
    """The module of the mistake's room in which its text occurs, once."""
    modules = sorted((root / "clear_mlflow" / mutation["room"]).rglob("*.py"))
    found = [m for m in modules for _ in range(m.read_text("utf-8").count(mutation["old"]))]
    if len(found) != 1:
        raise ValueError(f"{mutation['why']}: its text occurs {len(found)} times; mend {LIST.name}")
    return found[0]


def test_ids(mutation: dict[str, Any], root: Path) -> list[str]:
    """The mistake's tests, as pytest names them."""
    ids = []
    for test in mutation["tests"]:
        name, separator, rest = test.partition("::")
        (path,) = (root / "tests").rglob(name)
        ids.append(f"{path.relative_to(root)}{separator}{rest}")
    return ids


def main(words: list[str]) -> int:
    """Make each mistake, and say what became of it."""
    survived = 0
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_mutations_") as scratch:
        copy = Path(scratch, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("__pycache__", ".git*"))
        for mutation in read_list(words):
            module, tests = module_of(mutation, copy), test_ids(mutation, copy)
            if not _pass(copy, tests):
                print(f"{mutation['why']}: its tests fail without it", file=sys.stderr)
                return 2
            whole = module.read_text(encoding="utf-8")
            module.write_text(whole.replace(mutation["old"], mutation["new"]), encoding="utf-8")
            is_killed = not _pass(copy, tests)
            module.write_text(whole, encoding="utf-8")
            survived += not is_killed
            print(f"{'killed' if is_killed else 'SURVIVED'}: {mutation['why']}", flush=True)
    return 1 if survived else 0


def _pass(copy: Path, tests: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-n0", "-p", "no:cacheprovider", *tests]
    # CI: hypothesis tries the same examples each time. A cache would stand for a changed file.
    more = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=copy,
            env=os.environ | more,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
