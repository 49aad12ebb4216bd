"""Every strategy on the embedded dataset: ``python benchmarks/strategies.py`` prints the table.

The recipe of the dataset for all, and every strategy's own defaults; or, with ``--chosen FILE``,
the settings that a sweep chose on validation images: the artifact chosen.yaml of its comparison
(benchmarks/strategies.yaml is such a sweep). Runs are tracked in a store of their own (``--store``
keeps it, to look at the runs in MLflow's UI), and every number is computed from the rows that the
store holds. ``--write`` puts the table into docs/strategies-on-digits.md, below what that file says
of it.

With ``--budget naive:1`` the strategies that ``--only`` names (else :data:`AT_EQUAL_COST`) are
trained twice, with the recipe's epochs and with the budget, and set side by side in a table of its
own: a sweep, which continues in the same ``--store``.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "strategies-on-digits.md"
MARK = "<!-- what follows is written by benchmarks/strategies.py{} -->\n\n"
AT_EQUAL_COST = ["naive", "replay", "er_ace", "derpp", "ewc"]

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
    "joint": [{}, {"strategy_args": "epochs=72"}],
    "linear": [{"features": "pixels"}],
    "ncm": [{"features": "pixels"}],
    # The second is what the part of benchmarks/strategies.yaml that is of slda chose.
    "slda": [
        {"features": "pixels"},
        {"features": "pixels", "strategy_args": "shrinkage=0.001"},
    ],
}


def main() -> None:
    """Train all, and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--chosen", type=Path, help="chosen.yaml of a comparison of a sweep")
    options.add_argument("--only", nargs="+", help="strategies; all where left out")
    options.add_argument("--budget", help="beside the recipe's epochs, for example naive:1")
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
        if asked.budget:
            only = asked.only or AT_EQUAL_COST
            lines = list(at_equal_cost(store.resolve(), only, asked.seeds, asked.budget))
        else:
            texts = lines_of(asked.chosen) if asked.chosen else default_lines(asked.only)
            lines = list(table(store.resolve(), texts, asked.seeds))
    if asked.write:
        mark = MARK.format(" --budget" if asked.budget else "")
        told, _, before = PAGE.read_text(encoding="utf-8").partition(mark)
        _, gap, rest = before.partition("\n\n")
        text = f"{told}{mark}{chr(10).join(lines)}{gap}{rest}".rstrip("\n")
        PAGE.write_text(f"{text}\n", encoding="utf-8")


def default_lines(only: list[str] | None) -> Iterator[str]:
    """What each line of the table asks for: every strategy as it is, and its variants."""
    from clear_mlflow.learning.registry import known_strategies

    for strategy in only or known_strategies():
        for variant in VARIANTS.get(strategy, [{}]):
            yield " ".join([f"strategy={strategy}", *(f"{k}={v}" for k, v in variant.items())])


def lines_of(grid: Path) -> Iterator[str]:
    """What each line asks for of settings that were chosen: what differs from the recipe."""
    from clear_mlflow.grids.grid import read_grid
    from clear_mlflow.learning.parameters.config import TrainConfig

    for run in read_grid(grid).runs:
        texts = run.config.as_text()
        if texts["seed"] != "0":
            continue
        named = {name: texts[name] for name in ("strategy", "features")}
        usual = TrainConfig.resolve(named).as_text()
        named |= {name: text for name, text in texts.items() if text != usual[name]}
        yield " ".join(f"{n}={v}" for n, v in named.items() if (n, v) != ("features", "none"))


def table(store: Path, texts: Iterable[str], seeds: int) -> Iterator[str]:
    """The table's lines, printed as they come."""
    head = " | ".join(COLUMNS)
    for line in (
        f"| strategy | {head} |",
        f"|---|{'---:|' * len(COLUMNS)}",
    ):
        print(line)
        yield line
    for text in texts:
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


def at_equal_cost(store: Path, only: list[str], seeds: int, budget: str) -> Iterator[str]:
    """The lines of the table with both columns, printed as they come."""
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{store}/mlflow.db"
    os.chdir(store)
    import clear_mlflow

    asked = {"strategy": only, "seed": list(range(seeds))}
    frames = {}
    for of_runs in ("off", budget):
        grid = {"fixed": {"dataset": "digits", "budget": of_runs}, "grid": asked}
        compared = clear_mlflow.sweep(grid, experiment="equal").compared
        frames[of_runs] = compared.to_frame().set_index(["strategy", "metric"])
    naive = frames["off"].loc[("naive", "cost/training_flops"), "mean"]

    def cell(of_runs: str, strategy: str, metric: str) -> str:
        found = frames[of_runs].loc[(strategy, metric)]
        if metric.startswith("cost/"):
            return f"{found['mean'] / naive:.3f}"
        return f"{found['mean']:.3f} [{found.low:.3f}, {found.high:.3f}]"

    columns = ("clear/challenge_score", "renate/average_accuracy", "cost/training_flops")
    heads = ("challenge score", "average", "FLOPs / naive's")
    sides = [f"{head}, {side}" for side in ("equal epochs", budget) for head in heads]
    lines = [f"| strategy | {' | '.join(sides)} |", f"|---|{'---:|' * len(sides)}"]
    for strategy in only:
        cells = [cell(of_runs, strategy, metric) for of_runs in frames for metric in columns]
        lines.append(f"| {strategy} | {' | '.join(cells)} |")
    print("\n".join(lines))
    yield from lines


def one(text: str, seeds: int) -> None:
    """One line: the seeds of one strategy."""
    logging.disable(logging.INFO)
    import clear_mlflow
    from clear_mlflow.metrics import summarize

    asked = dict(part.split("=", 1) for part in text.split())
    found = [summarize(clear_mlflow.train(seed=seed, **asked).matrix) for seed in range(seeds)]
    cells = []
    for metric in COLUMNS.values():
        values = [scores[metric] for scores in found if metric in scores]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.3f}{spread}" if values else "not defined")
    name = asked.pop("strategy")
    for key, value in asked.items():
        name += f", {value}" if key in ("features", "strategy_args") else f", {key}={value}"
    print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
