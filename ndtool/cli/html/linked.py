"""The links of a drawing by IDs of cells, which page.js reads to highlight linked cells."""

from typing import Any

from ndtool.analysis.drawing import Drawing
from ndtool.analysis.mapping import Position

Links = dict[str, list[Any]]


def links_of(drawing: Drawing) -> Links:
    """Return the cells of each index tuple, and the links, by the numbers of cells.

    A link is a list: the elements of output and data, the tuple, the update, and which update of
    its element it is, from 1; null where there is none.
    """
    grids = drawing.grids

    def number(role: str, position: Position | None) -> int | None:
        return None if position is None else grids[role].flat_index(position)

    links = []
    counts: dict[Position, int] = {}
    for link in drawing.links:
        nth = None
        if link.updates is not None and link.output is not None:
            nth = counts[link.output] = counts.get(link.output, 0) + 1
        links.append(
            [
                number("output", link.output),
                number("data", link.data),
                link.tuple_index,
                number("updates", link.updates),
                nth,
            ]
        )
    for row, link in zip(links, drawing.links, strict=True):
        if row[4] is not None and link.output is not None:
            drawn_updates, count = counts[link.output], drawing.updates[link.output]
            row[4] += (count - drawn_updates) * (row[4] > drawn_updates // 2)
    return {
        "tuples": [
            [number("indices", cell) for cell in drawn.component_positions]
            for drawn in drawing.tuples
        ],
        "links": links,
    }


def linked_to(begin: str | None, links: Links) -> dict[str, int | None]:
    """Return the cells linked to a cell; if several are updates, with the order of each."""
    if begin is None:
        return {}
    linked = [(link, cells) for link in links["links"] if begin in (cells := _cells(link, links))]
    lit: dict[str, int | None] = dict.fromkeys([begin])
    lit |= dict.fromkeys(cell for _, cells in linked for cell in cells)
    updates = [link for link, _ in linked if link[3] is not None]
    if begin.startswith(("output-", "found-")) and len(updates) > 1:
        for link in updates:
            for cell in (f"updates-{link[3]}", *_tuple(link, links)):
                lit[cell] = lit[cell] or link[4]
    return lit


def _cells(link: list[Any], links: Links) -> list[str]:
    output, data, _, updates, _ = link
    pairs = (("output", output), ("found", output), ("data", data), ("updates", updates))
    return [f"{role}-{n}" for role, n in pairs if n is not None] + _tuple(link, links)


def _tuple(link: list[Any], links: Links) -> list[str]:
    number = link[2]
    return [] if number is None else [f"indices-{n}" for n in links["tuples"][number]]
