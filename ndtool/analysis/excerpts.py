"""Excerpts of large arrays for a drawing: elements of interest, their neighbours, linked elements.

An excerpt has all combinations of some coordinates along each axis.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from ndtool.analysis import explain, mapping, tuples
from ndtool.analysis.explain import Element, Step
from ndtool.analysis.mapping import Position
from ndtool.analysis.tuples import EDGE_TUPLES, Tuples
from ndtool.analysis.typed import TypeSource
from ndtool.engine import layouts
from ndtool.errors import BoundsError
from ndtool.rules.plans import ElementsPlan, Plan, Shape
from ndtool.runs.calls import OpenCall
from ndtool.storage import locations

MAX_ELEMENTS = 400  # elements of an array, beyond which a drawing is unreadable
_SMALL = 100  # elements up to which an array beside larger ones is drawn completely
_READ = 1 << 28  # bytes of updates that a drawing reads completely
_MOST = 3  # elements of interest
_SLICE = 4  # elements of a slice, if there is no output

Axes = tuple[Sequence[int], ...]


class Window(NamedTuple):
    """The size of an excerpt of the output, and how many updates of its elements are drawn.

    across, down: the distance from an element of interest along the last axis and the one before.
    ends: the updates at each end of a longer list.
    """

    across: int
    down: int
    ends: int


_WINDOWS = (
    Window(3, 1, EDGE_TUPLES),
    Window(2, 1, 3),
    Window(1, 1, 2),
    Window(1, 0, 2),
    Window(0, 0, 1),
)


class Focus(NamedTuple):
    """The elements of interest of a drawing; without any, it shows the first elements."""

    output: tuple[Position, ...] = ()
    data: tuple[Position, ...] = ()


class Excerpt(NamedTuple):
    """The coordinates of an excerpt for each array, and the explanations of the output's."""

    axes: dict[str, Axes]
    explained: list[Element]


def complete(shape: Shape) -> Axes:
    """Return all coordinates of an array."""
    return tuple(map(range, shape))


def has_large_updates(call: OpenCall) -> bool:
    """Whether a drawing would read large updates from chunks or a remote file completely."""
    updates = call.sources.get("updates")
    if updates is None or isinstance(updates, TypeSource):
        return False
    unmapped = updates.metadata.in_chunks or locations.is_url(updates.name)
    return unmapped and updates.metadata.nbytes > _READ


def around(call: OpenCall, focus: Focus) -> Excerpt | None:
    """Return the largest excerpt of an open call that is small enough; None if none is.

    Raises BoundsError for any index out of bounds.
    """
    plan = call.inference.plan
    centers = _centers(call, focus)
    explanations: dict[Position, Element] = {}
    for count in range(min(len(centers), _MOST), 0, -1):
        for window in (None, *_WINDOWS):
            output = _output_axes(plan.output, centers[:count], window)
            if output is None:
                continue
            at = list(product(*output))
            missing = [position for position in at if position not in explanations]
            if missing or not explanations:
                explanations.update(
                    (element.position, element) for element in explain.explain(call, missing)[0]
                )
            ends = EDGE_TUPLES if window is None else window.ends
            explained = [_shortened(explanations[position], ends) for position in at]
            axes = _linked_axes(call, output, explained, focus.data)
            if all(prod(map(len, coordinates)) <= MAX_ELEMENTS for coordinates in axes.values()):
                return Excerpt(axes, explained)
    return None


def _centers(call: OpenCall, focus: Focus) -> list[Position]:
    """Return the elements of the output that an excerpt is around."""
    plan = call.inference.plan
    if focus.output or focus.data:
        if call.inference.scatters:
            return [*focus.output, *focus.data]
        _, origins = explain.explain(call, (), focus.data)
        return [
            *focus.output,
            *(copy.position for origin in origins for copy in origin.outputs),
        ] or [(0,) * len(plan.output)]
    first = _first_target(tuples.of(call)) if call.inference.scatters else None
    return [(0,) * len(plan.output) if first is None else first]


def _first_target(call: Tuples) -> Position | None:
    """Return the first element of data that the first tuples select."""
    for first, block in tuples.blocks(call.plan, call.indices):
        valid, normalized = tuples.selecting(call.plan, block, call.handling)
        if len(valid):
            at = layouts.unravel_index(first + int(valid[0]), call.plan.positions)
            return next(_slice(call.plan, at, tuple(normalized[0].tolist())), None)
        break
    return None


def _output_axes(shape: Shape, centers: list[Position], window: Window | None) -> Axes | None:
    """Return the coordinates of an excerpt of the output, all without a window; None: too many."""
    if window is None:
        return complete(shape) if prod(shape) <= _SMALL else None
    axes = _axes_around(shape, centers, window)
    return axes if prod(map(len, axes)) <= MAX_ELEMENTS else None


def _axes_around(shape: Shape, centers: Sequence[Position], window: Window) -> Axes:
    """Return the coordinates of elements and of their neighbours in a window."""
    distances = ([0] * len(shape) + [window.down, window.across])[2:]
    return tuple(
        sorted({j for i in along for j in range(max(i - distance, 0), min(i + distance + 1, size))})
        for along, distance, size in zip(zip(*centers, strict=True), distances, shape, strict=True)
    )


def _shortened(element: Element, ends: int) -> Element:
    """Return an explanation with the current value and the first and last few updates."""
    current, *updates = element.steps
    if len(updates) <= 2 * ends:
        return element._replace(steps=[current, *updates])
    return element._replace(steps=[current, *updates[:ends], *updates[-ends:]])


def _linked_axes(
    call: OpenCall, output: Axes, explained: list[Element], origins: Sequence[Position]
) -> dict[str, Axes]:
    """Return the coordinates of all arrays that explanations of the output refer to."""
    steps = [step for element in explained for step in element.steps]
    positions = [step.indices for step in steps if step.indices is not None]
    axes = {"data": output, "indices": _tuple_axes(call.inference.plan, positions)}
    if not call.inference.scatters:
        axes["data"] = _axes_of(call, "data", steps, origins)
    else:
        axes["updates"] = _axes_of(call, "updates", steps, ())
    return {**axes, "output": output}


def _axes_of(call: OpenCall, role: str, steps: list[Step], origins: Sequence[Position]) -> Axes:
    shape = call.inference.inputs[role].shape
    return _axes_through(shape, [*(step.position for step in steps if step.role == role), *origins])


def _tuple_axes(plan: Plan, tuple_positions: Sequence[Position]) -> Axes:
    """Return the coordinates in indices of index tuples, with all of their components."""
    components = plan.indices[len(plan.positions) :]
    if prod(plan.indices) <= _SMALL >= prod(plan.positions):
        return complete(plan.indices)
    return (*_axes_through(plan.positions, tuple_positions), *complete(components))


def _axes_through(shape: Shape, positions: Sequence[Position]) -> Axes:
    """Return the coordinates of elements; without any, those of the first elements."""
    if prod(shape) <= _SMALL:
        return complete(shape)
    if not positions:
        return _axes_around(shape, [(0,) * len(shape)], _WINDOWS[0])
    return tuple(sorted(set(along)) for along in zip(*positions, strict=True))


def around_index(call: OpenCall, error: BoundsError) -> dict[str, Axes] | None:
    """Return the coordinates around the first index out of bounds, or None if too many."""
    plan, indices = call.inference.plan, tuples.of(call)
    for window in _WINDOWS:
        axes_near = _axes_around(plan.positions, [error.position], window)
        axes = {"indices": (*axes_near, *complete(plan.indices[len(plan.positions) :]))}
        if prod(plan.indices) <= _SMALL >= prod(plan.positions):
            axes["indices"] = complete(plan.indices)
        pairs = [
            (at, target)
            for at in product(*axes["indices"][: len(plan.positions)])
            for target in _selected(indices, at)
        ]
        axes["data"] = _axes_through(plan.data, [target for _, target in pairs])
        if call.inference.scatters:
            shape = call.inference.inputs["updates"].shape
            updates = [mapping.update_for(plan, target, at) for at, target in pairs]
            axes["updates"] = _axes_through(shape, updates)
        if all(prod(map(len, coordinates)) <= MAX_ELEMENTS for coordinates in axes.values()):
            return axes
    return None


def _selected(call: Tuples, at: Position) -> Iterator[Position]:
    """Yield the first elements of data that the tuple at a position selects."""
    index_tuple = call.normalized(components_at(call, cells_of(call.plan, at)))
    return iter(()) if index_tuple is None else _slice(call.plan, at, index_tuple)


def cells_of(plan: Plan, at: Position) -> list[Position]:
    """Return the positions in indices of the components of the tuple at a position."""
    if len(plan.positions) == len(plan.indices):
        return [at]
    return [(*at, j) for j in range(len(mapping.indexed_sizes(plan)))]


def components_at(call: Tuples, cells: Sequence[Position]) -> Position:
    """Return components of indices, as stored."""
    return tuple(int(call.indices[cell]) for cell in cells)


def _slice(plan: Plan, at: Position, index_tuple: Position) -> Iterator[Position]:
    """Yield the first elements of the slice that a tuple selects."""
    if isinstance(plan, ElementsPlan):
        yield (*at[: plan.axis], *index_tuple, *at[plan.axis + 1 :])
        return
    groups, run = len(plan.groups), plan.slice_shape
    start = (*at[:groups], *(0,) * (len(plan.batch) - groups), *index_tuple)
    lengths = [min(size, 1) for size in run[:-1]] + [min(size, _SLICE) for size in run[-1:]]
    for along in product(*map(range, lengths)):
        yield (*start, *along)


def selects(plan: Plan, at: Position, index_tuple: Position, target: Position) -> bool:
    """Whether a tuple at a position selects an element of data; it has no negative components."""
    if mapping.index_tuple_of(plan, target) != index_tuple:
        return False
    if isinstance(plan, ElementsPlan):
        return (*at[: plan.axis], *at[plan.axis + 1 :]) == (
            *target[: plan.axis],
            *target[plan.axis + 1 :],
        )
    groups = len(plan.groups)
    return at[:groups] == target[:groups]
