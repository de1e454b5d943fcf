"""The links between the cells of a drawing, which page.js reads to highlight linked cells."""

from typing import Any

from ndtool.analysis.drawing import Drawing
from ndtool.rules.plans import Position

Links = dict[str, list[Any]]


def number_links(drawing: Drawing) -> Links:
    """Return the cells of each index tuple, and the links, as flat indices of cells.

    A link is a list of indices, or None: of the element of the output, the element of data, the
    index tuple, the update, and of that update among all updates of its element, from 1.
    """
    grids = drawing.grids

    def flat_index(role: str, position: Position | None) -> int | None:
        return None if position is None else grids[role].flat_index(position)

    links = []
    counts: dict[Position, int] = {}
    for link in drawing.links:
        update_order = None
        if link.updates is not None and link.output is not None:
            update_order = counts[link.output] = counts.get(link.output, 0) + 1
        links.append(
            [
                flat_index("output", link.output),
                flat_index("data", link.data),
                link.tuple_index,
                flat_index("updates", link.updates),
                update_order,
            ]
        )
    for indices, link in zip(links, drawing.links, strict=True):
        if indices[4] is not None and link.output is not None:  # the middle updates are not drawn
            drawn_updates, count = counts[link.output], drawing.updates[link.output]
            indices[4] += (count - drawn_updates) * (indices[4] > drawn_updates // 2)
    return {
        "tuples": [
            [flat_index("indices", cell) for cell in drawn.component_positions]
            for drawn in drawing.tuples
        ],
        "links": links,
    }


def cells_linked_to(cell_id: str | None, links: Links) -> dict[str, int | None]:
    """Return the cells linked to a cell; cells of several updates have the update's order."""
    if cell_id is None:
        return {}
    linked_cells = [
        (link, cells) for link in links["links"] if cell_id in (cells := _link_cells(link, links))
    ]
    orders: dict[str, int | None] = dict.fromkeys([cell_id])
    orders |= dict.fromkeys(cell for _, cells in linked_cells for cell in cells)
    updates = [link for link, _ in linked_cells if link[3] is not None]
    if cell_id.startswith(("output-", "actual-")) and len(updates) > 1:
        for link in updates:
            for cell in (f"updates-{link[3]}", *_tuple_cells(link, links)):
                orders[cell] = orders[cell] or link[4]
    return orders


def _link_cells(link: list[Any], links: Links) -> list[str]:
    output, data, _, updates, _ = link
    pairs = (("output", output), ("actual", output), ("data", data), ("updates", updates))
    return [f"{role}-{n}" for role, n in pairs if n is not None] + _tuple_cells(link, links)


def _tuple_cells(link: list[Any], links: Links) -> list[str]:
    tuple_index = link[2]
    return [] if tuple_index is None else [f"indices-{n}" for n in links["tuples"][tuple_index]]
