"""The drawing of a call in an HTML report: its arrays as grids with linked elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any
from xml.etree.ElementTree import Element

from ndtool.analysis.drawing import Drawing, Grid
from ndtool.analysis.values import short_text
from ndtool.cli.html import markup
from ndtool.cli.html.linked import cells_linked_to, number_links
from ndtool.cli.html.markup import element
from ndtool.cli.html.sentences import Sentences, element_name
from ndtool.errors import argument_name
from ndtool.rules.plans import Position
from ndtool.rules.shapes import format_type
from ndtool.runs.calls import OpenCall

MAX_UNFOLDED_LENGTH = 16  # elements of an axis; longer axes are folded into lines
FOLDED_LENGTH = 10  # elements of a line of a folded axis
MAX_TABLE_ROWS = 20  # longer tables are split
MAX_CELL_TEXT = 8  # characters; the sentence of an element has its complete value

ActualElements = list[
    tuple[Any, bool]
]  # elements of the output to verify, and whether each is wrong
ElementLocation = tuple[str, Position]  # the role of an array, and coordinates


class Grids:
    """The arrays of a drawing as HTML.

    selected: elements to mark. actual: the drawn elements of the output to verify, and whether each
    is wrong.
    """

    def __init__(
        self,
        call: OpenCall,
        drawing: Drawing,
        selected: Sequence[ElementLocation] = (),
        actual: ActualElements | None = None,
    ) -> None:
        self._call, self._drawing, self._actual = call, drawing, actual
        self._element_sentences = Sentences(call, drawing)
        self._out_of_bounds = [
            drawn_tuple.component_positions[j]
            for drawn_tuple in drawing.tuples
            for j in drawn_tuple.out_of_bounds
        ]
        self._drawn_grids = dict(drawing.grids)
        wrong_cells: list[tuple[str, int]] = []
        if actual is not None:
            self._drawn_grids["actual"] = drawing.grids["output"]._replace(
                elements=[value for value, _ in actual]
            )
            wrong_cells = [("actual", i) for i, (_, is_wrong) in enumerate(actual) if is_wrong]
        indices = [
            (role, drawing.grids[role].flat_index(position))
            for role, position in selected
            if role in drawing.grids
        ]
        selected_cells = [(role, index) for role, index in indices if index is not None]
        self._selected: list[tuple[str, int]] = [*selected_cells, *wrong_cells]
        self._links = number_links(drawing)
        self._initial = self._initial_cell()
        self._highlighted = cells_linked_to(
            self._initial and f"{self._initial[0]}-{self._initial[1]}", self._links
        )

    def _initial_cell(self) -> tuple[str, int] | None:
        """Return the cell that is current at first: a selected element, else one with links."""
        if self._selected:
            return self._selected[0]
        if self._out_of_bounds:
            index = self._drawing.grids["indices"].flat_index(self._out_of_bounds[0])
            return None if index is None else ("indices", index)
        output = self._drawing.grids.get("output")
        if output is None or not prod(map(len, output.axes)):
            return None
        if self._call.inference.scatters:
            position = max(output.positions, key=lambda position: self._drawing.updates[position])
        else:
            gathered = [link.output for link in self._drawing.links if link.data is not None]
            position = gathered[0] if gathered and gathered[0] is not None else output.positions[0]
        return "output", output.flat_index(position) or 0

    def figure(self) -> Element:
        """Return the drawing; one element and the elements linked to it are highlighted."""
        array_figures = [self._array_figure(role, grid) for role, grid in self._drawn_grids.items()]
        verbs = [
            element("span", verb, class_=device)
            for verb, device in (("Hover over", "mouse"), ("Tap", "touch"))
        ]
        keys = " Or move between elements with Tab, Enter and the arrow keys."
        omissions = "Large arrays are drawn in part: … and ⋮ mark omitted elements."
        return element(
            "div",
            element(
                "p",
                *verbs,
                " an element to highlight the elements that it is computed from or used for.",
                element("span", keys, class_="mouse"),
                class_="hint",
            ),
            None if self._drawing.is_complete else element("p", omissions, class_="hint"),
            element("div", *array_figures, class_="arrays"),
            element("p", self._sentence(*self._initial) if self._initial else None, id="sentence"),
            markup.json_element("links", self._links),
            id="drawing",
            data_initial=f"{self._initial[0]}-{self._initial[1]}" if self._initial else None,
        )

    def sources(self) -> Element | None:
        """Return the table of output elements with the elements that each is computed from."""
        grid = self._drawing.grids.get("output")
        if grid is None or not grid.positions:
            return None
        rows = []
        for index, position in enumerate(grid.positions):
            steps = [element("div", step) for step in self._element_sentences.sources(position)]
            text = "" if grid.elements is None else short_text(grid.elements[index])
            rows.append((element_name("output", position), text, element("div", *steps)))
        table = markup.table(("element", "value", "from"), rows, class_="sources")
        # A scrolling element must be reachable by keyboard, so it needs a name.
        return element("div", table, class_="list", tabindex=0, role="region", aria_label="Sources")

    def _array_figure(self, role: str, grid: Grid) -> Element:
        title, name = role, None
        dtype = self._call.inference.inputs[role if role in self._call.sources else "data"].dtype
        if role in self._call.sources:
            name = argument_name(self._call.sources[role].name)
        elif role == "actual":
            title, name = "output to verify", argument_name(self._call.request.output or "")
        caption = element(
            "figcaption",
            element("strong", title),
            " ",
            element("span", format_type(dtype, grid.shape), class_="type"),
            element("span", name, class_="file") if name not in (None, role) else None,
            element("span", _axes_caption(grid), class_="axes"),
        )
        panels = _Panels(self, role, grid)
        return element(
            "figure",
            caption,
            panels.nested_tables(())
            if prod(grid.shape)
            else element("p", "no elements", class_="hint"),
            class_=f"array {role}",
            role="group",
            aria_label=f"{title}, {format_type(dtype, grid.shape)}",
            data_columns=panels.columns,
        )

    def cell(self, role: str, index: int) -> Element:
        """Return the cell of an element; index: its flat index among the drawn elements."""
        grid, cell_id = self._drawn_grids[role], f"{role}-{index}"
        classes = {
            "selected": (role, index) in self._selected,
            "wrong": self._actual is not None and role == "actual" and self._actual[index][1],
            "out-of-bounds": role == "indices" and grid.positions[index] in self._out_of_bounds,
            "highlighted": cell_id in self._highlighted,
            "current": (role, index) == self._initial,
        }
        return element(
            "td",
            "" if grid.elements is None else _cell_text(grid.elements[index]),
            id=cell_id,
            class_=" ".join(class_name for class_name, applies in classes.items() if applies)
            or None,
            role="gridcell",
            tabindex=-1 if index else 0,
            aria_label=self._sentence(role, index),
            data_order=self._highlighted.get(cell_id),
        )

    def _sentence(self, role: str, index: int) -> str:
        position = self._drawn_grids[role].positions[index]
        if role != "actual" or self._actual is None:
            return self._element_sentences.sentence(role, position)
        value, is_wrong = self._actual[index]
        sentence = f"{element_name('output', position)} is {short_text(value)}"
        if not is_wrong:
            return sentence
        return (
            f"{sentence}, which differs from {self._element_sentences.sentence('output', position)}"
        )


class _Panels:
    """An array as tables of its last two axes; a long last axis is folded into lines."""

    def __init__(self, grids: Grids, role: str, grid: Grid) -> None:
        self._grids, self._role, self._grid = grids, role, grid
        self._lengths = tuple(map(len, grid.axes))
        rank = len(grid.shape)
        self._is_folded = _is_folded(grid)
        self._leading_axes = rank - 1 if self._is_folded else max(rank - 2, 0)
        self.columns = FOLDED_LENGTH if self._is_folded else self._lengths[-1] if rank else 1

    def nested_tables(self, leading: Position) -> Element:
        """Return the elements at coordinates of the leading axes, as nested HTML elements.

        leading: the index of each coordinate among the drawn coordinates of its axis.
        """
        depth = len(leading)
        if depth == self._leading_axes:
            tables = self._tables(leading)
            return element("div", *tables, class_="panel" if len(tables) == 1 else "panel nested")
        children = [self.nested_tables((*leading, n)) for n in range(self._lengths[depth])]
        for i, child in zip(self._grid.axes[depth], children, strict=True):
            child.insert(0, element("p", f"axis {depth} = {i}", class_="coordinates"))
        return element("div", *children, class_="nested")

    def _tables(self, leading: Position) -> list[Element]:
        """Return the last axes at leading coordinates as tables: one, or several if it is long."""
        first_cell = 0
        for n, length in zip(leading, self._lengths, strict=False):
            first_cell = first_cell * length + n
        last_axes = self._grid.axes[self._leading_axes :]
        first_cell *= prod(map(len, last_axes))
        rows = list(self._folded_rows(first_cell) if self._is_folded else self._rows(first_cell))
        coordinates = (self._grid.axes[d][n] for d, n in enumerate(leading))
        slices = [*map(str, coordinates), *":" * len(last_axes)]
        label = f"{self._role}[{', '.join(slices)}]" if slices else self._role
        return [
            element(
                "table",
                self._header_row() if last_axes else None,
                *rows[start : start + MAX_TABLE_ROWS],
                role="grid",
                aria_readonly="true",
                aria_label=label,
            )
            for start in range(0, len(rows), MAX_TABLE_ROWS)
        ]

    def _header_row(self) -> Element:
        columns = range(FOLDED_LENGTH) if self._is_folded else self._grid.axes[-1]
        names = [element("th", str(j), scope="col") for j in columns]
        if not self._is_folded:
            names = self._with_gaps(names)
        has_row_labels = self._is_folded or len(self._grid.shape) > 1
        return element("tr", *[element("td", role="presentation")] * has_row_labels, *names)

    def _folded_rows(self, first_cell: int) -> Iterator[Element]:
        size = self._lengths[-1]
        for start in range(0, size, FOLDED_LENGTH):
            cells = [
                self._cell(first_cell + n) for n in range(start, min(start + FOLDED_LENGTH, size))
            ]
            yield element("tr", element("th", f"{start}+", scope="row"), *cells)

    def _rows(self, first_cell: int) -> Iterator[Element]:
        axes = self._grid.axes
        if len(axes) < 2:
            yield element(
                "tr", *self._with_gaps([self._cell(first_cell + n) for n in range(self.columns)])
            )
            return
        for n, gap_before in enumerate(_omissions(axes[-2], self._grid.shape[-2])):
            if gap_before:
                gap = element("td", "⋮", role="presentation", class_="gap")
                yield element("tr", gap, role="presentation")
            if n < len(axes[-2]):
                start = first_cell + n * self.columns
                cells = self._with_gaps([self._cell(start + m) for m in range(self.columns)])
                yield element("tr", element("th", str(axes[-2][n]), scope="row"), *cells)

    def _with_gaps(self, cells: list[Element]) -> list[Element]:
        """Return the cells of a row, with an ellipsis in place of omitted columns."""
        if not self._grid.shape:
            return cells
        row: list[Element] = []
        for n, gap_before in enumerate(_omissions(self._grid.axes[-1], self._grid.shape[-1])):
            row += [element("td", "…", role="presentation", class_="gap")] * gap_before
            row += cells[n : n + 1]
        return row

    def _cell(self, index: int) -> Element:
        return self._grids.cell(self._role, index)


def _omissions(coordinates: Sequence[int], size: int) -> list[bool]:
    """Return whether coordinates are omitted before each coordinate, and after the last."""
    return [after - before > 1 for before, after in pairwise([-1, *coordinates, size])]


def _is_folded(grid: Grid) -> bool:
    return bool(grid.shape) and MAX_UNFOLDED_LENGTH < len(grid.axes[-1]) == grid.shape[-1]


def _axes_caption(grid: Grid) -> str:
    """Return the caption with the axes of the rows and columns of a drawn array."""
    rank = len(grid.shape)
    if not rank:
        return "a scalar"
    if _is_folded(grid):
        return f"axis {rank - 1} in lines of {FOLDED_LENGTH}"
    row_axis = f"axis {rank - 2} ↓ " if rank > 1 else ""
    return f"{row_axis}axis {rank - 1} →"


def _cell_text(value: Any) -> str:
    """Return an element as text, shortened for a cell."""
    text = short_text(value)
    if len(text) <= MAX_CELL_TEXT:
        return text
    if value.dtype.kind == "f":
        return f"{float(value):.5g}"
    return text[: MAX_CELL_TEXT - 1] + "…"
