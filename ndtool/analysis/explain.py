"""Explain elements: where one of an output comes from, and where one of data goes to.

One pass over all indices, in blocks, validates them and compares them with the positions of
interest. The kernels apply the updates in order, so values are those of a run. Answers of any
length take bounded memory: of long ones only the linear indices of tuples are stored, in a
temporary file if they are many, and iteration computes the items from them.
"""

from collections.abc import Callable, Iterator, Sequence
from math import isqrt
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import mapping, tuples, values
from ndtool.analysis.mapping import Position, Positions
from ndtool.analysis.oracle.blocks import BLOCK_BYTES, ProgressCallback, silent
from ndtool.analysis.preview import element_at, pick
from ndtool.analysis.running import RunningValues
from ndtool.analysis.tuples import Search, Tuples
from ndtool.analysis.typed import TypeSource
from ndtool.arrays import source
from ndtool.arrays.source import Source
from ndtool.engine.counting import ReductionOptions
from ndtool.errors import UsageError
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import ElementsPlan, Shape
from ndtool.rules.shapes import format_shape
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall

Array = NDArray[Any]
T = TypeVar("T")

_TOGETHER = 64  # updates whose results one call computes, by 2,080 applications
_BLOCK = 1 << 12  # updates or copies to look up at a time


class Listing(Generic[T]):
    """A list of any length that computes its items at each iteration."""

    def __init__(self, length: int, items: Callable[[], Iterator[T]]) -> None:
        self._length, self._items = length, items

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return self._items()


class Step(NamedTuple):
    """A step in which an element of the output gets a value.

    role: the array the value comes from, data, updates or fill. position: the position there.
    value: a 0-d array; None if a value is unknown. indices: the position of the index tuple, None
    for the current value in data of a scatter. stored: the tuple, empty if there is none.
    normalized: the tuple without negative components. result: the element after the step.
    """

    role: str
    position: Position
    value: Array | None
    indices: Position | None
    stored: Position
    normalized: Position
    result: Array | None


class Element(NamedTuple):
    """How an element of the output is computed; updates: their number, listed in steps or not."""

    position: Position
    value: Array | None
    steps: Sequence[Step] | Listing[Step]
    updates: int


class Copy(NamedTuple):
    """A copy of an element of data. indices: the tuple's position, None in a scatter."""

    position: Position
    indices: Position | None
    stored: Position


class Origin(NamedTuple):
    """The copies of an element of data that are listed, and the number of all, `total`.

    element: the element of a scatter's output at the same position, None in a gather.
    """

    position: Position
    value: Array | None
    outputs: Sequence[Copy] | Listing[Copy]
    total: int
    element: Element | None


def explain(
    call: OpenCall,
    at: Sequence[Position],
    origins: Sequence[Position] = (),
    list_all: bool = False,
    progress: ProgressCallback = silent,
) -> tuple[list[Element], list[Origin]]:
    """Explain elements of the output (`at`) and of data (`origins`) of an open call.

    list_all: whether to list all updates and copies, not only the first and last few. The call must
    be open while the answer is iterated. Raises BoundsError for any index out of bounds,
    DuplicatesError for duplicates that are an error, UsageError for an invalid position.
    """
    plan = call.inference.plan
    at = [_position("--at", position, plan.output, "the output") for position in at]
    origins = [_position("--from", position, plan.data, "data") for position in origins]
    if call.inference.requires_distinct:
        operands.validate(call)
    requested = _Call(call, list_all)
    answer = requested.scattered if call.inference.scatters else requested.gathered
    explained = answer(at, origins, progress)
    call.recheck()
    return explained


def _position(option: str, position: Position, shape: Shape, array: str) -> Position:
    """Return a validated position without negative components."""
    prefix = f"{option} {','.join(map(str, position))}"
    if len(position) != len(shape):
        raise UsageError(
            f"{prefix}: {array} has shape {format_shape(shape)}: expected one number for each of"
            f" its {len(shape)} axes"
        )
    for axis, (number, size) in enumerate(zip(position, shape, strict=True)):
        if not -size <= number < size:
            valid = f"valid {-size}..{size - 1}" if size else "no number is valid"
            raise UsageError(f"{prefix}: axis {axis} of {array} has size {size}: {valid}")
    return tuple(number % size for number, size in zip(position, shape, strict=True))


class _Call:
    """A call of which elements are explained."""

    def __init__(self, call: OpenCall, list_all: bool) -> None:
        self.call, self.plan, self.list_all = call, call.inference.plan, list_all
        self.tuples: Tuples = tuples.of(call)

    def gathered(
        self, at: list[Position], origins: list[Position], progress: ProgressCallback
    ) -> tuple[list[Element], list[Origin]]:
        plan = self.plan
        searches = [Search(target, self.list_all) for target in origins]
        self.tuples.search(searches, self.tuples.checked(progress))
        tuples_at = [mapping.tuple_of(plan, target) for target in at]
        normalized = [self.tuples.normalized(self._index(position)) or () for position in tuples_at]
        sources_at = [
            mapping.source_of(plan, *pair) for pair in zip(at, normalized, strict=True) if pair[1]
        ]
        data = self._elements("data", sources_at + origins)
        read = zip(sources_at, data, strict=False)
        elements = []
        for target, tuple_at, index in zip(at, tuples_at, normalized, strict=True):
            role, (origin, value) = ("data", next(read)) if index else ("fill", self._filling())
            step = Step(role, origin, value, tuple_at, self._index(tuple_at), index, value)
            elements.append(Element(target, value, [step], 0))
        return elements, [
            Origin(search.target, value, self._copies(search), search.count, None)
            for search, value in zip(searches, data[len(sources_at) :], strict=True)
        ]

    def _filling(self) -> tuple[Position, Array]:
        """Return the fill value, which has no position."""
        inference = self.call.inference
        return (), values.as_array(memoryview(inference.fill_bytes), inference.dtype, ())

    def _copies(self, search: Search) -> Listing[Copy]:
        """Return the copies that the tuples found by a search make of its element."""
        target = search.target

        def copies() -> Iterator[Copy]:
            for numbers in _blocks(search.stored):
                for position, stored, _ in self._selecting(target, numbers):
                    yield Copy(mapping.copied_to(self.plan, target, position), position, stored)

        return Listing(len(search.stored), copies)

    def _selecting(
        self, target: Position, numbers: Array
    ) -> Iterator[tuple[Position, Position, Position]]:
        """Yield the positions of tuples that a search found, each as stored and as used."""
        call, at = self.tuples, self.tuples.positions(target, numbers)
        if isinstance(self.plan, ElementsPlan):
            stored = pick(call.indices, tuple(map(np.asarray, at)), numbers.shape)[:, None]
        else:
            stored = call.rows[numbers]
        selecting, normalized = tuples.selecting(self.plan, stored, call.handling)
        if len(selecting) < len(stored):
            raise operands.changed_error(self.call.inference)
        columns = (np.broadcast_to(along, len(numbers)).tolist() for along in at)
        positions = zip(*columns, strict=True) if at else [()] * len(numbers)
        yield from zip(
            positions, map(tuple, stored.tolist()), map(tuple, normalized.tolist()), strict=True
        )

    def scattered(
        self, at: list[Position], origins: list[Position], progress: ProgressCallback
    ) -> tuple[list[Element], list[Origin]]:
        current = self._elements("data", at + origins)
        updates = self._updates()
        list_all = [self.list_all] * len(at) + [False] * len(origins)  # origins list no steps
        requested = zip(at + origins, current, list_all, strict=True)
        finders = [_ElementFinder(self, *arguments, updates) for arguments in requested]
        self.tuples.search([finder.search for finder in finders], self.tuples.checked(progress))
        elements = [finder.element() for finder in finders]
        stayed = zip(elements[len(at) :], current[len(at) :], strict=True)
        return elements[: len(at)], [self._scattered_origin(*pair) for pair in stayed]

    def _scattered_origin(self, element: Element, current: Array | None) -> Origin:
        """Explain an element of data in a scatter: its only copy is at the same position."""
        reduction_options = ReductionOptions.from_attributes(self.call.inference.attributes)
        replaced = element.updates and (
            reduction_options.reduction == "none" or reduction_options.copies_first_update
        )
        outputs = [] if replaced else [Copy(element.position, None, ())]
        return Origin(element.position, current, outputs, len(outputs), element)

    def steps(
        self,
        target: Position,
        numbers: Array,
        values: Sequence[Array | None],
        results: Sequence[Array | None],
    ) -> Iterator[Step]:
        """Yield the steps of updates, with the value of each and the result after it."""
        updated = self._selecting(target, numbers)
        for (position, stored, normalized), value, result in zip(
            updated, values, results, strict=True
        ):
            at = mapping.update_for(self.plan, target, position)
            yield Step("updates", at, value, position, stored, normalized, result)

    def _index(self, position: Position) -> Position:
        """Return an index tuple as stored; OutputError if it changed to one out of bounds."""
        index = tuple(np.atleast_1d(element_at(self.tuples.indices, position)).tolist())
        sizes, strict = mapping.indexed_sizes(self.plan), self.tuples.mode == "error"
        lowest, pad = -1 if self.tuples.negatives else 0, self.tuples.handling.pad
        pairs = zip(index, sizes, strict=True)
        if strict and not all(i == pad or lowest * n <= i < n for i, n in pairs):
            raise operands.changed_error(self.call.inference)
        return index

    def _elements(self, role: str, positions: list[Position]) -> Sequence[Array | None]:
        """Return elements of an input, None for those of a type."""
        origin = self.call.sources[role]
        if isinstance(origin, TypeSource):
            return [None] * len(positions)
        return elements_at(origin, self.call.inference.inputs[role].dtype, positions)

    def _updates(self) -> Array | None:
        if isinstance(self.call.sources["updates"], TypeSource):
            return None
        loaded = operands.load(self.call, "updates")
        _, dtype, shape = loaded.info
        return values.as_array(loaded.byte_range.buffer, dtype, shape, loaded.fortran)


def elements_at(origin: Source, dtype: Dtype, positions: list[Position]) -> list[Array]:
    """Return copies of elements as 0-d arrays, reading only these if the format allows it."""
    if not positions:
        return []
    metadata = origin.metadata
    buffer = source.load_array(origin, Positions(metadata.shape, positions)).buffer
    array = values.as_array(buffer, dtype, metadata.shape, metadata.order == "F")
    return [element_at(values.as_void(array), at).copy().view(array.dtype) for at in positions]


class _ElementFinder:
    """An element of a scatter's output, and the updates applied to it."""

    def __init__(
        self,
        call: _Call,
        target: Position,
        current: Array | None,
        list_all: bool,
        updates: Array | None,
    ) -> None:
        self.search = Search(target, list_all, self._apply_between)
        self._call, self._list_all, self._updates = call, list_all, updates
        self._steps: list[Step] = []
        self._read_current = current
        # Unknown updates make the result unknown, and with it the whole answer.
        self._known_current = None if updates is None else current
        self._running = self._start()

    def element(self) -> Element:
        """Return the explanation of the element, after the search."""
        search = self.search
        if not search.count:
            return Element(search.target, self._read_current, [self._first(self._read_current)], 0)
        if self._list_all:
            self._apply_all(search.stored)
            steps = Listing(1 + search.count, self._all_steps)
            return Element(search.target, self._result(), steps, search.count)
        self._list_steps(search.stored[len(self._steps) :])
        listed = [self._first(self._known_current), *self._steps]
        return Element(search.target, self._result(), listed, search.count)

    def _start(self) -> RunningValues | None:
        """Return the current value in data, None if it is unknown."""
        if self._known_current is None or self._updates is None:
            return None
        return RunningValues(
            self._known_current.reshape(1),
            ReductionOptions.from_attributes(self._call.call.inference.attributes),
        )

    def _result(self) -> Array | None:
        """Return the element after all updates that were applied."""
        return None if self._running is None else self._running.values()[0, ...]

    def _first(self, current: Array | None) -> Step:
        return Step("data", self.search.target, current, None, (), (), current)

    def _apply_between(self, numbers: Array) -> None:
        """Apply updates that the answer does not list."""
        self._list_steps(np.array(self.search.first[len(self._steps) :], np.int64))
        self._apply_all(numbers)

    def _apply_all(self, numbers: Array) -> None:
        """Apply updates to the element in order, as a run does."""
        if self._running is None or self._known_current is None:
            return
        step = max(1, BLOCK_BYTES // self._known_current.itemsize)
        for block in _blocks(numbers, step):
            self._running.apply(np.zeros(len(block), np.int64), self._updates_at(block))

    def _list_steps(self, numbers: Array) -> None:
        for step, running in self._update_steps(numbers, self._running):
            self._steps.append(step)
            self._running = running

    def _all_steps(self) -> Iterator[Step]:
        """Yield a step for the current value and for every update, in order."""
        yield self._first(self._known_current)
        for step, _ in self._update_steps(self.search.stored, self._start()):
            yield step

    def _update_steps(
        self, numbers: Array, running: RunningValues | None
    ) -> Iterator[tuple[Step, RunningValues | None]]:
        """Yield the steps of updates, and the element after each, starting from `running`."""
        itemsize = self._call.call.inference.dtype.itemsize
        for block in _blocks(numbers, min(_TOGETHER, isqrt(2 * BLOCK_BYTES // itemsize) or 1)):
            values: Sequence[Array | None] = [None] * len(block)
            results, after = values, [running] * len(block)
            if running is not None:
                updates = self._updates_at(block)
                updated = self._after_each(running, updates)
                values, results = (
                    [elements[n, ...] for n in range(len(block))]
                    for elements in (updates, updated.values())
                )
                after = [updated.element(n) for n in range(len(block))]
            steps = self._call.steps(self.search.target, block, values, results)
            yield from zip(steps, after, strict=True)
            running = after[-1]

    def _after_each(self, running: RunningValues, updates: Array) -> RunningValues:
        """Return the element after each update: copy n has updates 0..n applied."""
        update, result = np.triu_indices(len(updates))
        after_each = running.repeated(len(updates))
        after_each.apply(result, values.as_void(updates)[update].view(updates.dtype))
        return after_each

    def _updates_at(self, numbers: Array) -> Array:
        """Return the updates of the element by the linear indices of their tuples."""
        assert self._updates is not None
        at = mapping.update_for(
            self._call.plan,
            self.search.target,
            self._call.tuples.positions(self.search.target, numbers),
        )
        picked = pick(values.as_void(self._updates), tuple(map(np.asarray, at)), (len(numbers),))
        return picked.view(self._updates.dtype)


def _blocks(numbers: Array, step: int = _BLOCK) -> Iterator[Array]:
    """Yield an array in slices of `step` elements."""
    for first in range(0, len(numbers), step):
        yield numbers[first : first + step]
