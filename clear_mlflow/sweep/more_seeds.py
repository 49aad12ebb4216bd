"""The grid of the seeds that a comparison asks for: what is undecided, trained further."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import yaml

from clear_mlflow.comparison import Comparison, Group
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import TrainConfig, parameter_defaults
from clear_mlflow.learning.parameters.logged import is_of_a_training, logged_parameters
from clear_mlflow.learning.parameters.recipes import AUTO

_SEEDS = ("seed", "seeds")


def more_seeds_grid(comparison: Comparison) -> str | None:
    """A sweep's file that trains the seeds that undecided verdicts ask for; None: none does.

    A group whose parameters are not known (imported runs, a loop of one's own) is not in it.
    """
    needed: Counter[int] = Counter()
    for verdict in comparison.verdicts:
        if verdict.more_seeds is not None:
            for position, count in zip((verdict.a, verdict.b), verdict.more_seeds, strict=True):
                needed[position] = max(needed[position], count)
    used = [run.record.seed for run in comparison.subjects]
    used += [run.seed for group in comparison.groups for run in group.rowless]
    # The same new seeds for all: methods that share seeds differ visibly with fewer.
    first = max((seed for seed in used if seed is not None), default=-1) + 1
    entries = []
    for position, count in sorted(needed.items()):
        parameters = parameters_of(comparison.groups[position])
        if count and parameters is not None:
            seeds = [str(first + i) for i in range(count)]
            entries.append({**parameters, "seed": seeds})
    if not entries:
        return None
    head = "# Seeds for what compare could not decide: clear-mlflow sweep --grid more_seeds.yaml\n"
    return f"{head}{yaml.safe_dump({'runs': entries}, sort_keys=False, allow_unicode=True)}"


def parameters_of(group: Group) -> dict[str, str] | None:
    """What all runs of a group were trained with, but for the seed; defaults are left out.

    None where it is not known, or not the same in all.
    """
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
