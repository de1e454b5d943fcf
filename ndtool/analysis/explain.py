"""Explain elements: the sources of an element of the output, the destinations of one of data.

One pass over all indices, in blocks, validates them and compares them with the requested
positions. The kernels apply updates in order, so values are those of a run. Answers of any length
take bounded memory: they store only the linear indices of tuples, in a temporary file if they are
many, and iteration computes the items.
"""

from collections.abc import Callable, Iterator, Sequence
from math import isqrt
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import mapping, tuples, values
from ndtool.analysis.mapping import Position
from ndtool.analysis.oracle.blocks import BLOCK_BYTES, ProgressCallback, silent
from ndtool.analysis.preview import element_at, elements_at, pick
from ndtool.analysis.running import RunningValues
from ndtool.analysis.tuples import Search, Tuples
from ndtool.analysis.typed import TypeSource
from ndtool.errors import UsageError
from ndtool.rules.plans import ElementsPlan, Shape
from ndtool.rules.shapes import format_shape
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall

Array = NDArray[Any]
T = TypeVar("T")

_MAX_RESULTS = 64  # results of consecutive updates that one call computes, with 2,080 updates
_BLOCK = 1 << 12  # updates or copies whose tuples are read together


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

    role: the source of the value: data, updates or fill. position: the position in that array.
    value: a 0-d array; None if it is unknown. indices: the position of the index tuple, None for
    the current value in data of a scatter. stored: the tuple in indices, empty if there is none.
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
    """The computation of an element of the output; updates: the count of all, listed or not."""

    position: Position
    value: Array | None
    steps: Sequence[Step] | Listing[Step]
    updates: int


class Copy(NamedTuple):
    """A copy of an element of data; indices, stored: the position of its tuple, and the tuple.

    In a scatter these are None and empty.
    """

    position: Position
    indices: Position | None
    stored: Position


class Origin(NamedTuple):
    """The listed copies of an element of data; total: the count of all copies.

    element: the element of a scatter's output at the same position, None in a gather.
    """

    position: Position
    value: Array | None
    outputs: Sequence[Copy] | Listing[Copy]
    total: int
    element: Element | None


def explain(
    call: OpenCall,
    outputs: Sequence[Position],
    origins: Sequence[Position] = (),
    list_all: bool = False,
    progress: ProgressCallback = silent,
) -> tuple[list[Element], list[Origin]]:
    """Explain elements of an open call; outputs: positions in the output, origins: in data.

    list_all: whether to list all updates and copies, not only the first and last few. The call must
    be open while the answer is iterated. Raises BoundsError for any index out of bounds,
    DuplicatesError for duplicates that are an error, UsageError for an invalid position.
    """
    plan = call.inference.plan
    outputs = [_normalize("--at", position, plan.output, "the output") for position in outputs]
    origins = [_normalize("--from", position, plan.data, "data") for position in origins]
    if call.inference.requires_distinct:
        operands.validate(call)
    explainer = _Explainer(call, list_all)
    is_scatter = call.inference.scatters
    explain_elements = explainer.explain_scatter if is_scatter else explainer.explain_gather
    answer = explain_elements(outputs, origins, progress)
    call.require_unchanged()
    return answer


def _normalize(option: str, position: Position, shape: Shape, array: str) -> Position:
    """Return a validated position without negative components."""
    prefix = f"{option} {','.join(map(str, position))}"
    if len(position) != len(shape):
        raise UsageError(
            f"{prefix}: {array} has shape {format_shape(shape)}: expected one number for each of"
            f" its {len(shape)} axes"
        )
    for axis, (coordinate, size) in enumerate(zip(position, shape, strict=True)):
        if not -size <= coordinate < size:
            valid = f"valid {-size}..{size - 1}" if size else "no number is valid"
            raise UsageError(f"{prefix}: axis {axis} of {array} has size {size}: {valid}")
    return tuple(coordinate % size for coordinate, size in zip(position, shape, strict=True))


class _Explainer:
    """Explains elements of one call."""

    def __init__(self, call: OpenCall, list_all: bool) -> None:
        self.call, self.plan, self.list_all = call, call.inference.plan, list_all
        self.tuples: Tuples = tuples.load_tuples(call)

    def explain_gather(
        self, outputs: list[Position], origins: list[Position], progress: ProgressCallback
    ) -> tuple[list[Element], list[Origin]]:
        plan = self.plan
        searches = [Search(target, self.list_all) for target in origins]
        self.tuples.search(searches, self.tuples.checked(progress))
        tuple_positions = [mapping.index_tuple_position(plan, target) for target in outputs]
        normalized = [
            self.tuples.normalized(self._read_tuple(position)) or () for position in tuple_positions
        ]
        source_positions = [
            mapping.source_position(plan, *pair)
            for pair in zip(outputs, normalized, strict=True)
            if pair[1]
        ]
        data = self._elements("data", source_positions + origins)
        source_elements = zip(source_positions, data, strict=False)
        elements = []
        for position, indices, selected in zip(outputs, tuple_positions, normalized, strict=True):
            role = "data" if selected else "fill"
            origin, value = next(source_elements) if selected else self._fill_value()
            stored = self._read_tuple(indices)
            step = Step(role, origin, value, indices, stored, selected, value)
            elements.append(Element(position, value, [step], 0))
        return elements, [
            Origin(search.target, value, self._copies(search), search.count, None)
            for search, value in zip(searches, data[len(source_positions) :], strict=True)
        ]

    def _fill_value(self) -> tuple[Position, Array]:
        """Return the fill value, which has no position."""
        inference = self.call.inference
        return (), values.as_array(memoryview(inference.fill_bytes), inference.dtype, ())

    def _copies(self, search: Search) -> Listing[Copy]:
        """Return the copies of a search's element, one for each tuple that selects it."""
        target = search.target

        def iterate_copies() -> Iterator[Copy]:
            for indices in _in_blocks(search.stored):
                for position, stored, _ in self._read_tuples(target, indices):
                    yield Copy(mapping.copy_position(self.plan, target, position), position, stored)

        return Listing(len(search.stored), iterate_copies)

    def _read_tuples(
        self, target: Position, indices: Array
    ) -> Iterator[tuple[Position, Position, Position]]:
        """Yield each tuple that a search found: its position, its components, these normalized.

        indices: the linear indices of these tuples, as the search stored them.
        """
        coordinates = self.tuples.positions(target, indices)
        if isinstance(self.plan, ElementsPlan):
            index_arrays = tuple(map(np.asarray, coordinates))
            stored = pick(self.tuples.indices, index_arrays, indices.shape)[:, None]
        else:
            stored = self.tuples.rows[indices]
        valid_rows, normalized = tuples.select_valid(self.plan, stored)
        if len(valid_rows) < len(stored):
            raise operands.changed_error(self.call.inference)
        columns = (np.broadcast_to(axis, len(indices)).tolist() for axis in coordinates)
        positions = zip(*columns, strict=True) if coordinates else [()] * len(indices)
        yield from zip(
            positions, map(tuple, stored.tolist()), map(tuple, normalized.tolist()), strict=True
        )

    def explain_scatter(
        self, outputs: list[Position], origins: list[Position], progress: ProgressCallback
    ) -> tuple[list[Element], list[Origin]]:
        current = self._elements("data", outputs + origins)
        updates = self._updates()
        # The steps of elements of data are not listed.
        list_all = [self.list_all] * len(outputs) + [False] * len(origins)
        element_arguments = zip(outputs + origins, current, list_all, strict=True)
        finders = [_ElementFinder(self, *arguments, updates) for arguments in element_arguments]
        self.tuples.search([finder.search for finder in finders], self.tuples.checked(progress))
        elements = [finder.element() for finder in finders]
        data_elements = zip(elements[len(outputs) :], current[len(outputs) :], strict=True)
        return elements[: len(outputs)], [self._scatter_origin(*pair) for pair in data_elements]

    def _scatter_origin(self, element: Element, current: Array | None) -> Origin:
        """Explain an element of data in a scatter, whose only copy is at the same position."""
        attributes = self.plan.attributes
        is_replaced = element.updates and (
            attributes.reduction == "none" or attributes.copies_first_update
        )
        outputs = [] if is_replaced else [Copy(element.position, None, ())]
        return Origin(element.position, current, outputs, len(outputs), element)

    def steps(
        self,
        target: Position,
        indices: Array,
        values: Sequence[Array | None],
        results: Sequence[Array | None],
    ) -> Iterator[Step]:
        """Yield the steps of updates, with the value of each and the result after it."""
        index_tuples = self._read_tuples(target, indices)
        for (position, stored, normalized), value, result in zip(
            index_tuples, values, results, strict=True
        ):
            update_position = mapping.update_position(self.plan, target, position)
            yield Step("updates", update_position, value, position, stored, normalized, result)

    def _read_tuple(self, position: Position) -> Position:
        """Return the index tuple at a position; raise OutputError if it is now out of bounds."""
        index_tuple = tuple(np.atleast_1d(element_at(self.tuples.indices, position)).tolist())
        sizes, attributes = self.plan.sizes, self.plan.attributes
        is_strict = attributes.out_of_bounds == "error"
        lowest, pad = -1 if attributes.negatives else 0, attributes.pad
        pairs = zip(index_tuple, sizes, strict=True)
        if is_strict and not all(i == pad or lowest * size <= i < size for i, size in pairs):
            raise operands.changed_error(self.call.inference)
        return index_tuple

    def _elements(self, role: str, positions: list[Position]) -> Sequence[Array | None]:
        """Return elements of an input as 0-d arrays; None if the input is a type."""
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


class _ElementFinder:
    """An element of a scatter's output, and the updates applied to it."""

    def __init__(
        self,
        explainer: _Explainer,
        target: Position,
        current: Array | None,
        list_all: bool,
        updates: Array | None,
    ) -> None:
        self.search = Search(target, list_all, self._apply_unlisted)
        self._explainer, self._list_all, self._updates = explainer, list_all, updates
        self._steps: list[Step] = []
        self._current = current
        # Unknown updates make all values of the explanation unknown.
        self._initial = None if updates is None else current
        self._running = self._initial_value()

    def element(self) -> Element:
        """Return the explanation of the element, once the search is complete."""
        search = self.search
        if not search.count:
            return Element(search.target, self._current, [self._first_step(self._current)], 0)
        if self._list_all:
            self._apply_all(search.stored)
            steps = Listing(1 + search.count, self._all_steps)
            return Element(search.target, self._result(), steps, search.count)
        self._list_steps(search.stored[len(self._steps) :])
        listed = [self._first_step(self._initial), *self._steps]
        return Element(search.target, self._result(), listed, search.count)

    def _initial_value(self) -> RunningValues | None:
        """Return the current value in data, None if it is unknown."""
        if self._initial is None or self._updates is None:
            return None
        return RunningValues(self._initial.reshape(1), self._explainer.plan.attributes)

    def _result(self) -> Array | None:
        """Return the element after all updates that were applied."""
        return None if self._running is None else self._running.values()[0, ...]

    def _first_step(self, current: Array | None) -> Step:
        return Step("data", self.search.target, current, None, (), (), current)

    def _apply_unlisted(self, indices: Array) -> None:
        """Apply updates that the explanation does not list."""
        self._list_steps(np.array(self.search.first[len(self._steps) :], np.int64))
        self._apply_all(indices)

    def _apply_all(self, indices: Array) -> None:
        """Apply updates to the element in order, as a run does."""
        if self._running is None or self._initial is None:
            return
        size = max(1, BLOCK_BYTES // self._initial.itemsize)
        for block in _in_blocks(indices, size):
            self._running.apply(np.zeros(len(block), np.int64), self._updates_at(block))

    def _list_steps(self, indices: Array) -> None:
        for step, running in self._update_steps(indices, self._running):
            self._steps.append(step)
            self._running = running

    def _all_steps(self) -> Iterator[Step]:
        """Yield a step for the current value and for every update, in order."""
        yield self._first_step(self._initial)
        for step, _ in self._update_steps(self.search.stored, self._initial_value()):
            yield step

    def _update_steps(
        self, indices: Array, running: RunningValues | None
    ) -> Iterator[tuple[Step, RunningValues | None]]:
        """Yield each update's step, and the element's value after it.

        running: the value before the first update, None if it is unknown.
        """
        itemsize = self._explainer.call.inference.dtype.itemsize
        for block in _in_blocks(
            indices, min(_MAX_RESULTS, isqrt(2 * BLOCK_BYTES // itemsize) or 1)
        ):
            values: Sequence[Array | None] = [None] * len(block)
            results, running_after = values, [running] * len(block)
            if running is not None:
                updates = self._updates_at(block)
                results_after = self._intermediate_values(running, updates)
                values, results = (
                    [elements[n, ...] for n in range(len(block))]
                    for elements in (updates, results_after.values())
                )
                running_after = [results_after.element(n) for n in range(len(block))]
            steps = self._explainer.steps(self.search.target, block, values, results)
            yield from zip(steps, running_after, strict=True)
            running = running_after[-1]

    def _intermediate_values(self, running: RunningValues, updates: Array) -> RunningValues:
        """Return copies of the element: updates 0..n are applied to copy n."""
        update, result = np.triu_indices(len(updates))
        intermediate = running.repeat(len(updates))
        intermediate.apply(result, values.as_void(updates)[update].view(updates.dtype))
        return intermediate

    def _updates_at(self, indices: Array) -> Array:
        """Return the updates of the element by the linear indices of their tuples."""
        assert self._updates is not None
        coordinates = mapping.update_position(
            self._explainer.plan,
            self.search.target,
            self._explainer.tuples.positions(self.search.target, indices),
        )
        picked = pick(
            values.as_void(self._updates), tuple(map(np.asarray, coordinates)), (len(indices),)
        )
        return picked.view(self._updates.dtype)


def _in_blocks(indices: Array, size: int = _BLOCK) -> Iterator[Array]:
    """Yield an array in slices of `size` elements."""
    for first in range(0, len(indices), size):
        yield indices[first : first + size]
