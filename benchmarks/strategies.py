"""Every strategy on the embedded dataset: ``python benchmarks/strategies.py`` prints the table.

The same budget for all: the recipe of the dataset, no strategy's numbers tuned. Runs are tracked in
a store of their own (``--store`` keeps it, to look at the runs in MLflow's UI), and every number
is computed from the rows that the store holds. ``--write`` puts the table into
docs/strategies-on-digits.md, below what that file says of it.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "strategies-on-digits.md"
MARK = "<!-- what follows is written by benchmarks/strategies.py -->\n\n"

COLUMNS = {
    "in-domain": "clear/in_domain_accuracy",
    "next-domain": "clear/next_domain_accuracy",
    "backward": "clear/backward_transfer",
    "forward": "clear/forward_transfer",
    "average": "renate/average_accuracy",
    "forgetting": "renate/forgetting",
}

# What is beside a strategy's defaults worth a line of its own.
VARIANTS: dict[str, list[dict[str, str]]] = {
    "replay": [
        {"strategy_args": "buffer=class_balanced"},
        {"strategy_args": "buffer=reservoir"},
        {"strategy_args": "buffer=biased_reservoir,alpha=2"},
        {"strategy_args": "buffer=biased_reservoir,alpha=0.75n/k"},
    ],
    "ewc": [{}, {"strategy_args": "strength=10,online=yes"}],
    # It learns but once: the recipe's few epochs leave it half trained.
    "joint": [{}, {"strategy_args": "epochs=18"}],
    "linear": [{"features": "pixels"}],
    "ncm": [{"features": "pixels"}],
    "slda": [{"features": "pixels"}],
}


def main() -> None:
    """Train all, and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--only", nargs="+", help="strategies; all where left out")
    options.add_argument("--store", type=Path, help="folder that keeps the runs")
    options.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    options.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.one:
        one(asked.one[0], int(asked.one[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        store = asked.store or Path(temporary)
        store.mkdir(parents=True, exist_ok=True)
        lines = list(table(store.resolve(), asked.only, asked.seeds))
    if asked.write:
        told, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
        PAGE.write_text(told + mark + "\n".join(lines) + "\n", encoding="utf-8")


def table(store: Path, only: list[str] | None, seeds: int) -> Iterator[str]:
    """The table's lines, printed as they come."""
    from clear_mlflow.learning.registry import strategy_names

    head = " | ".join(COLUMNS)
    for line in (
        f"| strategy | {head} |",
        f"|---|{'---:|' * len(COLUMNS)}",
    ):
        print(line)
        yield line
    for strategy in only or strategy_names():
        for variant in VARIANTS.get(strategy, [{}]):
            text = " ".join([f"strategy={strategy}", *(f"{k}={v}" for k, v in variant.items())])
            # One process for the seeds of one line: torch is loaded once, and nothing is shared
            # between lines.
            done = subprocess.run(
                [sys.executable, __file__, "--one", text, str(seeds)],
                env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{store}/mlflow.db"},
                cwd=store,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{text}: {done.stderr}")
            line = done.stdout.splitlines()[-1]
            print(line, flush=True)
            yield line


def one(text: str, seeds: int) -> None:
    """One line: the seeds of one strategy."""
    logging.disable(logging.INFO)
    import clear_mlflow

    asked = dict(part.split("=", 1) for part in text.split())
    found = [
        clear_mlflow.summarize(clear_mlflow.train(seed=seed, **asked)) for seed in range(seeds)
    ]
    cells = []
    for metric in COLUMNS.values():
        values = [scores[metric] for scores in found if metric in scores]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.3f}{spread}" if values else "not defined")
    name = asked.pop("strategy") + "".join(f", {v}" for v in asked.values())
    print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
