"""The index tuples of a call, in row-major order, some at a time."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import _kernels
from ndtool.analysis import places, values
from ndtool.analysis.places import Position
from ndtool.analysis.reference import Tick, in_order
from ndtool.engine import bind, check, layouts
from ndtool.errors import BoundsError
from ndtool.rules import inference
from ndtool.rules.shapes import ElementsPlan, NdPlan, Plan, Shape
from ndtool.runs.direct import Operands
from ndtool.runs.jobs import Job
from ndtool.runs.within import within

Array = NDArray[Any]
Numbers = NDArray[np.int64]

BLOCK = 1 << 17  # index components that are looked at together: what stays in a core's cache


FEW = 5  # of many tuples that name a place, as many are told at both ends


class Hunt:
    """The numbers of the tuples that name a place: the first few, the last few, and how many.

    between: is given those that are not kept.
    """

    def __init__(
        self, place: Position, every: bool, between: Callable[[Array], None] = lambda _: None
    ) -> None:
        self.place, self.count = place, 0
        self.first: list[int] = []
        self.last = np.empty(0, np.int64)
        self._every, self._between = every, between

    def meet(self, numbers: Array) -> None:
        """Take the numbers of tuples that come after all that were met."""
        self.count += len(numbers)
        room = len(numbers) if self._every else FEW - len(self.first)
        self.first += numbers[:room].tolist()
        self.last = np.concatenate([self.last, numbers[room:]])
        if len(self.last) > FEW:
            self._between(self.last[:-FEW])
            self.last = self.last[-FEW:]

    @property
    def told(self) -> list[int]:
        return self.first + self.last.tolist()


class Tuples(NamedTuple):
    """indices: the array. rows: the same as a row for each tuple."""

    operands: Operands
    indices: Array
    rows: Array

    def blocks(self, tick: Tick) -> Iterator[tuple[int, Array]]:
        """Yield the number of a tuple, and it and those after it as rows."""
        for first, block in blocks(self.plan, self.indices):
            yield first, block
            tick((first + len(block)) / len(self.rows))

    def checked(self, tick: Tick) -> Iterator[tuple[int, Array]]:
        """Yield the same; BoundsError, as a run's, at the first block that is out of bounds.

        Unless there is another rule for that.
        """
        operands, found = self.operands, self.operands.inference
        addressing, _, k = bind.bind_check(found.plan, operands.negatives)
        bound = operands.bound
        strict = self.rule == "error" or check.lacks_places(found.plan, self.rule)
        for first, block in self.blocks(tick):
            if k and strict and _kernels.check(addressing, bound, first, len(block), 1):
                error = check.refusal(found.plan, bound, operands.negatives)
                if isinstance(error, BoundsError):
                    inference.point_out(error, found.inputs)
                raise error
            yield first, block

    @property
    def rule(self) -> str:
        """What becomes of indices out of bounds."""
        return self.operands.inference.attributes.out_of_bounds

    @property
    def plan(self) -> Plan:
        """What the call comes to."""
        return self.operands.inference.plan

    def taken(self, index: Position) -> Position | None:
        """Return a tuple as it is taken, counted from the front; None if it names nothing."""
        block = np.array([index], self.indices.dtype)  # int64 does not hold all that uint64 does
        _, rows = settled(self.plan, block, self.rule)
        return tuple(rows[0].tolist()) if len(rows) else None

    def search(self, hunts: Sequence[Hunt], blocks: Iterator[tuple[int, Array]]) -> None:
        """Go through all blocks, and let every hunt meet the tuples that name its place."""
        plan = self.plan
        for first, block in blocks:
            if isinstance(plan, NdPlan):
                for hunt in hunts:
                    self._look(hunt, first, block)
        if isinstance(plan, ElementsPlan):
            for hunt in hunts:
                for first, block in self._line(plan, hunt.place):
                    self._look(hunt, first, block)

    def _look(self, hunt: Hunt, first: int, block: Array) -> None:
        """Let a hunt meet those of a block; of a batch that is not its own, none is looked at."""
        plan, skipped = self.plan, 0
        if isinstance(plan, NdPlan) and plan.batch and not plan.repeated:
            batch = int(np.ravel_multi_index(hunt.place[: len(plan.batch)], plan.batch))
            begin, end = (max(0, n * plan.per_batch - first) for n in (batch, batch + 1))
            skipped, block = begin, block[begin:end]
        named, sizes = places.named(plan, hunt.place), places.sizes(plan)
        if self.rule in ("clip", "wrap"):
            _, block = settled(plan, block, self.rule)  # which leaves none out
        hunt.meet(first + skipped + found(block, named, sizes, self.operands.negatives))

    def _line(self, plan: ElementsPlan, place: Position) -> Iterator[tuple[int, Array]]:
        """Yield blocks of the indices that can name a place: those of its line along the axis."""
        a = plan.axis
        off = (*place[:a], 0, *place[a + 1 :])
        if any(i >= size for i, size in zip(off, plan.indices, strict=True)):
            return
        along: Any = (*place[:a], slice(None), *place[a + 1 :])
        line = self.indices[along]
        for first in range(0, len(line), BLOCK):
            yield first, line[first : first + BLOCK, None]

    def position(self, place: Position, number: int) -> Position:
        """Return where in indices a tuple stands that a hunt met."""
        coordinates = self.positions(place, np.array([number]))
        return tuple(int(i if np.ndim(i) == 0 else i[0]) for i in coordinates)

    def positions(self, place: Position, numbers: Array) -> tuple[Any, ...]:
        """Return coordinates in indices of tuples that a hunt met, as index arrays."""
        plan = self.plan
        if isinstance(plan, ElementsPlan):
            return (*place[: plan.axis], numbers, *place[plan.axis + 1 :])
        return np.unravel_index(numbers, plan.positions) if plan.positions else ()


def blocks(plan: Plan, indices: Array) -> Iterator[tuple[int, Array]]:
    """Yield the number of an index tuple, and it and those after it as rows of an array."""
    count, k = prod(plan.positions), len(places.sizes(plan))
    step = max(1, BLOCK // max(k, 1))
    ordered = in_order(indices)
    for first in range(0, count, step):
        stop = min(first + step, count)
        yield first, ordered[first * k : stop * k].reshape(stop - first, k)


def settled(plan: Plan, block: Array, rule: str) -> tuple[Numbers, Array]:
    """Return which tuples of a block name a run, and them, counted from the front.

    rule: what becomes of indices out of bounds.
    """
    sizes = np.array(places.sizes(plan), np.int64)
    named = np.empty(block.shape, np.int64)
    for j, size in enumerate(places.sizes(plan)):
        named[:, j] = within(block[:, j], size, rule)
    (kept,) = np.nonzero(((named >= 0) & (named < sizes)).all(axis=1))
    return kept, named[kept]


def runs(plan: Plan, first: int, block: Array, kept: Array | None = None) -> Numbers:
    """Return the numbers, in row-major order, of the runs that tuples name, all within bounds.

    first: the number of the first tuple. kept: where they are among those from there on.
    """
    numbers = np.arange(first, first + len(block)) if kept is None else first + kept
    named = list[Array]()
    for column, size in zip(block.T, places.sizes(plan), strict=True):
        wide = column.astype(np.int64)
        if column.dtype.kind == "i":
            wide += (wide >> 63) & np.int64(size)
        named.append(wide)
    if isinstance(plan, ElementsPlan):
        at = list(np.unravel_index(numbers, plan.indices))
        at[plan.axis] = named[0]
    elif plan.batch and not plan.repeated:
        at = [*np.unravel_index(numbers // plan.per_batch, plan.batch), *named]
    else:
        at = named
    result = np.zeros(len(block), np.int64)
    for along, step in zip(at, layouts.contiguous(places.runs(plan), 1), strict=True):
        result += along * step
    return result


def of(job: Job) -> Tuples:
    """Return the index tuples of a call whose inputs are open; no value was looked at."""
    operands = Operands(job.inference, job.sources, {}, memoryview(b""), job.threads)
    _, dtype, shape = job.inference.inputs["indices"]
    operands = operands._replace(indices=operands.put_right("indices", dtype.order, False))
    _, count, k = bind.bind_check(job.inference.plan, operands.negatives)
    indices = values.as_array(operands.indices, dtype, shape)
    return Tuples(operands, indices, indices.reshape(count, k))


def found(block: Array, wanted: Shape, sizes: Shape, negatives: bool) -> Array:
    """Return which rows of a block name a place; negatives: whether one may count from the end."""
    numbers = np.arange(len(block)) if not wanted else None
    for column, place, size in zip(block.T, wanted, sizes, strict=True):
        left = column if numbers is None else column[numbers]
        hits = left == place
        if negatives and block.dtype.kind == "i":
            hits |= left == place - size
        (some,) = np.nonzero(hits)
        numbers = some if numbers is None else numbers[some]
    assert numbers is not None
    return numbers
