"""Check README and docs/ against the code: ``python tools/check_docs.py`` prints each fault.

Checked are links and headings, commands and their options, YAML and JSON, names of tests, of
environment variables and of stored data, messages that troubleshooting quotes, and the table of
docs/concepts.md. The tests run the Python on pages. Exit code 1: there are faults.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import yaml

from clear_mlflow.cli import main as command_line
from clear_mlflow.metrics import METRICS, scores
from clear_mlflow.store import names

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "clear_mlflow").rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.S | re.M)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_VARIABLE = re.compile(
    "(CLEAR_MLFLOW|MLFLOW|XDG|OMP|GOMP|CUDA|HF|TORCH|RAY|NCCL|GLOO|RANK|WORLD|LOCAL|MASTER)"
    "(_[A-Z]+)*"
)
# Quoted on docs/troubleshooting.md, and printed by MLflow.
_MLFLOW_MESSAGES = {"Could not find Conda executable at ..."}


def check_links(page: Path) -> Iterator[str]:
    """Yield relative links to files or headings that do not exist."""
    for target in _LINK.findall(_BLOCK.sub("", _read(page))):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", target):
            continue
        if not file.is_relative_to(ROOT) or not file.exists():
            yield f"a link leads to {target}, which does not exist"
        elif anchor and anchor not in _list_anchors(file):
            yield f"a link leads to {target}, but there is no such heading"


def check_blocks(page: Path) -> Iterator[str]:
    """Yield blocks of code that cannot be parsed, and commands that the program does not have."""
    for _, language, code in _BLOCK.findall(_read(page)):
        try:
            if language == "yaml":
                list(yaml.safe_load_all(code))
            elif language == "json":
                json.loads(code)
            elif language in ("", "sh"):
                for line in re.sub(r"\\\n\s*", " ", code).splitlines():
                    for part in line.split(" #")[0].split("&&"):
                        _parse_command(shlex.split(part) if "$(" not in part else [])
            elif language not in ("python", "text", "toml", "bibtex"):
                yield f"a block of code has an unknown language: {language}"
        except (ValueError, KeyError, yaml.YAMLError, click.ClickException) as error:
            yield f"{code.strip().splitlines()[0]}: {getattr(error, 'message', error)}"


def _parse_command(words: list[str]) -> None:
    """Parse a command line with the program's own options."""
    if words[:2] == ["mlflow", "run"]:
        entry = words[words.index("-e") + 1] if "-e" in words else "main"
        command_name = _read_entry_points()[entry]["command"].split()[3]
        options = command_line.commands[command_name].params
        valid_names = {name[2:].replace("-", "_") for option in options for name in option.opts}
        passed = [words[i + 1].split("=")[0] for i, word in enumerate(words) if word == "-P"]
        if unknown := sorted(set(passed) - set(valid_names)):
            raise ValueError(f"the entry point {entry} has no parameter {unknown[0]}")
    if "clear-mlflow" in words and not {"--version", "|"} & set(words):
        rest = words[words.index("clear-mlflow") + 1 :]
        rest = rest[: rest.index(">")] if ">" in rest else rest
        command: click.Command = command_line
        context = click.Context(command_line)
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(command.name, rest, parent=context)


def check_test_names(page: Path) -> Iterator[str]:
    """Yield names of tests that do not exist."""
    for file, function in re.findall(r"`(tests/\w+/\w+\.py)::(\w+)`", _read(page)):
        if not (ROOT / file).exists() or f"def {function}(" not in _read(ROOT / file):
            yield f"{file}::{function} does not exist"


def check_environment(page: Path) -> Iterator[str]:
    """Yield environment variables of the code that the page lacks, and those no longer used."""
    used = set()
    for node in _walk_package():
        if isinstance(node, ast.Constant) and _VARIABLE.fullmatch(str(node.value)):
            used.add(str(node.value))
        elif isinstance(node, ast.ImportFrom) and "environment_variables" in str(node.module):
            used |= {alias.name for alias in node.names if not alias.name.startswith("_")}
    documented = set(re.findall(r"`([A-Z][A-Z_]+)`", _read(page)))
    yield from (f"{name} is missing" for name in sorted(used - documented - {"CLEAR"}))
    package_names = {name for name in documented if name.startswith("CLEAR_MLFLOW_")}
    yield from (f"{name} is not in the code" for name in sorted(package_names - used))


def check_stored_names(page: Path) -> Iterator[str]:
    """Yield constants of store/names.py that the page lacks."""
    for constant, name in vars(names).items():
        is_stored = constant.isupper() and not constant.startswith(("MLFLOW_", "ROOT_"))
        if is_stored and isinstance(name, str) and f"`{name}" not in _read(page):
            yield f"{constant}, {name}, is missing"


def check_messages(page: Path) -> Iterator[str]:
    """Yield quoted messages that the package does not print. ``...`` stands for inserted values."""
    messages = {
        _join_constants(node)
        for node in _walk_package()
        if isinstance(node, ast.Constant | ast.JoinedStr)
    }
    for _, language, code in _BLOCK.findall(_read(page)):
        line = re.sub(r"^(error|warning): ", "", code.strip())
        parts = [re.escape(part.strip(" ,;:().'")) for part in line.split("...")]
        pattern = re.compile(".*".join(parts), re.S)
        is_quoted = language == "text" and line not in _MLFLOW_MESSAGES
        if is_quoted and not any(map(pattern.search, messages)):
            yield f"nothing prints {line!r}"


def _walk_package() -> Iterator[ast.AST]:
    return (node for module in PACKAGE for node in ast.walk(ast.parse(_read(module))))


def _join_constants(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_join_constants, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "\0"


def check_concepts(page: Path) -> Iterator[str]:
    """Yield a difference between the table of metrics and the matrix that the page defines."""
    variables: dict[str, Any] = {}
    code = next(code for _, language, code in _BLOCK.findall(_read(page)) if language == "python")
    exec(code, variables)  # noqa: S102  (a page of this checkout)
    rows = re.findall(r"^\| `(\w+/\w+)` .*\| (\S+) \|$", _read(page), re.M)
    families = {name.split("/")[0] for name, _ in rows}
    metrics = [metric for metric in METRICS if metric.name.split("/")[0] in families]
    results = scores(variables["matrix"], metrics=metrics)
    expected = {name: m.text for name, m in results.items() if m.value is not None}
    table = {name: f"{float(value):.4f}" for name, value in rows}
    if table != expected:
        yield f"the table contains {table}, but the matrix has {expected}"
    for metric in results.values():
        if metric.reason and f'["{metric.name}"].reason  # {metric.reason!r}' not in code:
            yield f"{metric.name} has no value: {metric.reason}"


CHECKS: dict[Callable[[Path], Iterator[str]], list[Path]] = {
    check_blocks: PAGES,
    check_test_names: PAGES,
    check_links: [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"],
    check_environment: [ROOT / "docs" / "environment.md"],
    check_stored_names: [ROOT / "docs" / "tracking.md"],
    check_messages: [ROOT / "docs" / "troubleshooting.md"],
    check_concepts: [ROOT / "docs" / "concepts.md"],
}


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _read_entry_points() -> dict[str, Any]:
    return yaml.safe_load(_read(ROOT / "MLproject"))["entry_points"]


@cache
def _list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", _read(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def main() -> int:
    """Print every fault, and return the exit code."""
    faults = [
        f"{path.relative_to(ROOT)}: {fault}"
        for check, paths in CHECKS.items()
        for path in paths
        if path.exists()
        for fault in check(path)
    ]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
