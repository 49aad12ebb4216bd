"""The prose of README and docs: proselint's checks, and a list of words of ours.

``python tools/prose.py`` names each finding, as file, line and column, and ends with exit code 1.
Code, in blocks and in lines, is left out, and so are the names of tests. The package's docstrings
and comments are held to the list of words. proselint is pure Python and needs no download; Vale's
package on PyPI fetches a program when it runs.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from proselint.checks import __register__ as checks_of_proselint
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
MODULES = sorted((ROOT / "clear_mlflow").rglob("*.py"))

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
# Left out is what misreads technical pages: p = 0.03, resume, straight quotes, three dots, a
# discriminant analysis.
CHECKS = {
    "archaism": True,
    "cliches": True,
    "hedging": True,
    "industrial_language": True,
    "lexical_illusions": True,
    "malapropisms": True,
    "misc": True,
    "mixed_metaphors": True,
    "mondegreens": True,
    "nonwords": True,
    "oxymorons": True,
    "redundancy": True,
    "social_awareness": True,
    "spelling": True,
    "terms": True,
    "uncomparables": True,
    "weasel_words": True,
}
_CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`|\]\([^)\n]*\)|^    .*$|<!--.*?-->", re.S | re.M)
_NAMES = re.compile(r"``[^`]*``|:[a-z]+:`[^`]*`|`[^`]*`|>>> .*|^ +\w+:", re.M)
_EXAMPLE = re.compile(r", as `")


def without_code(text: str) -> str:
    """A page with its code blanked out, so that lines and columns stay."""
    return _CODE.sub(lambda found: re.sub(r"[^\n]", "#", found[0]), text)


def findings(path: Path) -> Iterator[str]:
    """What is wrong with a page, a line each."""
    text = path.read_text(encoding="utf-8")
    prose = without_code(text)
    where = path.relative_to(ROOT)
    for pattern, better in WORDS.items():
        for found in re.finditer(rf"\b(?:{pattern})", prose):
            yield f"{_place(where, text, found.start())} {found[0]!r}: {better}"
    for found in _EXAMPLE.finditer(text):
        if "#" in prose[found.end() - 1 : found.end()]:
            yield f"{_place(where, text, found.start())} ', as ...': for example; see; brackets"
    for result in LintFile(str(where), prose).lint({"max_errors": 1000, "checks": CHECKS}):
        line, column = result.pos
        yield f"{where}:{line - 1}:{column} {result.check_result.message}"


def findings_in_code(path: Path) -> Iterator[str]:
    """What is wrong with the docstrings and comments of a module, a line each."""
    where = path.relative_to(ROOT)
    for first, text in _texts(path.read_text(encoding="utf-8")):
        prose = _NAMES.sub(lambda found: re.sub(r"[^\n]", "#", found[0]), text)
        for pattern, better in WORDS.items():
            for found in re.finditer(rf"\b(?:{pattern})", prose):
                line = first + text.count("\n", 0, found.start())
                yield f"{where}:{line} {found[0]!r}: {better}"


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring and comment, with its first line."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            yield node.body[0].lineno, ast.get_source_segment(source, node.body[0]) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _place(where: Path, text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"{where}:{line}:{at - text.rfind(chr(10), 0, at)}"


def register() -> None:
    """Make proselint's checks known to it, once in a process."""
    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many(checks_of_proselint)


def main() -> int:
    """Print every finding of every page."""
    register()
    found = [line for page in PAGES for line in findings(page)]
    found += [line for module in MODULES for line in findings_in_code(module)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
