"""What mkdocs.yml leaves open: links that leave ``docs/``, and what would load from elsewhere.

Pages link to code, examples and benchmarks by relative paths. On the site each such file becomes a
page under ``repository/``, so that it can be read without a network.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from hosting import pyproject, source_url
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from python_reference import with_docstrings

ROOT = Path(__file__).parent.parent
INCLUDED = "repository/"
# A link of Markdown to a file; code is matched first, and left alone.
LINK = re.compile(
    r"^```.*?^```|`[^`\n]*`|\]\((?![a-z]+:|/)(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)",
    re.S | re.M,
)
# A badge that another host serves, and what it leads to.
BADGE = re.compile(r"\[!\[[^\]]*\]\(https?:[^)]*\)\]\([^)]*\) ?")
LOADED = re.compile(r"<(?:script|img|iframe|link(?=[^>]*stylesheet))[^>]*(?:src|href)=\"?https?:")


def on_config(config: MkDocsConfig) -> None:
    """Link to the repository; the theme's own link would load its stars from there."""
    if url := source_url(pyproject()):
        config.copyright = f'<a href="{url}">Source</a>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make a page of each file outside ``docs/`` that a page links to, and of those it links to."""
    waiting = [(f"docs/{f.src_uri}", f.content_string) for f in files.documentation_pages()]
    while waiting:
        source, text = waiting.pop()
        for found in LINK.finditer(text):
            target = _target(source, found)
            if target.startswith(("docs/", "..")) or not (ROOT / target).is_file():
                continue
            if files.get_file_from_path(_page(target)) is None:
                content = BADGE.sub("", (ROOT / target).read_text(encoding="utf-8"))
                if target.endswith(".md"):
                    waiting.append((target, content))
                else:  # for following a link, not for finding words in
                    head = f"---\nsearch:\n  exclude: true\n---\n# {target}\n\n"
                    content = f"{head}````{Path(target).suffix[1:]}\n{content}````\n"
                files.append(File.generated(config, _page(target), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead each link to where the site has what it names; docstrings are read for the reference."""
    here = page.file.src_uri
    source = here.removeprefix(INCLUDED) if here.startswith(INCLUDED) else f"docs/{here}"

    def rewritten(found: re.Match[str]) -> str:
        target = _page(_target(source, found))
        if files.get_file_from_path(target) is None:
            return found[0]
        return f"]({posixpath.relpath(target, posixpath.dirname(here))}{found['anchor'] or ''})"

    return LINK.sub(rewritten, with_docstrings(markdown) if here == "python.md" else markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would load anything from elsewhere."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output


def _target(source: str, found: re.Match[str]) -> str:
    """What a link names, from the project's folder; ".." where it is no link."""
    target = found["target"]
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target)) if target else ".."


def _page(target: str) -> str:
    """Where the site has a file of the project."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"{INCLUDED}{target}" if target.endswith(".md") else f"{INCLUDED}{target}.md"
