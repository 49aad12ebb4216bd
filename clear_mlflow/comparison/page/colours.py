"""Colours of cells, as classes of a style sheet: 101 of each, so that a cell costs few bytes.

The scale of accuracies is matplotlib's viridis, which the pictures use too; that of differences is
its RdBu, blue where A is better. Both can be told apart with any colour vision. They are kept as a
few fixed points, so that a page can be made without matplotlib.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Ramp:
    """Colours between fixed points that are evenly spaced from 0 to 1."""

    points: tuple[str, ...]  # six hexadecimal digits each

    def colours(self, count: int) -> NDArray[np.int64]:
        """(count, 3): red, green, blue, from 0 to 255, evenly spaced."""
        known = np.array([[int(point[i : i + 2], 16) for i in (0, 2, 4)] for point in self.points])
        at = np.linspace(0, len(known) - 1, count)
        channels = [np.interp(at, np.arange(len(known)), known[:, c]) for c in range(3)]
        found: NDArray[np.int64] = np.rint(np.stack(channels, axis=1)).astype(np.int64)
        return found

    def css(self, prefix: str, ramp: str) -> str:
        """Classes ``v0`` to ``v100``, each with an ink that can be read on it; and the whole ramp.

        Args:
            prefix: of the classes of single colours, as ``v``.
            ramp: the class of the ramp.
        """
        stops = ",".join(f"#{point}" for point in self.points)
        rules = [f".ramp .{ramp}{{background:linear-gradient(to right,{stops})}}"]
        for i, (red, green, blue) in enumerate(self.colours(101).tolist()):
            light = 0.299 * red + 0.587 * green + 0.114 * blue
            ink = "fff" if light < 128 else "111"
            rules.append(f".{prefix}{i}{{background:#{red:02x}{green:02x}{blue:02x};color:#{ink}}}")
        return "".join(rules)


SCALE = Ramp(
    (
        "440154",
        "482475",
        "414487",
        "355f8d",
        "2a788e",
        "21918c",
        "22a884",
        "44bf70",
        "7ad151",
        "bddf26",
        "fde725",
    )
)
DIVERGING = Ramp(
    (
        "67001f",
        "b1182b",
        "d6604d",
        "f3a481",
        "fddbc7",
        "f6f7f7",
        "d1e5f0",
        "90c4dd",
        "4393c3",
        "2065ab",
        "053061",
    )
)
