"""The drawing of a call in an HTML report: its arrays as grids with linked elements."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from ndtool.analysis.drawing import Drawing, Grid
from ndtool.analysis.mapping import Position
from ndtool.analysis.values import shown
from ndtool.cli.html import markup
from ndtool.cli.html.markup import element
from ndtool.cli.html.sentences import Sentences, name_of, number_of
from ndtool.engine import layouts
from ndtool.errors import called
from ndtool.rules.plans import Shape
from ndtool.rules.shapes import described
from ndtool.runs.calls import OpenCall

LONG = 16  # elements up to which a line is not folded
FOLD = 10  # elements of a part of a folded line
TALL = 20  # rows up to which a table is not split
BRIEF = 8  # characters of an element in a cell; its sentence has all

Found = list[tuple[Any, bool]]  # elements of the given output, and whether each is wrong


class Grids:
    """The arrays of a drawing as HTML.

    found: elements of the output that is verified.
    """

    def __init__(self, call: OpenCall, drawing: Drawing, found: Found | None = None) -> None:
        self._call, self._drawing, self._found = call, drawing, found
        self._sentences = Sentences(call, drawing)
        self._beyond = [one.cells[j] for one in drawing.tuples for j in one.beyond]

    def figure(self, selected: list[str]) -> Element:
        """Return the drawing; selected: IDs of cells, the first highlighted at first.

        Without any, the first index out of bounds is.
        """
        figures = [self._array(role, grid, set(selected)) for role, grid in self._grids()]
        shape = self._drawing.grids["indices"].shape
        begin = selected or [f"indices-{number_of(cell, shape)}" for cell in self._beyond]
        return element(
            "div",
            element(
                "p",
                "Hover over an element, or move to it with Tab and the arrow keys, to highlight the"
                " elements that it is computed from or used for; Enter goes to the next array"
                " of these.",
                class_="hint",
            ),
            element("div", *figures, class_="arrays"),
            element("p", id="sentence"),
            markup.data_block("links", self._links()),
            id="drawing",
            data_begin=begin[0] if begin else None,
        )

    def sources(self) -> Element | None:
        """Return the table of each output element's sources."""
        grid = self._drawing.grids.get("output")
        if grid is None or not prod(grid.shape):
            return None
        rows = []
        for number, at in enumerate(np.ndindex(grid.shape)):
            steps = [element("div", step) for step in self._sentences.sources(at)]
            text = "" if grid.elements is None else shown(grid.elements[number])
            rows.append((name_of("output", at), text, element("div", *steps)))
        table = markup.table(("element", "value", "from"), rows, class_="sources")
        # A scrolling element must be reachable by keyboard, so it needs a name.
        return element("div", table, class_="list", tabindex=0, role="region", aria_label="Sources")

    def _grids(self) -> Iterator[tuple[str, Grid]]:
        yield from self._drawing.grids.items()
        if self._found is not None:
            shape = self._call.inference.plan.output
            yield "found", Grid(shape, [one for one, _ in self._found])

    def _links(self) -> dict[str, Any]:
        grids = self._drawing.grids

        def number(role: str, position: Position | None) -> int | None:
            return None if position is None else number_of(position, grids[role].shape)

        return {
            "tuples": [
                [number("indices", cell) for cell in one.cells] for one in self._drawing.tuples
            ],
            "links": [
                [
                    number("output", link.output),
                    number("data", link.data),
                    link.number,
                    number("updates", link.updates),
                ]
                for link in self._drawing.links
            ],
        }

    def _array(self, role: str, grid: Grid, selected: set[str]) -> Element:
        title, name = role, None
        dtype = self._call.inference.inputs[role if role in self._call.sources else "data"].dtype
        if role in self._call.sources:
            name = called(self._call.sources[role].name)
        elif role == "found":
            title, name = "given output", called(self._call.request.output or "")
        caption = element(
            "figcaption",
            element("strong", title),
            " ",
            element("span", described(dtype, grid.shape), class_="type"),
            element("span", name, class_="file") if name not in (None, role) else None,
            element("span", _axes(grid.shape), class_="axes"),
        )
        panels = _Panels(self, role, grid, selected)
        return element(
            "figure",
            caption,
            panels.nested(()) if prod(grid.shape) else element("p", "no elements", class_="hint"),
            class_=f"array {role}",
            role="group",
            aria_label=f"{title}, {described(dtype, grid.shape)}",
            data_columns=panels.columns,
        )

    def cell(self, role: str, grid: Grid, number: int, marked: bool) -> Element:
        """Return an element of an array."""
        at = layouts.unravel(number, grid.shape)
        kinds = ["selected"] * marked
        if role == "found" and self._found is not None:
            one, wrong = self._found[number]
            kinds += ["wrong"] * wrong
            words = f"{name_of('output', at)} is {shown(one)}"
            words += f", which differs from {self._sentences.of('output', at)}" if wrong else ""
        else:
            words = self._sentences.of(role, at)
            kinds += ["beyond"] * (role == "indices" and at in self._beyond)
        return element(
            "td",
            "" if grid.elements is None else _brief(grid.elements[number]),
            id=f"{role}-{number}",
            class_=" ".join(kinds) or None,
            role="gridcell",
            tabindex=-1 if number else 0,
            aria_label=words,
        )


class _Panels:
    """An array as tables of its last two axes, or of the folded last axis."""

    def __init__(self, grids: Grids, role: str, grid: Grid, selected: set[str]) -> None:
        self._grids, self._role, self._grid, self._selected = grids, role, grid, selected
        shape = grid.shape
        self._folded = bool(shape) and shape[-1] > LONG
        self._lead = len(shape) - 1 if self._folded else max(len(shape) - 2, 0)
        self.columns = FOLD if self._folded else shape[-1] if shape else 1

    def nested(self, prefix: Position) -> Element:
        """Return the subarray at some leading coordinates, as nested elements."""
        depth = len(prefix)
        if depth == self._lead:
            tables = self._tables(prefix)
            return element("div", *tables, class_="panel" if len(tables) == 1 else "panel nest")
        below = [self.nested((*prefix, i)) for i in range(self._grid.shape[depth])]
        for i, one in enumerate(below):
            one.insert(0, element("p", f"axis {depth} = {i}", class_="where"))
        return element("div", *below, class_="nest")

    def _tables(self, prefix: Position) -> list[Element]:
        """Return the last axes at a position as a table, or as several if it has many rows."""
        shape = self._grid.shape
        rest = shape[self._lead :]
        size = prod(rest)
        first = number_of(prefix, shape[: self._lead]) * size
        whole = [*map(str, prefix), *":" * len(rest)]
        label = f"{self._role}[{', '.join(whole)}]" if whole else self._role
        labelled = len(rest) == 2 or self._folded
        rows = []
        for start in range(0, size, self.columns):
            stop = min(start + self.columns, size)
            name = f"{start}+" if self._folded else str(start // self.columns)
            head = [element("th", name, scope="row")] * labelled
            cells = [self._cell(first + n) for n in range(start, stop)]
            rows.append(element("tr", *head, *cells))
        return [
            element(
                "table",
                self._head(labelled) if rest else None,
                *rows[top : top + TALL],
                role="grid",
                aria_readonly="true",
                aria_label=label,
            )
            for top in range(0, len(rows), TALL)
        ]

    def _head(self, labelled: bool) -> Element:
        names = [element("th", str(j), scope="col") for j in range(self.columns)]
        return element("tr", *[element("td", role="presentation")] * labelled, *names)

    def _cell(self, number: int) -> Element:
        marked = f"{self._role}-{number}" in self._selected
        return self._grids.cell(self._role, self._grid, number, marked)


def _axes(shape: Shape) -> str:
    """Return the caption of the axes that run down and to the right."""
    if not shape:
        return "one element"
    if shape[-1] > LONG:
        return f"axis {len(shape) - 1} in lines of {FOLD}"
    down = f"axis {len(shape) - 2} ↓ " if len(shape) > 1 else ""
    return f"{down}axis {len(shape) - 1} →"


def _brief(one: Any) -> str:
    """Return an element's text in a cell."""
    text = shown(one)
    if len(text) <= BRIEF:
        return text
    if one.dtype.kind == "f":
        return f"{float(one):.5g}"
    return text[: BRIEF - 1] + "…"
