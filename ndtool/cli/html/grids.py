"""The drawing of a call in an HTML report: its arrays as grids with linked elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any
from xml.etree.ElementTree import Element

from ndtool.analysis.drawing import Drawing, Grid
from ndtool.analysis.mapping import Position
from ndtool.analysis.values import short_text
from ndtool.cli.html import markup
from ndtool.cli.html.linked import linked_to, links_of
from ndtool.cli.html.markup import element
from ndtool.cli.html.sentences import Sentences, name_of
from ndtool.errors import argument_name
from ndtool.rules.shapes import described
from ndtool.runs.calls import OpenCall

LONG = 16  # elements up to which a line is not folded
FOLD = 10  # elements of a part of a folded line
TALL = 20  # rows up to which a table is not split
BRIEF = 8  # characters of an element in a cell; its sentence has all

GivenElements = list[tuple[Any, bool]]  # elements of the given output, and whether each is wrong
Location = tuple[str, Position]  # an element: its array and position


class Grids:
    """The arrays of a drawing as HTML.

    selected: elements of interest. actual: the drawn elements of the output to verify, and whether
    each is wrong.
    """

    def __init__(
        self,
        call: OpenCall,
        drawing: Drawing,
        selected: Sequence[Location] = (),
        actual: GivenElements | None = None,
    ) -> None:
        self._call, self._drawing, self._actual = call, drawing, actual
        self._sentences = Sentences(call, drawing)
        self._out_of_bounds = [
            drawn_tuple.component_positions[j]
            for drawn_tuple in drawing.tuples
            for j in drawn_tuple.out_of_bounds
        ]
        self._grids = dict(drawing.grids)
        wrong = []
        if actual is not None:
            self._grids["found"] = drawing.grids["output"]._replace(elements=[x for x, _ in actual])
            wrong = [("found", n) for n, (_, differs) in enumerate(actual) if differs]
        numbers = [
            (role, drawing.grids[role].flat_index(at))
            for role, at in selected
            if role in drawing.grids
        ]
        drawn = [(role, number) for role, number in numbers if number is not None]
        self._selected: list[tuple[str, int]] = [*drawn, *wrong]
        self._links = links_of(drawing)
        self._begin = self._first()
        self._highlighted = linked_to(
            self._begin and f"{self._begin[0]}-{self._begin[1]}", self._links
        )

    def _first(self) -> tuple[str, int] | None:
        """Return the element to highlight first: a selected one, else one with links."""
        if self._selected:
            return self._selected[0]
        if self._out_of_bounds:
            number = self._drawing.grids["indices"].flat_index(self._out_of_bounds[0])
            return None if number is None else ("indices", number)
        output = self._drawing.grids.get("output")
        if output is None or not prod(map(len, output.axes)):
            return None
        if self._call.inference.scatters:
            at = max(output.positions, key=lambda position: self._drawing.updates[position])
        else:
            copied = [link.output for link in self._drawing.links if link.data is not None]
            at = copied[0] if copied and copied[0] is not None else output.positions[0]
        return "output", output.flat_index(at) or 0

    def figure(self) -> Element:
        """Return the drawing, with one element and those linked to it highlighted."""
        figures = [self._array(role, grid) for role, grid in self._grids.items()]
        verbs = [
            element("span", verb, class_=device)
            for verb, device in (("Hover over", "mouse"), ("Tap", "touch"))
        ]
        keys = " The keys Tab and Enter and the arrow keys do the same."
        omitted = "Large arrays are drawn in part: … and ⋮ mark omitted elements."
        return element(
            "div",
            element(
                "p",
                *verbs,
                " an element to highlight the elements that it is computed from or used for.",
                element("span", keys, class_="mouse"),
                class_="hint",
            ),
            None if self._drawing.is_complete else element("p", omitted, class_="hint"),
            element("div", *figures, class_="arrays"),
            element("p", self._words(*self._begin) if self._begin else None, id="sentence"),
            markup.data_block("links", self._links),
            id="drawing",
            data_begin=f"{self._begin[0]}-{self._begin[1]}" if self._begin else None,
        )

    def sources(self) -> Element | None:
        """Return the table of each output element's sources."""
        grid = self._drawing.grids.get("output")
        if grid is None or not grid.positions:
            return None
        rows = []
        for number, at in enumerate(grid.positions):
            steps = [element("div", step) for step in self._sentences.sources(at)]
            text = "" if grid.elements is None else short_text(grid.elements[number])
            rows.append((name_of("output", at), text, element("div", *steps)))
        table = markup.table(("element", "value", "from"), rows, class_="sources")
        # A scrolling element must be reachable by keyboard, so it needs a name.
        return element("div", table, class_="list", tabindex=0, role="region", aria_label="Sources")

    def _array(self, role: str, grid: Grid) -> Element:
        title, name = role, None
        dtype = self._call.inference.inputs[role if role in self._call.sources else "data"].dtype
        if role in self._call.sources:
            name = argument_name(self._call.sources[role].name)
        elif role == "found":
            title, name = "given output", argument_name(self._call.request.output or "")
        caption = element(
            "figcaption",
            element("strong", title),
            " ",
            element("span", described(dtype, grid.shape), class_="type"),
            element("span", name, class_="file") if name not in (None, role) else None,
            element("span", _axes(grid), class_="axes"),
        )
        panels = _Panels(self, role, grid)
        return element(
            "figure",
            caption,
            panels.nested(()) if prod(grid.shape) else element("p", "no elements", class_="hint"),
            class_=f"array {role}",
            role="group",
            aria_label=f"{title}, {described(dtype, grid.shape)}",
            data_columns=panels.columns,
        )

    def cell(self, role: str, number: int) -> Element:
        """Return the cell of an element; number: its number among the drawn ones."""
        grid, name = self._grids[role], f"{role}-{number}"
        kinds = {
            "selected": (role, number) in self._selected,
            "wrong": self._actual is not None and role == "found" and self._actual[number][1],
            "beyond": role == "indices" and grid.positions[number] in self._out_of_bounds,
            "lit": name in self._highlighted,
            "here": (role, number) == self._begin,
        }
        return element(
            "td",
            "" if grid.elements is None else _brief(grid.elements[number]),
            id=name,
            class_=" ".join(kind for kind, applies in kinds.items() if applies) or None,
            role="gridcell",
            tabindex=-1 if number else 0,
            aria_label=self._words(role, number),
            data_order=self._highlighted.get(name),
        )

    def _words(self, role: str, number: int) -> str:
        at = self._grids[role].positions[number]
        if role != "found" or self._actual is None:
            return self._sentences.of(role, at)
        value, wrong = self._actual[number]
        sentence = f"{name_of('output', at)} is {short_text(value)}"
        return sentence + f", which differs from {self._sentences.of('output', at)}" * wrong


class _Panels:
    """An array as tables of its last two axes, or of its last axis folded into lines."""

    def __init__(self, grids: Grids, role: str, grid: Grid) -> None:
        self._grids, self._role, self._grid = grids, role, grid
        self._lengths = tuple(map(len, grid.axes))
        rank = len(grid.shape)
        self._folded = _is_folded(grid)
        self._lead = rank - 1 if self._folded else max(rank - 2, 0)
        self.columns = FOLD if self._folded else self._lengths[-1] if rank else 1

    def nested(self, leading: Position) -> Element:
        """Return the elements at leading coordinates, as nested HTML elements.

        leading: the numbers of these coordinates among the drawn ones.
        """
        depth = len(leading)
        if depth == self._lead:
            tables = self._tables(leading)
            return element("div", *tables, class_="panel" if len(tables) == 1 else "panel nest")
        children = [self.nested((*leading, n)) for n in range(self._lengths[depth])]
        for i, child in zip(self._grid.axes[depth], children, strict=True):
            child.insert(0, element("p", f"axis {depth} = {i}", class_="where"))
        return element("div", *children, class_="nest")

    def _tables(self, leading: Position) -> list[Element]:
        """Return the last axes at leading coordinates as a table, or as several if it is long."""
        first = 0
        for n, length in zip(leading, self._lengths, strict=False):
            first = first * length + n
        inner = self._grid.axes[self._lead :]
        first *= prod(map(len, inner))
        rows = list(self._folded_rows(first) if self._folded else self._rows(first))
        coordinates = (self._grid.axes[d][n] for d, n in enumerate(leading))
        slices = [*map(str, coordinates), *":" * len(inner)]
        label = f"{self._role}[{', '.join(slices)}]" if slices else self._role
        return [
            element(
                "table",
                self._head() if inner else None,
                *rows[top : top + TALL],
                role="grid",
                aria_readonly="true",
                aria_label=label,
            )
            for top in range(0, len(rows), TALL)
        ]

    def _head(self) -> Element:
        columns = range(FOLD) if self._folded else self._grid.axes[-1]
        names = [element("th", str(j), scope="col") for j in columns]
        if not self._folded:
            names = self._spaced(names)
        labelled = self._folded or len(self._grid.shape) > 1
        return element("tr", *[element("td", role="presentation")] * labelled, *names)

    def _folded_rows(self, first: int) -> Iterator[Element]:
        size = self._lengths[-1]
        for start in range(0, size, FOLD):
            cells = [self._cell(first + n) for n in range(start, min(start + FOLD, size))]
            yield element("tr", element("th", f"{start}+", scope="row"), *cells)

    def _rows(self, first: int) -> Iterator[Element]:
        axes = self._grid.axes
        if len(axes) < 2:
            yield element("tr", *self._spaced([self._cell(first + n) for n in range(self.columns)]))
            return
        for n, gap_before in enumerate(_gaps(axes[-2], self._grid.shape[-2])):
            if gap_before:
                omitted = element("td", "⋮", role="presentation", class_="gap")
                yield element("tr", omitted, role="presentation")
            if n < len(axes[-2]):
                start = first + n * self.columns
                cells = self._spaced([self._cell(start + m) for m in range(self.columns)])
                yield element("tr", element("th", str(axes[-2][n]), scope="row"), *cells)

    def _spaced(self, cells: list[Element]) -> list[Element]:
        """Return the cells of a row, with a mark wherever columns are omitted."""
        if not self._grid.shape:
            return cells
        row: list[Element] = []
        for n, gap_before in enumerate(_gaps(self._grid.axes[-1], self._grid.shape[-1])):
            row += [element("td", "…", role="presentation", class_="gap")] * gap_before
            row += cells[n : n + 1]
        return row

    def _cell(self, number: int) -> Element:
        return self._grids.cell(self._role, number)


def _gaps(along: Sequence[int], size: int) -> list[bool]:
    """Return whether coordinates are omitted before each one, and after the last one."""
    return [after - before > 1 for before, after in pairwise([-1, *along, size])]


def _is_folded(grid: Grid) -> bool:
    return bool(grid.shape) and LONG < len(grid.axes[-1]) == grid.shape[-1]


def _axes(grid: Grid) -> str:
    """Return the caption of the axes that run down and to the right."""
    rank = len(grid.shape)
    if not rank:
        return "one element"
    if _is_folded(grid):
        return f"axis {rank - 1} in lines of {FOLD}"
    down = f"axis {rank - 2} ↓ " if rank > 1 else ""
    return f"{down}axis {rank - 1} →"


def _brief(value: Any) -> str:
    """Return an element's text in a cell."""
    text = short_text(value)
    if len(text) <= BRIEF:
        return text
    if value.dtype.kind == "f":
        return f"{float(value):.5g}"
    return text[: BRIEF - 1] + "…"
