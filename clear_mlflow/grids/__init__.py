"""Sweeps: read and check their YAML files, and write those that continue from a comparison.

A comparison proposes more seeds where it is undecided, and tests of the best that was validated.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.matrix import get_divided_split
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, MAX_RUNS, decode_text, read_bytes
from clear_mlflow.learning.parameters.config import (
    PARAMETERS,
    TrainConfig,
    list_parameter_defaults,
)
from clear_mlflow.learning.parameters.logged import is_training, select_training_parameters
from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.store.names import CHOSEN, MORE_SEEDS

if TYPE_CHECKING:
    from clear_mlflow.comparison.groups import Group
    from clear_mlflow.comparison.result import Comparison

_SECTIONS = ("fixed", "grid", "runs")
# Every run's name contains these; it contains other parameters only if they vary.
_ALWAYS_NAMED = ("strategy", "dataset", "seed")
_NUM_TEST_SEEDS = 5


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    parameters: Mapping[str, str]  # those that the file sets, as text; paths are absolute
    config: TrainConfig
    name: str
    config_hash: str  # see hash_config


@dataclass(frozen=True)
class Grid:
    """All runs of a sweep's file, in its order."""

    text: str  # content of the file
    runs: tuple[PlannedRun, ...]
    varied: tuple[str, ...]  # parameters that the file sets and that differ between runs

    @property
    def digest(self) -> str:
        """Hash of the runs. Equal for files with the same runs in any order."""
        return hash_json(sorted(run.config_hash for run in self.runs))

    @property
    def group_by(self) -> tuple[str, ...]:
        """The parameters that seeds of one method share: strategy, dataset, and what varies."""
        names = (name for name in self.varied if name not in _ALWAYS_NAMED)
        return ("strategy", "dataset", *names)


def read_grid(grid: Path | Mapping[str, Any]) -> Grid:
    """Read and check a sweep from a YAML file, or from a dictionary with the same content.

    It has the sections ``fixed`` (parameters of all runs), ``grid`` (lists of values, of which all
    combinations are trained) and ``runs`` (a list of such grids). Raises ConfigError if the file
    cannot be read, or a run is invalid or occurs twice.
    """
    path = "grid" if isinstance(grid, Mapping) else grid
    try:
        file = None if isinstance(grid, Mapping) else read_bytes(grid, MAX_CONFIG_BYTES)
        text = _to_yaml(grid) if file is None else decode_text(file)
    except (OSError, RecordError) as error:
        raise ConfigError(
            f"cannot read the sweep {path}: {getattr(error, 'strerror', error)}"
        ) from None
    try:
        # Only nodes are parsed; no object is built from the file.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"the sweep {path} is not YAML: {' '.join(str(error).split())}") from None
    try:
        runs = [_plan_run(run, number) for number, run in enumerate(_iter_runs(node), start=1)]
        _check_runs_differ(runs)
    except ConfigError as error:
        raise ConfigError(f"the sweep {path}: {error}") from None
    texts = [run.config.as_text() for run in runs]
    set_names = {name for run in runs for name in run.parameters}  # others follow from these
    varied = tuple(n for n in texts[0] if n in set_names and len({t[n] for t in texts}) > 1)
    name_parts = tuple(name for name in varied if name not in _ALWAYS_NAMED)
    return Grid(
        text=text,
        runs=tuple(replace(run, name=_format_name(run.config, name_parts)) for run in runs),
        varied=varied,
    )


def complete_runs(grid: Grid, complete: Callable[[TrainConfig], TrainConfig]) -> Grid:
    """Return a grid with the hashes of completed parameters. The parameters do not change.

    complete: adds the default arguments of strategy, dataset and scenario. Raises ConfigError if
    two runs then have the same hash.
    """
    runs = [replace(run, config_hash=hash_config(complete(run.config))) for run in grid.runs]
    _check_runs_differ(runs)
    return replace(grid, runs=tuple(runs))


def hash_config(config: TrainConfig) -> str:
    """Return a hash of the parameters that affect training: equal if two runs train the same.

    Leaves out ``metrics`` and parameters without effect.
    """
    ignored = {"metrics", *config.ignored_parameters}  # metrics are computed from the rows
    return hash_json({name: t for name, t in config.as_text().items() if name not in ignored})


def hash_json(content: Any) -> str:
    """Return a hash of JSON data: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _read_node(node: Any, node_ids: set[int]) -> Any:
    """Return a YAML node's content, numbers as written. node_ids: of all nodes so far."""
    where = f"line {node.start_mark.line + 1}"
    if id(node) in node_ids:
        raise ConfigError(f"{where} is an alias (*); write it out")
    node_ids.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_read_node(value, node_ids) for value in node.value]
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in values:
                raise ConfigError(f"{where} has a repeated name, or a name that is not a text")
            values[key.value] = _read_node(value, node_ids)
        return values
    return str(node.value)


def _to_yaml(content: Any) -> str:
    """Return a dictionary as the YAML text of a file. Booleans become on and off."""

    def to_plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): to_plain(item) for name, item in value.items()}
        if isinstance(value, Iterable) and not isinstance(value, str):
            return [to_plain(item) for item in value]
        return ("on" if value else "off") if isinstance(value, bool) else str(value)

    text: str = yaml.safe_dump(to_plain(content), sort_keys=False, allow_unicode=True)
    return text


def _iter_runs(node: Any) -> Iterator[dict[str, str]]:
    """Yield each run's parameters, of ``grid``, then ``runs``, which may override ``fixed``."""
    content = None if node is None else _read_node(node, set())
    expected = "expected fixed, grid and runs, with at least grid or runs"
    if not isinstance(content, dict):
        raise ConfigError(f"is {safe_repr(content, 100)}; {expected}")
    if unknown := [name for name in content if name not in _SECTIONS]:
        raise ConfigError(f"has a section {safe_repr(unknown[0], 100)}; {expected}")
    fixed = _split_seeds(
        {
            name: [_check_text(value, f"fixed: {name}")]
            for name, value in _check_mapping(content.get("fixed") or {}, "fixed").items()
        }
    )
    grids: list[dict[str, list[str]]] = []
    if content.get("grid"):
        grids.append(_read_lists(content["grid"], "grid"))
    entries = content.get("runs") or []
    if not isinstance(entries, list):
        raise ConfigError(f"runs is {safe_repr(entries, 100)}; expected a list")
    grids += [_read_lists(entry, f"runs, entry {i}") for i, entry in enumerate(entries, start=1)]
    if not grids:
        raise ConfigError(f"has no runs; {expected}")
    # Entries of runs may override fixed; in grid it would be a mistake.
    if content.get("grid") and (both := sorted(fixed.keys() & grids[0].keys())):
        raise ConfigError(f"{both[0]} is in fixed and in grid; leave it out of one")
    grids = [{**{n: fixed[n] for n in fixed if n not in grid}, **grid} for grid in grids]
    num_runs = sum(math.prod(len(values) for values in grid.values()) for grid in grids)
    if num_runs > MAX_RUNS:
        raise ConfigError(f"has {num_runs} runs; expected at most {MAX_RUNS}")
    for grid in grids:
        for values in itertools.product(*grid.values()):
            yield dict(zip(grid, values, strict=True))


def _read_lists(entry: Any, where: str) -> dict[str, list[str]]:
    """Return the list of values of each parameter. where: position in the file, for messages."""
    lists = {}
    for name, values in _check_mapping(entry, where).items():
        values = values if isinstance(values, list) else [values]
        if not values:
            raise ConfigError(f"{where}: {safe_repr(name, 100)} has no values; expected a list")
        lists[name] = [_check_text(value, f"{where}: {name}") for value in values]
    if not lists:
        raise ConfigError(f"{where} is empty; expected parameters and their values")
    return _split_seeds(lists)


def _split_seeds(lists: dict[str, list[str]]) -> dict[str, list[str]]:
    """Replace ``seeds``, the option of ``train``, by a list of values of ``seed``."""
    seeds = lists.pop("seeds", [NONE])
    if seeds == [NONE]:
        return lists
    if "seed" in lists:
        raise ConfigError(f"seed is {lists['seed'][0]} and seeds is {seeds[0]}; leave one out")
    return {**lists, "seed": [seed.strip() for text in seeds for seed in text.split(",")]}


def _check_mapping(content: Any, where: str) -> dict[str, Any]:
    """Return *content* if it is a dictionary. where: position in the file, for the message."""
    if not isinstance(content, dict):
        raise ConfigError(
            f"{where} is {safe_repr(content, 100)}; expected parameters and their values"
        )
    return content


def _check_text(value: Any, where: str) -> str:
    """Return *value* if it is a text and not empty. where: position, for the message."""
    if not isinstance(value, str):
        raise ConfigError(f"{safe_repr(where, 100)} is {safe_repr(value, 100)}; expected one value")
    if not value:
        raise ConfigError(f"{safe_repr(where, 100)} has no value; write none, or leave it out")
    return value


def _plan_run(parameters: dict[str, str], number: int) -> PlannedRun:
    """Return a run with its checked parameters, absolute paths, and an empty name."""
    try:
        config = TrainConfig.resolve(parameters)
    except ConfigError as error:
        raise ConfigError(f"run {number}: {error}") from None
    # Absolute paths, so that a worker in another working folder reads the same files.
    paths = {name: str(getattr(config, name)) for name in parameters if PARAMETERS[name].is_path}
    return PlannedRun({**parameters, **paths}, config, "", hash_config(config))


def _check_runs_differ(runs: Sequence[PlannedRun]) -> None:
    """Raise ConfigError if two runs have the same ``config_hash``, and so would train the same."""
    first_numbers: dict[str, int] = {}  # by hash
    for number, run in enumerate(runs, start=1):
        first = first_numbers.setdefault(run.config_hash, number)
        if first != number:
            other, current = runs[first - 1].parameters, run.parameters
            differing = [n for n in {**other, **current} if current.get(n) != other.get(n)]
            values = " ".join(f"{name}={text}" for name, text in current.items())
            without_effect = f", although {', '.join(differing)} differs" if differing else ""
            raise ConfigError(
                f"runs {first} and {number} are the same{without_effect} "
                f"({safe_repr(values, 300)}); leave one of them out"
            )


def _format_name(config: TrainConfig, varied: Sequence[str]) -> str:
    """Name a run, at most 240 characters, like "ncm digits seed 0 features=pixels"."""
    texts = config.as_text()
    values = (f"{name}={Path(texts[name]).name or texts[name]}" for name in varied)
    return " ".join([config.strategy, config.stream_name, f"seed {config.seed}", *values])[:240]


def build_next_grids(comparison: Comparison) -> dict[str, str]:
    """Return the sweeps that continue from a comparison: artifact name to YAML text.

    ``more_seeds.yaml`` has new seeds for undecided pairs, ``chosen.yaml`` tests the best
    parameters of each method after a validation. A sweep without runs is left out.
    """
    grids = {
        MORE_SEEDS: _build_more_seeds(comparison),
        CHOSEN: _build_chosen(comparison),
    }
    return {name: text for name, text in grids.items() if text is not None}


def _build_more_seeds(comparison: Comparison) -> str | None:
    """Return the YAML of new seeds for undecided pairs, or None if none needs them."""
    needed: Counter[int] = Counter()
    for pair in comparison.list_pairs():
        if pair["more_seeds"] is not None:
            for group_index in (pair["a_index"], pair["b_index"]):
                needed[group_index] = max(needed[group_index], pair["more_seeds"])
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
