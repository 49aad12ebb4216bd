"""Small data for loops of other frameworks, and a check of what adapters store of them."""

import numpy as np
import torch
from stored_runs import only_run

from clear_mlflow.store import names

CLASSES = 3


def draw_bucket(count, bucket, generator):
    """Return inputs and labels of a bucket. The labels shift every three buckets."""
    y = torch.randint(CLASSES, (count,), generator=generator)
    x = torch.nn.functional.one_hot((y + bucket // 3) % CLASSES, CLASSES).float()
    return x + 0.4 * torch.randn(count, CLASSES, generator=generator), y


def check_complete_loop(store, experiment_id, adapter, model, expected, atol):
    """Check the run of a complete loop, in which test set j has 7 + j images.

    expected: accuracies that the framework itself returned, the untrained model's first.
    """
    run = only_run(store, experiment_id)
    assert run.info.run_id == adapter.run_id
    assert run.info.status == "FINISHED"  # closed with the last row
    assert run.data.tags[names.ROWS_TAG] == "complete"
    matrix = adapter.matrix
    np.testing.assert_allclose(matrix.initial, expected[0], atol=atol)
    np.testing.assert_allclose(matrix.values, expected[1:], atol=atol)
    assert matrix.num_instances.tolist() == [7 + j for j in range(matrix.num_buckets)]
    assert len(np.unique(matrix.values)) > 10
    assert all(cost.seconds > 0 and cost.device for cost in matrix.costs)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert {cost.trainable_parameters for cost in matrix.costs} == {num_parameters}
