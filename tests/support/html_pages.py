"""Pages as a browser parses them, and hostile names."""

import base64
import hashlib
import re
from html.parser import HTMLParser

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "' onmouseover='alert(1)",
    "two\nlines\r\x1b[31m\u202eback",
    "🚌 " + "x" * 10_000,
    "{{ 7 * 7 }}{% raw %}",
]


class Page(HTMLParser):
    """The tags with attributes, and the texts of cells, of a page."""

    VOID = ("meta", "br", "img", "link", "input", "wbr")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.cells: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], "a tag stays open"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
            return
        if self.open and self.open[-1] == "style":
            return
        self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


def assert_needs_nothing_but_itself(text):
    """Check that a page loads no other file.

    No attribute has an address, the style no import, and the script no request. The policy precedes
    both and contains their hashes.
    """
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint(["link", "img", "iframe", "object", "base"])
    for _, attributes in page.tags:
        assert {"src", "href", "action", "srcset", "xlink:href", "style"}.isdisjoint(attributes)
        assert not any(name.startswith("on") for name in attributes)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    script = page.scripts[-1]
    assert not re.search(r"https?:|//[a-z]|@import|url\(", style)
    assert not re.search(r"https?:|fetch\(|XMLHttp|import\(|eval\(", script)
    assert not re.search(r"setAttribute\(.style|innerHTML|cssText", script)
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    assert text.index("Content-Security-Policy") < text.index("<style>")
    parts = (rule.strip().partition(" ") for rule in (policy or "").split(";"))
    rules = {directive: sources for directive, _, sources in parts}
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for directive, content in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[directive] == f"'sha256-{digest}'"


def assert_only_text(hostile, harmless):
    """Check that a page with a hostile name has the tags of one with a plain name."""
    hostile_page, other = Page(hostile), Page(harmless)
    assert [tag for tag, _ in hostile_page.tags] == [tag for tag, _ in other.tags]
    # A long key of a bucket has its complete text as a title.
    assert [a.keys() - {"title"} for _, a in hostile_page.tags] == [
        a.keys() - {"title"} for _, a in other.tags
    ]
    assert not any(name.startswith("on") for _, a in hostile_page.tags for name in a)
    assert "\x1b" not in hostile
    assert "\u202e" not in hostile
