"""Does bf16 change the matrix? ``python benchmarks/precision.py`` prints it, in percentage points.

The same seeds in float32 and in bf16 on the embedded dataset, and the same for ResNet-18 where
``--model resnet18 --image-size 64`` asks for it. What is compared are the metrics' means over
seeds; beside them, how much seeds differ from each other.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile


def main() -> None:
    """Train, and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--strategy", nargs="+", default=["naive", "replay"])
    options.add_argument("--model", default="auto")
    options.add_argument("--image-size", default="auto")
    options.add_argument("--epochs", default="auto")
    options.add_argument("--device", default="auto")
    asked = options.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        os.chdir(folder)
        import clear_mlflow

        print("| strategy | metric | float32 | bf16 | bf16 - float32, pp | seeds, pp |")
        print("|---|---|---:|---:|---:|---:|")
        for strategy in asked.strategy:
            found = {
                precision: [
                    clear_mlflow.summarize(
                        clear_mlflow.train(
                            strategy=strategy,
                            model=asked.model,
                            image_size=asked.image_size,
                            epochs=asked.epochs,
                            device=asked.device,
                            precision=precision,
                            seed=seed,
                        )
                    )
                    for seed in range(asked.seeds)
                ]
                for precision in ("off", "bf16")
            }
            for metric in found["off"][0]:
                exact = [scores[metric] for scores in found["off"]]
                half = [scores[metric] for scores in found["bf16"]]
                change = 100 * (statistics.mean(half) - statistics.mean(exact))
                spread = 100 * statistics.stdev(exact) if len(exact) > 1 else 0.0
                print(
                    f"| {strategy} | {metric} | {statistics.mean(exact):.4f} | "
                    f"{statistics.mean(half):.4f} | {change:+.2f} | {spread:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
