"""The documentation says what is: generated pages, links, numbers, and how to contribute."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from forked import OTHER_COPY, run_python

from clear_mlflow import explain, summarize
from clear_mlflow.metrics import METRICS

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
GUIDES = sorted(
    path for path in (ROOT / "docs" / "contributing").glob("*.md") if path.name != "index.md"
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture
def tools(monkeypatch):
    """The scripts that write pages and pictures can be imported."""
    monkeypatch.syspath_prepend(TOOLS)
    yield
    for path in TOOLS.glob("*.py"):
        sys.modules.pop(path.stem, None)


def anchors(page):
    """The headings of a page, as GitHub and the site name them."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.M)
    }


@pytest.mark.usefixtures("tools")
def test_generated_files_are_what_they_follow_from():
    """A parameter or a metric that is added is in MLproject, the reference and the tables, too."""
    import generate

    assert generate.outdated() == [], "run python tools/generate.py"


@pytest.mark.usefixtures("tools")
def test_the_drawn_matrix_and_its_table():
    """The picture shows the matrix of docs/concepts.md, and the table beside it is computed."""
    import concept_matrix

    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    told = {
        name: float(value)
        for name, value in re.findall(r"^\| `(\w+/\w+)` .*\| (\S+) \|$", page, re.M)
    }
    families = {name.split("/")[0] for name in told}
    chosen = [metric for metric in METRICS if metric.name.split("/")[0] in families]
    expected = summarize(concept_matrix.MATRIX, metrics=chosen)
    assert told == {name: pytest.approx(value, abs=5e-5) for name, value in expected.items()}
    (code,) = (block for language, block in BLOCK.findall(page) if language == "python")
    space = {}
    exec(code, space)
    assert (space["matrix"].values == concept_matrix.MATRIX.values).all()
    assert f"explain(matrix)  # {explain(space['matrix'], metrics=chosen)}" in code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """Each relative link names a file of the project, and a heading that it has."""
    for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_relative_to(ROOT.resolve()), target
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_can_be_followed(store, tmp_path, guide):
    """In a copy of the package, its file is found where it says, and what it tries comes true."""
    blocks = [code for language, code in BLOCK.findall(guide.read_text()) if language == "python"]
    shutil.copytree(ROOT / "clear_mlflow", tmp_path / "clear_mlflow")
    tries = []
    for code in blocks:
        first = code.splitlines()[0].removeprefix("# ")
        if first == "try it":
            tries.append(code)
            continue
        path = tmp_path / first
        assert path.is_relative_to(tmp_path / "clear_mlflow")
        assert path.parent.is_dir()
        assert not path.exists()
        path.write_text(code)
    assert tries
    for code in tries:
        done = run_python(
            *("-c", OTHER_COPY + code),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
