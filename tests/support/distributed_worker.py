"""One of several processes that train together.

``python distributed_worker.py FOLDER`` under torchrun's variables reads FOLDER/cases.json and
writes FOLDER/RANK.npz; the tests call :func:`results` for the same by one process.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from curves import Points
from feature_streams import config as of_features
from feature_streams import made_up
from learning_streams import config as of_images
from learning_streams import random_stream

from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.learning.loop import train
from clear_mlflow.learning.process_group import SINGLE_PROCESS, process_group
from clear_mlflow.learning.samples import DecodedStream, FeatureStream
from clear_mlflow.learning.session import resolve_config

CPU = torch.device("cpu")


def results(cases, folder, group=SINGLE_PROCESS):
    """Return arrays by ``case/name``: counts, labels, probabilities, weights, curve, tests.

    Test sets have 5, 3 and 7 images, or features 20, 9 and 13: no two processes have equal shares.
    """
    images, _ = random_stream(folder, train=(11, 8, 9), test=(5, 3, 7), side=8)
    results_by_case = {}
    for name, changes in cases.items():
        if "features" in changes:
            settings = resolve_config(of_features(**changes))
            stream = FeatureStream(*made_up(), device=CPU)
        else:
            settings = resolve_config(of_images(**changes))
            stream = DecodedStream(images, image_size=8, device=CPU)
        curve = Points()
        for trained in train(stream, settings, progress=curve, group=group):
            row = trained.row.row
            results_by_case[f"{name}/correct{row}"] = np.array(trained.evaluation.correct)
            results_by_case[f"{name}/labels{row}"] = trained.evaluation.labels
            if trained.evaluation.probabilities is not None:
                results_by_case[f"{name}/probabilities{row}"] = trained.evaluation.probabilities
            for key, value in trained.model.state_dict().items():
                results_by_case[f"{name}/weight {row} {key}"] = value.clone().numpy()
        results_by_case[f"{name}/tests"] = np.array(
            [(*test.correct, test.step) for test in curve.tests]
        )
        results_by_case[f"{name}/curve"] = np.array([(p.step, p.loss, p.lr) for p in curve.points])
    return results_by_case


def main():
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    dist_env = read_dist_env()
    with process_group(dist_env, "cpu") as group:
        local_results = results(cases, folder / f"images{dist_env.rank}", group)
    np.savez(folder / f"{dist_env.rank}.npz", **local_results)


if __name__ == "__main__":
    main()
