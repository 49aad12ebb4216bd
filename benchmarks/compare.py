"""What comparing costs: ``python benchmarks/compare.py`` prints it as a table in Markdown.

Runs of ten buckets in a fresh sqlite store, in groups of five seeds and each for itself; all keep
their predictions. Every measurement is of the whole command, in a process of its own, and
of its parts within one.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

BUCKETS = 10


def main() -> None:
    """Measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=50)
    asked = options.parse_args()
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}; load average at the start: "
        f"{os.getloadavg()[0]:.1f}.\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        write_runs(folder, uri, asked.runs)
        print(
            f"| {asked.runs} runs, s | in groups of five seeds | each for itself |\n|---|---:|---:|"
        )
        grouped, single = parts(uri, ("strategy",), folder), parts(uri, (), folder)
        for name in grouped:
            print(f"| {name} | {grouped[name]:.2f} | {single[name]:.2f} |")
        whole = [command(uri, by) for by in ("strategy", "none")]
        print(f"| the whole command | {whole[0]:.2f} | {whole[1]:.2f} |")
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


def write_runs(folder: Path, uri: str, count: int) -> None:
    """Finished runs that hold rows and predictions."""
    import mlflow
    from comparisons import counts, log_predictions, log_run
    from mlflow import MlflowClient

    mlflow.set_tracking_uri(uri)
    client = MlflowClient(uri)
    experiment = client.create_experiment("many", (folder / "artifacts").as_uri())
    for i in range(count):
        strategy, seed = divmod(i, 5)
        # At most 200 of 200 images are right, however many groups there are.
        correct = counts(90 + 500 * strategy // count, seed, BUCKETS)
        name = f"strategy {strategy}"
        run = log_run(client, experiment, f"{name} seed {seed}", correct, strategy=name, seed=seed)
        log_predictions(client, run, correct, folder)


def parts(uri: str, by: tuple[str, ...], folder: Path) -> dict[str, float]:
    """Seconds of each step, within this process."""
    from mlflow import MlflowClient

    from clear_mlflow.api.compare import read_comparison, write_comparison
    from clear_mlflow.comparison import figures, page, tables
    from clear_mlflow.store.search import select

    client, found = MlflowClient(uri), {}
    started = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal started
        found[name] = time.perf_counter() - started
        started = time.perf_counter()

    runs = list(select(client, experiment="many"))
    lap("list the runs")
    comparison, left_out, experiment = read_comparison(client, runs, group_by=by, named=False)
    lap("read matrices and predictions, test")
    text = page.comparison_page(comparison, title="many", footer="")
    lap("the page")
    tables.leaderboard_csv(comparison)
    list(figures.figures(comparison))
    lap("the pictures")
    write_comparison(client, comparison, left_out, experiment_id=experiment)
    found["store it, drawn once more"] = time.perf_counter() - started
    found["size of the page, MB"] = len(text.encode()) / 1e6
    return found


def command(uri: str, by: str) -> float:
    """Seconds of the command, from its start to its end."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "clear_mlflow", "compare", "--experiment=many", f"--group-by={by}"],
        env={**os.environ, "MLFLOW_TRACKING_URI": uri},
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parent.parent,
    )
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
