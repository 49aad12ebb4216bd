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


def test_docstrings_and_comments_are_held_to_the_words(prose, monkeypatch, tmp_path):
    """Code, and what names it, is not."""
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text(
        '"""It stands there; `told` is a name."""\n\nTOLD = "goes on"  # who runs it\n'
    )
    assert list(prose.findings_in_code(module)) == [
        "module.py:1 'stands': is, has, exists; 'means' for a sign",
        "module.py:3 'who runs': you, anyone who can",
    ]


def test_the_package_passes(prose):
    assert [line for module in prose.MODULES for line in prose.findings_in_code(module)] == []
