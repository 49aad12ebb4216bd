"""Self-contained HTML pages: the parts that pages of runs and of comparisons share.

Names on them are untrusted: autoescape is on, no value is ever marked as safe, and every name is
shortened to one line. Only the package's own style and script are not escaped. A content security
policy names their hashes, so a browser runs no other script and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from clear_mlflow.core.text import one_line, show_blank
from clear_mlflow.report.colours import GROUPS, build_css

_PACKAGE = "clear_mlflow.report.page"


def render_page(page: str, *, extension: str | None = None, **content: object) -> str:
    """Return an HTML page in the shared frame.

    page: template as ``PACKAGE/NAME``, without ``.html``. extension: template that extends it, or
    None. content: variables of the template, which are escaped.
    """
    pages = (page,) if extension is None else (page, extension)
    css, js = _read_style_and_script(pages)
    template = _get_environment().get_template(f"{pages[-1]}.html")
    return template.render(base=f"{page}.html", css=css, js=js, **content).strip() + "\n"


@lru_cache(maxsize=8)
def _read_style_and_script(pages: tuple[str, ...]) -> tuple[PackageText, PackageText]:
    # Group colours come first, because the style sheet replaces them on a dark background.
    colours = "".join(f"--g{i}:{colour};" for i, colour in enumerate(GROUPS))
    styles = [read_file(f"{_PACKAGE}/frame.css"), *(_read_if_exists(f"{p}.css") for p in pages)]
    css = "".join([":root{", colours, "}", *styles, build_css()])
    return PackageText(css), PackageText("".join(_read_if_exists(f"{p}.js") for p in pages))


def render_fragment(name: str, **content: object) -> str:
    """Return a rendered template without the frame, for example an SVG file.

    name: template as ``PACKAGE/NAME``, without ``.html``. content: its variables, escaped.
    """
    return _get_environment().get_template(f"{name}.html").render(**content).strip()


def load_page(page: str) -> None:
    """Compile a page's files, before the installed package may change."""
    _read_style_and_script((page,))
    for name in (f"{page}.html", f"{_PACKAGE}/frame.html", f"{_PACKAGE}/pieces.html"):
        _get_environment().get_template(name)


@lru_cache(maxsize=32)
def read_file(name: str) -> str:
    """Return the text of a package file, ``PACKAGE/NAME``, from a cache."""
    package, _, file = name.partition("/")
    return files(package).joinpath(file).read_text(encoding="utf-8")


def _read_if_exists(name: str) -> str:
    """Return the text of a package file, "" if there is none."""
    package, _, file = name.partition("/")
    return read_file(name) if files(package).joinpath(file).is_file() else ""


class PackageText(str):
    """A text of this package, which templates do not escape."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


@lru_cache(maxsize=1)
def _get_environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(read_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        auto_reload=False,
    )
    environment.filters["policy"] = _hash_for_policy
    environment.filters["line"] = _format_line
    return environment


def _format_line(text: str, limit: int) -> str:
    return one_line(show_blank(text), limit)


def _hash_for_policy(text: str) -> str:
    """Return a text's hash as a content security policy writes it."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return PackageText(f"'sha256-{digest}'")
