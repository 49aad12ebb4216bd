"""Train inside an MLflow run of your own: it is joined, and stays yours.

Whatever you log before and after lands in the same run. Run it with ``python examples/own_run.py``
(about half a minute), then look at it with ``mlflow ui``.
"""

import mlflow

import clear_mlflow

with mlflow.start_run(run_name="replay, few epochs"):
    mlflow.log_param("reason", "does a small buffer help?")
    run = clear_mlflow.train(strategy="replay", memory=100, epochs=2)

    forgotten = run.metrics["renate/forgetting"].value
    mlflow.set_tag("verdict", "yes" if forgotten < 0.2 else "no")
    print(run)
