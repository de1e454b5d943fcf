"""The contents of a drawing of a call: elements of its arrays, and the links between them.

Values are those of a run, as explanations compute them. A drawing of large arrays is an excerpt.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ndtool.analysis import excerpts, explain, mapping, tuples
from ndtool.analysis.excerpts import Axes, Excerpt, Focus, complete
from ndtool.analysis.explain import Element, Step
from ndtool.analysis.mapping import Position
from ndtool.analysis.tuples import Tuples
from ndtool.analysis.typed import TypeSource
from ndtool.errors import BoundsError
from ndtool.rules.plans import Plan, Shape
from ndtool.runs.calls import OpenCall


class Grid(NamedTuple):
    """The drawn elements of an array: all combinations of coordinates along its axes.

    axes: these coordinates, ascending. elements: as 0-d arrays, in row-major order; None if
    unknown.
    """

    shape: Shape
    axes: Axes
    elements: Sequence[NDArray[Any]] | None

    @property
    def is_complete(self) -> bool:
        """Whether all elements are drawn."""
        return tuple(map(len, self.axes)) == self.shape

    @property
    def positions(self) -> list[Position]:
        """The positions of the elements, in order."""
        return list(product(*self.axes))

    def flat_index(self, position: Position) -> int | None:
        """Return the number of an element among those drawn, or None."""
        flat_index = 0
        for i, along in zip(position, self.axes, strict=True):
            nth = bisect_left(along, i)
            if nth == len(along) or along[nth] != i:
                return None
            flat_index = flat_index * len(along) + nth
        return flat_index


class DrawnTuple(NamedTuple):
    """An index tuple.

    position: its position in indices. component_positions: the positions of its components. stored:
    the components. normalized: the same without negative ones; None if the tuple selects nothing.
    out_of_bounds: the numbers of the components that are out of bounds.
    """

    position: Position
    component_positions: list[Position]
    stored: Position
    normalized: Position | None
    out_of_bounds: list[int]


class Link(NamedTuple):
    """The positions of elements that one index tuple links.

    tuple_index: the linear index of the tuple. result: the element of the output after this update,
    None if unknown.
    """

    output: Position | None
    data: Position | None
    tuple_index: int | None
    updates: Position | None
    result: NDArray[Any] | None


class Drawing(NamedTuple):
    """A drawing of a call.

    grids: the arrays by the standards' names, in order; without output if an index is out of
    bounds. tuples: the drawn index tuples in row-major order. links: the links of each element of
    the output, in order; without an output, of each element of data. updates: the number of updates
    of each element of a scatter's output, of which long lists have only the first and last links.
    valid_ranges: the lowest and highest valid index of each component.
    """

    grids: dict[str, Grid]
    tuples: list[DrawnTuple]
    links: list[Link]
    updates: dict[Position, int]
    valid_ranges: list[tuple[int, int]]

    @property
    def is_complete(self) -> bool:
        """Whether all elements of all arrays are drawn."""
        return all(grid.is_complete for grid in self.grids.values())


_NO_FOCUS = Focus()


def draw(call: OpenCall, focus: Focus = _NO_FOCUS) -> Drawing | None:
    """Return the drawing of an open call; None if too many elements are linked.

    Of large arrays it has the elements around those in focus, or the first index out of bounds.
    """
    plan = call.inference.plan
    excerpt: Excerpt | None
    try:
        excerpt = _everything(call) if _is_small(call) else excerpts.around(call, focus)
    except BoundsError as error:
        axes = _input_axes(call) if _is_small(call) else excerpts.around_index(call, error)
        excerpt = None if axes is None else Excerpt(axes, [])
    if excerpt is None:
        return None
    rows = tuples.of(call)
    grids = {role: _grid(call, role, excerpt.axes[role]) for role in call.sources}
    drawn = [
        _drawn_tuple(rows, at) for at in product(*excerpt.axes["indices"][: len(plan.positions)])
    ]
    number_of = {tuple_.position: number for number, tuple_ in enumerate(drawn)}
    if "output" in excerpt.axes:
        explained = excerpt.explained
        grids["output"] = _output(plan.output, excerpt.axes["output"], explained)
        links = [
            _link(element.position, step, number_of)
            for element in explained
            for step in element.steps
        ]
        call.recheck()
    else:
        links = _without_output(call, drawn, grids)
    updates = {element.position: element.updates for element in excerpt.explained}
    valid = [(_lowest(rows, size), size - 1) for size in mapping.indexed_sizes(plan)]
    return Drawing(grids, drawn, links, updates, valid)


def _is_small(call: OpenCall) -> bool:
    """Whether all arrays are small enough to be drawn completely."""
    plan = call.inference.plan  # index tuples may have no components
    shapes = [argument.shape for argument in call.inference.inputs.values()]
    return all(
        prod(shape) <= excerpts.MAX_ELEMENTS for shape in (*shapes, plan.output, plan.positions)
    )


def _everything(call: OpenCall) -> Excerpt:
    output = complete(call.inference.plan.output)
    explained, _ = explain.explain(call, list(product(*output)), list_all=True)
    return Excerpt({**_input_axes(call), "output": output}, explained)


def _input_axes(call: OpenCall) -> dict[str, Axes]:
    return {role: complete(argument.shape) for role, argument in call.inference.inputs.items()}


def _grid(call: OpenCall, role: str, axes: Axes) -> Grid:
    origin, (_, dtype, shape) = call.sources[role], call.inference.inputs[role]
    has_values = not isinstance(origin, TypeSource)
    at = list(product(*axes))
    return Grid(shape, axes, explain.elements_at(origin, dtype, at) if has_values else None)


def _output(shape: Shape, axes: Axes, explained: list[Element]) -> Grid:
    element_values = [element.value for element in explained if element.value is not None]
    return Grid(shape, axes, element_values if len(element_values) == len(explained) else None)


def _drawn_tuple(call: Tuples, at: Position) -> DrawnTuple:
    cells = excerpts.cells_of(call.plan, at)
    stored = excerpts.components_at(call, cells)
    lengths = mapping.indexed_sizes(call.plan)
    beyond = [
        j
        for j, (i, size) in enumerate(zip(stored, lengths, strict=True))
        if not _lowest(call, size) <= i < size
    ]
    return DrawnTuple(at, cells, stored, call.normalized(stored), beyond)


def _lowest(call: Tuples, size: int) -> int:
    return -size if call.negatives else 0


def _link(at: Position, step: Step, number_of: dict[Position, int]) -> Link:
    number = None if step.indices is None else number_of[step.indices]
    data, updates = (step.position if step.role == role else None for role in ("data", "updates"))
    return Link(at, data, number, updates, step.result)


def _without_output(call: OpenCall, drawn: list[DrawnTuple], grids: dict[str, Grid]) -> list[Link]:
    """Return the links between elements of data and the index tuples that select them."""
    plan = call.inference.plan
    links = []
    for target in grids["data"].positions:
        for number, tuple_ in enumerate(drawn):
            if tuple_.normalized is not None and excerpts.selects(
                plan, tuple_.position, tuple_.normalized, target
            ):
                update = _update(plan, grids, target, tuple_.position)
                links.append(Link(None, target, number, update, None))
    return links


def _update(plan: Plan, grids: dict[str, Grid], target: Position, at: Position) -> Position | None:
    """Return the position of the update of an element, None if it is not drawn."""
    if "updates" not in grids:
        return None
    update = mapping.update_for(plan, target, at)
    return None if grids["updates"].flat_index(update) is None else update
