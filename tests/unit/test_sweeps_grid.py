"""Grids of sweeps, compared with nested loops, and their errors."""

import json
from itertools import product

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from one_line_errors import check_error

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.sweeps.grid import hash_config, read_grid

VALUES = {
    "strategy": ["naive", "replay", "cumulative"],
    "seed": [0, 1, 2, 3],
    "lr": ["0.1", 0.02],
    "schedule": ["constant", "cosine"],
    "compile": ["on", "off"],
}
LISTS = {k: st.lists(st.sampled_from(v), min_size=1, unique=True) for k, v in VALUES.items()}
SOME = st.fixed_dictionaries({}, optional=LISTS)


def write_grid(tmp_path, content):
    path = tmp_path / "sweep.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


@pytest.mark.slow
@given(grid=SOME.filter(len), fixed=SOME)
def test_a_grids_runs_equal_nested_loops(tmp_path_factory, grid, fixed):
    fixed = {name: values[0] for name, values in fixed.items() if name not in grid}
    path = write_grid(tmp_path_factory.mktemp("grid"), {"fixed": fixed, "grid": grid})
    # As YAML sorts them when it writes.
    names = sorted(grid)
    expected = []
    for values in product(*(grid[name] for name in names)):
        parameters = {**fixed, **dict(zip(names, values, strict=True))}
        expected.append(TrainConfig.resolve({k: str(v) for k, v in parameters.items()}))
    sweep_grid = read_grid(path)
    assert [run.config for run in sweep_grid.runs] == expected
    assert len({run.config_hash for run in sweep_grid.runs}) == len(expected)
    assert len({run.name for run in sweep_grid.runs}) == len(expected)
    assert set(sweep_grid.varied) == {name for name in names if len(grid[name]) > 1}


def test_entries_of_runs_are_separate_grids(tmp_path):
    content = """
    fixed: {epochs: 3}
    grid: {strategy: [naive], seed: [0, 1]}
    runs:
      - {strategy: ewc, strategy_args: "strength=10", seed: [0, 1]}
      - {strategy: naive, epochs: 1}
    """
    sweep_grid = read_grid(write_grid(tmp_path, content))
    runs = [(r.config.strategy, r.config.seed, r.config.epochs) for r in sweep_grid.runs]
    first = [("naive", 0, 3), ("naive", 1, 3)]
    assert runs == [*first, ("ewc", 0, 3), ("ewc", 1, 3), ("naive", 0, 1)]
    assert sweep_grid.group_by == ("strategy", "dataset", "strategy_args", "epochs")


@pytest.mark.parametrize(
    "content",
    [
        "fixed: {seeds: '4, 2'}\ngrid: {strategy: [naive, ewc]}",
        "grid: {strategy: [naive, ewc], seeds: [4, 2]}",
        "fixed: {seed: 7}\nruns: [{strategy: naive, seeds: '4,2'}, {strategy: ewc, seeds: '4,2'}]",
        "grid: {strategy: [naive, ewc], seeds: none, seed: [4, 2]}",
    ],
)
def test_seeds_are_a_list_of_seeds(tmp_path, content):
    written = read_grid(write_grid(tmp_path, content))
    expected = read_grid({"grid": {"strategy": ["naive", "ewc"], "seed": [4, 2]}})
    assert written.digest == expected.digest
    assert {run.name for run in written.runs} == {run.name for run in expected.runs}


def test_dependent_parameters_are_not_in_run_names(tmp_path):
    """Features select another recipe, which changes model, epochs and rates."""
    content = "runs: [{strategy: ewc}, {strategy: ncm, features: pixels}]"
    sweep_grid = read_grid(write_grid(tmp_path, content))
    assert set(sweep_grid.varied) == {"strategy", "features"}
    assert sweep_grid.runs[1].name == "ncm digits seed 0 features=pixels"


def test_yaml_values_are_kept_as_text(tmp_path):
    """YAML would read on, 1_0 and 1:30 as True, ten and ninety."""
    sweep_grid = read_grid(write_grid(tmp_path, "runs: [{compile: on, seed: 7, lr: 1e-3}]"))
    assert sweep_grid.runs[0].parameters == {"compile": "on", "seed": "7", "lr": "1e-3"}
    assert sweep_grid.runs[0].config.lr == 0.001
    with pytest.raises(ConfigError, match="seed is '1:30'"):
        read_grid(write_grid(tmp_path, "runs: [{seed: 1:30}]"))


def test_paths_are_relative_to_the_working_folder(tmp_path, monkeypatch):
    """So that a worker elsewhere finds the same files."""
    monkeypatch.chdir(tmp_path)
    sweep_grid = read_grid(write_grid(tmp_path, "runs: [{dataset: clear10, data_root: data}]"))
    assert sweep_grid.runs[0].parameters["data_root"] == str(tmp_path / "data")


def test_the_config_hash_uses_resolved_parameters(tmp_path):
    auto = TrainConfig.resolve({"dataset": "digits"})
    spelled_out = TrainConfig.resolve({"epochs": "24", "lr": "2e-2", "model": "small_cnn"})
    assert hash_config(auto) == hash_config(spelled_out)
    assert hash_config(auto) != hash_config(TrainConfig.resolve({"epochs": "7"}))
    first = read_grid(write_grid(tmp_path, "grid: {seed: [0, 1]}"))
    second = read_grid(write_grid(tmp_path, "grid: {seed: [1, 0], epochs: 24}"))
    assert first.digest == second.digest


@pytest.mark.fast_cases(14)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no runs|expected fixed, grid and runs"),
        ("a: [", "is not YAML"),
        ("[" * 5000, "is not YAML|nested too deep"),
        ("- 1", "expected fixed, grid and runs"),
        ("grids: {seed: [1]}", "has a section 'grids'"),
        ("fixed: {seed: 1}", "has no runs"),
        ("grid: {sede: [1]}", "unknown parameter 'sede'"),
        ("grid: {seed: [1, x]}", "run 2: seed is 'x'"),
        ("grid: {seed: []}", "'seed' has no values"),
        ("grid: {seed: [[1]]}", "expected one value"),
        ("grid: {seed: }", "has no value"),
        ("grid: {seed: [1], seed: [2]}", "a repeated name"),
        ("fixed: {seed: 1}\ngrid: {seed: [1]}", "seed is in fixed and in grid"),
        ("grid: {epochs: [auto, 24]}", "runs 1 and 2 are the same"),
        ("grid: {seed: [0]}\nruns: [{seed: 0}]", "runs 1 and 2 are the same"),
        ("grid: {strategy: [naive], memory: [10, 20]}", "runs 1 and 2 are the same, although mem"),
        ("runs: [{lr_gamma: 0.2, schedule: cosine}, {schedule: cosine}]", "although lr_gamma"),
        ("fixed: {seeds: '0,1'}\ngrid: {seed: [0, 1]}", "seed is in fixed and in grid"),
        ("grid: {seed: [3], seeds: '0,1'}", "seed is 3 and seeds is 0,1; leave one out"),
        ("grid: {seeds: '0,x'}", "run 2: seed is 'x'"),
        ("grid: {seeds: '0,1,0'}", "runs 1 and 3 are the same"),
        ("runs: {seed: 0}", "runs is .*; expected a list"),
        ("runs: [{}]", "is empty"),
        ("a: &a [x]\nruns: [*a, *a]", "is an alias"),
        ("a: &a [*a]", "is an alias|not YAML"),
        ("runs: [!!python/object/apply:os.system [ls]]", "expected parameters and their values"),
        ("grid: {? [1] : [2]}", "not a text"),
        (json.dumps({"grid": {"seed": list(range(200)), "epochs": list(range(1, 200))}}), "39800"),
    ],
)
def test_an_invalid_file_is_a_one_line_error(tmp_path, content, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        read_grid(write_grid(tmp_path, content))
    assert len(str(refusal.value)) < 900


def test_unreadable_grid_files_are_reported(tmp_path):
    check_error(ConfigError, "cannot read the sweep", read_grid, tmp_path / "absent.yaml")
    path = tmp_path / "sweep.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    check_error(ConfigError, "cannot read the sweep", read_grid, path)
    path.write_bytes(b"#" * ((1 << 20) + 1))
    check_error(ConfigError, "larger than 1 MiB", read_grid, path)
