"""docs/results.md and its figures, from bundles: ``python benchmarks/results.py``.

Nothing is trained: every number is computed from the rows that the bundles hold. With a store
(``MLFLOW_TRACKING_URI``) that holds the experiments weather and digits, ``--export`` first writes
the bundles of their runs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import clear_mlflow
from clear_mlflow.comparison.figures import figures
from clear_mlflow.core.score import significant

ROOT = Path(__file__).resolve().parent.parent
BUNDLES, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "images"
LICENCE = "Apache-2.0"

METRICS = {
    "score": "clear/challenge_score",
    "in-domain": "clear/in_domain_accuracy",
    "next-domain": "clear/next_domain_accuracy",
    "backward": "clear/backward_transfer",
    "forward": "clear/forward_transfer",
    "forgetting": "renate/forgetting",
}
COSTS = {
    "training FLOPs": "cost/training_flops",
    "images": "cost/images",
    "bytes kept": "cost/stored_bytes",
    "seconds": "cost/seconds",
}
# Stream to the strategy that all others are tested against, and what the stream is.
STREAMS = {
    "weather": (
        "linear",
        "Four numbers of a day, five kinds of weather, eight half-years; a linear classifier, 100 "
        "epochs a bucket. `linear`, `ncm` and `slda` draw nothing at random here.",
    ),
    "digits": (
        "naive",
        "Scans of digits, turned, thickened, coloured and shaded by bucket, ten buckets; a small "
        "convolutional network, 24 epochs a bucket, a memory of 120 images.",
    ),
}

HEAD = """# Results

What some strategies make of two streams in the package, beside what others published for CLEAR.
The runs are in [benchmarks/results](../benchmarks/results) as [bundles](compare.md#bundles):

```
clear-mlflow compare benchmarks/results/digits --baseline naive
clear-mlflow compare benchmarks/results/weather --baseline linear
```

To keep the repository small, it has no bundles of the other strategies (a run of each is in
[strategies on digits](strategies-on-digits.md)) and of `digits-writers`.

`python benchmarks/results.py` writes this page from them. Values are means over seeds, with the
95 % interval of the mean (Student's t); the score is the mean of the four columns behind it. Costs
are means, too ([what is counted](cost.md)); seconds are of one core of a loaded machine without a
GPU.
"""
PUBLISHED = """
## CLEAR, as published

One run each, of the 1st CLEAR challenge at CVPR 2022, from
[its page](https://linzhiqiu.gitbook.io/the-clear-benchmark/introduction/1st-clear-challenge-cvpr22).
The columns are computed as above; images, models and budgets differ. No run of this program on
CLEAR's images is among them.

| stream | place | score | in-domain | next-domain | backward | forward |
|:--|:--|--:|--:|--:|--:|--:|
| CLEAR-10 | 1st | 0.927 | 0.934 | 0.925 | 0.942 | 0.909 |
| CLEAR-10 | 2nd | 0.916 | 0.923 | 0.917 | 0.939 | 0.887 |
| CLEAR-100 | 1st | 0.915 | 0.920 | 0.913 | 0.934 | 0.892 |
| CLEAR-100 | 2nd | 0.908 | 0.913 | 0.902 | 0.933 | 0.882 |
"""


def main() -> None:
    """Write the page and its figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--export", action="store_true", help="write the bundles first")
    if options.parse_args().export:
        for stream in STREAMS:
            for run in clear_mlflow.runs(stream):
                to = BUNDLES / stream / f"{run.config['strategy']}-{run.record.seed}.zip"
                clear_mlflow.export(run, to, licence=LICENCE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        for path, content in files().items():
            path.write_bytes(content)


def files() -> dict[Path, bytes]:
    """What is written: the page, and a figure for each stream."""
    text, found = HEAD, {}
    for stream, (baseline, about) in STREAMS.items():
        compared = clear_mlflow.compare(
            BUNDLES / stream, group_by=["strategy"], baseline=baseline, log=False
        )
        picture = FIGURES / f"results-{stream}.svg"
        found[picture] = dict(figures(compared.comparison))["curves.svg"]
        sentences = "\n".join(f"- {text}" for text in compared.verdicts()["sentence"])
        text += (
            f"\n## {stream}\n\n{about} [Its grid](../benchmarks/results/{stream}.yaml).\n\n"
            f"{table(compared)}\n![Accuracy on past and on future buckets](images/{picture.name})\n"
            f"\n{sentences}\n"
        )
    return {**found, PAGE: (text + PUBLISHED).encode()}


def table(compared: clear_mlflow.api.compared.ComparedRuns) -> str:
    """A line for each strategy: mean and interval of each metric, mean of each cost."""
    heads = [*METRICS, *COSTS]
    lines = [f"| strategy | seeds | {' | '.join(heads)} |", f"|:--|{'--:|' * (len(heads) + 1)}"]
    for group in compared.comparison.groups:
        cells = [group.name, str(len(group.counted))]
        for metric in METRICS.values():
            found = group.metrics[metric]
            low, high = found.interval or (None, None)
            ends = "" if low is None else f" ({low:.3f} to {high:.3f})"
            cells.append(f"{found.mean:.3f}{ends}")
        cells += [significant(group.metrics[metric].mean, 3) for metric in COSTS.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
