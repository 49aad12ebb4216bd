"""Hooks of mkdocs: links that leave ``docs/``, and a check that pages load nothing from elsewhere.

Pages link to code, examples and benchmarks by relative paths. On the site each such file becomes a
page under ``repository/``, which can be read without a network.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from hosting import ROOT, find_source_url
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages import insert_directives

_INCLUDED = "repository/"
# A Markdown link to a file. Code is matched first, and stays as it is.
_LINK = re.compile(
    r"^```.*?^```|`[^`\n]*`|\]\((?![a-z]+:|/)(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)",
    re.S | re.M,
)
# A badge that another host serves, and its link.
_BADGE = re.compile(r"\[!\[[^\]]*\]\(https?:[^)]*\)\]\([^)]*\) ?")
_LOADED = re.compile(r"<(?:script|img|iframe|link(?=[^>]*stylesheet))[^>]*(?:src|href)=\"?https?:")


def on_config(config: MkDocsConfig) -> None:
    """Link to the repository, without the theme's link, which loads its stars from there."""
    if url := find_source_url():
        config.copyright = f'<a href="{url}">Source</a>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside ``docs/`` to which a page links, directly or indirectly."""
    queue = [(f"docs/{f.src_uri}", f.content_string) for f in files.documentation_pages()]
    while queue:
        source, text = queue.pop()
        for match in _LINK.finditer(text):
            target = _resolve(source, match)
            if target.startswith(("docs/", "..")) or not (ROOT / target).is_file():
                continue
            if files.get_file_from_path(_get_page(target)) is None:
                content = _BADGE.sub("", (ROOT / target).read_text(encoding="utf-8"))
                if target.endswith(".md"):
                    queue.append((target, content))
                else:
                    head = f"---\nsearch:\n  exclude: true\n---\n# {target}\n\n"
                    content = f"{head}````{Path(target).suffix[1:]}\n{content}````\n"
                files.append(File.generated(config, _get_page(target), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to the site's pages, and insert docstrings into the Python reference."""
    page_path = page.file.src_uri
    is_included = page_path.startswith(_INCLUDED)
    source = page_path.removeprefix(_INCLUDED) if is_included else f"docs/{page_path}"

    def rewrite(match: re.Match[str]) -> str:
        target = _get_page(_resolve(source, match))
        if files.get_file_from_path(target) is None:
            return match[0]
        path = posixpath.relpath(target, posixpath.dirname(page_path))
        return f"]({path}{match['anchor'] or ''})"

    return _LINK.sub(rewrite, insert_directives(markdown) if page_path == "python.md" else markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Raise PluginError if a page would load anything from another host."""
    if match := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {match[0]}")
    return output


def _resolve(source: str, match: re.Match[str]) -> str:
    """Return the target of a link as a path in the project, or ".." if it is code."""
    target = match["target"]
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target)) if target else ".."


def _get_page(target: str) -> str:
    """Return the site's page for a file of the project."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"{_INCLUDED}{target}" if target.endswith(".md") else f"{_INCLUDED}{target}.md"
