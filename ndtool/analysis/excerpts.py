"""Excerpts of large arrays for a drawing: elements in focus, their neighbours, linked elements.

An excerpt of an array has the elements at all combinations of chosen coordinates of its axes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

from ndtool.analysis import explain, tuples
from ndtool.analysis.explain import ExplainedElement, Step
from ndtool.analysis.tuples import EDGE_TUPLES, Tuples
from ndtool.analysis.typed import TypeSource
from ndtool.engine import layouts
from ndtool.errors import BoundsError
from ndtool.rules.plans import Plan, Position, Shape
from ndtool.runs.calls import OpenCall
from ndtool.storage import locations

MAX_ELEMENTS = 400  # drawn elements of an array; a drawing of more is unreadable
_MAX_COMPLETE = 100  # elements of an array that is drawn completely although others are excerpts
_MAX_UPDATE_BYTES = 1 << 28  # bytes of updates that a drawing may read completely
_MAX_CENTERS = 3  # elements in focus that one excerpt shows
_MAX_SLICE = 4  # drawn elements of a slice, if there is no output

AxisCoordinates = tuple[Sequence[int], ...]


class Window(NamedTuple):
    """The size of an excerpt of the output, and the count of updates drawn for its elements.

    columns, rows: the largest distance from an element in focus along the last axis, and along the
    last but one. edge_updates: the count of updates at each end of a longer list.
    """

    columns: int
    rows: int
    edge_updates: int


_WINDOWS = (
    Window(3, 1, EDGE_TUPLES),
    Window(2, 1, 3),
    Window(1, 1, 2),
    Window(1, 0, 2),
    Window(0, 0, 1),
)


class Focus(NamedTuple):
    """The elements in focus of a drawing; without any, it shows the first elements."""

    output: tuple[Position, ...] = ()
    data: tuple[Position, ...] = ()


class Excerpt(NamedTuple):
    """The coordinates of each array's excerpt, and explanations of the output's elements."""

    axes: dict[str, AxisCoordinates]
    explanations: list[ExplainedElement]


def all_coordinates(shape: Shape) -> AxisCoordinates:
    """Return all coordinates of each axis of an array."""
    return tuple(map(range, shape))


def has_large_updates(call: OpenCall) -> bool:
    """Whether a drawing would read large updates from chunks or a remote file completely."""
    updates = call.sources.get("updates")
    if updates is None or isinstance(updates, TypeSource):
        return False
    unmapped = updates.metadata.is_chunked or locations.is_url(updates.name)
    return unmapped and updates.metadata.nbytes > _MAX_UPDATE_BYTES


def excerpt_around(call: OpenCall, focus: Focus) -> Excerpt | None:
    """Return the largest excerpt of an open call within the limits; None if there is none.

    Raises BoundsError for any index out of bounds.
    """
    plan = call.inference.plan
    centers = _centers(call, focus)
    explanation_at: dict[Position, ExplainedElement] = {}
    for count in range(min(len(centers), _MAX_CENTERS), 0, -1):
        for window in (None, *_WINDOWS):
            output = _output_axes(plan.output, centers[:count], window)
            if output is None:
                continue
            positions = list(product(*output))
            missing = [position for position in positions if position not in explanation_at]
            if missing or not explanation_at:
                explanation_at.update(
                    (element.at, element) for element in explain.explain(call, missing).elements
                )
            edge_updates = EDGE_TUPLES if window is None else window.edge_updates
            explanations = [
                _shorten(explanation_at[position], edge_updates) for position in positions
            ]
            axes = _linked_axes(call, output, explanations, focus.data)
            if all(prod(map(len, coordinates)) <= MAX_ELEMENTS for coordinates in axes.values()):
                return Excerpt(axes, explanations)
    return None


def _centers(call: OpenCall, focus: Focus) -> list[Position]:
    """Return the positions in the output that are in focus, or else a first one."""
    plan = call.inference.plan
    if focus.output or focus.data:
        if call.inference.scatters:
            return [*focus.output, *focus.data]
        origins = explain.explain(call, (), focus.data).origins
        return [*focus.output, *(output for origin in origins for output in origin.outputs)] or [
            (0,) * len(plan.output)
        ]
    first = _first_target(tuples.load_tuples(call)) if call.inference.scatters else None
    return [(0,) * len(plan.output) if first is None else first]


def _first_target(call: Tuples) -> Position | None:
    """Return the first position in data that the first block of tuples selects, or None."""
    for first_tuple, block in tuples.blocks(call.plan, call.indices):
        valid, normalized = tuples.select_valid(call.plan, block)
        if len(valid):
            position = layouts.unravel_index(first_tuple + int(valid[0]), call.plan.positions)
            return next(_slice_positions(call.plan, position, tuple(normalized[0].tolist())), None)
        break
    return None


def _output_axes(
    shape: Shape, centers: list[Position], window: Window | None
) -> AxisCoordinates | None:
    """Return the coordinates of an excerpt of the output; None if it has too many elements.

    Without a window, these are all coordinates.
    """
    if window is None:
        return all_coordinates(shape) if prod(shape) <= _MAX_COMPLETE else None
    axes = _axes_around(shape, centers, window)
    return axes if prod(map(len, axes)) <= MAX_ELEMENTS else None


def _axes_around(shape: Shape, centers: Sequence[Position], window: Window) -> AxisCoordinates:
    """Return the coordinates of elements and of their neighbours in a window."""
    distances = ([0] * len(shape) + [window.rows, window.columns])[2:]
    return tuple(
        sorted(
            {
                j
                for i in coordinates
                for j in range(max(i - distance, 0), min(i + distance + 1, size))
            }
        )
        for coordinates, distance, size in zip(
            zip(*centers, strict=True), distances, shape, strict=True
        )
    )


def _shorten(element: ExplainedElement, edge_updates: int) -> ExplainedElement:
    """Return an explanation with the current value and only the first and last updates."""
    current, *updates = element.steps
    if len(updates) <= 2 * edge_updates:
        return element
    return replace(element, steps=(current, *updates[:edge_updates], *updates[-edge_updates:]))


def _linked_axes(
    call: OpenCall,
    output: AxisCoordinates,
    explanations: list[ExplainedElement],
    origins: Sequence[Position],
) -> dict[str, AxisCoordinates]:
    """Return the coordinates of all arrays that explanations of the output refer to."""
    steps = [step for element in explanations for step in element.steps]
    positions = [step.indices for step in steps if step.indices is not None]
    axes = {"data": output, "indices": _tuple_axes(call.inference.plan, positions)}
    if not call.inference.scatters:
        axes["data"] = _role_axes(call, "data", steps, origins)
    else:
        axes["updates"] = _role_axes(call, "updates", steps, ())
    return {**axes, "output": output}


def _role_axes(
    call: OpenCall, role: str, steps: list[Step], origins: Sequence[Position]
) -> AxisCoordinates:
    shape = call.inference.inputs[role].shape
    return _covering_axes(
        shape, [*(step.position for step in steps if step.role == role), *origins]
    )


def _tuple_axes(plan: Plan, tuple_positions: Sequence[Position]) -> AxisCoordinates:
    """Return the coordinates in indices of index tuples, with all of their components."""
    components = plan.indices[len(plan.positions) :]
    if prod(plan.indices) <= _MAX_COMPLETE >= prod(plan.positions):
        return all_coordinates(plan.indices)
    return (*_covering_axes(plan.positions, tuple_positions), *all_coordinates(components))


def _covering_axes(shape: Shape, positions: Sequence[Position]) -> AxisCoordinates:
    """Return coordinates that cover all positions; without positions, those of first elements."""
    if prod(shape) <= _MAX_COMPLETE:
        return all_coordinates(shape)
    if not positions:
        return _axes_around(shape, [(0,) * len(shape)], _WINDOWS[0])
    return tuple(sorted(set(coordinates)) for coordinates in zip(*positions, strict=True))


def axes_around_index(call: OpenCall, error: BoundsError) -> dict[str, AxisCoordinates] | None:
    """Return coordinates of each array around an index out of bounds; None if they are too many."""
    plan, indices = call.inference.plan, tuples.load_tuples(call)
    for window in _WINDOWS:
        position_axes = _axes_around(plan.positions, [error.position], window)
        axes = {"indices": (*position_axes, *all_coordinates(plan.indices[len(plan.positions) :]))}
        if prod(plan.indices) <= _MAX_COMPLETE >= prod(plan.positions):
            axes["indices"] = all_coordinates(plan.indices)
        pairs = [
            (position, target)
            for position in product(*axes["indices"][: len(plan.positions)])
            for target in _selected_positions(indices, position)
        ]
        axes["data"] = _covering_axes(plan.data, [target for _, target in pairs])
        if call.inference.scatters:
            shape = call.inference.inputs["updates"].shape
            updates = [plan.output_position(target, position) for position, target in pairs]
            axes["updates"] = _covering_axes(shape, updates)
        if all(prod(map(len, coordinates)) <= MAX_ELEMENTS for coordinates in axes.values()):
            return axes
    return None


def _selected_positions(call: Tuples, position: Position) -> Iterator[Position]:
    """Yield the positions of the first elements of data that the tuple at `position` selects."""
    index_tuple = call.normalized(read_components(call, component_positions(call.plan, position)))
    return iter(()) if index_tuple is None else _slice_positions(call.plan, position, index_tuple)


def component_positions(plan: Plan, position: Position) -> list[Position]:
    """Return the positions in indices of the components of the tuple at a position."""
    if len(plan.positions) == len(plan.indices):
        return [position]
    return [(*position, j) for j in range(len(plan.sizes))]


def read_components(call: Tuples, positions: Sequence[Position]) -> Position:
    """Return the components at positions in indices, not normalized."""
    return tuple(int(call.indices[position]) for position in positions)


def _slice_positions(plan: Plan, position: Position, index_tuple: Position) -> Iterator[Position]:
    """Yield the positions of the first elements of the slice that a tuple selects."""
    slice_shape, components = plan.slice_shape, iter(index_tuple)
    start = plan.slice_start(
        tuple(next(components) if axis is None else position[axis] for axis in plan.grid_axes)
    )
    lengths = [min(size, 1) for size in slice_shape[:-1]] + [
        min(size, _MAX_SLICE) for size in slice_shape[-1:]
    ]
    for offsets in product(*map(range, lengths)):
        yield (*start, *offsets)


def selects(plan: Plan, position: Position, index_tuple: Position, target: Position) -> bool:
    """Whether a normalized index tuple at a position in indices selects an element of data."""
    return plan.components_of(target) == index_tuple and all(
        axis is None or position[axis] == target[axis] for axis in plan.grid_axes
    )
