"""The colours of pictures and pages alike: of accuracies and of groups.

The scale of accuracies is matplotlib's viridis, even in lightness, which a reader can distinguish
with any colour vision: a few fixed points, so that a page can be made without matplotlib.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Of groups of runs, on light ground.
GROUPS = (
    "#0b66c3", "#d1495b", "#1a8a5a", "#a05a00", "#7a3db8", "#00838f", "#6b6b00", "#b5307f",
)  # fmt: skip


def is_dark(colour: NDArray[np.float64]) -> bool:
    """Whether white can be read on a colour better than black."""
    return float(colour[:3] @ (0.299, 0.587, 0.114)) < 0.5


@dataclass(frozen=True)
class Ramp:
    """Colours between fixed points that are evenly spaced from 0 to 1."""

    points: str  # six hexadecimal digits each

    def at(self, values: ArrayLike) -> NDArray[np.float64]:
        """(..., 4): red, green, blue and opacity of values; all on the scale from 0 to 1."""
        known = np.array(
            [[int(point[i : i + 2], 16) for i in (0, 2, 4)] for point in self.points.split()]
        )
        place = np.asarray(values, dtype=np.float64) * (len(known) - 1)
        channels = [np.interp(place, np.arange(len(known)), known[:, c] / 255) for c in range(3)]
        return np.stack([*channels, np.ones_like(place)], axis=-1)

    def hex_and_ink(self, value: float) -> tuple[str, str]:
        """The colour of a value from 0 to 1 for style sheets, and what can be read on it."""
        colour = self.at(value)
        code = "".join(f"{round(255 * channel):02x}" for channel in colour[:3])
        return f"#{code}", "#fff" if is_dark(colour) else "#111"

    def css(self) -> str:
        """Classes v0 to v100, so that a cell costs few bytes, and *scale*, the whole ramp."""
        stops = ",".join(f"#{point}" for point in self.points.split())
        rules = [f".ramp .scale{{background:linear-gradient(to right,{stops})}}"]
        for i in range(101):
            background, ink = self.hex_and_ink(i / 100)
            rules.append(f".v{i}{{background:{background};color:{ink}}}")
        return "".join(rules)


# matplotlib's viridis.
SCALE = Ramp("440154 482475 414487 355f8d 2a788e 21918c 22a884 44bf70 7ad151 bddf26 fde725")
