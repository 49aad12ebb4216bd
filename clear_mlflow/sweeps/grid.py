"""The grid of a sweep: read and check its YAML file, and list its runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.core.text import safe_repr
from clear_mlflow.core.untrusted import MAX_CONFIG_BYTES, MAX_RUNS, decode_text, read_bytes
from clear_mlflow.learning.parameters.config import PARAMETERS, TrainConfig
from clear_mlflow.learning.parameters.recipes import NONE

# States of a run.
DONE_BEFORE, DONE, FAILED = "done before", "done", "failed"
ELSEWHERE, NOT_DONE, TRAINING = "trains elsewhere", "not done", "training"

_SECTIONS = ("fixed", "grid", "runs")
# Every run's name contains these; it contains other parameters only if they vary.
_ALWAYS_NAMED = ("strategy", "dataset", "seed")


@dataclass(eq=False)
class SweepRun:
    """A run of a sweep: parameters, state and MLflow run."""

    parameters: Mapping[str, str]  # those that the file sets, as text; paths are absolute
    config: TrainConfig = field(repr=False)
    config_hash: str = field(repr=False)  # see hash_config
    # Tags of the MLflow run. Runs with other tags are other runs, also if they train the same.
    tags: Mapping[str, str] = field(default_factory=dict)
    name: str = ""  # of the MLflow run: strategy, dataset, seed and the other varied parameters
    state: str = NOT_DONE
    run_id: str | None = None
    error: str | None = None
    exit_code: int = 0  # of the last training
    is_lost: bool = False  # the last training was killed, so a retry may succeed
    seconds: float = 0.0  # from the start of the last training to its end
    num_tries: int = 0  # trainings that this sweep started
    note: str | None = None  # whether the last training resumes, or why it does not
    started_at: float = field(default=0.0, repr=False)  # monotonic time
    # Number of resumes in the store before this sweep resumed the run; None if it did not.
    resumes_before: str | None = field(default=None, repr=False)
    # Attempts that cannot be resumed: run id to reason.
    refusals: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def run_hash(self) -> str:
        """Hash of parameters and tags, by which the store knows the run."""
        return hash_with_tags(self.config_hash, self.tags)

    @property
    def passed_parameters(self) -> dict[str, str]:
        """Parameters to train with, without ``memory`` if the strategy ignores it."""
        ignored = {"memory"} & self.config.ignored_parameters
        return {name: text for name, text in self.parameters.items() if name not in ignored}

    def set_end(self, exit_code: int, error: str | None, *, is_lost: bool = False) -> SweepRun:
        """Set how the last training ended, and return the run.

        exit_code: of ``clear-mlflow train``. error: one line, or None if the engine knows none.
        is_lost: its process was killed or its machine is gone.
        """
        self.exit_code, self.error, self.is_lost = exit_code, error, is_lost
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return run id, name, state, error, parameters and their hash, for JSON."""
        return {
            "run_id": self.run_id,
            "name": self.name,
            "state": self.state,
            "error": self.error,
            "parameters": dict(self.parameters),
            "fingerprint": self.config_hash,
        }


@dataclass(frozen=True)
class Grid:
    """All runs of a sweep's file, in its order."""

    text: str  # content of the file
    runs: tuple[SweepRun, ...]
    varied: tuple[str, ...]  # parameters that the file sets and that differ between runs

    @property
    def digest(self) -> str:
        """Hash of the runs, equal for any order in the file."""
        return hash_json(sorted(run.run_hash for run in self.runs))

    @property
    def group_by(self) -> tuple[str, ...]:
        """The parameters that seeds of one method share."""
        names = (name for name in self.varied if name not in _ALWAYS_NAMED)
        return ("strategy", "dataset", *names)

    @property
    def num_waiting(self) -> int:
        """Number of runs that are to be trained."""
        return sum(run.state == NOT_DONE for run in self.runs)


def read_grid(grid: Path | Mapping[str, Any]) -> Grid:
    """Read a sweep from a YAML file or dictionary, checking its runs.

    It has the sections ``fixed`` (parameters of all runs), ``grid`` (lists of values, of which all
    combinations are trained) and ``runs`` (a list of such grids). Raises ConfigError if the file
    cannot be read, or a run is invalid or occurs twice.
    """
    text, content = read_content(grid)
    with sweep_errors(grid):
        parsed_grid = build_grid(text, content)
        check_runs_differ(parsed_grid.runs)
    return parsed_grid


def read_content(grid: Path | Mapping[str, Any]) -> tuple[str, Any]:
    """Read a sweep's file, and return its text and parsed YAML.

    Raises ConfigError if the file cannot be read, or is not YAML.
    """
    with sweep_errors(grid):
        if isinstance(grid, Mapping):
            text = format_yaml(grid)
        else:
            text = decode_text(read_bytes(grid, MAX_CONFIG_BYTES))
        return text, parse_yaml(text)


def parse_yaml(text: str) -> Any:
    """Parse YAML to dictionaries, lists, strings or None. Raises YAMLError and ConfigError."""
    # Only nodes are parsed; no object is built from the file.
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return None if node is None else _parse_node(node, set())


@contextmanager
def sweep_errors(grid: Path | Mapping[str, Any]) -> Iterator[None]:
    """Convert errors of reading and parsing to ConfigError with the sweep's path."""
    path = "grid" if isinstance(grid, Mapping) else grid
    try:
        yield
    except (OSError, RecordError) as error:
        raise ConfigError(
            f"cannot read the sweep {path}: {getattr(error, 'strerror', error)}"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"the sweep {path}: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
            problem = f"{error.problem} in line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(f"the sweep {path} is not YAML: {problem}") from None


def build_grid(text: str, content: Any) -> Grid:
    """Build a grid from parsed YAML. Runs may repeat each other.

    text: content of the file. Raises ConfigError if a run is invalid.
    """
    runs = [_build_run(run, number) for number, run in enumerate(_iter_runs(content), start=1)]
    texts = [run.config.as_text() for run in runs]
    set_names = {name for run in runs for name in run.parameters}  # others follow from these
    varied = tuple(n for n in texts[0] if n in set_names and len({t[n] for t in texts}) > 1)
    for run in runs:
        run.name = _format_name(run.config, [n for n in varied if n not in _ALWAYS_NAMED])
    return Grid(text, tuple(runs), varied)


def hash_config(config: TrainConfig) -> str:
    """Return a hash of the parameters that affect training.

    Leaves out ``metrics`` and parameters without effect.
    """
    ignored = {"metrics", *config.ignored_parameters}  # metrics are computed from the rows
    return hash_json({name: t for name, t in config.as_text().items() if name not in ignored})


def hash_with_tags(config_hash: str, tags: Mapping[str, str]) -> str:
    """Return a hash of a run's parameters and tags: *config_hash* without tags."""
    return hash_json([config_hash, dict(tags)]) if tags else config_hash


def hash_json(content: Any) -> str:
    """Return a hash of JSON data: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def check_runs_differ(runs: Sequence[SweepRun]) -> None:
    """Raise ConfigError if two runs would train the same."""
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


def _parse_node(node: Any, node_ids: set[int]) -> Any:
    """Convert a YAML node to dictionaries, lists and strings."""
    where = f"line {node.start_mark.line + 1}"
    if id(node) in node_ids:
        raise ConfigError(f"{where} is an alias (*); write it out")
    node_ids.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_parse_node(value, node_ids) for value in node.value]
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in values:
                raise ConfigError(f"{where} has a repeated name, or a name that is not a text")
            values[key.value] = _parse_node(value, node_ids)
        return values
    return str(node.value)


def format_yaml(content: Any) -> str:
    """Return a dictionary as YAML, with booleans as on and off."""

    def to_plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): to_plain(item) for name, item in value.items()}
        if isinstance(value, Iterable) and not isinstance(value, str):
            return [to_plain(item) for item in value]
        return ("on" if value else "off") if isinstance(value, bool) else str(value)

    text: str = yaml.safe_dump(to_plain(content), sort_keys=False, allow_unicode=True)
    return text


def _iter_runs(content: Any) -> Iterator[dict[str, str]]:
    """Yield each run's parameters, or raise ConfigError for an invalid section."""
    expected = "expected fixed, grid and runs, with at least grid or runs"
    if not isinstance(content, dict):
        raise ConfigError(f"is {safe_repr(content, 100)}; {expected}")
    if unknown := [name for name in content if name not in _SECTIONS]:
        raise ConfigError(f"has a section {safe_repr(unknown[0], 100)}; {expected}")
    fixed = parse_lists(content["fixed"], "fixed") if content.get("fixed") else {}
    grids = [parse_lists(content["grid"], "grid")] if content.get("grid") else []
    entries = content.get("runs") or []
    if not isinstance(entries, list):
        raise ConfigError(f"runs is {safe_repr(entries, 100)}; expected a list")
    grids += [parse_lists(entry, f"runs, entry {i}") for i, entry in enumerate(entries, start=1)]
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


def parse_lists(entry: Any, where: str) -> dict[str, list[str]]:
    """Return each parameter's list of values, or raise ConfigError.

    ``seeds``, the option of ``train``, becomes ``seed``. where: position in the file, for messages.
    """
    if not isinstance(entry, dict) or not entry:
        is_empty = "empty" if entry == {} else safe_repr(entry, 100)
        raise ConfigError(f"{where} is {is_empty}; expected parameters and their values")
    lists: dict[str, list[str]] = {}
    for name, values in entry.items():
        position = safe_repr(f"{where}: {name}", 100)
        # The parameters in fixed have one value each.
        lists[name] = values if isinstance(values, list) and where != "fixed" else [values]
        if not lists[name]:
            raise ConfigError(f"{where}: {safe_repr(name, 100)} has no values; expected a list")
        for value in lists[name]:
            if not isinstance(value, str):
                raise ConfigError(f"{position} is {safe_repr(value, 100)}; expected one value")
            if not value:
                raise ConfigError(f"{position} has no value; write none, or leave it out")
    seeds = lists.pop("seeds", [NONE])
    if seeds == [NONE]:
        return lists
    if "seed" in lists:
        raise ConfigError(f"seed is {lists['seed'][0]} and seeds is {seeds[0]}; leave one out")
    return {**lists, "seed": [seed.strip() for text in seeds for seed in text.split(",")]}


def _build_run(parameters: dict[str, str], number: int) -> SweepRun:
    try:
        config = TrainConfig.resolve(parameters)
    except ConfigError as error:
        raise ConfigError(f"run {number}: {error}") from None
    # Absolute paths, so that a worker in another working folder reads the same files.
    paths = {name: str(getattr(config, name)) for name in parameters if PARAMETERS[name].is_path}
    return SweepRun({**parameters, **paths}, config, hash_config(config))


def _format_name(config: TrainConfig, varied: Sequence[str]) -> str:
    """Name a run, for example "ncm digits seed 0 features=pixels"."""
    texts = config.as_text()
    values = (f"{name}={Path(texts[name]).name or texts[name]}" for name in varied)
    return " ".join([config.strategy, config.stream_name, f"seed {config.seed}", *values])[:240]
