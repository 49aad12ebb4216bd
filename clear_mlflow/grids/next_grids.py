"""The grids that continue from a comparison: seeds for what is undecided, and tests of the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import yaml

from clear_mlflow.comparison.arrangement import methods
from clear_mlflow.comparison.build import Comparison
from clear_mlflow.comparison.groups import Group
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import validated_split
from clear_mlflow.learning.parameters.config import TrainConfig, parameter_defaults
from clear_mlflow.learning.parameters.logged import is_of_a_training, logged_parameters
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.store import names

_SEEDS = ("seed", "seeds")
_SEEDS_TO_TEST = 5


def next_grids(comparison: Comparison) -> dict[str, str]:
    """The sweeps that continue from a comparison: name of the artifact to its text."""
    grids = {names.MORE_SEEDS: _more_seeds(comparison), names.CHOSEN: _chosen(comparison)}
    return {name: text for name, text in grids.items() if text is not None}


def _more_seeds(comparison: Comparison) -> str | None:
    """The sweep of new seeds that undecided verdicts ask for, which it compares alone; or None."""
    needed: Counter[int] = Counter()
    for verdict in comparison.verdicts:
        if verdict.more_seeds is not None:
            for position in (verdict.a, verdict.b):
                needed[position] = max(needed[position], verdict.more_seeds)
    used = [run.record.seed for run in comparison.subjects]
    used += [run.seed for group in comparison.groups for run in group.rowless]
    # The same new seeds for all: methods that share seeds differ visibly with fewer.
    first = max((seed for seed in used if seed is not None), default=-1) + 1
    entries = []
    for position, count in sorted(needed.items()):
        parameters = _parameters_of(comparison.groups[position])
        if count and parameters is not None:
            seeds = [str(first + i) for i in range(count)]
            entries.append({**parameters, "seed": seeds})
    head = "# Seeds for what compare could not decide: clear-mlflow sweep --grid more_seeds.yaml\n"
    return _grid(head, entries)


def _chosen(comparison: Comparison) -> str | None:
    """A sweep's file that tests the best of each method, where all were validated; else None."""
    entries = []
    for best, *_ in methods(comparison) if comparison.is_validation else ():
        parameters = _parameters_of(best) if comparison.ranked_by in best.metrics else None
        if parameters is not None:
            split = validated_split(parameters.pop("split"))
            tested = {} if split == AUTO else {"split": split}
            seeds = [str(seed) for seed in range(_SEEDS_TO_TEST)]
            entries.append({**parameters, **tested, "seed": seeds})
    head = (
        f"# The best of each method by {comparison.ranked_by} on validation images, to be trained "
        "on all\n# training images and tested: clear-mlflow sweep --grid chosen.yaml\n"
    )
    return _grid(head, entries)


def _grid(head: str, entries: Sequence[Mapping[str, object]]) -> str | None:
    """The text of a sweep's file; None where it would have no runs."""
    if not entries:
        return None
    return f"{head}{yaml.safe_dump({'runs': entries}, sort_keys=False, allow_unicode=True)}"


def _parameters_of(group: Group) -> dict[str, str] | None:
    """What all runs of a group were trained with, but for seed and defaults; None: not known."""
    found = {tuple(_parameters(member.params).items()) for member in group.members}
    if len(found) != 1:
        return None
    parameters = dict(found.pop())
    try:
        config = TrainConfig.resolve(parameters)
    except ConfigError:
        return None
    dataset = group.members[0].record.dataset.name
    # Of a run that this program did not train nothing is known: the defaults are not its own.
    if not parameters or config.stream_name != dataset:
        return None
    if any(member.labels.get("strategy") != config.strategy for member in group.members):
        return None
    return parameters


def _parameters(logged: Mapping[str, str]) -> dict[str, str]:
    """What a run was trained with, as far as it is no default; nothing of another program's run."""
    if not is_of_a_training(logged):
        return {}
    defaults = parameter_defaults()
    found = {
        name: text
        for name, text in logged_parameters(logged).items()
        if name not in _SEEDS and text not in (defaults[name], AUTO)
    }
    try:
        unused = TrainConfig.resolve(found).without_role
    except ConfigError:
        return found
    return {name: text for name, text in found.items() if name not in unused}
