"""Check a built site: every internal link has a target, and no page loads from another host."""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The anchors, links and loaded resources of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids, self.links, self.loaded = set(), set(), set()
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif LOADED.get(tag) in given:
            self.loaded.add(given[LOADED[tag]])


def faults(site: Path) -> Iterator[str]:
    """Yield the errors of all pages below a folder."""
    pages = {file: Page(file) for file in sorted(site.rglob("*.html"))}
    for file, page in pages.items():
        name = file.relative_to(site)
        for target in sorted(page.links | page.loaded):
            url = urlsplit(target)
            if url.scheme or url.netloc:
                if target in page.loaded and url.scheme != "data":
                    yield f"{name}: loads {target}"
                continue
            linked = (file.parent / unquote(url.path)).resolve() if url.path else file
            if not linked.exists():
                yield f"{name}: {target} does not exist"
            elif (
                url.fragment and linked in pages and unquote(url.fragment) not in pages[linked].ids
            ):
                yield f"{name}: {target} has no such anchor"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1]).resolve()))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
