"""Train inside an MLflow run of your own: it is joined, and stays yours.

Whatever you log before and after lands in the same run. Run it with ``python examples/own_run.py``
(about half a minute), then look at it with ``mlflow ui``.
"""

import mlflow

import clear_mlflow

with mlflow.start_run(run_name="replay, few epochs"):
    mlflow.log_param("reason", "does a small buffer help?")
    matrix = clear_mlflow.train(strategy="replay", memory=100, epochs=2)

    scores = clear_mlflow.summarize(matrix)
    mlflow.set_tag("verdict", "yes" if scores["renate/forgetting"] < 0.2 else "no")
    for name, value in scores.items():
        print(f"{name:32} {value:.4f}")
