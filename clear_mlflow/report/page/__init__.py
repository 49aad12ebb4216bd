"""Pages of HTML that need nothing but themselves: what those of runs and of comparisons share.

Names come from outside: autoescape is on, no value is ever marked as safe, and every name is cut to
one line of a bounded length. The only texts that are not escaped are the page's own style and
script, which come with the package; a content security policy names their hashes, so that a browser
runs no other script and loads nothing, whatever got into the page.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from clear_mlflow.core.text import one_line
from clear_mlflow.report.colours import GROUPS, SCALE

_HERE = "clear_mlflow.report.page"


def rendered(page: str, *, over: str | None = None, **content: object) -> str:
    """A page in the frame that all share; *over* extends it; all content is escaped."""
    pages = (page,) if over is None else (page, over)
    css, js = _style_and_script(pages)
    template = _environment().get_template(f"{pages[-1]}.html")
    text = template.render(below=f"{page}.html", css=css, js=js, **content)
    return text.strip() + "\n"


@lru_cache(maxsize=8)
def _style_and_script(pages: tuple[str, ...]) -> tuple[Own, Own]:
    # Group colours first, for the style sheet has others for dark ground.
    of_groups = "".join(f"--g{i}:{colour};" for i, colour in enumerate(GROUPS))
    styles = [own_text(f"{_HERE}/frame.css"), *(_optional_text(f"{name}.css") for name in pages)]
    css = "".join([":root{", of_groups, "}", *styles, SCALE.css()])
    return Own(css), Own("".join(_optional_text(f"{name}.js") for name in pages))


def rendered_part(name: str, **content: object) -> str:
    """A template by itself, as ``clear_mlflow.report.page/fragment``; it escapes the content."""
    return _environment().get_template(f"{name}.html").render(**content).strip()


def load(page: str) -> None:
    """Read and compile the files of a page, which are kept from then on."""
    own_text(f"{_HERE}/frame.css")
    for name in (f"{page}.css", f"{page}.js"):
        _optional_text(name)
    for name in (f"{page}.html", f"{_HERE}/frame.html", f"{_HERE}/pieces.html"):
        _environment().get_template(name)


@lru_cache(maxsize=32)
def own_text(name: str) -> str:
    """A file of the package, ``PACKAGE/NAME``, read once: pages outlive a changed package."""
    package, _, file = name.partition("/")
    return files(package).joinpath(file).read_text(encoding="utf-8")


@lru_cache(maxsize=32)
def _optional_text(name: str) -> str:
    package, _, file = name.partition("/")
    return own_text(name) if files(package).joinpath(file).is_file() else ""


class Own(str):
    """A text of this package, with nothing from outside in it: a page takes it as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(own_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        auto_reload=False,
    )
    environment.filters["policy"] = _hash_for_policy
    environment.filters["line"] = one_line
    return environment


def _hash_for_policy(own: str) -> str:
    """How a content security policy names the one style, or script, that may be in the page."""
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    return Own(f"'sha256-{digest}'")
