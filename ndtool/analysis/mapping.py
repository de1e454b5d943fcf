"""Positions of linked elements in data, indices, updates and output; pure functions."""

from collections.abc import Iterator
from operator import floordiv, mul

from ndtool.engine import layouts
from ndtool.rules import grid
from ndtool.rules.plans import ElementsPlan, Plan, Shape

Position = tuple[int, ...]


def tuple_of(plan: Plan, at: Position) -> Position:
    """Return the position of the index tuple that selects an element of a gather's output."""
    if isinstance(plan, ElementsPlan):
        return at
    if plan.plain:
        b, groups = len(plan.batch), len(plan.groups)
        return (*at[:groups], *at[b : b + len(plan.indices) - groups])
    return at[: len(plan.positions)]


def source_of(plan: Plan, at: Position, index: Position) -> Position:
    """Return the position in data of an element of a gather's output."""
    normalized = tuple(i % size for i, size in zip(index, indexed_sizes(plan), strict=True))
    if isinstance(plan, ElementsPlan):
        return (*at[: plan.axis], *normalized, *at[plan.axis + 1 :])
    b, q = len(plan.batch), len(plan.positions)
    return (*at[:b], *normalized, *at[b + q - len(plan.groups) :])


def indexed_sizes(plan: Plan) -> Shape:
    """Return the sizes of the axes of data that the components of a tuple index."""
    return (plan.data[plan.axis],) if isinstance(plan, ElementsPlan) else plan.sizes


def slice_grid(plan: Plan) -> Shape:
    """Return the shape of all slices that tuples can select; for elements operators, data's."""
    if isinstance(plan, ElementsPlan):
        return plan.data
    return plan.groups + plan.sizes


def index_tuple_of(plan: Plan, target: Position) -> Position:
    """Return the index tuple, without negative components, that selects an element of data."""
    if isinstance(plan, ElementsPlan):
        return (target[plan.axis],)
    return target[len(plan.batch) :][: plan.k]


def copied_to(plan: Plan, target: Position, tuple_at: Position) -> Position:
    """Return the position in a gather's output of the copy that a tuple makes of an element."""
    if isinstance(plan, ElementsPlan):
        return tuple_at
    b = len(plan.batch)
    return (*target[:b], *tuple_at[len(plan.groups) :], *target[b + plan.k :])


def update_for(plan: Plan, target: Position, tuple_at: Position) -> Position:
    """Return the position of the update of an element of data: where a gather would copy it to."""
    return copied_to(plan, target, tuple_at)


class Positions:
    """A few elements of an array as the region to read; implements the protocol Touched."""

    def __init__(self, shape: Shape, positions: list[Position]) -> None:
        self._shape, self._positions = shape, positions

    def blocks(self, step: Shape) -> Iterator[int]:
        """Yield the linear indices of the grid's blocks that hold the elements, ascending."""
        strides = layouts.contiguous_strides(grid.blocks_along(self._shape, step), 1)
        yield from sorted(
            {sum(map(mul, map(floordiv, at, step), strides)) for at in self._positions}
        )

    def ranges(self, itemsize: int, order: str) -> Iterator[tuple[int, int]]:
        """Yield the distinct byte ranges (begin, stop) of the elements, ascending."""
        strides = layouts.contiguous_strides(self._shape, itemsize, order == "F")
        firsts = {sum(map(mul, at, strides)) for at in self._positions}
        yield from ((first, first + itemsize) for first in sorted(firsts))
