"""Makes a tag's checkout ready to be built: ``python tools/release.py TAG``.

PyPI shows README.md without the files beside it: its relative links become absolute ones to the
tag's files, and the package gets its project URLs. ``python -m build`` then builds the release.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hosting import source_url

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


def with_absolute_links(text: str, url: str, tag: str) -> str:
    """Markdown whose relative links lead to the tag's files; of a picture, to the file itself."""

    def absolute(found: re.Match[str]) -> str:
        view = "raw" if found[1].endswith((".png", ".svg")) else "blob"
        return f"]({url}/{view}/{tag}/{found[1]})"

    return LINK.sub(absolute, text)


def with_project_urls(pyproject: str, url: str, tag: str) -> str:
    """pyproject.toml with all project URLs in place of the address alone."""
    urls = {
        "Documentation": f"{url}/blob/{tag}/docs/index.md",
        "Source": url,
        "Issues": f"{url}/issues",
        "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
    }
    lines = "".join(f'urls.{name} = "{address}"\n' for name, address in urls.items())
    return re.sub(r"^urls\.Source = .*\n", lines, pyproject, flags=re.M)


def refusal(root: Path, tag: str) -> str | None:
    """Why the checkout cannot be released as this tag, or None where it can."""
    version = tag.removeprefix("v")
    for name, expected in {
        "clear_mlflow/core/version.py": rf'^__version__ = "{re.escape(version)}"$',
        "CHANGELOG.md": rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$",
        "CITATION.cff": rf"^version: {re.escape(version)}$",
    }.items():
        if not re.search(expected, (root / name).read_text(encoding="utf-8"), re.M):
            return f"{name} does not name {version}, which the tag {tag} says; expected {expected}"
    return None


def main(tag: str) -> None:
    """Rewrite README.md and pyproject.toml of this checkout."""
    if why := refusal(ROOT, tag):
        sys.exit(f"error: {why}")
    url = source_url((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if url is None:
        sys.exit("error: pyproject.toml does not say who hosts it; expected urls.Source = ...")
    for name, change in (("README.md", with_absolute_links), ("pyproject.toml", with_project_urls)):
        path = ROOT / name
        path.write_text(change(path.read_text(encoding="utf-8"), url, tag))


if __name__ == "__main__":
    main(*sys.argv[1:])
