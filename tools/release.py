"""Prepare a tag's checkout for ``python -m build``: ``python tools/release.py TAG``.

PyPI shows README.md without the repository's files: its relative links become absolute links to the
tag's files, and the package gets its project URLs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hosting import PYPROJECT, ROOT, find_source_url

_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


def make_links_absolute(text: str, url: str, tag: str) -> str:
    """Return Markdown whose relative links lead to the tag's files."""

    def replace(match: re.Match[str]) -> str:
        view = "raw" if match[1].endswith((".png", ".svg")) else "blob"
        return f"]({url}/{view}/{tag}/{match[1]})"

    return _LINK.sub(replace, text)


def insert_project_urls(pyproject: str, url: str, tag: str) -> str:
    """Return pyproject.toml with all project URLs in place of ``urls.Source``."""
    urls = {
        "Documentation": f"{url}/blob/{tag}/docs/index.md",
        "Source": url,
        "Issues": f"{url}/issues",
        "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
    }
    lines = "".join(f'urls.{name} = "{address}"\n' for name, address in urls.items())
    return re.sub(r"^urls\.Source = .*\n", lines, pyproject, flags=re.M)


def find_problem(root: Path, tag: str) -> str | None:
    """Return the reason why a checkout cannot be released as a tag, or None."""
    version = tag.removeprefix("v")
    for name, expected in {
        "clear_mlflow/core/version.py": rf'^__version__ = "{re.escape(version)}"$',
        "CHANGELOG.md": rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$",
        "CITATION.cff": rf"^version: {re.escape(version)}$",
    }.items():
        if not re.search(expected, (root / name).read_text(encoding="utf-8"), re.M):
            return (
                f"{name} does not contain version {version} of the tag {tag}; expected {expected}"
            )
    return None


def main(tag: str) -> None:
    """Rewrite README.md and pyproject.toml of this checkout."""
    if problem := find_problem(ROOT, tag):
        sys.exit(f"error: {problem}")
    url = find_source_url()
    if url is None:
        sys.exit("error: pyproject.toml has no address; expected a line urls.Source = ...")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (ROOT / "README.md").write_text(make_links_absolute(readme, url, tag))
    (ROOT / "pyproject.toml").write_text(insert_project_urls(PYPROJECT, url, tag))


if __name__ == "__main__":
    main(*sys.argv[1:])
