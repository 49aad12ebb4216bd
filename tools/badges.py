"""Badges: pictures that no other host serves.

``python tools/badges.py`` measures that of coverage: it runs the tests, or those named as for
pytest, and writes which part of the package's lines they ran.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys

import anybadge
import coverage
from hosting import ROOT, pyproject


def badge(label: str, value: str, colour: str = "#0b6fa4") -> str:
    """An SVG of two fields."""
    drawn = anybadge.Badge(label, value, default_color=colour)
    drawn.mask_str = label  # else the number of the badges before it
    return drawn.badge_svg_text


def python_badge() -> str:
    """The Pythons that pyproject.toml names."""
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject())
    return badge("Python", " | ".join(named))


def licence_badge() -> str:
    """The licence that pyproject.toml names."""
    return badge("licence", re.findall(r'^license = "(.+)"$', pyproject(), re.M)[0])


def main(tests: list[str]) -> None:
    """Run the tests under coverage, and write the badge where all passed."""
    for words in (["erase"], ["run", "-m", "pytest", *tests], ["combine", "--quiet"]):
        subprocess.run([sys.executable, "-m", "coverage", *words], check=True)  # noqa: S603
    measured = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    measured.load()
    percent = measured.report(file=io.StringIO())
    of_what = f" by {' '.join(tests)}" if tests else ""
    picture = badge("coverage", f"{percent:.0f} %{of_what}")
    (ROOT / "docs" / "images" / "coverage.svg").write_text(picture, encoding="utf-8")
    print(f"{percent:.1f} % of the package's lines were run{of_what}")


if __name__ == "__main__":
    main(sys.argv[1:])
