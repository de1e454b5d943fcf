"""Where an element of an output comes from, and where an element of data goes to.

All indices are gone through once, in blocks: each is checked, and compared with what is wanted.
Updates meet the old element through the kernels, in their order, so the values are a run's.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import ops
from ndtool.analysis import places, tuples, values
from ndtool.analysis.places import Few, Position
from ndtool.analysis.preview import pick
from ndtool.analysis.reference import PIECE, Tick, silent
from ndtool.analysis.tuples import Hunt, Tuples
from ndtool.analysis.typed import Typed
from ndtool.arrays import source
from ndtool.errors import UsageError
from ndtool.rules.shapes import Shape, written
from ndtool.runs.jobs import Job

Array = NDArray[Any]


class Step(NamedTuple):
    """An element that one of the output is made of.

    role: data or updates, or fill where a tuple names nothing; position: there. value: an array
    without axes, None where a type stands for the array. indices: the position of the tuple that
    named it, None for the old element of a scatter. named: the tuple as written, empty without one.
    taken: as it was taken, counted from the front. result: what the output is then.
    """

    role: str
    position: Position
    value: Array | None
    indices: Position | None
    named: Position
    taken: Position
    result: Array | None


class Element(NamedTuple):
    """How an element of the output comes about; updates: how many met it, told or not."""

    at: Position
    value: Array | None
    steps: list[Step]
    updates: int


class Copy(NamedTuple):
    """Where an element of data went to; indices: of the tuple that named it, None in a scatter."""

    at: Position
    indices: Position | None
    named: Position


class Origin(NamedTuple):
    """Where an element of data went to: of `total` places those that are told.

    element: what came of it in a scatter, whose output has a place for it.
    """

    position: Position
    value: Array | None
    outputs: list[Copy]
    total: int
    element: Element | None


def explain(
    job: Job,
    at: Sequence[Position],
    origins: Sequence[Position] = (),
    every: bool = False,
    tick: Tick = silent,
) -> tuple[list[Element], list[Origin]]:
    """Explain elements of the output, and elements of data, of a call whose inputs are open.

    every: tell all updates and outputs instead of the first and last few. Raises BoundsError
    for any index out of bounds, UsageError for a position that is none.
    """
    plan = job.inference.plan
    at = [_position("--at", one, plan.output, "the output") for one in at]
    origins = [_position("--from", one, plan.data, "data") for one in origins]
    call = _Call(job, every)
    answer = call.scattered if "updates" in job.sources else call.gathered
    explained = answer(at, origins, tick)
    job.recheck()
    return explained


def _position(option: str, given: Position, shape: Shape, what: str) -> Position:
    """Return a position counted from the front."""
    said = f"{option} {','.join(map(str, given))}"
    if len(given) != len(shape):
        raise UsageError(
            f"{said}: {what} has shape {written(shape)}: expected one number for each of its"
            f" {len(shape)} axes"
        )
    for axis, (number, size) in enumerate(zip(given, shape, strict=True)):
        if not -size <= number < size:
            valid = f"valid {-size}..{size - 1}" if size else "no number is valid"
            raise UsageError(f"{said}: axis {axis} of {what} has size {size}: {valid}")
    return tuple(number % size for number, size in zip(given, shape, strict=True))


class _Call:
    """A call whose indices are gone through for what is asked."""

    def __init__(self, job: Job, every: bool) -> None:
        self.job, self.plan, self.every = job, job.inference.plan, every
        self.tuples: Tuples = tuples.of(job)

    def gathered(
        self, at: list[Position], origins: list[Position], tick: Tick
    ) -> tuple[list[Element], list[Origin]]:
        plan = self.plan
        hunts = [Hunt(place, self.every) for place in origins]
        self.tuples.search(hunts, self.tuples.checked(tick))
        where = [places.tuple_of(plan, place) for place in at]
        taken = [self.tuples.taken(self._index(one)) or () for one in where]
        came = [places.source_of(plan, *one) for one in zip(at, taken, strict=True) if one[1]]
        data = self._elements("data", came + origins)
        found = zip(came, data, strict=False)
        elements = []
        for place, named, front in zip(at, where, taken, strict=True):
            role, (origin, value) = ("data", next(found)) if front else ("fill", self._filling())
            step = Step(role, origin, value, named, self._index(named), front, value)
            elements.append(Element(place, value, [step], 0))
        return elements, [
            Origin(hunt.place, value, [self._copy(hunt, n) for n in hunt.told], hunt.count, None)
            for hunt, value in zip(hunts, data[len(came) :], strict=True)
        ]

    def _filling(self) -> tuple[Position, Array]:
        """Return what stands where a tuple names nothing, which has no position."""
        inference = self.job.inference
        return (), values.as_array(memoryview(inference.filling), inference.dtype, ())

    def _copy(self, hunt: Hunt, number: int) -> Copy:
        where = self.tuples.position(hunt.place, number)
        return Copy(places.copied_to(self.plan, hunt.place, where), where, self._index(where))

    def scattered(
        self, at: list[Position], origins: list[Position], tick: Tick
    ) -> tuple[list[Element], list[Origin]]:
        old = self._elements("data", at + origins)
        updates = self._updates()
        trails = [_Trail(self, *one, updates) for one in zip(at + origins, old, strict=True)]
        self.tuples.search([trail.hunt for trail in trails], self.tuples.checked(tick))
        elements = [trail.element() for trail in trails]
        return elements[: len(at)], [self._stayed(one) for one in elements[len(at) :]]

    def _stayed(self, element: Element) -> Origin:
        """Say where data's element of a scatter went: to its place, unless an update took that."""
        gone = element.updates and self.job.inference.attributes.reduction == "none"
        outputs = [] if gone else [Copy(element.at, None, ())]
        return Origin(element.at, element.steps[0].value, outputs, len(outputs), element)

    def step(self, place: Position, number: int, value: Array | None, result: Array | None) -> Step:
        """Return the step of an update."""
        where = self.tuples.position(place, number)
        at = places.update_for(self.plan, place, where)
        index = self._index(where)
        taken = self.tuples.taken(index) or ()
        return Step("updates", at, value, where, index, taken, result)

    def _index(self, where: Position) -> Position:
        """Return an index tuple as it is written; OutputError if it is out of bounds by now."""
        index = tuple(np.atleast_1d(_at(self.tuples.indices, where)).tolist())
        sizes, strict = places.sizes(self.plan), self.tuples.rule == "error"
        if strict and not all(-n <= i < n for i, n in zip(index, sizes, strict=True)):
            raise self.tuples.operands.changed()
        return index

    def _elements(self, role: str, positions: list[Position]) -> Sequence[Array | None]:
        """Return elements of an input, of which nothing else is read where that can be."""
        origin, (_, dtype, shape) = self.job.sources[role], self.job.inference.inputs[role]
        if isinstance(origin, Typed) or not positions:
            return [None] * len(positions)
        stretch = source.whole(origin, Few(shape, positions))
        array = values.as_array(stretch.buffer, dtype, shape, origin.facts.order == "F")
        return [_at(_opaque(array), at).copy().view(array.dtype) for at in positions]

    def _updates(self) -> Array | None:
        if isinstance(self.job.sources["updates"], Typed):
            return None
        operands, (_, dtype, shape) = self.tuples.operands, self.job.inference.inputs["updates"]
        stretch = operands.stretch("updates")
        return values.as_array(stretch.buffer, dtype, shape, operands.is_fortran("updates"))


class _Trail:
    """An element of a scatter's output, and the updates that it meets on its way."""

    def __init__(
        self, call: _Call, place: Position, old: Array | None, updates: Array | None
    ) -> None:
        self.hunt = Hunt(place, call.every, self._go_on)
        self._call, self._updates, self._result = call, updates, old
        self._steps = [Step("data", place, old, None, (), (), old)]

    def element(self) -> Element:
        """Return how the element came about, when all updates were met."""
        hunt = self.hunt
        self._tell(hunt.first[len(self._steps) - 1 :])
        self._tell(hunt.last.tolist())
        return Element(hunt.place, self._result, self._steps, hunt.count)

    def _go_on(self, numbers: Array) -> None:
        """Meet updates that are not told."""
        self._tell(self.hunt.first[len(self._steps) - 1 :])
        step = max(1, PIECE // self._call.job.inference.dtype.itemsize)
        for first in range(0, len(numbers), step):
            self._meet(self._taken(numbers[first : first + step]))

    def _tell(self, numbers: list[int]) -> None:
        for number in numbers:
            taken = self._taken(np.array([number]))
            self._meet(taken)
            value = None if taken is None else taken[0, ...]
            self._steps.append(self._call.step(self.hunt.place, number, value, self._result))

    def _taken(self, numbers: Array) -> Array | None:
        """Return what tuples bring to the element."""
        if self._updates is None:
            return None
        at = places.update_for(
            self._call.plan, self.hunt.place, self._call.tuples.positions(self.hunt.place, numbers)
        )
        picked = pick(_opaque(self._updates), tuple(map(np.asarray, at)), (len(numbers),))
        return picked.view(self._updates.dtype)

    def _meet(self, taken: Array | None) -> None:
        """Let updates meet the element one after the other, as a run does."""
        if taken is None or self._result is None:
            return
        reduction = self._call.job.inference.attributes.reduction
        there = np.zeros((len(taken), 1), np.int64)
        result = ops.scatter_nd(self._result.reshape(1), there, taken, reduction, threads=1)
        self._result = result[0, ...]


def _at(array: Array, position: Position) -> Array:
    """Return an element as an array without axes."""
    whole: Any = (*position, ...)
    return np.asarray(array[whole])


def _opaque(array: Array) -> Array:
    """Return the array as bytes: copies of records leave what stands between fields behind."""
    return array.view(np.dtype((np.void, array.dtype.itemsize)))
