"""The page of a report, read back as a tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from hpctrain.analysis.frames import load_frames
from hpctrain.analysis.report.write_report import write_report


@dataclass
class Node:
    """One element of a page that was read back."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Node] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str) -> list[Node]:
        found = [self] if self.tag == tag else []
        return found + [node for child in self.children for node in child.all(tag)]

    def words(self) -> str:
        return " ".join(part for part in (self.text.strip(), *(child.words() for child in self.children)) if part)

    def by_id(self, name: str) -> Node:
        return next(node for node in self.everything() if node.attributes.get("id") == name)

    def everything(self) -> list[Node]:
        return [self, *(node for child in self.children for node in child.everything())]


class PageReader(HTMLParser):
    """Reads a page as a browser would and refuses elements that are not closed."""

    VOID = ("meta", "input", "img")

    def __init__(self) -> None:
        super().__init__()
        self.root = Node("root", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in self.VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].text += data


def read_page(text: str) -> Node:
    reader = PageReader()
    reader.feed(text)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root


def table_rows(page: Node, name: str) -> list[dict[str, str]]:
    """Rows of a table as header and text."""
    [table] = page.by_id(name).all("table")
    [head] = table.all("thead")
    [body] = table.all("tbody")
    headers = [cell.words() for cell in head.all("th")]
    rows = [[cell.words() for cell in row.children] for row in body.all("tr")]
    return [dict(zip(headers, row, strict=True)) for row in rows]


def written_page(runs: Path, pictures: int = 0) -> Node:
    path = runs.parent / "report.html"
    write_report(load_frames([runs]), path, max_pictures=pictures)
    return read_page(path.read_text(encoding="utf-8"))
