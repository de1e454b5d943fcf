"""Check a built site.

Links have targets, no page loads from another host, and the search finds what users look for.
"""

import json
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
# Words that users search for, and a page that the search must find.
SEARCHED = {
    "padding": "operators",
    "parquet": "formats",
    "include_self": "operators",
    "index_add": "translation",
    "duckdb": "choosing",
}


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


def not_found(site: Path) -> Iterator[str]:
    """Yield the words that the search does not find on their page, if the site has a search."""
    index = site / "searchindex.js"
    if not index.exists():
        return
    found = json.loads(index.read_text("utf-8").partition("(")[2].rstrip().rstrip(";)"))
    for word, page in SEARCHED.items():
        numbers: set[int] = set()
        for term, pages in [*found["terms"].items(), *found["titleterms"].items()]:
            # words are indexed by their stems, which search.html also makes of a query
            if term and (term == word or (len(term) > 2 and word.startswith(term))):
                numbers.update([pages] if isinstance(pages, int) else pages)
        if page not in {found["docnames"][number] for number in numbers}:
            yield f"search: {word} is not found on {page}"


if __name__ == "__main__":
    built = Path(sys.argv[1]).resolve()
    found = [*faults(built), *not_found(built)]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
