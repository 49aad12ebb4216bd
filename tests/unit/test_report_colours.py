"""Colours of pages and figures differ for everyone."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from clear_mlflow.report import colours


@pytest.mark.parametrize("background", ["light", "dark"])
def test_colours_of_groups_differ_without_red_and_green(background):
    """By Machado et al. 2009, in CIELAB, for protanopia and deuteranopia."""
    css = (Path(colours.__file__).parent / "page" / "frame.css").read_text()
    codes = colours.GROUPS if background == "light" else re.findall(r"--g\d: (#\w{6})", css)
    assert len(codes) == 8
    rgb = np.array([[int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)] for code in codes])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    for vision in (
        np.eye(3),
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    ):
        x, y, z = to_xyz @ np.clip(np.asarray(vision) @ linear.T, 0, 1) / [[0.9505], [1], [1.089]]
        x, y, z = (np.where(v > 0.008856, np.cbrt(v), 7.787 * v + 16 / 116) for v in (x, y, z))
        lab = np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)]).T
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(lab, 2)) > 19
