"""Quick start: train on the embedded dataset, and read what the stored rows say.

``python examples/quick_start.py`` (half a minute on 2 cores, no download) opens an MLflow run,
trains one epoch on each of ten buckets and tests on all of them after each. Then ``mlflow ui``
shows it.
"""

import clear_mlflow

run = clear_mlflow.train(strategy="replay", memory=100, epochs=1)

print(run.matrix.values.round(2))  # row = trained through, column = tested on
for name, metric in run.metrics.items():
    print(f"{name:32} {metric.text} {metric.note}")
