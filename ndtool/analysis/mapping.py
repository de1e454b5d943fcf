"""Positions of elements in data, indices, updates and output that one index tuple links."""

from collections.abc import Iterator
from operator import floordiv, mul

from ndtool.engine import layouts
from ndtool.rules import grid
from ndtool.rules.plans import ElementsPlan, Plan, Shape

Position = tuple[int, ...]


def index_tuple_position(plan: Plan, position: Position) -> Position:
    """Return the position of the index tuple that selects an element of a gather's output."""
    if isinstance(plan, ElementsPlan):
        return position
    if plan.plain:
        b, groups = len(plan.batch), len(plan.groups)
        return (*position[:groups], *position[b : b + len(plan.indices) - groups])
    return position[: len(plan.positions)]


def source_position(plan: Plan, position: Position, index: Position) -> Position:
    """Return the position in data of an element of a gather's output."""
    normalized = tuple(i % size for i, size in zip(index, indexed_sizes(plan), strict=True))
    if isinstance(plan, ElementsPlan):
        return (*position[: plan.axis], *normalized, *position[plan.axis + 1 :])
    b, q = len(plan.batch), len(plan.positions)
    return (*position[:b], *normalized, *position[b + q - len(plan.groups) :])


def indexed_sizes(plan: Plan) -> Shape:
    """Return the sizes of the axes of data that the components of a tuple index."""
    return (plan.data[plan.axis],) if isinstance(plan, ElementsPlan) else plan.sizes


def slice_grid(plan: Plan) -> Shape:
    """Return the shape of the grid of slices that tuples select from; of elements, data's shape."""
    if isinstance(plan, ElementsPlan):
        return plan.data
    return plan.groups + plan.sizes


def index_tuple_of(plan: Plan, target: Position) -> Position:
    """Return the index tuple, without negative components, that selects an element of data."""
    if isinstance(plan, ElementsPlan):
        return (target[plan.axis],)
    return target[len(plan.batch) :][: plan.k]


def copy_position(plan: Plan, target: Position, tuple_position: Position) -> Position:
    """Return the position in a gather's output of the copy that a tuple makes of an element."""
    if isinstance(plan, ElementsPlan):
        return tuple_position
    b = len(plan.batch)
    return (*target[:b], *tuple_position[len(plan.groups) :], *target[b + plan.k :])


def update_position(plan: Plan, target: Position, tuple_position: Position) -> Position:
    """Return the position of the update of an element of data, which is that of a gather's copy."""
    return copy_position(plan, target, tuple_position)


class Positions:
    """Elements of an array as the region to read; implements the protocol Touched."""

    def __init__(self, shape: Shape, positions: list[Position]) -> None:
        self._shape, self._positions = shape, positions

    def blocks(self, step: Shape) -> Iterator[int]:
        """Yield the linear indices of the grid's blocks that hold the elements, ascending."""
        strides = layouts.contiguous_strides(grid.blocks_along(self._shape, step), 1)
        yield from sorted(
            {sum(map(mul, map(floordiv, position, step), strides)) for position in self._positions}
        )

    def ranges(self, itemsize: int, order: str) -> Iterator[tuple[int, int]]:
        """Yield the distinct byte ranges (begin, stop) of the elements, ascending."""
        strides = layouts.contiguous_strides(self._shape, itemsize, order == "F")
        offsets = {sum(map(mul, position, strides)) for position in self._positions}
        yield from ((first, first + itemsize) for first in sorted(offsets))
