"""Do the tests see a small mistake? Each of a list is made in a copy, and tests are run over it.

    python tools/mutations/run.py             # all of mutations.yaml
    python tools/mutations/run.py fsync store # those of a room, or whose reason holds the word

A mistake is found by its text, which occurs once in its room, so it outlives code that moves. It is
killed when one of its tests fails; the tests pass without it, which is looked at first. Programs
that the tests start read the copy, too. Exit code 1: fewer than 85 % are killed, or a mistake
survives that the list does not expect to.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutations.yaml")
LEAST_KILLED = 0.85
_NONE = "without a mistake"
SECONDS = 900  # of one mistake's tests; a mistake that makes them hang is seen, too

# Loaded once, before the copy is looked at: every run of tests forks from here.
PRELOADED = (
    *("click", "hypothesis", "jinja2", "matplotlib.pyplot", "mlflow", "mlflow.tracking"),
    *("mlflow.store.tracking.sqlalchemy_store", "numpy", "psutil", "pytest", "requests"),
    *("rich.table", "safetensors.numpy", "scipy.stats", "sklearn.datasets", "torch"),
)


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One mistake.

    Args:
        room: folder of the package in which the text occurs once.
        old: the text.
        new: what stands there instead.
        why: what would go wrong for a user.
        tests: file names, wherever below tests/, each with ``::name`` where one test is meant.
        survives: the reason why no test sees it; None: one should.
    """

    room: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    survives: str | None = None

    def file(self, root: Path) -> Path:
        """The module that holds the text.

        Raises:
            ValueError: it occurs nowhere, or more than once.
        """
        found = [
            (path, path.read_text(encoding="utf-8").count(self.old))
            for path in sorted((root / "clear_mlflow" / self.room).rglob("*.py"))
        ]
        found = [(path, count) for path, count in found if count]
        if [count for _, count in found] != [1]:
            raise ValueError(
                f"{self.why}: {self.old!r} occurs {sum(n for _, n in found)} times in {self.room}; "
                f"mend {LIST.name}"
            )
        return found[0][0]

    def test_ids(self, root: Path) -> list[str]:
        """Its tests as pytest names them.

        Raises:
            ValueError: a file is not there.
        """
        ids = []
        for test in self.tests:
            name, separator, rest = test.partition("::")
            paths = sorted((root / "tests").rglob(name))
            if len(paths) != 1:
                raise ValueError(f"{self.why}: {name} is {len(paths)} files below tests")
            ids.append(f"{paths[0].relative_to(root)}{separator}{rest}")
        return ids


def read_list(words: Sequence[str] = ()) -> list[Mutation]:
    """The mistakes of mutations.yaml; with words, of these rooms or with one in their reason."""
    told = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    found = [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in told]
    return [
        m for m in found if not words or any(word in f"{m.room} {m.why}".split() for word in words)
    ]


def main(words: Sequence[str]) -> int:
    """Make each mistake, and say what became of it."""
    mutations = read_list(words)
    if not mutations:  # pytest without a name would run every test there is
        print(f"no mistake is of, or has a reason with, {' or '.join(words)}", file=sys.stderr)
        return 2
    for name in PRELOADED:
        importlib.import_module(name)
    killed, unexpected = 0, 0
    with tempfile.TemporaryDirectory(prefix="clear_mlflow_mutations_") as scratch:
        copy = Path(scratch)
        for part in ("clear_mlflow", "tests", "docs", "examples", "tools"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, copy / part, ignore=ignored)
        for file in ROOT.iterdir():  # README, MLproject, constraints and the like: tests read them
            if file.is_file():
                shutil.copy(file, copy / file.name)
        for mutation in mutations:
            mutation.file(copy)
        every = sorted({test for m in mutations for test in m.test_ids(copy)})
        if _fails(copy, every, _NONE):
            print("the tests fail without a mistake: nothing can be told", file=sys.stderr)
            return 2
        for mutation in mutations:
            module = mutation.file(copy)
            whole = module.read_text(encoding="utf-8")
            module.write_text(whole.replace(mutation.old, mutation.new), encoding="utf-8")
            since = time.monotonic()
            is_killed = _fails(copy, mutation.test_ids(copy), mutation.why)
            module.write_text(whole, encoding="utf-8")
            killed += is_killed
            verdict = "killed  " if is_killed else "SURVIVED"
            where = module.relative_to(copy / "clear_mlflow")
            print(f"{verdict} {time.monotonic() - since:5.0f} s  {where}: {mutation.why}")
            if not is_killed and mutation.survives:
                print(f"                  as expected: {mutation.survives}")
            unexpected += not is_killed and mutation.survives is None
            sys.stdout.flush()
    print(f"{killed} of {len(mutations)} killed ({killed / max(len(mutations), 1):.0%})")
    return 1 if unexpected or killed < LEAST_KILLED * len(mutations) else 0


def _fails(copy: Path, tests: Sequence[str], why: str) -> bool:
    """Run tests over the copy in a process of its own; whether one fails, or they hang."""
    log = copy / "log"
    child = os.fork()
    if child == 0:
        os.setsid()
        with log.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        _run_tests(copy, tests)
    until = time.monotonic() + SECONDS * (1 + len(tests) // 10)
    status = 0
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return True
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1, 2):  # 2: the mistake keeps a test's module from being imported
        raise RuntimeError(
            f"{why}: the tests could not be run, exit code {code}:\n{log.read_text()[-4000:]}"
        )
    if code and why == _NONE:
        print(log.read_text()[-4000:], file=sys.stderr)
    return code != 0


def _run_tests(copy: Path, tests: Sequence[str]) -> None:
    code = 70
    try:
        import pytest

        os.chdir(copy)
        sys.dont_write_bytecode = True  # a cache would stand for a file of the same second
        sys.path.insert(0, str(copy))
        os.environ |= {
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "CI": "1",  # hypothesis tries the same examples each time
        }
        code = int(pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", *tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
