"""The file of a sweep: read, checked in full, and written out as the runs that it asks for."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, MAX_RUNS, decoded, read_bytes
from clear_mlflow.learning.parameters.config import TrainConfig, parameters_with
from clear_mlflow.learning.parameters.recipes import NONE

_SECTIONS = ("fixed", "grid", "runs")
# Every run's name contains these in any case; it names the others where they vary.
_NAMED = ("strategy", "dataset", "seed", "seeds")
_SEEDS = ("seed", "seeds")


@dataclass(frozen=True)
class PlannedRun:
    """One run that a sweep asks for."""

    asked: Mapping[str, str]  # what the file says of it, as text; paths are absolute
    config: TrainConfig
    name: str
    fingerprint: str


@dataclass(frozen=True)
class Grid:
    """All runs that a file asks for, in its order."""

    text: str  # of the file
    runs: tuple[PlannedRun, ...]
    varied: tuple[str, ...]  # parameters that it names, and that are not the same in all runs

    @property
    def digest(self) -> str:
        """The same for every file that asks for the same runs, in whatever order."""
        return digest_of(sorted(run.fingerprint for run in self.runs))

    @property
    def group_by(self) -> tuple[str, ...]:
        """What the seeds of one method share: strategy, dataset and all that varies beside."""
        more = (name for name in self.varied if name not in (*_SEEDS, "strategy", "dataset"))
        return ("strategy", "dataset", *more)


def read_grid(grid: Path | Mapping[str, Any]) -> Grid:
    """Read a sweep's YAML, or its content; every run is checked here, and every value is text."""
    path = "grid" if isinstance(grid, Mapping) else grid
    try:
        file = None if isinstance(grid, Mapping) else read_bytes(grid, MAX_CONFIG_BYTES)
        text = _written(grid) if file is None else decoded(file)
    except (OSError, RecordError) as error:
        raise ConfigError(f"cannot read the sweep {path}: {error}") from None
    try:
        # Nodes are looked at here, and nothing is ever built of what they say.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"the sweep {path} is not YAML: {safe_repr(str(error), 300)}") from None
    try:
        runs = [_planned(asked, number) for number, asked in enumerate(_asked(node), start=1)]
        _refuse_twins(runs)
    except ConfigError as error:
        raise ConfigError(f"the sweep {path}: {error}") from None
    texts = [run.config.as_text() for run in runs]
    named_by_a_run = {name for run in runs for name in run.asked}  # others follow from these
    varied = tuple(n for n in texts[0] if n in named_by_a_run and len({t[n] for t in texts}) > 1)
    named = tuple(name for name in varied if name not in _NAMED)
    return Grid(
        text=text,
        runs=tuple(replace(run, name=_name(run.config, named)) for run in runs),
        varied=varied,
    )


def complete_runs(grid: Grid, complete: Callable[[TrainConfig], TrainConfig]) -> Grid:
    """Return a grid whose fingerprints include the defaults that *complete* adds.

    Raises ConfigError if two runs are equal in effect.
    """
    runs = [replace(run, fingerprint=fingerprint(complete(run.config))) for run in grid.runs]
    _refuse_twins(runs)
    return replace(grid, runs=tuple(runs))


def fingerprint(config: TrainConfig) -> str:
    """Hash the parameters that have an effect, in one form however the user wrote them."""
    ignored = {"metrics", *config.without_role}  # metrics are computed from the rows
    if config.seeds != NONE:
        ignored.add("seed")
    return digest_of({name: t for name, t in config.as_text().items() if name not in ignored})


def digest_of(content: Any) -> str:
    """A hash of anything that JSON can hold: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _content(node: Any, seen: set[int]) -> Any:
    """The content of YAML's nodes: texts, lists and mappings, no alias, no name twice."""
    where = f"line {node.start_mark.line + 1}"
    if id(node) in seen:
        raise ConfigError(f"{where} is an alias (*); write it out")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_content(value, seen) for value in node.value]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                raise ConfigError(f"{where} has a name twice, or one that is no text")
            found[key.value] = _content(value, seen)
        return found
    return str(node.value)


def _written(content: Any) -> str:
    """A grid of Python as a file would have it."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(found) for name, found in value.items()}
        if isinstance(value, Iterable) and not isinstance(value, str):
            return [plain(found) for found in value]
        return ("on" if value else "off") if isinstance(value, bool) else str(value)

    text: str = yaml.safe_dump(plain(content), sort_keys=False, allow_unicode=True)
    return text


def _asked(node: Any) -> Iterator[dict[str, str]]:
    """What each run asks for, in the order of the file."""
    content = None if node is None else _content(node, set())
    expected = "expected fixed, grid and runs, of which grid or runs is there"
    if not isinstance(content, dict):
        raise ConfigError(f"is {safe_repr(content, 100)}; {expected}")
    if unknown := [name for name in content if name not in _SECTIONS]:
        raise ConfigError(f"has a section {safe_repr(unknown[0], 100)}; {expected}")
    fixed = {
        name: _text(value, f"fixed: {name}")
        for name, value in _mapping(content.get("fixed") or {}, "fixed").items()
    }
    grids: list[dict[str, list[str]]] = []
    if content.get("grid"):
        grids.append(_lists(content["grid"], "grid"))
    listed = content.get("runs") or []
    if not isinstance(listed, list):
        raise ConfigError(f"runs is {safe_repr(listed, 100)}; expected a list")
    grids += [_lists(entry, f"runs, entry {i}") for i, entry in enumerate(listed, start=1)]
    if not grids:
        raise ConfigError(f"asks for no runs; {expected}")
    # Only an entry of runs may override fixed: in a grid that would be a mistake.
    if content.get("grid") and (both := sorted(fixed.keys() & grids[0].keys())):
        raise ConfigError(f"{both[0]} is in fixed and in grid; leave it out of one")
    number = sum(math.prod(len(values) for values in grid.values()) for grid in grids)
    if number > MAX_RUNS:
        raise ConfigError(f"asks for {number} runs; expected at most {MAX_RUNS}")
    for grid in grids:
        for values in itertools.product(*grid.values()):
            yield {**fixed, **dict(zip(grid, values, strict=True))}


def _lists(entry: Any, where: str) -> dict[str, list[str]]:
    """Parameter to its values; one value alone is a list of one."""
    lists = {}
    for name, values in _mapping(entry, where).items():
        several = values if isinstance(values, list) else [values]
        if not several:
            raise ConfigError(f"{where}: {safe_repr(name, 100)} has no values; expected a list")
        lists[name] = [_text(value, f"{where}: {name}") for value in several]
    if not lists:
        raise ConfigError(f"{where} says nothing; expected parameters and their values")
    return lists


def _mapping(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ConfigError(
            f"{where} is {safe_repr(content, 100)}; expected parameters and their values"
        )
    return content


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{safe_repr(where, 100)} is {safe_repr(value, 100)}; expected one value")
    if not value:
        raise ConfigError(f"{safe_repr(where, 100)} has no value; write none, or leave it out")
    return value


def _planned(asked: dict[str, str], number: int) -> PlannedRun:
    try:
        config = TrainConfig.resolve(asked)
    except ConfigError as error:
        raise ConfigError(f"run {number}: {error}") from None
    if config.seeds.isdecimal():
        raise ConfigError(
            f"run {number}: seeds is {config.seeds}, which is an ensemble of one; in a sweep it is "
            "`seed`, for example seed: [0, 1]"
        )
    # Whole paths, so that a worker with another working folder finds the same files.
    paths = {name: str(getattr(config, name)) for name in parameters_with("path") if name in asked}
    return PlannedRun({**asked, **paths}, config, "", fingerprint(config))


def _refuse_twins(runs: Sequence[PlannedRun]) -> None:
    seen: dict[str, int] = {}
    for number, run in enumerate(runs, start=1):
        twin = seen.setdefault(run.fingerprint, number)
        if twin != number:
            other = runs[twin - 1].asked
            differing = [n for n in {**other, **run.asked} if run.asked.get(n) != other.get(n)]
            asked = " ".join(f"{name}={text}" for name, text in run.asked.items())
            without_effect = f", although {', '.join(differing)} differs" if differing else ""
            raise ConfigError(
                f"runs {twin} and {number} are the same{without_effect} ({safe_repr(asked, 300)}); "
                "leave one of them out"
            )


def _name(config: TrainConfig, varied: Sequence[str]) -> str:
    """Strategy, dataset and seed, as in every run's name, and the other parameters that vary."""
    seeds = config.seeds.split(",")
    which = f"seed {config.seed}" if config.seeds == NONE else f"{len(seeds)} seeds"
    texts = config.as_text()
    more = (f"{name}={Path(texts[name]).name or texts[name]}" for name in varied)
    return " ".join([config.strategy, config.stream_name, which, *more])[:240]
