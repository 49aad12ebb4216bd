"""The Python reference of docs/python.md, from the docstrings: ``python tools/generate.py``.

The page has a line for each name, so that it can be read where no site is built; on the site each
becomes what its whole docstring says.
"""

from __future__ import annotations

import re
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
_LINE = re.compile(r"^- \[`(clear_mlflow\.[\w.]+)`\]\(.*$", re.M)
_ROLE = re.compile(r":\w+:`([^`]+)`|``(.+?)``")


def python_page() -> str:
    """docs/python.md: each name with a link to its source and its docstring's first sentence."""
    package = griffe.load("clear_mlflow", search_paths=[ROOT])

    def line(found: re.Match[str]) -> str:
        named = package[found[1].removeprefix("clear_mlflow.")]
        if isinstance(named, griffe.Alias):
            named = named.final_target
        if named.docstring is None:
            raise ValueError(f"{found[1]} of docs/python.md has no docstring")
        first = " ".join(named.docstring.value.partition("\n\n")[0].split())
        text = _ROLE.sub(lambda role: f"`{role[1] or role[2]}`", first)
        return f"- [`{found[1]}`](../{named.relative_filepath.as_posix()}): {text}"

    return _LINE.sub(line, (ROOT / "docs" / "python.md").read_text(encoding="utf-8"))


def with_docstrings(page: str) -> str:
    """The page as the site has it: mkdocstrings' directive in place of each line."""
    return _LINE.sub(r"\n::: \1\n", page)
