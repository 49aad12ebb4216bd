"""Holds README and docs/ to the code: ``python tools/check_docs.py`` names each fault.

Links and headings, commands and their options, YAML and JSON, names of tests and of environment
variables, lines that troubleshooting quotes, the table of docs/concepts.md, and the words of prose.
That Python on a page runs is for the tests. Exit code 1: there are faults.
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
from proselint.checks import __register__ as checks_of_proselint
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

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

# A phrase, as a regular expression, and what to write.
WORDS = {
    r"go(?:es|ne|ing)? on\b|went on\b": "continue, resume, keep",
    r"told\b|tells?\b": "report, say, name, show",
    r"stands?\b|stood\b": "is, has, exists; 'means' for a sign",
    r"[Ww]ho (?:may|opens|lost|runs|changes|publishes|picks|asks)\b": "you, anyone who can",
    r"spools?\b": "journal",
    r"[Ss]omebody\b|[Ss]omeone\b": "you, another user, a person",
    r"goes? before\b": "overrides, takes precedence",
    r"look(?:s|ed)? over\b": "checks",
    r"comes? out otherwise\b|otherwise than\b": "differently",
    r"is said so\b|it is said\b": "the command says",
    r"the untrained row\b|initial row\b": "the initialisation row",
    r"heatmaps?\b": "heat map",
    r"of ones? own\b": "of your own",
    r"heeded\b": "followed, ignored",
}
# Left out is what misreads technical pages: p = 0.03, resume, straight quotes, three dots.
PROSELINT = dict.fromkeys(
    (
        *("archaism", "cliches", "hedging", "industrial_language", "lexical_illusions"),
        *("malapropisms", "misc", "mixed_metaphors", "mondegreens", "nonwords", "oxymorons"),
        *("redundancy", "social_awareness", "spelling", "terms", "uncomparables", "weasel_words"),
    ),
    True,
)
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.S | re.M)
_CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`|\]\([^)\n]*\)|^    .*$|<!--.*?-->", re.S | re.M)
_NAMES = re.compile(r"``[^`]*``|:[a-z]+:`[^`]*`|`[^`]*`|>>> .*|^ +\w+:", re.M)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_VARIABLE = re.compile(
    "(CLEAR_MLFLOW|MLFLOW|XDG|OMP|GOMP|CUDA|HF|TORCH|RAY|NCCL|GLOO|RANK|WORLD|LOCAL|MASTER)"
    "(_[A-Z]+)*"
)
# Quoted on docs/troubleshooting.md, and printed by MLflow.
_OF_MLFLOW = {"Could not find Conda executable at ..."}


def links(page: Path) -> Iterator[str]:
    """Relative links that name no file of the project, or no heading of it."""
    for target in _LINK.findall(FENCED.sub("", _text(page))):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", target):
            continue
        if not there.is_relative_to(ROOT) or not there.exists():
            yield f"a link leads to {target}, which is not there"
        elif anchor and anchor not in _anchors(there):
            yield f"a link leads to {target}, and there is no such heading"


def blocks(page: Path) -> Iterator[str]:
    """Blocks of code that cannot be read, and commands that the program does not have."""
    for _, language, code in FENCED.findall(_text(page)):
        try:
            if language == "yaml":
                list(yaml.safe_load_all(code))
            elif language == "json":
                json.loads(code)
            elif language in ("", "sh"):
                for line in re.sub(r"\\\n\s*", " ", code).splitlines():
                    for part in line.split(" #")[0].split("&&"):
                        _parse(shlex.split(part) if "$(" not in part else [])
            elif language not in ("python", "text", "toml", "bibtex"):
                yield f"a block of code is of no known kind: {language}"
        except (ValueError, KeyError, yaml.YAMLError, click.ClickException) as error:
            yield f"{code.strip().splitlines()[0]}: {getattr(error, 'message', error)}"


def _parse(words: list[str]) -> None:
    """Parse a command with the program's own options; capitals are for names of yours."""
    if words[:2] == ["mlflow", "run"]:
        entry = words[words.index("-e") + 1] if "-e" in words else "main"
        command_name = _entry_points()[entry]["command"].split()[-1]
        options = command_line.commands[command_name].params
        known = {name[2:].replace("-", "_") for option in options for name in option.opts}
        given = [words[i + 1].split("=")[0] for i, word in enumerate(words) if word == "-P"]
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"the entry point {entry} has no parameter {unknown[0]}")
    if "clear-mlflow" in words and not {"--version", "|"} & set(words):
        rest = words[words.index("clear-mlflow") + 1 :]
        rest = rest[: rest.index(">")] if ">" in rest else rest
        command: click.Command = command_line
        context = click.Context(command_line)
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(command.name, rest, parent=context)


def named_tests(page: Path) -> Iterator[str]:
    """Tests that a page names and that are not there."""
    for file, function in re.findall(r"`(tests/\w+/\w+\.py)::(\w+)`", _text(page)):
        if not (ROOT / file).exists() or f"def {function}(" not in _text(ROOT / file):
            yield f"{file}::{function} is not there"


def prose(page: Path) -> Iterator[str]:
    """What proselint finds, and our own words."""
    text = _CODE.sub(_blanked, _text(page))
    yield from _words(text, 1)
    for result in LintFile(str(page), text).lint({"max_errors": 1000, "checks": PROSELINT}):
        yield f"line {result.pos[0] - 1}: {result.check_result.message}"


def docstrings(module: Path) -> Iterator[str]:
    """Our own words in the docstrings of a module."""
    source = _text(module)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            text = ast.get_source_segment(source, node.body[0]) or ""
            yield from _words(_NAMES.sub(_blanked, text), node.body[0].lineno)


def _words(text: str, first: int) -> Iterator[str]:
    for pattern, better in WORDS.items():
        for found in re.finditer(rf"\b(?:{pattern})", text):
            line = first + text.count("\n", 0, found.start())
            yield f"line {line}: {found[0]!r}: {better}"


def environment(page: Path) -> Iterator[str]:
    """Environment variables of the code that the page lacks, and those of ours that are gone."""
    found = set()
    for node in (node for module in PACKAGE for node in ast.walk(ast.parse(_text(module)))):
        if isinstance(node, ast.Constant) and _VARIABLE.fullmatch(str(node.value)):
            found.add(str(node.value))
        elif isinstance(node, ast.ImportFrom) and "environment_variables" in str(node.module):
            found |= {alias.name for alias in node.names if not alias.name.startswith("_")}
    listed = set(re.findall(r"`([A-Z][A-Z_]+)`", _text(page)))
    yield from (f"{name} is not on the page" for name in sorted(found - listed - {"CLEAR"}))
    ours = {name for name in listed if name.startswith("CLEAR_MLFLOW_")}
    yield from (f"{name} is nowhere in the code" for name in sorted(ours - found))


def stored_names(page: Path) -> Iterator[str]:
    """Names of store/names.py that the page of names lacks."""
    text = _text(page)
    for constant, name in vars(names).items():
        of_a_run = constant.isupper() and not constant.startswith(("MLFLOW_", "ROOT_"))
        if of_a_run and isinstance(name, str) and f"`{name}" not in text:
            yield f"{constant}, {name}, is not on the page"


def quoted_lines(page: Path) -> Iterator[str]:
    """Lines that a page quotes and that the package does not print; ... is what is filled in."""
    printed = set()
    for node in (node for module in PACKAGE for node in ast.walk(ast.parse(_text(module)))):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            printed.add(_filled(node))
    for _, language, code in FENCED.findall(_text(page)):
        line = re.sub(r"^(error|warning): ", "", code.strip())
        parts = [re.escape(part.strip(" ,;:().'")) for part in line.split("...")]
        pattern = re.compile(".*".join(parts), re.S)
        if language == "text" and line not in _OF_MLFLOW and not any(map(pattern.search, printed)):
            yield f"nothing prints {line!r}"


def _filled(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_filled, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "\0"


def concepts(page: Path) -> Iterator[str]:
    """Values of the table that are not those of the matrix that the page writes down."""
    space: dict[str, Any] = {}
    code = next(code for _, language, code in FENCED.findall(_text(page)) if language == "python")
    exec(code, space)  # noqa: S102  (a page of this checkout)
    rows = re.findall(r"^\| `(\w+/\w+)` .*\| (\S+) \|$", _text(page), re.M)
    families = {name.split("/")[0] for name, _ in rows}
    chosen = [metric for metric in METRICS if metric.name.split("/")[0] in families]
    matrix = space["matrix"]
    found = scores(matrix, metrics=chosen)
    expected = {n: m.text for n, m in found.items() if m.value is not None}
    shown = {name: f"{float(value):.4f}" for name, value in rows}
    if shown != expected:
        yield f"the table says {shown}, the matrix {expected}"
    for metric in found.values():
        if metric.reason and f'found["{metric.name}"].reason  # {metric.reason!r}' not in code:
            yield f"{metric.name} has no value: {metric.reason}"


CHECKS: dict[Callable[[Path], Iterator[str]], list[Path]] = {
    docstrings: PACKAGE,
    prose: PAGES,
    blocks: PAGES,
    named_tests: PAGES,
    links: [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"],
    environment: [ROOT / "docs" / "environment.md"],
    stored_names: [ROOT / "docs" / "names.md"],
    quoted_lines: [ROOT / "docs" / "troubleshooting.md"],
    concepts: [ROOT / "docs" / "concepts.md"],
}


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _entry_points() -> dict[str, Any]:
    return yaml.safe_load(_text(ROOT / "MLproject"))["entry_points"]


@cache
def _anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", _text(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def _blanked(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "#", found[0])


def main() -> int:
    """Print every fault."""
    CheckRegistry().register_many(checks_of_proselint)
    checks = [(check, path) for check, paths in CHECKS.items() for path in paths if path.exists()]
    found = [f"{path.relative_to(ROOT)}: {line}" for check, path in checks for line in check(path)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
