"""Check a built site.

Links have targets, pages load nothing from other hosts, and the search finds frequent queries.
"""

import json
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

RESOURCE_ATTRIBUTES = {
    "link": "href",
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
}
# Words that users search for, and the page that the search must find for each.
QUERIES = {
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
        attributes = {name: value or "" for name, value in attrs}
        self.ids.add(attributes.get("id", ""))
        if tag == "a" and "href" in attributes:
            self.links.add(attributes["href"])
        elif RESOURCE_ATTRIBUTES.get(tag) in attributes:
            self.loaded.add(attributes[RESOURCE_ATTRIBUTES[tag]])


def page_errors(site: Path) -> Iterator[str]:
    """Yield an error message for each bad link or resource of the pages in a folder."""
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


def search_errors(site: Path) -> Iterator[str]:
    """Yield an error message for each query whose page the search does not find."""
    index = site / "searchindex.js"
    if not index.exists():
        return
    search_index = json.loads(index.read_text("utf-8").partition("(")[2].rstrip().rstrip(";)"))
    for word, page in QUERIES.items():
        page_numbers: set[int] = set()
        for term, pages in [*search_index["terms"].items(), *search_index["titleterms"].items()]:
            # the index has stems of words; search.html converts a query to stems, too
            if term and (term == word or (len(term) > 2 and word.startswith(term))):
                page_numbers.update([pages] if isinstance(pages, int) else pages)
        if page not in {search_index["docnames"][number] for number in page_numbers}:
            yield f"search: {word} is not found on {page}"


if __name__ == "__main__":
    built_site = Path(sys.argv[1]).resolve()
    errors = [*page_errors(built_site), *search_errors(built_site)]
    print(*errors, sep="\n", end="\n" if errors else "")
    sys.exit(bool(errors))
