"""Which element is named by what: positions in data, indices, updates and output. Pure."""

from collections.abc import Iterator
from operator import floordiv, mul

from ndtool.arrays import grid
from ndtool.engine import layouts
from ndtool.rules.shapes import ElementsPlan, Plan, Shape

Position = tuple[int, ...]


def tuple_of(plan: Plan, at: Position) -> Position:
    """Return the position in indices of what names an element of a gather's output."""
    if isinstance(plan, ElementsPlan):
        return at
    if plan.repeated:
        return at[len(plan.batch) :][: len(plan.indices)]
    return at[: len(plan.positions)]


def source_of(plan: Plan, at: Position, index: Position) -> Position:
    """Return where in data an element of a gather's output comes from."""
    front = tuple(i % size for i, size in zip(index, sizes(plan), strict=True))
    if isinstance(plan, ElementsPlan):
        return (*at[: plan.axis], *front, *at[plan.axis + 1 :])
    b, q = len(plan.batch), len(plan.positions)
    return (*at[:b], *front, *at[b + q if plan.repeated else q :])


def sizes(plan: Plan) -> Shape:
    """Return the length of the axis of data that each component of a tuple is about."""
    return (plan.data[plan.axis],) if isinstance(plan, ElementsPlan) else plan.sizes


def runs(plan: Plan) -> Shape:
    """Return the shape of all runs that tuples can name; elements operators name elements."""
    if isinstance(plan, ElementsPlan):
        return plan.data
    return plan.sizes if plan.repeated else plan.batch + plan.sizes


def named(plan: Plan, place: Position) -> Position:
    """Return the tuple, counted from the front, that names an element of data."""
    if isinstance(plan, ElementsPlan):
        return (place[plan.axis],)
    return place[len(plan.batch) :][: plan.k]


def copied_to(plan: Plan, place: Position, where: Position) -> Position:
    """Return where in a gather's output the tuple at `where` copies an element of data to."""
    if isinstance(plan, ElementsPlan):
        return where
    b = len(plan.batch)
    if plan.repeated:
        return (*place[:b], *where, *place[b + 1 :])
    return (*where, *place[b + plan.k :])


def update_for(plan: Plan, place: Position, where: Position) -> Position:
    """Return the position of the update that the tuple at `where` brings to an element of data."""
    return where if isinstance(plan, ElementsPlan) else (*where, *place[plan.k :])


class Few:
    """What is read of an array of which only a few elements are wanted: see Touched."""

    def __init__(self, shape: Shape, positions: list[Position]) -> None:
        self._shape, self._positions = shape, positions

    def blocks(self, step: Shape) -> Iterator[int]:
        """Yield the numbers of the blocks of a grid that hold the elements, ascending."""
        strides = layouts.contiguous(grid.blocks_along(self._shape, step), 1)
        yield from sorted(
            {sum(map(mul, map(floordiv, at, step), strides)) for at in self._positions}
        )

    def ranges(self, itemsize: int, order: str) -> Iterator[tuple[int, int]]:
        """Yield where the bytes of the elements begin and stop, ascending, none twice."""
        strides = layouts.contiguous(self._shape, itemsize, order == "F")
        firsts = {sum(map(mul, at, strides)) for at in self._positions}
        yield from ((first, first + itemsize) for first in sorted(firsts))
