"""Help texts, examples, shell completion, and the store and experiment of a run."""

import json
import os
import shlex
import subprocess
import sys

import click
import mlflow
import pytest
from click.shell_completion import ShellComplete
from commands import invoke, run_command
from one_line_errors import check_error

from clear_mlflow.cli import main
from clear_mlflow.cli.output import build_console
from clear_mlflow.cli.train import apply_run_options
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import list_parameter_defaults
from clear_mlflow.tracking.lifecycle import create_run, open_run


def commands(group=main, *names):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


ALL = dict(commands())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_option_is_listed_once(words):
    text = invoke(*words, "--help").output
    for option in (part for part in ALL[words].params if isinstance(part, click.Option)):
        assert sum(line.split()[:1] == [option.opts[0]] for line in text.splitlines()) == 1


@pytest.mark.parametrize("words", [(), *ALL], ids=" ".join)
def test_help_fits_into_a_terminal_of_80_columns(words):
    assert max(map(len, invoke(*words, "--help").output.splitlines())) <= 80


@pytest.mark.parametrize(("columns", "width"), [("40", 80), ("79", 80), ("120", 120)])
def test_a_narrow_terminal_cuts_no_table(monkeypatch, columns, width):
    """Rich would print 0.588 ±0.075 as 0.588 ±0, and leave the names of the methods out."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert build_console().width == width


@pytest.mark.slow
@pytest.mark.parametrize("words", [["compare", "x"], ["--help"], []])
def test_a_python_without_docstrings_is_an_error(words):
    command = [sys.executable, "-OO", "-m", "clear_mlflow", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: Python removes docstrings, from which the options come" in done.stderr


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_other_options_come_after_all_groups(words):
    lines = invoke(*words, "--help").output.splitlines()
    headings = [line for line in lines if line[:1].isalpha() and line.endswith(":")]
    assert len(set(headings)) == len(headings)
    assert [heading for heading in headings if heading != "Examples:"][-1] == "Other options:"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("data features DIR", "missing option '--backbone'; see main data features --help"),
        ("import x.csv --group-by a", "no such option '--group-by'; see main import"),
        ("train --lr", "option '--lr' requires an argument; see main train --help"),
        ("shows", "no such command 'shows'. Did you mean 'show'?; see main --help"),
        ("--nope", "no such option '--nope'; see main --help"),
        ("export RUN", "no runs are chosen to write to 'RUN'; pass ids of runs"),
        ("identify x.csv 20%", "got 'x.csv' '20%' without a published number after it; pass one"),
        ("identify x.csv 2 --at 3", "no such option '--at'; see main identify --help"),
        ("import", "no files; pass files, or a folder that contains files"),
    ],
)
def test_a_wrong_call_prints_one_line(store, words, line):
    output = run_command(*words.split(), code=2)
    assert output.startswith(f"error: {line}")
    assert output.count("\n") == 1


def test_a_group_without_a_command_prints_its_help():
    assert invoke("data").output.startswith("Usage: ")


@pytest.mark.parametrize(
    ("words", "example"),
    [(words, line) for words, command in ALL.items() for line in getattr(command, "examples", ())],
)
def test_examples_are_commands(words, example):
    example_words = shlex.split(example)
    if example_words[0] == "mlflow":
        assert {
            word.split("=")[0] for word in example_words[example_words.index("-P") + 1 :: 2]
        } <= set(list_parameter_defaults())
        return
    assert example_words[: len(words) + 1] == ["clear-mlflow", *words]
    ALL[words].make_context(words[-1], example_words[len(words) + 1 :], parent=click.Context(main))


@pytest.mark.parametrize(
    ("arguments", "typed", "offered"),
    [
        (["train"], "--lr-", ["--lr-step", "--lr-gamma"]),
        ([], "tra", ["train", "train-distributed"]),
        (["evaluate", "--rows-scale"], "p", ["percent"]),
    ],
)
def test_a_shell_completes_commands(arguments, typed, offered):
    shell = ShellComplete(main, {}, "clear-mlflow", "_CLEAR_MLFLOW_COMPLETE")
    completions = [item.value for item in shell.get_completions(arguments, typed)]
    assert sorted(completions) == sorted(offered)


@pytest.fixture
def environment(monkeypatch):
    """Restore the environment variables afterwards."""
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_CONTEXT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_runs_go_to_the_store_and_experiment_of_the_options(store, environment):
    environment.setenv("MLFLOW_RUN_CONTEXT", json.dumps({"site": "a"}))
    environment.setenv("MLFLOW_EXPERIMENT_ID", "0")
    apply_run_options("of options", None, ["paper=draft = 2"])
    try:
        run = store.get_run(open_run(store, "first", lambda _: None))
    finally:
        mlflow.end_run()
    assert store.get_experiment(run.info.experiment_id).name == "of options"
    second_run = store.get_run(create_run(store, run.info.experiment_id, "second", {}))
    for opened in (run, second_run):
        assert (opened.data.tags["paper"], opened.data.tags["site"]) == ("draft = 2", "a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, ["paper"]), "expected KEY=TEXT"),
        ((None, None, ["=draft"]), "expected KEY=TEXT"),
        ((None, None, ["mlflow.runName=a"]), "are reserved"),
        ((None, None, ["clear_mlflow.rows=complete"]), "are reserved"),
    ],
)
def test_an_invalid_tag_is_rejected(environment, arguments, message):
    before = dict(os.environ)
    with pytest.raises(ConfigError, match=message):
        apply_run_options(*arguments)
    assert dict(os.environ) == before


@pytest.mark.parametrize("context", ["soon", "[1]", "3", '{"site": '])
def test_an_invalid_context_of_mlflow_is_named(environment, context):
    environment.setenv("MLFLOW_RUN_CONTEXT", context)
    before = dict(os.environ)
    message = "expected tags as a JSON object"
    check_error(ConfigError, message, apply_run_options, "e", None, ["paper=draft"])
    assert dict(os.environ) == before
    environment.setenv("MLFLOW_RUN_CONTEXT", " ")
    apply_run_options(None, None, ["paper=draft"])
    assert json.loads(os.environ["MLFLOW_RUN_CONTEXT"]) == {"paper": "draft"}


@pytest.mark.parametrize("arguments", [("e", None, []), (None, "n", []), (None, None, ["a=b"])])
def test_an_existing_run_keeps_its_name_and_tags(environment, arguments):
    apply_run_options(None, None, [], resume="run")
    with pytest.raises(ConfigError, match="exists already"):
        apply_run_options(*arguments, resume="run")
    environment.setenv("MLFLOW_RUN_ID", "run")
    with pytest.raises(ConfigError, match="run run exists already"):
        apply_run_options(*arguments)
    environment.setenv("MLFLOW_RUN_ID", " ")  # opening the store reports it
    apply_run_options(*arguments)
