"""README's badges: pictures that no other host serves."""

from __future__ import annotations

import re

import anybadge
from hosting import pyproject


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
