"""What mkdocs.yml leaves open: pages that nobody put in order, and links that leave ``docs/``.

Pages link to the code, to examples and to benchmarks as they do on GitHub, by relative paths. On
the site each file that is linked so becomes a page under ``repository/``, so that it can be read
without a network. A link to what is not there fails a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
INCLUDED = "repository"
# A link of Markdown, but not within code: fences and spans are matched first, and left alone.
LINK = re.compile(
    r"^```.*?^```|`[^`\n]*`|\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)", re.S | re.M
)
LOADED = re.compile(r"<(?:script|img|iframe|link(?=[^>]*stylesheet))[^>]*(?:src|href)=\"?https?:")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".toml": "toml"}

_log = logging.getLogger("mkdocs.plugins.site_hooks")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that the navigation does not name at its end, so that none is out of reach.

    A name of no page is left out: what it was meant to name stands at the end then.
    """
    docs = Path(config.docs_dir)
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    more = sorted(pages - set(_named(config.nav)))
    config.nav = [
        *(
            {title: [page for page in group if page in pages]}
            for part in config.nav or []
            for title, group in part.items()
        ),
        *([{"More": more}] if more else []),
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make a page of each file outside ``docs/`` that a page links to, and of those it links to."""
    waiting = [
        (f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()
    ]
    while waiting:
        source, text = waiting.pop()
        for target in filter(None, (_outside(source, found) for found in LINK.finditer(text))):
            if files.get_file_from_path(_page(target)) is None and (ROOT / target).is_file():
                content = (ROOT / target).read_text(encoding="utf-8")
                page = content if target.endswith(".md") else _code(target, content)
                files.append(File.generated(config, _page(target), content=page))
                if target.endswith(".md"):
                    waiting.append((target, content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead each link to where the site has what it names."""
    here = page.file.src_uri
    source = here.removeprefix(f"{INCLUDED}/") if _is_included(here) else f"docs/{here}"

    def rewritten(found: re.Match[str]) -> str:
        target = _target(source, found)
        if target is None:
            return found[0]
        there = target.removeprefix("docs/") if target.startswith("docs/") else _page(target)
        if files.get_file_from_path(there) is None:
            _log.warning("%s links to %s, which is not there", source, target)
            return found[0]
        relative = posixpath.relpath(there, posixpath.dirname(here) or ".")
        return f"]({relative}{found['anchor'] or ''})"

    return LINK.sub(rewritten, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would load anything from elsewhere."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output


def _named(nav: Any) -> Iterator[str]:
    """Every page of a navigation."""
    if isinstance(nav, str):
        yield nav
    elif nav:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(part)


def _is_included(uri: str) -> bool:
    return uri.startswith(f"{INCLUDED}/")


def _page(target: str) -> str:
    return f"{INCLUDED}/{target if target.endswith('.md') else target + '.md'}"


def _target(source: str, found: re.Match[str]) -> str | None:
    """What a link names, from the project's folder; None where it is no link to a file."""
    if found["target"] is None or re.match(r"[a-z]+:|/", found["target"]):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), found["target"]))


def _outside(source: str, found: re.Match[str]) -> str | None:
    target = _target(source, found)
    return None if target is None or target.startswith(("docs/", "..")) else target


def _code(target: str, content: str) -> str:
    """A file as a page; it is for following a link, not for finding words in."""
    language = LANGUAGES.get(Path(target).suffix, "text")
    head = f"---\nsearch:\n  exclude: true\n---\n# {target}\n\n"
    return f"{head}````{language}\n{content}````\n"
