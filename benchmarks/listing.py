"""How long it takes to list an experiment: ``python benchmarks/listing.py`` prints a table.

Runs are put into the tables of a sqlite store directly, each with the tags and latest values that a
scored run of ten buckets has. They are listed as ``evaluate`` and ``compare`` list them, page by
page. CPU seconds are those of the process, which the database is part of.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import uuid
from pathlib import Path

TAGS, METRICS = 12, 35


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", default="2000,8000")
    asked = options.parse_args()
    print("| runs | first page, CPU s | all, CPU s | ms a run | load |\n|---:|---:|---:|---:|---:|")
    for size in map(int, asked.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            first, whole = listed(f"sqlite:///{Path(folder, 'mlflow.db')}", size)
        print(
            f"| {size:,} | {first:.2f} | {whole:.1f} | {1e3 * whole / size:.2f} | "
            f"{os.getloadavg()[0]:.1f} |",
            flush=True,
        )


def listed(uri: str, count: int) -> tuple[float, float]:
    """CPU seconds until the first run is there, and until all are."""
    from mlflow import MlflowClient
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlRun, SqlTag
    from sqlalchemy import create_engine, insert

    from clear_mlflow.store.search import Selection, select

    client = MlflowClient(uri)
    experiment = int(client.create_experiment("many"))
    now = int(time.time() * 1000)
    ids = [uuid.uuid4().hex for _ in range(count)]
    engine = create_engine(uri)
    with engine.begin() as connection:
        connection.execute(
            insert(SqlRun),
            [
                {
                    "run_uuid": run_id,
                    "name": f"run {i}",
                    "source_type": "LOCAL",
                    "experiment_id": experiment,
                    "user_id": "someone",
                    "status": "FINISHED",
                    "start_time": now + i,
                    "end_time": now + i,
                    "lifecycle_stage": "active",
                    "artifact_uri": f"file:///nowhere/{run_id}",
                }
                for i, run_id in enumerate(ids)
            ],
        )
        for run_id in ids:
            connection.execute(
                insert(SqlTag),
                [{"run_uuid": run_id, "key": f"tag {j}", "value": "x" * 60} for j in range(TAGS)],
            )
            connection.execute(
                insert(SqlLatestMetric),
                [
                    {
                        "run_uuid": run_id,
                        "key": f"metric {j}",
                        "value": 0.5,
                        "timestamp": now,
                        "step": 10,
                        "is_nan": False,
                    }
                    for j in range(METRICS)
                ],
            )
    engine.dispose()
    begin = time.process_time()
    runs = select(client, Selection(experiment="many"))
    next(runs)
    first = time.process_time() - begin
    if sum(1 for _ in runs) != count - 1:
        raise SystemExit("not all runs were listed")
    return first, time.process_time() - begin


if __name__ == "__main__":
    main()
