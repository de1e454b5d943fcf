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
    if plan.has_scalar_indices:
        b, groups = len(plan.batch), len(plan.index_batch)
        return (*position[:groups], *position[b : b + len(plan.indices) - groups])
    return position[: len(plan.positions)]


def source_position(plan: Plan, position: Position, index: Position) -> Position:
    """Return the position in data of an element of a gather's output."""
    normalized = tuple(i % size for i, size in zip(index, plan.sizes, strict=True))
    if isinstance(plan, ElementsPlan):
        return (*position[: plan.axis], *normalized, *position[plan.axis + 1 :])
    b, q = len(plan.batch), len(plan.positions)
    return (*position[:b], *normalized, *position[b + q - len(plan.index_batch) :])


def index_tuple_of(plan: Plan, target: Position) -> Position:
    """Return the index tuple, without negative components, that selects an element of data."""
    return target[plan.axis_of(0) :][: plan.k]


def copy_position(plan: Plan, target: Position, tuple_position: Position) -> Position:
    """Return the position in a gather's output of the copy that a tuple makes of an element."""
    if isinstance(plan, ElementsPlan):
        return tuple_position
    b = len(plan.batch)
    return (*target[:b], *tuple_position[len(plan.index_batch) :], *target[b + plan.k :])


def update_position(plan: Plan, target: Position, tuple_position: Position) -> Position:
    """Return the position of the update of an element of data, which is that of a gather's copy."""
    return copy_position(plan, target, tuple_position)


class Positions:
    """Elements of an array as the region to read; implements the protocol Touched."""

    def __init__(self, shape: Shape, positions: list[Position]) -> None:
        self._shape, self._positions = shape, positions

    def blocks(self, block_shape: Shape) -> Iterator[int]:
        """Yield the linear indices of the grid's blocks that hold the elements, ascending."""
        strides = layouts.contiguous_strides(grid.grid_shape(self._shape, block_shape), 1)
        yield from sorted(
            {
                sum(map(mul, map(floordiv, position, block_shape), strides))
                for position in self._positions
            }
        )

    def ranges(self, itemsize: int, order: str) -> Iterator[tuple[int, int]]:
        """Yield the distinct byte ranges (begin, stop) of the elements, ascending."""
        strides = layouts.contiguous_strides(self._shape, itemsize, order == "F")
        offsets = {sum(map(mul, position, strides)) for position in self._positions}
        yield from ((first, first + itemsize) for first in sorted(offsets))
