"""Counts what makes names and sentences hard to read: ``python tools/check_language.py``.

Each package has an allowed count per rule in tools/language_counts.json. A count above it is
printed with examples, and the exit code is 1. ``--update`` lowers the allowed counts to today's,
``--list RULE`` prints every place. The words to avoid are the table in CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RULES = {
    "function": "is a participle or starts or ends with a preposition; name it verb_object",
    "docstring": "is no sentence of one clause; start with a verb, such as 'Return the rows ...'",
    "name": "is too vague or a private term; see the table of words in CONTRIBUTING.md",
    "prose": "is our dialect; see the table of words in CONTRIBUTING.md",
}
EXAMPLES = 5
Counts = dict[str, dict[str, int]]  # package to rule to number of places

# A verb whose form is that of a participle.
_VERBS = {"run", "open", "listen", "embed", "seed", "speed", "shorten", "feed", "need", "read"}
_PARTICIPLE = re.compile(r"[a-z]+(ed|en|un)")
_PREPOSITION = re.compile(r"(of|by|in|on|above|below|without|until)_.*|.*_(of|by|in|on|to|from)")
_NAME_FIELDS = ("id", "arg", "attr", "name", "asname")  # of nodes of Python's syntax tree
_HOOK = re.compile(r"on_[a-z_]+")  # named by a framework, or like its hooks
_NO_VERB = re.compile(
    r"(What|How|Which|Where|Why|Of|As|Those|Whether|That|Who|A|An|The|All|Each|Every|One|Its)\b"
)


class Words:
    """The names and the phrases to avoid, as a table of Markdown lists them."""

    def __init__(self, table: str) -> None:
        self.names: set[str] = set()
        phrases: list[str] = []
        for items, where in re.findall(r"^\| (`.*?) \| (name|prose) \|", table, re.M):
            words = re.findall(r"`([^`]+)`", items)
            if where == "name":
                self.names.update(words)
            else:
                phrases += words
        parts = [re.sub(r"^(?=\w)|(?<=\w)$", r"\\b", re.escape(phrase)) for phrase in phrases]
        self.phrases = re.compile("|".join(parts))


def check_python(source: str, words: Words) -> Iterator[tuple[str, int, str]]:
    """Yield rule, line number and text of each place in a Python file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node):
            if _is_bad_function_name(node.name):
                yield "function", node.lineno, node.name
            first_line = (ast.get_docstring(node) or "").partition("\n")[0]
            is_test = node.name.startswith("test_")  # its docstring states what is proved
            if not is_test and (";" in first_line or _NO_VERB.match(first_line)):
                yield "docstring", node.lineno, f"{node.name}: {first_line}"
        for field in _NAME_FIELDS:
            name = getattr(node, field, None)
            if isinstance(name, str) and name.strip("_") in words.names:
                yield "name", getattr(node, "lineno", 1), name
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for match in words.phrases.finditer(node.value):
                yield "prose", node.lineno + node.value.count("\n", 0, match.start()), match[0]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for match in words.phrases.finditer(token.string):
                yield "prose", token.start[0], match[0]


def check_markdown(text: str, words: Words) -> Iterator[tuple[str, int, str]]:
    """Yield rule, line number and phrase of each place in a page, outside of code."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            for match in words.phrases.finditer(re.sub(r"`[^`]*`", "``", line)):
                yield "prose", number, match[0]


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = {
        ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for decorator in node.decorator_list
    }
    last_names = {name.rpartition(".")[2] for name in decorators}
    return not last_names.isdisjoint({"property", "cached_property", "setter", "fixture"})


def _is_bad_function_name(name: str) -> bool:
    if name.startswith(("__", "test_")):
        return False
    name = name.strip("_")
    if _PARTICIPLE.fullmatch(name):
        return name not in _VERBS
    return bool(_PREPOSITION.fullmatch(name)) and not _HOOK.fullmatch(name)


def find_places(root: Path) -> dict[str, dict[str, list[str]]]:
    """Return package to rule to the places in it, such as ``docs/a.md:3 beside``.

    Packages are the folders of clear_mlflow, its own modules, tests, tools and docs.
    """
    words = Words((root / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    python = [path for name in ("clear_mlflow", "tests", "tools") for path in _walk(root / name)]
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    for path in (*python, *pages):
        relative = path.relative_to(root)
        package = "docs" if path.suffix == ".md" else relative.parts[0]
        if package == "clear_mlflow" and len(relative.parts) > 2:
            package = relative.parts[1]
        check = check_markdown if path.suffix == ".md" else check_python
        for rule, line, text in check(path.read_text(encoding="utf-8"), words):
            places[package][rule].append(f"{relative}:{line} {text}")
    return places


def _walk(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def lower_counts(allowed: Counts, counts: Counts) -> Counts:
    """Return today's counts where they are lower; a package that is new keeps today's."""
    return {
        package: {
            rule: min(number, allowed.get(package, rules).get(rule, 0))
            for rule, number in rules.items()
        }
        for package, rules in counts.items()
    }


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Compare the counts of the project below *root* with the allowed ones; return the exit code.

    A package without allowed counts may have no place at all.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="lower the allowed counts")
    parser.add_argument("--list", choices=RULES, help="print every place of a rule")
    options = parser.parse_args(arguments)
    places = find_places(root)
    if options.list:
        for hits_by_rule in places.values():
            for hit in hits_by_rule[options.list]:
                print(hit)
        return 0
    counts = {
        package: {rule: len(by_rule[rule]) for rule in RULES if by_rule[rule]}
        for package, by_rule in sorted(places.items())
    }
    file = root / "tools" / "language_counts.json"
    allowed: Counts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if options.update:
        lines = [
            f"  {json.dumps(package)}: {json.dumps(rules)}"
            for package, rules in lower_counts(allowed, counts).items()
        ]
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return 0
    has_risen = False
    for package, rules in counts.items():
        for rule, number in rules.items():
            limit = allowed.get(package, {}).get(rule, 0)
            if number > limit:
                has_risen = True
                examples = "; ".join(places[package][rule][:EXAMPLES])
                problem = f"{number} times, a {rule} {RULES[rule]} (allowed: {limit})"
                print(f"{package}: {problem}, for example {examples}")
    return int(has_risen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
