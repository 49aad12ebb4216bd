"""Import other programs' matrices, and compare them with your own runs.

``python examples/import_and_compare.py`` (under a minute) has a program that knows nothing of
MLflow leave a file of accuracies for each seed, as many do; makes MLflow runs of the files; tracks
as many runs of its own on the same buckets; and opens a comparison that says which of the two
methods is better, and whether that is real. It is all in the experiment "theirs and mine".
"""

import json
import subprocess
import tempfile
from pathlib import Path

import mlflow
from own_loop import NUM_BUCKETS, NUM_TEST, rows

import clear_mlflow

EXPERIMENT = "theirs and mine"
SEEDS = range(6)  # fewer can never show a difference: docs/statistics.md


def leave_files(folder: Path) -> None:
    """The other program: a matrix of accuracies for each seed."""
    for seed in SEEDS:
        matrix = [[n / NUM_TEST for n in row] for _, row in rows(replays=False, seed=seed)]
        (folder / f"seed{seed}.json").write_text(json.dumps({"matrix": matrix, "seed": seed}))


def main() -> None:
    """Theirs, mine, and which is better."""
    with tempfile.TemporaryDirectory() as name:
        leave_files(Path(name))
        # What the files do not say, you do; no accuracy is guessed to be a percentage. Text files,
        # NumPy's, and what Avalanche, Renate, mammoth and others write go the same way.
        facts = ["--dataset", "turned scans", "--strategy", "theirs"]
        facts += ["--num-instances", str(NUM_TEST)]
        subprocess.run(
            ["clear-mlflow", "import", name, "--experiment", EXPERIMENT, *facts], check=True
        )

    mlflow.set_experiment(EXPERIMENT)
    for seed in SEEDS:
        with clear_mlflow.track(
            buckets=NUM_BUCKETS,
            num_instances=NUM_TEST,
            dataset="turned scans",
            strategy="mine",
            seed=seed,
        ) as run:
            for trained, correct in rows(replays=True, seed=seed):
                run.log_counts(trained, correct)

    subprocess.run(["clear-mlflow", "compare", "--runs", EXPERIMENT], check=True)


if __name__ == "__main__":
    main()
