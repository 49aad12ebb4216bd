"""Untrusted names are displayed safely, and never run as a command."""

import re
import subprocess

import pytest
from commands import invoke, run_command
from comparisons import build_seed_runs
from html_pages import assert_only_text
from mlflow.projects.utils import load_project
from stored_runs import stored_run

from clear_mlflow.comparison.page import render_comparison_page
from clear_mlflow.comparison.pairs import compare_groups
from clear_mlflow.comparison.ranking import rank_groups
from clear_mlflow.comparison.tables import format_description
from clear_mlflow.comparison.terminal import render_comparison
from clear_mlflow.report.terminal_tables import render_text
from clear_mlflow.store.ui_urls import format_artifact_link

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": "\" onmouseover='alert(1)' x=\"",
    "path": "../../../etc/passwd",
    "lines": "a\nb\r\nc\u2028d",
    "percent": "%s%n%00{0}{seed}",
    "emoji": "🙂👩‍🔬",
    "right to left": "\u202eevil\u200f",
    "terminal": "\x1b[31mred\x1b]0;title\x07\x9b2J\x08",
    "long": "x" * 10_000,
    "markup": "[bold red]x[/] [link=file:///etc/passwd]y[/link]",
    "markdown": "| `x` | [a](javascript:alert(1)) ![i](http://example.invalid/i.png)",
    "template": "{{ 7 * 7 }}{% raw %}",
    "mathematics": "$\\frac{1}{0}$ $\\undefined",
    "formula": '=HYPERLINK("http://example.invalid")',
    "surrogate": "\udcff",
    "shell": "$(touch owned); `touch owned` | touch owned & '",
}
SHELL = [
    *("$(touch owned)", ";touch owned", "`touch owned`", "a\ntouch owned\n", "'; touch owned #"),
    *('"; touch owned; "', "| touch owned", "&& touch owned", "> owned", "<(touch owned)", "!!"),
    *("$HOME {seed} {0} %s \\", "*", "~root", "--help", "", "🙂"),
]


@pytest.fixture(scope="module", autouse=True)
def forked_programs():
    """Fork nothing: a real shell gets the commands of ``mlflow run``."""


def is_safe_line(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.fast_cases(13)
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_comparison_shows_a_hostile_name_as_text(name):
    runs = [*build_seed_runs(name, 150, range(3)), *build_seed_runs("replay", 170, range(3))]
    comparison = compare_groups(rank_groups(runs, ["strategy"]))
    page = render_comparison_page(comparison, title=name, footer="made by a test")
    assert is_safe_line(page)
    runs = [*build_seed_runs("naive", 150, range(3)), *build_seed_runs("replay", 170, range(3))]
    plain_comparison = compare_groups(rank_groups(runs, ["strategy"]))
    assert_only_text(
        page, render_comparison_page(plain_comparison, title="x", footer="made by a test")
    )
    assert len(page) < 400_000
    note = format_description(comparison, page="comparison.html")
    assert len(note.encode()) < 8_000
    # Our own links, whose texts are seeds, and whose addresses hold nothing but a run's id.
    links = r"\[(\*\*Everything on one page\*\*|[0-9])\]\((comparison\.html|#/runs/[\w.~%-]+)\)"
    assert len(re.findall(links, note)) >= 4
    assert not re.search(r"[<\[]|\]\(|!\[", re.sub(links, "", note).replace("&nbsp;", ""))
    written = render_text(*render_comparison(comparison))
    assert is_safe_line(written)
    assert len(written) < 10_000


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_run_with_a_hostile_name_is_scored_and_shown(store, experiment_id, name):
    title = name.encode("utf-8", "replace").decode()
    run = stored_run(store, experiment_id, name=title[:5000])
    other = stored_run(store, experiment_id, name=title[:5000])
    for run_id in (run.info.run_id, other.info.run_id):
        store.set_tag(run_id, "strategy", title[:5000])
    output = run_command("evaluate", "--runs", "test")
    assert is_safe_line(output)
    assert len(output) < 6_000
    note = store.get_run(run.info.run_id).data.tags["mlflow.note.content"]
    assert len(note.encode()) <= 8_000
    report_link = f"({format_artifact_link(run, 'report.html')})"
    assert note.count(report_link) == 1
    note = note.replace(f"]{report_link}", "")
    assert not re.search(r"<(?!/?br)|\]\(|!\[", note)


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_an_error_about_a_hostile_name_is_one_short_line(store, tmp_path, name):
    for command in (
        ("evaluate", "--runs", name),
        ("evaluate", "--", name),
        ("evaluate", "--metrics", name, "--runs", "x"),
        ("compare", "--runs", name),
        ("compare", f"{name}, {name}2"),
        *(("train", option, name) for option in ("--strategy", "--dataset", "--seed")),
        ("train", "--config", f"{tmp_path}/{name}"),
        ("train-distributed", "--processes", name),
        ("import", f"{tmp_path}/{name}"),
        ("import", "--seed", name, "nowhere"),
        ("data", "check", f"{tmp_path}/{name}"),
    ):
        done = invoke(*command)
        assert done.exit_code == 2, done.output
        assert isinstance(done.exception, SystemExit)
        assert is_safe_line(done.output)
        (line,) = (line for line in done.output.splitlines() if line.lower().startswith("error: "))
        assert len(line) < 2_100


@pytest.mark.parametrize("entry_point", ["main", "train_distributed", "evaluate", "compare"])
def test_no_parameter_of_mlflow_run_is_a_command(project, tmp_path, entry_point):
    """Bash passes any value as one word, and runs nothing.

    The command is MLflow's; instead of our program, one that prints its words is called.
    """
    point = load_project(str(project))._entry_points[entry_point]
    parameters = ("dataset", "strategy_args")
    for value in SHELL:
        command = point.compute_command(dict.fromkeys(parameters, value), None)
        program, rest = "python -m clear_mlflow ", command.removeprefix("python -m clear_mlflow ")
        assert command == program + rest
        shell = ["bash", "-c", f"printf '%s\\0' {rest}"]
        printed = subprocess.run(
            shell, cwd=tmp_path, capture_output=True, check=True, timeout=60
        ).stdout
        _, *words = printed.decode().split("\0")[:-1]
        passed = dict(zip(words[::2], words[1::2], strict=True))
        assert passed["--dataset"] == passed["--strategy_args"] == value
        declared = {f"--{name.replace('_', '-')}" for name in point.parameters}
        assert passed.keys() == declared | {"--dataset", "--strategy_args"}
    assert list(tmp_path.iterdir()) == []
