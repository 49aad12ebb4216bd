"""Every block of code in README and docs is of a kind, and each kind is held to something.

Python is run, here or by the test that a page is listed with; commands are parsed by the program's
own options; YAML, JSON and TOML are read; ``text`` is output, and is not run.
"""

import json
import re
import shlex
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import yaml

from clear_mlflow import AccuracyMatrix
from clear_mlflow.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMANDS = {"", "sh"}
READ = {"yaml": yaml.safe_load_all, "json": json.loads, "toml": tomllib.loads}
OUTPUT = {"text", "bibtex"}
# The test that runs a page's Python.
RUN_BY = {
    "README.md": "e2e/test_readme.py",
    "docs/adapters.md": "e2e/test_own_code_docs.py",
    "docs/concepts.md": "store/test_docs.py",
    "docs/contributing/adapter.md": "store/test_docs.py",
    "docs/contributing/layout.md": "store/test_docs.py",
    "docs/contributing/metric.md": "store/test_docs.py",
    "docs/contributing/strategy.md": "store/test_docs.py",
    "docs/ensembles.md": "store/test_code_blocks.py",
    "docs/index.md": "store/test_code_blocks.py",
    "docs/metrics.md": "store/test_code_blocks.py",
    "docs/migrate.md": "store/test_code_blocks.py",
    "docs/models.md": "e2e/test_own_code_docs.py",
    "docs/own-loop.md": "e2e/test_own_code_docs.py",
    "docs/own-streams.md": "unit/test_own_function.py",
    "docs/pandas.md": "e2e/test_own_code_docs.py",
    "docs/record-format.md": "unit/test_record.py",
    "docs/resume.md": "store/test_code_blocks.py",
    "docs/tutorial-digits.md": "store/test_code_blocks.py",
}
# What may follow mlflow run's own options; and programs of others that a command begins with.
MLPROJECT = yaml.safe_load((ROOT / "MLproject").read_text())["entry_points"]


def blocks(page):
    """Language and code of each fenced block."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.S | re.M)
    return [(language, code) for _, language, code in found]


def python_of(name):
    return [code for language, code in blocks(ROOT / "docs" / name) if language == "python"]


def lines_of_commands():
    """Page and command, without its remark; a backslash continues a line."""
    for page in PAGES:
        for language, code in blocks(page):
            if language in COMMANDS:
                for line in re.sub(r"\\\n\s*", " ", code).splitlines():
                    yield page, line.split(" #")[0].strip()


OURS = [
    pytest.param(words, id=f"{page.name}: {line}"[:80])
    for page, line in lines_of_commands()
    for part in line.split("&&")
    for words in [shlex.split(part) if "$(" not in part else []]
    # Not what prints the version, nor the lines of a shell's start-up file.
    if "clear-mlflow" in words and not {"--version", "|"} & set(words)
]
PROJECT = [
    pytest.param(shlex.split(line.split("&&")[-1]), id=f"{page.name}: {line}"[:80])
    for page, line in lines_of_commands()
    if line.split("&&")[-1].strip().startswith("mlflow run ")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_is_of_a_kind(page):
    for language, code in blocks(page):
        if language in READ:
            found = READ[language](code)
            assert list(found) if language == "yaml" else found
        else:
            assert language in COMMANDS | OUTPUT | {"python"}, code


def test_all_python_is_run():
    """A page that begins to show Python is listed above, with the test that runs it."""
    found = {
        str(page.relative_to(ROOT))
        for page in PAGES
        if any(language == "python" for language, _ in blocks(page))
    }
    assert found == set(RUN_BY)
    for page, test in RUN_BY.items():
        text = (ROOT / "tests" / test).read_text(encoding="utf-8")
        assert Path(page).name in text or ('"contributing"' in text and "contributing" in page)


def test_there_are_commands():
    assert len(OURS) > 60
    assert len(PROJECT) > 15


@pytest.mark.parametrize("words", OURS)
def test_a_command_has_options_and_values_that_there_are(words):
    """Parsed, not run: capitals are for names, files and numbers of yours."""
    given = words[words.index("clear-mlflow") + 1 :]
    given = given[: given.index(">")] if ">" in given else given
    command, context = main, click.Context(main)
    while isinstance(command, click.Group) and given and not given[0].startswith("-"):
        command, given = command.commands[given[0].replace("_", "-")], given[1:]
    command.make_context(command.name, list(given), parent=context)


@pytest.mark.parametrize("words", PROJECT)
def test_a_run_of_the_project_has_parameters_that_there_are(words):
    entry = words[words.index("-e") + 1] if "-e" in words else "main"
    named = [words[i + 1] for i, word in enumerate(words) if word == "-P"]
    assert {text.split("=")[0] for text in named} <= set(MLPROJECT[entry]["parameters"])


def test_the_metrics_of_the_pages():
    """What docs/metrics.md and docs/tutorial-digits.md write is a metric of a matrix."""
    matrix = AccuracyMatrix([[0.8, 0.6], [0.5, 0.9]])
    space = {}
    for code in (*python_of("metrics.md"), *python_of("tutorial-digits.md")):
        exec(code, space)
    assert space["worst_learned"](matrix) == 0.5
    assert space["spread"].function(matrix) == pytest.approx(0.4)
    assert space["first_bucket_at_the_end"](matrix) == 0.5


def test_a_file_as_docs_migrate_md_writes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = python_of("migrate.md")
    exec(code, {})
    with np.load(tmp_path / "seed0.npz") as arrays:
        assert {"matrix", "initial", "num_instances"} == set(arrays)


def test_the_strategy_of_docs_resume_md():
    space = {}
    (code,) = python_of("resume.md")
    exec(code, space)
    assert space["Mine"].scratch == ("_batches",)


@pytest.mark.parametrize(("page", "runs"), [("index.md", 1), ("ensembles.md", 5)])
def test_the_trainings_of_pages(store, experiment_id, page, runs):
    (code,) = python_of(page)
    exec(code, {})
    assert len(store.search_runs([experiment_id])) == runs
