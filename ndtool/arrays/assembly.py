"""Arrays of several blocks put together, and taken apart: in a room, where NumPy moves them."""

from collections.abc import Callable, Iterator
from itertools import count, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ndtool.arrays import grid, spill
from ndtool.arrays.local import Stretch, Tick
from ndtool.engine import crew, layouts
from ndtool.rules.shapes import Shape

GAP = 1 << 16  # bytes between stretches that get disk space as if they were one


class Cut(NamedTuple):
    """An array cut into blocks; step: the shape of one."""

    shape: Shape
    step: Shape
    itemsize: int

    @property
    def blocks(self) -> int:
        """How many there are."""
        return grid.blocks(self.shape, self.step)

    def box(self, number: int) -> grid.Box:
        """Return where a block stands."""
        return grid.box(self.shape, self.step, number)


def assembled(
    cut: Cut,
    block: Callable[[int], memoryview],
    touched: Callable[[Shape], Iterator[int]] | None,
    label: str,
    threads: int,
    tick: Tick | None,
    directory: str | None,
) -> Stretch:
    """Return an array's blocks in row-major order, each read once by its number.

    touched: which of them are to be read, of a grid; the others are holes in a file without a
    name, or zeros. label: what an error calls the room for all of them. tick: told which share of
    them is there. directory: of that file.
    """
    total, numbers, used = cut.blocks, iter(range(cut.blocks)), None
    if touched is not None:
        total = sum(1 for _ in touched(cut.step))
        numbers = touched(cut.step)
        if 2 * total < cut.blocks:
            used = _extents(cut, touched(cut.step))
    room = spill.room(prod(cut.shape) * cut.itemsize, label, used, directory)
    whole = as_array(room, cut.shape, cut.itemsize)

    def put(number: int) -> None:
        place = cut.box(number)
        sizes = tuple(stop - first for first, stop in place)
        whole[window(place)] = as_array(block(number), sizes, cut.itemsize)

    crew.share(_counted(put, total, tick), numbers, min(threads, total))
    return Stretch(room.toreadonly())


def take_apart(
    room: memoryview,
    cut: Cut,
    write: Callable[[int, memoryview, int], object],
    threads: int,
    tick: Tick | None,
) -> None:
    """Call write(0, bytes, number) with every block of an array in row-major order."""
    whole = as_array(room, cut.shape, cut.itemsize)

    def put(number: int) -> None:
        block: Any = np.ascontiguousarray(whole[window(cut.box(number))])
        write(0, memoryview(block.reshape(-1).view("u1")), number)

    crew.share(_counted(put, cut.blocks, tick), iter(range(cut.blocks)), min(threads, cut.blocks))


def _counted(
    work: Callable[[int], object], total: int, tick: Tick | None
) -> Callable[[int], object]:
    """Return what does a piece of work and tells which share is done."""
    if tick is None:
        return work
    done = count(1)
    tick(0.0)

    def counted(number: int) -> None:
        work(number)
        tick(next(done) / total)

    return counted


def as_array(buffer: memoryview, shape: Shape, itemsize: int) -> Any:
    """Return elements in row-major order, whatever their type, for NumPy to move."""
    return np.ndarray(shape, f"V{itemsize}", buffer)


def window(place: grid.Box) -> tuple[Any, ...]:
    """Return what selects a block."""
    return (*(slice(*ends) for ends in place), ...)


def _extents(cut: Cut, numbers: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Yield stretches of an array that blocks are within, those with small gaps in one."""
    steps = layouts.contiguous(cut.shape, cut.itemsize)
    first = stop = 0
    for number in numbers:
        place = cut.box(number)
        axis, length = len(place), cut.itemsize
        while axis and (steps[axis - 1] - length <= GAP or _is_one(place[axis - 1])):
            axis -= 1
            length += (place[axis][1] - place[axis][0] - 1) * steps[axis]
        inner = sum(at * step for (at, _), step in zip(place[axis:], steps[axis:], strict=True))
        for outer in product(*(range(*ends) for ends in place[:axis])):
            at = inner + sum(i * step for i, step in zip(outer, steps, strict=False))
            if not first <= at <= stop:
                if stop > first:
                    yield first, stop
                first = stop = at
            stop = max(stop, at + length)
    if stop > first:
        yield first, stop


def _is_one(ends: tuple[int, int]) -> bool:
    return ends[1] - ends[0] == 1
