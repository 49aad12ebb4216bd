"""The metrics of Chaudhry et al. 2018 that are of one run: accuracy and forgetting after bucket k.

They are Renate's. Their intransigence is of two runs: how much better a run that is trained on all
buckets so far at once knows bucket k, J[k, k] - R[k, k].

Source: Chaudhry et al., Riemannian Walk for Incremental Learning: Understanding Forgetting and
Intransigence, ECCV 2018, arXiv:1801.10112; ``compute_fgt`` in ``utils/utils.py`` of
facebookresearch/agem, 4542149.
"""

from clear_mlflow.metrics import renate
from clear_mlflow.metrics._base import change, level

# A_k and F_k (their `compute_fgt` is the same).
METRICS = (
    level("chaudhry/average_accuracy", renate.average_accuracy, "chaudhry/average_{score}"),
    change("chaudhry/forgetting", renate.forgetting, higher_is_better=False),
)
