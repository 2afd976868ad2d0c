"""Reading a report's page, for tests."""

from __future__ import annotations

from html.parser import HTMLParser

FETCHES = ("src", "href", "xlink:href", "action", "data", "srcset", "poster")


class Page(HTMLParser):
    """What a browser would fetch or run, and the text of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in FETCHES]

    def handle_data(self, data: str) -> None:
        self.said += f" {data.strip()}"
