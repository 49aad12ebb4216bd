"""Count what makes names and sentences hard to read: ``python tools/check_language.py``.

Each package has an allowed count per rule in tools/language_counts.json. A count above it is
printed with examples, and the exit code is 1. ``--update`` lowers the allowed counts to the current
ones, ``--list RULE`` prints every violation. CONTRIBUTING.md lists the words to avoid.
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
MAX_WORDS = 12
RULES = {
    "function": "is a participle or starts or ends with a preposition; name it verb_object",
    "docstring": "has more than one clause; start with a verb, such as 'Return the rows ...'",
    "length": f"of a docstring's first line is over {MAX_WORDS} words; state the effect only",
    "name": "is too vague or a private term; see the table of words in CONTRIBUTING.md",
    "prose": "is our dialect; see the table of words in CONTRIBUTING.md",
}
EXAMPLES = 5
Counts = dict[str, dict[str, int]]  # package to rule to number of violations

# Verbs that look like participles.
_VERBS = {"run", "open", "listen", "embed", "seed", "speed", "shorten", "feed", "need", "read"}
_PARTICIPLE = re.compile(r"[a-z]+(ed|en|un)")
_PREPOSITION = re.compile(r"(of|by|in|on|above|below|without|until)_.*|.*_(of|by|in|on|to|from)")
_NAME_FIELDS = ("id", "arg", "attr", "name", "asname")  # of nodes of Python's syntax tree
_HOOK = re.compile(r"on_[a-z_]+")  # named by a framework, or like its hooks
_NO_VERB = re.compile(
    r"(What|How|Which|Where|Why|Of|As|Those|Whether|That|Who|A|An|The|All|Each|Every|One|Its)\b"
)


def read_words(table: str) -> tuple[set[str], re.Pattern[str]]:
    """Return the names and the phrases to avoid that a Markdown table lists."""
    words: dict[str, list[str]] = {"name": [], "prose": []}
    for items, rule in re.findall(r"^\| (`.*?) \| (name|prose) \|", table, re.M):
        words[rule] += re.findall(r"`([^`]+)`", items)
    parts = [re.sub(r"^(?=\w)|(?<=\w)$", r"\\b", re.escape(phrase)) for phrase in words["prose"]]
    return set(words["name"]), re.compile("|".join(parts))


def check_python(
    source: str, names: set[str], phrases: re.Pattern[str]
) -> Iterator[tuple[str, int, str]]:
    """Yield rule, line number and text of each violation in a Python file."""
    if re.search(r"^from hypothesis import .*\bgiven\b", source, re.M):
        names = names - {"given"}  # a decorator that is not ours
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first_line = (ast.get_docstring(node) or "").partition("\n")[0]
            if len(first_line.split()) > MAX_WORDS:
                yield "length", node.lineno, f"{node.name}: {first_line}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node):
            if _is_bad_function_name(node.name):
                yield "function", node.lineno, node.name
            is_test = node.name.startswith("test_")  # its docstring states what is proved
            if not is_test and (";" in first_line or _NO_VERB.match(first_line)):
                yield "docstring", node.lineno, f"{node.name}: {first_line}"
        for field in _NAME_FIELDS:
            name = getattr(node, field, None)
            if isinstance(name, str) and name.strip("_") in names:
                yield "name", getattr(node, "lineno", 1), name
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for match in phrases.finditer(node.value):
                yield "prose", node.lineno + node.value.count("\n", 0, match.start()), match[0]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for match in phrases.finditer(token.string):
                yield "prose", token.start[0], match[0]


def check_markdown(text: str, phrases: re.Pattern[str]) -> Iterator[tuple[str, int, str]]:
    """Yield rule, line number and phrase of each violation in a page, outside of code."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            for match in phrases.finditer(re.sub(r"`[^`]*`", "``", line)):
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


def find_violations(root: Path) -> dict[str, dict[str, list[str]]]:
    """Return package to rule to violations, for example ``docs/a.md:3 but for``.

    Packages are the folders of clear_mlflow, its own modules, tests, tools and docs.
    """
    names, phrases = read_words((root / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    violations: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    folders = (root / "clear_mlflow", root / "tests", root / "tools")
    python = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    for path in (*python, *pages):
        relative = path.relative_to(root)
        package = "docs" if path.suffix == ".md" else relative.parts[0]
        if package == "clear_mlflow" and len(relative.parts) > 2:
            package = relative.parts[1]
        text = path.read_text(encoding="utf-8")
        is_page = path.suffix == ".md"
        for rule, line, word in (
            check_markdown(text, phrases) if is_page else check_python(text, names, phrases)
        ):
            if rule != "length" or relative.parts[0] == "clear_mlflow":
                violations[package][rule].append(f"{relative}:{line} {word}")
    return violations


def lower_counts(allowed: Counts, counts: Counts) -> Counts:
    """Return the current counts, but none above an allowed one.

    A package that has no allowed counts gets the current ones.
    """
    return {
        package: {
            rule: min(number, allowed.get(package, rules).get(rule, 0))
            for rule, number in rules.items()
        }
        for package, rules in counts.items()
    }


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Compare the counts of the project below *root* with the allowed ones.

    Returns the exit code. A package without allowed counts may have no violations.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="lower the allowed counts")
    parser.add_argument("--list", choices=RULES, help="print every violation of a rule")
    options = parser.parse_args(arguments)
    violations = find_violations(root)
    if options.list:
        print(*(hit for by_rule in violations.values() for hit in by_rule[options.list]), sep="\n")
        return 0
    counts = {
        package: {rule: len(by_rule[rule]) for rule in RULES if by_rule[rule]}
        for package, by_rule in sorted(violations.items())
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
    exit_code = 0
    for package, rules in counts.items():
        for rule, number in rules.items():
            limit = allowed.get(package, {}).get(rule, 0)
            if number > limit:
                exit_code = 1
                examples = "; ".join(violations[package][rule][:EXAMPLES])
                problem = f"{number} times, a {rule} {RULES[rule]} (allowed: {limit})"
                print(f"{package}: {problem}, for example {examples}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
