"""What follows from the address of whoever hosts this, one line of pyproject.toml.

``urls.Source = "https://FORGE/OWNER/REPOSITORY"`` is a line of ``[project]``; while nobody hosts
it, there is none, and nothing links to it.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def source_url(pyproject: str) -> str | None:
    """The repository's address, None while nobody hosts it."""
    found = re.search(r'^urls\.Source = "(.+?)/?"$', pyproject, re.M)
    return found[1] if found else None


def pyproject() -> str:
    """The file's text."""
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def readme() -> str:
    """README with its badges, and with the address in place of ADDRESS."""
    return with_source((ROOT / "README.md").read_text(encoding="utf-8"), source_url(pyproject()))


def with_source(text: str, url: str | None) -> str:
    """README with the badges that there are, and its ``git clone`` with the address."""
    badges = [
        "[![Python](docs/images/python.svg)](docs/install.md)",
        "[![Licence](docs/images/licence.svg)](LICENSE)",
    ]
    if url:
        badges.insert(0, f"[![CI]({url}/actions/workflows/ci.yml/badge.svg)]({url}/actions)")
    if url and url.startswith("https://github.com/"):
        colab = url.replace("https://github.com", "https://colab.research.google.com/github")
        badges.append(f"[notebook in Colab]({colab}/blob/main/examples/notebook.ipynb)")
    text = re.sub(r"^\[!\[.*$", " ".join(badges), text, count=1, flags=re.M)
    return re.sub(r"(?<=git clone )\S+", url or "ADDRESS", text)


def notebook() -> str:
    """The example notebook, whose first cell installs from the address."""
    text = (ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8")
    return re.sub(r'(?<=git\+)[^"\\]+', source_url(pyproject()) or "ADDRESS", text)


def citation() -> str:
    """The citation with the address."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    text = re.sub(r"^repository-code: .*\n", "", text, flags=re.M)
    url = source_url(pyproject())
    return re.sub(r"^(?=version: )", f"repository-code: {url}\n" if url else "", text, flags=re.M)
