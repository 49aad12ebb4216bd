"""Which values a rounded number may have, if it was computed from cells that are rounded, too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDED = "rounded"
CUT_OFF = "cut off"
WITHIN_CELLS = "within cells"  # only within the rounding of the cells
_MAX_DECIMALS = 5  # more are the digits of a float


def find_cell_error(cells: NDArray[np.float64]) -> float:
    """Return half a unit of the cells' last decimal, 0 if unrounded.

    Fractions have at least two decimals: 0.5 next to 0.25 is 0.50. NaN is skipped.

    >>> find_cell_error(np.array([42.9, 48.0])), find_cell_error(np.array([0.5, 1 / 3]))
    (0.05, 0.0)
    """
    measured = np.abs(cells[~np.isnan(cells)])
    largest = measured.max(initial=0)
    for decimals in range(2 if largest <= 1 else 0, _MAX_DECIMALS + 1):
        unit = 10.0**-decimals
        tolerance = min(1e-7 * max(largest, 1), unit / 100)  # 32-bit floats have seven digits
        if (np.abs(measured.round(decimals) - measured) <= tolerance).all():
            return unit / 2
    return 0.0


def match_number(
    value: float, number: float, unit: float, *, cell_error: float = 0, slack: float = 1e-9
) -> str:
    """Return "rounded", "cut off" or "within cells" if numbers agree, or "".

    The number has digits down to *unit*.

    cell_error: largest error of the value from the rounding of cells. slack: error of sums.

    >>> match_number(65.49, 65.48, 0.01), match_number(65.49, 65.48, 0.01, cell_error=0.05)
    ('', 'within cells')
    """
    excess = (value - number) * (-1 if number < 0 else 1)
    if abs(excess) <= unit / 2 + slack:
        return ROUNDED
    if 0 < excess < unit - slack:
        return CUT_OFF
    return WITHIN_CELLS if abs(excess) <= unit / 2 + cell_error + slack else ""
