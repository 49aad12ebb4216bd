"""Check that tests fail if a statement is missing or misplaced, in a copy of the project.

    python tools/mutations/run.py             # all mistakes of mutations.yaml
    python tools/mutations/run.py fsync store # those of a package, or whose reason has the word
    python tools/mutations/run.py --check     # each applies and has a test that is not slow

mutmut, which changes operators, numbers and arguments, is set up in pyproject.toml for packages
without torch and MLflow. Exit code 1: a mistake passes its tests, or cannot be tried.
"""

from __future__ import annotations

import ast
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
TIMEOUT_SECONDS = 900  # of one mistake's tests; tests that hang count as failed


def read_list(words: list[str]) -> list[dict[str, Any]]:
    """Return the mistakes of the list, or those whose package or reason is among the words."""
    mutations = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    return [m for m in mutations if not words or {*words} & {m["room"], *m["why"].split()}]


def find_module(mutation: dict[str, Any], root: Path) -> Path:
    """Return the module in which a mistake's text occurs, or raise ValueError if not just one."""
    modules = sorted((root / "clear_mlflow" / mutation["room"]).rglob("*.py"))
    matches = [m for m in modules for _ in range(m.read_text("utf-8").count(mutation["old"]))]
    if len(matches) != 1:
        raise ValueError(f"its text occurs {len(matches)} times; fix {LIST.name}")
    return matches[0]


def list_tests(mutation: dict[str, Any], root: Path) -> list[str]:
    """Return the node ids of a mistake's tests."""
    ids = []
    for test in mutation["tests"]:
        name, separator, rest = test.partition("::")
        (path,) = (root / "tests").rglob(name)
        ids.append(f"{path.relative_to(root)}{separator}{rest}")
    return ids


def check_list() -> int:
    """Print each mistake that cannot be tried, and return the exit code."""
    faults = []
    for mutation in read_list([]):
        try:
            module = find_module(mutation, ROOT)
            ast.parse(module.read_text("utf-8").replace(mutation["old"], mutation["new"]))
        except (ValueError, SyntaxError) as error:
            faults.append(f"{mutation['why']}: {error}")
    tests = sorted({test for mutation in read_list([]) for test in list_tests(mutation, ROOT)})
    # Of a file, it is not known which of its tests fails, and that one may be slow.
    faults += [f"{test}: name one of its tests" for test in tests if "::" not in test]
    command = [sys.executable, "-m", "pytest", "-n0", "--collect-only", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    faults += [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    # Of several examples, such as test_name[1], one that is not slow is enough.
    collected = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    faults += [f"{test}: all its tests are slow" for test in tests if test not in collected]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


def main(words: list[str]) -> int:
    """Try each mistake, print whether its tests fail, and return the exit code."""
    if words == ["--check"]:
        return check_list()
    survived = 0
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_mutations_") as scratch:
        copy = Path(scratch, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("__pycache__", ".git*"))
        for mutation in read_list(words):
            module, tests = find_module(mutation, copy), list_tests(mutation, copy)
            if not _pass_tests(copy, tests):
                print(f"{mutation['why']}: its tests fail without it", file=sys.stderr)
                return 2
            source = module.read_text(encoding="utf-8")
            module.write_text(source.replace(mutation["old"], mutation["new"]), encoding="utf-8")
            is_killed = not _pass_tests(copy, tests)
            module.write_text(source, encoding="utf-8")
            survived += not is_killed
            print(f"{'killed' if is_killed else 'SURVIVED'}: {mutation['why']}", flush=True)
    return 1 if survived else 0


def _pass_tests(copy: Path, tests: list[str]) -> bool:
    # The profile of CI: hypothesis tries the same examples each time. CI itself would fail a test
    # that takes long, also on a busy machine.
    command = [sys.executable, "-m", "pytest", "-x", "-n0", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile=ci", *tests]
    # No bytecode: it could hide a changed file.
    variables = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=copy,
            env={k: v for k, v in os.environ.items() if k != "CI"} | variables,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
