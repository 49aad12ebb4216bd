"""The linter of prose finds what it is there for, in prose and not in code; the pages pass it."""

import pytest


@pytest.fixture
def prose(monkeypatch, project):
    monkeypatch.syspath_prepend(project / "tools")
    import prose

    prose.register()
    return prose


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Training goes on.", "'goes on'"),
        ("Pass a name, as `replay`.", "for example"),
        ("We saw the the row.", "phrase is repeated"),
        ("Who may write a row?\n", "'Who may'"),
        ("Training continues; `goes on` is code.\n\n```\ntold\n```\n", ""),
    ],
)
def test_a_line_is_found(prose, project, monkeypatch, tmp_path, text, found):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    lines = list(prose.findings(page))
    assert len(lines) == bool(found)
    assert all(found in line for line in lines)


def test_the_pages_pass(prose):
    assert [line for page in prose.PAGES for line in prose.findings(page)] == []
