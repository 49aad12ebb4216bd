"""Seattle's weather, day by day from 2012 to 2015: vectors with true dates, in the package.

Four numbers a day (precipitation in mm, highest and lowest temperature in degrees Celsius, wind in
m/s) and one of five words for the day: drizzle, fog, rain, snow, sun. How the word was derived from
the station's reports changed along the way: rain is 191 days of 2012 and 5 of 2015.

Source:
    ``seattle-weather.csv`` of vega_datasets 0.9 (J. VanderPlas, MIT licence), from records of NOAA,
    which are in the public domain; beside the table lies ``seattle_weather.LICENSE``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.data.files import path_text
from clear_mlflow.data.sources import vectors
from clear_mlflow.data.sources._entries import StreamArguments
from clear_mlflow.data.splits import Listing

NEEDS_FOLDER = False

_TABLE = Path(__file__).parents[1] / "embedded" / "seattle_weather.csv"


@dataclass(frozen=True)
class Arguments(StreamArguments):
    """What a bucket is, and how the numbers become a model's input.

    Args:
        licence: NOAA's terms.
        buckets: as of ``vectors``; half: half-years.
        standardise: as of ``vectors``.
    """

    licence: str = "public domain (NOAA)"
    buckets: str = "half"
    standardise: str = "first"


def listing(root: Path | None, arguments: Arguments, *, cache_dir: Path) -> Listing:
    """List the days."""
    if root is not None:
        raise ConfigError(
            f"dataset weather is embedded and reads no folder, but {path_text(root)} was given; "
            "leave it out"
        )
    of_table = vectors.Arguments(
        label="weather",
        time="date",
        buckets=arguments.buckets,
        standardise=arguments.standardise,
    )
    found = vectors.listing(_TABLE, of_table, cache_dir=cache_dir)
    return dataclasses.replace(found, layout="weather", source="embedded", may_repeat=True)
