"""Pages as a browser reads them, and names that nobody should trust."""

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
    """What a browser finds: tags with attributes, and the texts of cells."""

    VOID = ("meta", "br", "img", "link", "input")

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
