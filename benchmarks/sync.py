"""Measure what ``sync`` of offline runs costs: ``python benchmarks/sync.py`` prints a table.

Runs of ten rows are recorded in one offline folder. Several numbers of them are sent to a new
experiment each of one local ``mlflow server``, and then sent again, when nothing is left to do.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

BUCKETS = 10


def main() -> None:
    """Record the runs, and measure how they are sent."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, nargs="+", default=[25, 50, 100, 200])
    numbers = options.parse_args().runs

    import mlflow
    import numpy as np
    import requests
    from rescore import machine, tracking

    import clear_mlflow
    from clear_mlflow.store.client import connect_store, set_up_mlflow
    from clear_mlflow.tracking.copy_runs import FAILED, RunCopier
    from clear_mlflow.tracking.run_sources import open_sources

    set_up_mlflow()
    num_requests = 0
    send = requests.Session.request

    def count_request(*arguments, **keywords):
        nonlocal num_requests
        num_requests += 1
        return send(*arguments, **keywords)

    requests.Session.request = count_request
    print(machine(), end="\n\n")
    print("| runs | sent | CPU ms per run | ms per run | requests per run | peak memory, MB |")
    print("|---:|:--|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        generator = np.random.default_rng(0)
        os.environ["CLEAR_MLFLOW_OFFLINE"] = str(root / "offline_runs")
        for seed in range(max(numbers)):
            with clear_mlflow.track(buckets=BUCKETS, num_instances=550, seed=seed) as run:
                for row in range(1, BUCKETS + 1):
                    run.log_counts(row, generator.integers(0, 551, BUCKETS))
        del os.environ["CLEAR_MLFLOW_OFFLINE"]
        with tracking("server", root) as uri:
            mlflow.set_tracking_uri(uri)
            for number in numbers:
                for sent in ("first", "again"):
                    num_requests, began, cpu = 0, time.perf_counter(), time.process_time()
                    experiment = f"synced {number}"
                    copier = RunCopier(connect_store(experiment=experiment), experiment)
                    sources = open_sources(str(root / "offline_runs"))[:number]
                    results = list(copier.copy_runs(sources))
                    if len(results) != number or any(r.action == FAILED for r in results):
                        sys.exit("\n".join(result.detail for result in results))
                    seconds = time.perf_counter() - began
                    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                    print(
                        f"| {number} | {sent} | {1000 * (time.process_time() - cpu) / number:.0f} "
                        f"| {1000 * seconds / number:.0f} | {num_requests / number:.1f} "
                        f"| {peak:.0f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
