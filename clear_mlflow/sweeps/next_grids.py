"""The sweeps that continue from a comparison: more seeds, tests after a validation, baselines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

import yaml

from clear_mlflow.comparison.groups import ComparedRun, Group
from clear_mlflow.comparison.result import Comparison
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.matrix import get_divided_split
from clear_mlflow.core.record import is_training
from clear_mlflow.learning.parameters.config import (
    PARAMETERS,
    TrainConfig,
    list_parameter_defaults,
)
from clear_mlflow.learning.parameters.logged import select_training_parameters
from clear_mlflow.learning.parameters.option_fields import DATA
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.learning.parameters.strategy_names import WITHOUT_STEPS
from clear_mlflow.learning.parameters.values import OFF
from clear_mlflow.store.names import BASELINES, CHOSEN, MORE_SEEDS

_NUM_TEST_SEEDS = 5
_NAIVE_COST = "naive:1"  # budget
# Parameters in which simple baselines may differ from the compared runs.
_OF_METHOD = ("strategy", "strategy_args", "memory", "memory_budget", "test_every")


def build_next_grids(comparison: Comparison) -> dict[str, str]:
    """Return the sweeps that continue from a comparison, as YAML by name.

    ``more_seeds.yaml`` has new seeds for undecided pairs, ``chosen.yaml`` tests the best
    parameters of each method after a validation, ``baselines.yaml`` trains simple baselines that
    are missing. A sweep without runs is left out.
    """
    grids = {
        MORE_SEEDS: _format_seeds_grid(comparison),
        CHOSEN: _format_chosen_grid(comparison),
        BASELINES: _format_baselines_grid(comparison),
    }
    return {name: text for name, text in grids.items() if text is not None}


def _format_seeds_grid(comparison: Comparison) -> str | None:
    needed: Counter[Group] = Counter()
    for pair in comparison.pairs:
        if pair.more_seeds is not None:
            for group in pair.groups:
                needed[group] = max(needed[group], pair.more_seeds)
    used_seeds = [run.seed for run in comparison.runs]
    used_seeds += [run.seed for group in comparison.groups for run in group.without_rows]
    # The same new seeds for all: with shared seeds, fewer show a difference.
    first = max((seed for seed in used_seeds if seed is not None), default=-1) + 1
    entries = []
    for group in comparison.groups:
        parameters = find_sweep_parameters(group) if needed[group] else None
        if parameters is not None:
            seeds = [str(first + i) for i in range(needed[group])]
            entries.append({**parameters, "seed": seeds})
    comment = (
        "# Seeds for what compare could not decide: clear-mlflow sweep --grid more_seeds.yaml\n"
    )
    return _format_grid(comment, entries)


def _format_chosen_grid(comparison: Comparison) -> str | None:
    entries = []
    for best, *_ in comparison.list_methods() if comparison.is_validation else ():
        parameters = find_sweep_parameters(best) if comparison.ranked_by in best.metrics else None
        if parameters is not None:
            seeds = [str(seed) for seed in range(_NUM_TEST_SEEDS)]
            entries.append({**undo_split(parameters), "seed": seeds})
    return format_chosen(str(comparison.ranked_by), "", entries)


def undo_split(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return parameters that train on all images, without a validation split."""
    split = get_divided_split(parameters.get("split", AUTO))
    others = {name: text for name, text in parameters.items() if name != "split"}
    return others if split == AUTO else {**others, "split": split}


def format_chosen(metric: str, source: str, entries: Sequence[Mapping[str, object]]) -> str | None:
    """Return the YAML that tests chosen parameters, or None without entries.

    source: further line of the comment, or "".
    """
    comment = (
        f"# The best of each method by {metric} on validation images, to be trained "
        "on all\n# training images and tested: clear-mlflow sweep --grid chosen.yaml\n"
    )
    return _format_grid(comment + source, entries)


def find_missing_baselines(comparison: Comparison) -> dict[str, list[dict[str, object]]]:
    """Return sweep entries for simple baselines without runs, by description.

    A baseline is trained on the data and with the model of the runs, for each of their test
    conditions. Runs of other programs lack none, because their data and models are not known.
    """
    missing: dict[str, list[dict[str, object]]] = {}
    for conditions in comparison.conditions:
        groups = [group for group in comparison.groups if group.conditions == conditions]
        trained = [(g, p) for g in groups if (p := find_sweep_parameters(g)) is not None]
        # Strategies without steps ignore the model and most parameters.
        candidates = [p for _, p in trained if p["strategy"] not in WITHOUT_STEPS]
        settings = Counter(
            tuple((name, text) for name, text in parameters.items() if name not in _OF_METHOD)
            for parameters in candidates or [p for _, p in trained]
        )
        if not settings:
            continue
        runs = [run for group in groups for run in group.members]
        seeds = sorted({r.seed for g, _ in trained for r in g.members if r.seed is not None})
        for phrase, parameters in _iter_missing_baselines(
            dict(settings.most_common(1)[0][0]),
            {run.labels.get("strategy", "") for run in runs},
            {run.labels.get("strategy", "") for run in runs if _may_have_budget(run)},
        ):
            try:
                TrainConfig.resolve(parameters)
            except ConfigError:
                continue
            entry: dict[str, object] = {**parameters, "seed": [str(n) for n in seeds or [0]]}
            missing.setdefault(phrase, []).append(entry)
    return missing


def _may_have_budget(run: ComparedRun) -> bool:
    return not is_training(run.params) or run.params.get("budget", OFF) != OFF


def _iter_missing_baselines(
    shared: Mapping[str, str], present: Set[str], with_budget: Set[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield description and parameters of each missing simple baseline."""
    waits = "stream_rate" not in shared
    if "ncm" not in present:
        data = {n: text for n, text in shared.items() if PARAMETERS[n].group == DATA}
        features = {} if TrainConfig.resolve(data).features != NONE else {"features": "pixels"}
        phrase = "ncm (nearest mean of frozen features)"
        yield phrase, {"strategy": "ncm", **data, **features}
    if not present & {"naive", "linear"}:
        yield "naive (only the newest model)", {"strategy": "naive", **shared}
    if "from_scratch" not in present:
        yield "from_scratch", {"strategy": "from_scratch", **shared}
    if "joint" not in present and waits:
        others = {name: text for name, text in shared.items() if name != "budget"}
        yield "joint", {"strategy": "joint", **others}
    if "cumulative" not in (with_budget if waits else present):
        budget = {"budget": shared.get("budget", _NAIVE_COST)} if waits else {}
        yield "cumulative at equal cost", {"strategy": "cumulative", **shared, **budget}


def _format_baselines_grid(comparison: Comparison) -> str | None:
    entries = [entry for runs in find_missing_baselines(comparison).values() for entry in runs]
    comment = (
        "# Simple baselines that were not compared: clear-mlflow sweep --grid baselines.yaml\n# "
        "Features of a backbone are better than pixels (docs/features.md).\n"
    )
    return _format_grid(comment, entries)


def _format_grid(comment: str, entries: Sequence[Mapping[str, object]]) -> str | None:
    if not entries:
        return None
    text = yaml.safe_dump({"runs": entries}, sort_keys=False, allow_unicode=True)
    # Numbers without quotes, as people write them: a sweep's file is read as text.
    return comment + re.sub(r"'([\w.+-]+)'$", r"\1", text, flags=re.MULTILINE)


def find_sweep_parameters(group: Group) -> dict[str, str] | None:
    """Return what a sweep sets to train equal runs again, or None."""
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
    """Return strategy, dataset and non-default parameters, {} for other programs."""
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
