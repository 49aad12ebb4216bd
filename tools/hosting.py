"""What follows from the address of the repository, which is one line of pyproject.toml.

``urls.Source = "https://FORGE/OWNER/REPOSITORY"`` is a line of ``[project]``. Without that line,
nothing links to the repository.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def find_source_url(pyproject: str = PYPROJECT) -> str | None:
    """Return the repository's address, or None if pyproject.toml has none."""
    match = re.search(r'^urls\.Source = "(.+?)/?"$', pyproject, re.M)
    return match[1] if match else None


def update_readme() -> str:
    """Return README with its badges and, if the address is known, the command that clones."""
    return insert_source((ROOT / "README.md").read_text(encoding="utf-8"), find_source_url())


def insert_source(text: str, url: str | None) -> str:
    """Return README with the badges of an address, and with a ``git clone`` of it."""
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
    text = re.sub(r"^git clone .*\n", "", text, flags=re.M)
    clone = f"git clone {url} clear_mlflow && cd clear_mlflow\n" if url else ""
    return re.sub(r"^(?=pip install -e \. && mlflow run)", clone, text, count=1, flags=re.M)


def update_notebook() -> str:
    """Return the example notebook, whose first cell installs from the address."""
    text = (ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8")
    return re.sub(r'(?<=git\+)[^"\\]+', find_source_url() or "ADDRESS", text)


def update_citation() -> str:
    """Return the citation with the address."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    text = re.sub(r"^repository-code: .*\n", "", text, flags=re.M)
    url = find_source_url()
    return re.sub(r"^(?=version: )", f"repository-code: {url}\n" if url else "", text, flags=re.M)
