"""The contents of a drawing of a call: elements of its arrays, and the links between them.

Values are those of a run, as explanations compute them. A drawing of large arrays is an excerpt.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ndtool.analysis import excerpts, explain, preview, tuples
from ndtool.analysis.excerpts import AxisCoordinates, Excerpt, Focus, all_coordinates
from ndtool.analysis.explain import ExplainedElement, Step
from ndtool.analysis.tuples import Tuples
from ndtool.analysis.typed import TypeSource
from ndtool.errors import BoundsError
from ndtool.rules.plans import Plan, Position, Shape
from ndtool.runs.calls import OpenCall


class Grid(NamedTuple):
    """The drawn elements of an array: all combinations of coordinates along its axes.

    axes: these coordinates, ascending. elements: 0-d arrays in row-major order; None if they are
    unknown.
    """

    shape: Shape
    axes: AxisCoordinates
    elements: Sequence[NDArray[Any]] | None

    @property
    def is_complete(self) -> bool:
        """Whether all elements are drawn."""
        return tuple(map(len, self.axes)) == self.shape

    @property
    def positions(self) -> list[Position]:
        """The positions of the drawn elements, in row-major order."""
        return list(product(*self.axes))

    def flat_index(self, position: Position) -> int | None:
        """Return an element's index among the drawn elements, None if it is not drawn."""
        flat_index = 0
        for coordinate, coordinates in zip(position, self.axes, strict=True):
            coordinate_index = bisect_left(coordinates, coordinate)
            if coordinate_index == len(coordinates) or coordinates[coordinate_index] != coordinate:
                return None
            flat_index = flat_index * len(coordinates) + coordinate_index
        return flat_index


class DrawnTuple(NamedTuple):
    """A drawn index tuple.

    position: its position in indices. component_positions: the positions of its components. stored:
    the components. normalized: the components without negative ones; None if the tuple selects
    nothing. out_of_bounds: which components are out of bounds, from 0.
    """

    position: Position
    component_positions: list[Position]
    stored: Position
    normalized: Position | None
    out_of_bounds: list[int]


class Link(NamedTuple):
    """The positions of elements that one index tuple links.

    tuple_index: the tuple's index among the drawn tuples. result: the element of the output after
    this update, None if it is unknown.
    """

    output: Position | None
    data: Position | None
    tuple_index: int | None
    updates: Position | None
    result: NDArray[Any] | None


class Drawing(NamedTuple):
    """A drawing of a call.

    grids: the inputs and the output by the standards' names, in order; without output if an index
    is out of bounds. tuples: the drawn index tuples in row-major order. links: the links of each
    element of the output, in order; without an output, of each element of data. updates: the count
    of updates of each element of a scatter's output; links have only the first and last of many.
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

    It shows large arrays only near the elements in focus, or near the first index out of bounds.
    """
    plan = call.inference.plan
    excerpt: Excerpt | None
    try:
        excerpt = (
            _complete_excerpt(call) if _is_small(call) else excerpts.excerpt_around(call, focus)
        )
    except BoundsError as error:
        axes = _input_axes(call) if _is_small(call) else excerpts.axes_around_index(call, error)
        excerpt = None if axes is None else Excerpt(axes, [])
    if excerpt is None:
        return None
    index_tuples = tuples.load_tuples(call)
    grids = {role: _grid(call, role, excerpt.axes[role]) for role in call.sources}
    drawn_tuples = [
        _drawn_tuple(index_tuples, position)
        for position in product(*excerpt.axes["indices"][: len(plan.positions)])
    ]
    tuple_indices = {drawn.position: tuple_index for tuple_index, drawn in enumerate(drawn_tuples)}
    if "output" in excerpt.axes:
        explanations = excerpt.explanations
        grids["output"] = _output_grid(plan.output, excerpt.axes["output"], explanations)
        links = [
            _link(element.at, step, tuple_indices)
            for element in explanations
            for step in element.steps
        ]
        call.require_unchanged()
    else:
        links = _links_without_output(call, drawn_tuples, grids)
    updates = {element.at: element.updates for element in excerpt.explanations}
    valid = [(_lowest_valid(index_tuples, size), size - 1) for size in plan.sizes]
    return Drawing(grids, drawn_tuples, links, updates, valid)


def _is_small(call: OpenCall) -> bool:
    """Whether all arrays are small enough to be drawn completely."""
    plan = call.inference.plan  # its positions count, as index tuples may have no components
    shapes = [argument.shape for argument in call.inference.inputs.values()]
    return all(
        prod(shape) <= excerpts.MAX_ELEMENTS for shape in (*shapes, plan.output, plan.positions)
    )


def _complete_excerpt(call: OpenCall) -> Excerpt:
    output = all_coordinates(call.inference.plan.output)
    explanation = explain.explain(call, list(product(*output)), list_all=True)
    return Excerpt({**_input_axes(call), "output": output}, explanation.elements)


def _input_axes(call: OpenCall) -> dict[str, AxisCoordinates]:
    return {
        role: all_coordinates(argument.shape) for role, argument in call.inference.inputs.items()
    }


def _grid(call: OpenCall, role: str, axes: AxisCoordinates) -> Grid:
    source, (_, dtype, shape) = call.sources[role], call.inference.inputs[role]
    has_values = not isinstance(source, TypeSource)
    positions = list(product(*axes))
    return Grid(shape, axes, preview.elements_at(source, dtype, positions) if has_values else None)


def _output_grid(shape: Shape, axes: AxisCoordinates, explanations: list[ExplainedElement]) -> Grid:
    element_values = [element.array for element in explanations if element.array is not None]
    return Grid(shape, axes, element_values if len(element_values) == len(explanations) else None)


def _drawn_tuple(call: Tuples, position: Position) -> DrawnTuple:
    component_positions = excerpts.component_positions(call.plan, position)
    stored = excerpts.read_components(call, component_positions)
    sizes = call.plan.sizes
    out_of_bounds = [
        j
        for j, (i, size) in enumerate(zip(stored, sizes, strict=True))
        if not _lowest_valid(call, size) <= i < size
    ]
    return DrawnTuple(position, component_positions, stored, call.normalized(stored), out_of_bounds)


def _lowest_valid(call: Tuples, size: int) -> int:
    return -size if call.plan.attributes.negatives else 0


def _link(position: Position, step: Step, tuple_indices: dict[Position, int]) -> Link:
    tuple_index = None if step.indices is None else tuple_indices[step.indices]
    data, updates = (step.position if step.role == role else None for role in ("data", "updates"))
    return Link(position, data, tuple_index, updates, step.arrays[1])


def _links_without_output(
    call: OpenCall, drawn_tuples: list[DrawnTuple], grids: dict[str, Grid]
) -> list[Link]:
    """Return the links between elements of data and the index tuples that select them."""
    plan = call.inference.plan
    links = []
    for target in grids["data"].positions:
        for tuple_index, drawn in enumerate(drawn_tuples):
            if drawn.normalized is not None and excerpts.selects(
                plan, drawn.position, drawn.normalized, target
            ):
                update = _drawn_update(plan, grids, target, drawn.position)
                links.append(Link(None, target, tuple_index, update, None))
    return links


def _drawn_update(
    plan: Plan, grids: dict[str, Grid], target: Position, tuple_position: Position
) -> Position | None:
    """Return the position of the update of an element, None if it is not drawn."""
    if "updates" not in grids:
        return None
    update = plan.output_position(target, tuple_position)
    return None if grids["updates"].flat_index(update) is None else update
