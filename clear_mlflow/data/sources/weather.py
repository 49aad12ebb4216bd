"""Seattle's weather, day by day from 2012 to 2015: vectors with true dates, in the package.

Four numbers a day (precipitation in mm, highest and lowest temperature in degrees Celsius, wind in
m/s) and one of five words for the day: drizzle, fog, rain, snow, sun. The rule that derives the
word from the station's reports changed over time: rain is 191 days of 2012 and 5 of 2015.

Source:
    ``seattle-weather.csv`` of vega_datasets 0.9 (J. VanderPlas, MIT licence), from records of NOAA,
    which are in the public domain; ``seattle_weather.LICENSE`` is next to the table.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data.files import path_text
from clear_mlflow.data.images import NONE, ImageIndex, StreamArguments
from clear_mlflow.data.sources import vectors

NEEDS_FOLDER = False
HAS_TIMES = True

_TABLE = Path(__file__).parents[1] / "embedded" / "seattle_weather.csv"


@dataclass(frozen=True)
class Arguments(StreamArguments):
    """Arguments of the weather.

    Args:
        licence: NOAA's terms.
        standardise: scaling of the numbers; see ``vectors``.
    """

    licence: str = "public domain (NOAA)"
    standardise: str = "first"


def read_index(
    root: Path | None, arguments: Arguments, *, cache_dir: Path, borders: str = NONE
) -> ImageIndex:
    """Read the days in this package's table, by default in half-years.

    Raises ConfigError if *root* is not None.
    """
    if root is not None:
        raise ConfigError(
            f"dataset weather is embedded and reads no folder, but data_root is {path_text(root)}; "
            "leave it out"
        )
    columns = vectors.Arguments(
        label="weather",
        time="date",
        standardise=arguments.standardise,
    )
    index = vectors.read_index(
        _TABLE, columns, cache_dir=cache_dir, borders="half" if borders == NONE else borders
    )
    return dataclasses.replace(index, layout="weather", source="embedded", may_repeat=True)
