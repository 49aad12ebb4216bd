"""The grid that tests what was chosen on validation images: each method's best, several seeds."""

from __future__ import annotations

import yaml

from clear_mlflow.comparison import Comparison
from clear_mlflow.comparison.arrangement import methods
from clear_mlflow.core.matrix import validated_split
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.store import names
from clear_mlflow.sweep.more_seeds import more_seeds_grid, parameters_of

_SEEDS = 5


def next_grids(comparison: Comparison) -> dict[str, str]:
    """The sweeps that continue from a comparison: name of the artifact to its text."""
    grids = {names.MORE_SEEDS: more_seeds_grid(comparison), names.CHOSEN: chosen_grid(comparison)}
    return {name: text for name, text in grids.items() if text is not None}


def chosen_grid(comparison: Comparison) -> str | None:
    """A sweep's file that trains the best of each method on all training images, and tests it.

    None where not all runs were measured on validation images, or no group's parameters are known.
    """
    entries = []
    for best, *_ in methods(comparison) if comparison.is_validation else ():
        parameters = parameters_of(best) if comparison.ranked_by in best.metrics else None
        if parameters is not None:
            split = validated_split(parameters.pop("split"))
            tested = {} if split == AUTO else {"split": split}
            seeds = [str(seed) for seed in range(_SEEDS)]
            entries.append({**parameters, **tested, "seed": seeds})
    if not entries:
        return None
    head = (
        f"# The best of each method by {comparison.ranked_by} on validation images, to be trained "
        "on all\n# training images and tested: clear-mlflow sweep --grid chosen.yaml\n"
    )
    return f"{head}{yaml.safe_dump({'runs': entries}, sort_keys=False, allow_unicode=True)}"
