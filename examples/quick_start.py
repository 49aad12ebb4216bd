"""Quick start: train on the embedded dataset, and read what the stored rows say.

``python examples/quick_start.py`` (half a minute on 2 cores, no download) opens an MLflow run,
trains one epoch on each of ten buckets and tests on all of them after each. Then ``mlflow ui``
shows it.
"""

import clear_mlflow

matrix = clear_mlflow.train(strategy="replay", memory=100, epochs=1)

print(matrix.values.round(2))  # row = trained through, column = tested on
for name, value in clear_mlflow.summarize(matrix).items():
    print(f"{name:32} {value:.4f}")
for name, reason in clear_mlflow.explain(matrix).items():
    print(f"{name:32} is not defined: {reason}")
