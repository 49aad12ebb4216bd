"""The sweeps that continue from a comparison: more seeds, and tests of what was validated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import yaml

from clear_mlflow.comparison.groups import Group
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import get_divided_split
from clear_mlflow.learning.parameters.config import TrainConfig, list_parameter_defaults
from clear_mlflow.learning.parameters.logged import is_training, select_training_parameters
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.store.names import CHOSEN, MORE_SEEDS

_NUM_TEST_SEEDS = 5


def build_next_grids(comparison: Comparison) -> dict[str, str]:
    """Return the sweeps that continue from a comparison: artifact name to YAML text.

    ``more_seeds.yaml`` has new seeds for undecided pairs, ``chosen.yaml`` tests the best
    parameters of each method after a validation. A sweep without runs is left out.
    """
    grids = {MORE_SEEDS: _build_more_seeds(comparison), CHOSEN: _build_chosen(comparison)}
    return {name: text for name, text in grids.items() if text is not None}


def _build_more_seeds(comparison: Comparison) -> str | None:
    """Return the YAML of new seeds for undecided pairs, or None if none needs them."""
    needed: Counter[int] = Counter()
    for pair in comparison.pairs:
        if pair.more_seeds is not None:
            for group_index in pair.indices:
                needed[group_index] = max(needed[group_index], pair.more_seeds)
    used_seeds = [run.seed for run in comparison.runs]
    used_seeds += [run.seed for group in comparison.groups for run in group.without_rows]
    # The same new seeds for all: with shared seeds, fewer show a difference.
    first = max((seed for seed in used_seeds if seed is not None), default=-1) + 1
    entries = []
    for group_index, count in sorted(needed.items()):
        parameters = _find_common_parameters(comparison.groups[group_index])
        if count and parameters is not None:
            seeds = [str(first + i) for i in range(count)]
            entries.append({**parameters, "seed": seeds})
    comment = (
        "# Seeds for what compare could not decide: clear-mlflow sweep --grid more_seeds.yaml\n"
    )
    return _format_grid(comment, entries)


def _build_chosen(comparison: Comparison) -> str | None:
    """Return the YAML that tests the best groups, or None if runs used no validation images."""
    entries = []
    for best, *_ in comparison.list_methods() if comparison.is_validation else ():
        parameters = _find_common_parameters(best) if comparison.ranked_by in best.metrics else None
        if parameters is not None:
            split = get_divided_split(parameters.pop("split"))
            test_split = {} if split == AUTO else {"split": split}
            seeds = [str(seed) for seed in range(_NUM_TEST_SEEDS)]
            entries.append({**parameters, **test_split, "seed": seeds})
    comment = (
        f"# The best of each method by {comparison.ranked_by} on validation images, to be trained "
        "on all\n# training images and tested: clear-mlflow sweep --grid chosen.yaml\n"
    )
    return _format_grid(comment, entries)


def _format_grid(comment: str, entries: Sequence[Mapping[str, object]]) -> str | None:
    """Return the text of a sweep's file, or None if it would have no runs."""
    if not entries:
        return None
    text = yaml.safe_dump({"runs": entries}, sort_keys=False, allow_unicode=True)
    # Numbers without quotes, as people write them: a sweep's file is read as text.
    return comment + re.sub(r"'([\w.+-]+)'$", r"\1", text, flags=re.MULTILINE)


def _find_common_parameters(group: Group) -> dict[str, str] | None:
    """Return the parameters of a group's runs, or None if they cannot be trained."""
    choices = {tuple(_select_changed(member.params).items()) for member in group.members}
    if len(choices) != 1:
        return None
    parameters = dict(choices.pop())
    try:
        config = TrainConfig.resolve(parameters)
    except ConfigError:
        return None
    dataset = group.members[0].record.dataset.name
    # Another program has other defaults.
    if not parameters or config.stream_name != dataset:
        return None
    if any(member.labels.get("strategy") != config.strategy for member in group.members):
        return None
    return parameters


def _select_changed(logged: Mapping[str, str]) -> dict[str, str]:
    """Return strategy, dataset and parameters without defaults, or {} for other programs."""
    if not is_training(logged):
        return {}
    defaults = list_parameter_defaults()
    trained = select_training_parameters(logged)
    changed = {str(name): trained.get(name, defaults[name]) for name in ("strategy", "dataset")} | {
        name: text
        for name, text in trained.items()
        if name != "seed" and text not in (defaults[name], AUTO)
    }
    try:
        unused = TrainConfig.resolve(changed).ignored_parameters
    except ConfigError:
        return changed
    return {name: text for name, text in changed.items() if name not in unused}
