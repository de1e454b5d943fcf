"""Explain elements: the sources of an element of the output, the destinations of one of data.

One pass over all indices, in blocks, validates them and compares them with the requested
positions. The kernels apply updates in order, so values are those of a run. Lists have the first
and the last items, so that answers take bounded time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import tuples, values
from ndtool.analysis.answers import HIDDEN, Answer, Scalar, Value
from ndtool.analysis.names import ElementNames
from ndtool.analysis.oracle.blocks import BLOCK_BYTES, ProgressCallback, silent
from ndtool.analysis.preview import element_at, elements_at, pick
from ndtool.analysis.running import RunningValues, rounding_advice
from ndtool.analysis.tuples import EDGE_TUPLES, MAX_EDGE_TUPLES, Search, Tuples
from ndtool.analysis.typed import TypeSource
from ndtool.arrays.source import load
from ndtool.errors import UsageError, format_count
from ndtool.notebook import Table
from ndtool.rules.plans import Position, Shape
from ndtool.rules.shapes import format_shape
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall

Array = NDArray[Any]
_Pair = tuple[Array | None, Array | None]
_Row = tuple[str, ...]

_MAX_RESULTS = 64  # results of consecutive updates that one call computes, with 2,080 updates
_BLOCK = 1 << 12  # updates or copies whose tuples are read together


@dataclass(frozen=True, slots=True)
class Step(Value):
    """A step in which an element of the output gets a value.

    role: data, updates or fill. position, value: those of an element of that array; the value is
    None if it is unknown. indices: the position of the index tuple, None for the current value in
    data of a scatter. tuple: the tuple in indices. result: the element of the output after the
    step. normalized: the tuple without negative components. arrays: value and result as 0-d arrays.
    """

    role: str
    position: Position
    value: Scalar
    indices: Position | None
    tuple: Position | None
    result: Scalar
    normalized: Position = field(metadata=HIDDEN)
    arrays: _Pair = field(metadata=HIDDEN, compare=False)


@dataclass(frozen=True, slots=True)
class ExplainedElement(Value):
    """The computation of an element of the output. updates: the count of all, listed or not.

    steps: with the first and the last updates of many. array: the value as a 0-d array.
    """

    at: Position
    value: Scalar
    updates: int
    steps: tuple[Step, ...]
    array: Array | None = field(metadata=HIDDEN, compare=False)

    def table(self, names: ElementNames, scatters: bool, remarks: Sequence[str]) -> Table:
        """Return the explanation as a table."""
        title = names.name_of("output", self.at) + _value_suffix(self.array)
        if not scatters:
            return Table(title, rows=_gather_rows(names, self.steps[0]))
        rows = [_update_row(names, n, step) for n, step in enumerate(self.steps)]
        if omitted := self.updates - len(self.steps) + 1:
            rows.insert(1 + (len(rows) - 1) // 2, (_omission(omitted, "more updates"),))
        return Table(title, rows=rows, notes=remarks if self.updates > 1 else ())


@dataclass(frozen=True, slots=True)
class ExplainedOrigin(Value):
    """The copies of an element of data. outputs: the first and last of `count` positions.

    updates: in a scatter, the count of updates to the element. tuples: the position of the index
    tuple of each output, and the tuple. effect: what a scatter does to the element, as text.
    """

    from_: Position
    value: Scalar
    outputs: tuple[Position, ...]
    count: int
    updates: int
    array: Array | None = field(metadata=HIDDEN, compare=False)
    tuples: tuple[tuple[Position, Position], ...] = field(metadata=HIDDEN)
    effect: str = field(metadata=HIDDEN)

    def table(self, names: ElementNames, scatters: bool, remarks: Sequence[str]) -> Table:
        """Return the explanation as a table."""
        title = names.name_of("data", self.from_) + _value_suffix(self.array)
        if scatters:
            return Table(f"{title} {self.effect}")
        count = format_count(self.count, "element") if self.count else "no element"
        rows: list[_Row] = [
            (names.name_of("output", output), names.index_text(*item))
            for output, item in zip(self.outputs, self.tuples, strict=True)
        ]
        if omitted := self.count - len(rows):
            rows.insert(len(rows) // 2, (_omission(omitted, "more"),))
        return Table(f"{title} was copied to {count} of the output", rows=rows)


def _omission(count: int, noun: str) -> str:
    return f"... {count} {noun}: --all lists up to {2 * MAX_EDGE_TUPLES}"


def _update_row(names: ElementNames, n: int, step: Step) -> _Row:
    name, (value, result) = names.name_of(step.role, step.position), map(_text, step.arrays)
    if step.indices is None:
        return "current", name, value, "", ""
    remark = names.bounds_remark(step.tuple or (), step.normalized)
    index = names.index_text(step.indices, step.tuple or (), remark)
    return f"{names.signs[n > 1]} update", name, value, index, result


def _gather_rows(names: ElementNames, step: Step) -> list[_Row]:
    stored = step.tuple or ()
    remark = names.bounds_remark(stored, step.normalized)
    if not remark and step.normalized != stored:
        remark = f", which is {names.tuple_text(step.normalized)}"
    index = "index", names.index_text(step.indices or (), stored, remark)
    return [index, ("data", names.name_of("data", step.position))] if step.normalized else [index]


def _value_suffix(value: Array | None) -> str:
    return "" if value is None else f" = {values.short_text(value)}"


@dataclass(frozen=True, slots=True)
class Explanation(Answer):
    """The explanation of elements: those of the argument `at`, then those of `from_`.

    If one element is explained, its fields (value, steps, outputs) are the explanation's, too.
    """

    operator: str
    explained: tuple[ExplainedElement | ExplainedOrigin, ...]
    scatters: bool = field(metadata=HIDDEN)
    names: ElementNames = field(metadata=HIDDEN)
    remarks: tuple[str, ...] = field(metadata=HIDDEN)

    @property
    def elements(self) -> list[ExplainedElement]:
        """The explained elements of the output."""
        return [item for item in self.explained if isinstance(item, ExplainedElement)]

    @property
    def origins(self) -> list[ExplainedOrigin]:
        """The explained elements of data."""
        return [item for item in self.explained if isinstance(item, ExplainedOrigin)]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that --json prints."""
        common = {"version": self.version, "operator": self.operator}
        items = [item.to_dict() for item in self.explained]
        return {**common, **items[0]} if len(items) == 1 else {**common, "explained": items}

    def __getattr__(self, name: str) -> Any:
        """Return a field of the explained element, if there is only one."""
        if name == "explained" or name.startswith("__"):
            raise AttributeError(name)
        if len(self.explained) == 1:
            return getattr(self.explained[0], name)
        raise AttributeError(f"{len(self.explained)} elements are explained: see .explained")

    def tables(self) -> list[Table]:
        """Return a table of steps, or of destinations, for each element."""
        return [item.table(self.names, self.scatters, self.remarks) for item in self.explained]


def explain(
    call: OpenCall,
    outputs: Sequence[Position],
    origins: Sequence[Position] = (),
    list_all: bool = False,
    progress: ProgressCallback = silent,
) -> Explanation:
    """Explain elements of an open call; outputs: positions in the output, origins: in data.

    list_all: whether to list up to 10,000 updates and copies, not only ten. Raises BoundsError for
    any index out of bounds, DuplicatesError for duplicates that are an error, UsageError for an
    invalid position.
    """
    plan = call.inference.plan
    outputs = [_normalize("--at", position, plan.output, "the output") for position in outputs]
    origins = [_normalize("--from", position, plan.data, "data") for position in origins]
    if call.inference.requires_distinct:
        operands.validate(call)
    explainer = _Explainer(call, list_all)
    is_scatter = call.inference.scatters
    explain_elements = explainer.explain_scatter if is_scatter else explainer.explain_gather
    explained = explain_elements(outputs, origins, progress)
    call.require_unchanged()
    names, remarks = ElementNames.of(call), rounding_advice(call)
    return Explanation(call.reported.operator, tuple(explained), is_scatter, names, tuple(remarks))


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
        self.call, self.plan = call, call.inference.plan
        self._edge = MAX_EDGE_TUPLES if list_all else EDGE_TUPLES
        self.tuples: Tuples = tuples.load_tuples(call)

    def explain_gather(
        self, outputs: list[Position], origins: list[Position], progress: ProgressCallback
    ) -> list[ExplainedElement | ExplainedOrigin]:
        plan = self.plan
        searches = [Search(target, self._edge) for target in origins]
        self.tuples.search(searches, self.tuples.checked(progress))
        tuple_positions = [plan.tuple_position(target) for target in outputs]
        normalized = [
            self.tuples.normalized(self._read_tuple(position)) or () for position in tuple_positions
        ]
        source_positions = [
            plan.data_position(*pair) for pair in zip(outputs, normalized, strict=True) if pair[1]
        ]
        data = self._elements("data", source_positions + origins)
        source_elements = zip(source_positions, data, strict=False)
        explained: list[ExplainedElement | ExplainedOrigin] = []
        for position, indices, selected in zip(outputs, tuple_positions, normalized, strict=True):
            role = "data" if selected else "fill"
            origin, value = next(source_elements) if selected else self._fill_value()
            stored = self._read_tuple(indices)
            base = self.plan.attributes.index_base
            written = tuple(index + base for index in stored)
            step = make_step(role, origin, value, indices, written, selected, value)
            explained.append(_explained(position, value, (step,), 0))
        origin_values = data[len(source_positions) :]
        return explained + [
            self._origin(*pair) for pair in zip(searches, origin_values, strict=True)
        ]

    def _fill_value(self) -> tuple[Position, Array]:
        """Return the fill value, which has no position."""
        inference = self.call.inference
        return (), values.as_array(memoryview(inference.fill_bytes), inference.dtype, ())

    def _origin(self, search: Search, value: Array | None) -> ExplainedOrigin:
        """Return the copies of a search's element, one for each tuple that selects it."""
        outputs, index_tuples = list[Position](), list[tuple[Position, Position]]()
        for indices in _in_blocks(search.stored):
            for position, stored, _ in self._read_tuples(search.target, indices):
                outputs.append(self.plan.output_position(search.target, position))
                index_tuples.append((position, stored))
        return ExplainedOrigin(
            search.target, _scalar(value), tuple(outputs), search.count, 0, value,
            tuple(index_tuples), "",
        )  # fmt: skip

    def _read_tuples(
        self, target: Position, indices: Array
    ) -> Iterator[tuple[Position, Position, Position]]:
        """Yield each tuple that a search found: its position, its components, these normalized.

        indices: the linear indices of these tuples, as the search stored them.
        """
        coordinates = self.tuples.positions(target, indices)
        if self.plan.is_elementwise:
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
            positions,
            map(tuple, (stored + self.plan.attributes.index_base).tolist()),
            map(tuple, normalized.tolist()),
            strict=True,
        )

    def explain_scatter(
        self, outputs: list[Position], origins: list[Position], progress: ProgressCallback
    ) -> list[ExplainedElement | ExplainedOrigin]:
        current = self._elements("data", outputs + origins)
        updates = self._updates()
        # The steps of elements of data are not listed.
        edges = [self._edge] * len(outputs) + [EDGE_TUPLES] * len(origins)
        element_arguments = zip(outputs + origins, current, edges, strict=True)
        finders = [_ElementFinder(self, *arguments, updates) for arguments in element_arguments]
        self.tuples.search([finder.search for finder in finders], self.tuples.checked(progress))
        elements = [finder.element() for finder in finders]
        data_elements = zip(elements[len(outputs) :], current[len(outputs) :], strict=True)
        explained: list[ExplainedElement | ExplainedOrigin] = [*elements[: len(outputs)]]
        return explained + [self._scatter_origin(*pair) for pair in data_elements]

    def _scatter_origin(self, element: ExplainedElement, current: Array | None) -> ExplainedOrigin:
        """Explain an element of data in a scatter, whose only copy is at the same position."""
        attributes = self.plan.attributes
        names, updates = ElementNames.of(self.call), format_count(element.updates, "update")
        outputs: tuple[Position, ...] = (element.at,)
        if element.updates and attributes.copies_first_update:
            update = names.name_of("updates", element.steps[1].position)
            outputs, effect = (), f"was replaced by {update}, the first of {updates}"
        elif element.updates and attributes.reduction == "none":
            update = names.name_of("updates", element.steps[-1].position)
            outputs, effect = (), f"was overwritten by {update}, the last of {updates}"
        else:
            suffix = f" and got {updates}" if element.updates else " unchanged"
            effect = f"was copied to {names.name_of('output', element.at)}{suffix}"
        return ExplainedOrigin(
            element.at,
            _scalar(current),
            outputs,
            len(outputs),
            element.updates,
            current,
            (),
            effect,
        )

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
            update_position = self.plan.output_position(target, position)
            yield make_step("updates", update_position, value, position, stored, normalized, result)

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
        _, dtype, shape = self.call.inference.inputs["updates"]
        is_fortran = self.call.sources["updates"].metadata.order == "F"
        return values.as_array(load(self.call, "updates").buffer, dtype, shape, is_fortran)


class _ElementFinder:
    """An element of a scatter's output, and the updates applied to it."""

    def __init__(
        self,
        explainer: _Explainer,
        target: Position,
        current: Array | None,
        edge: int,
        updates: Array | None,
    ) -> None:
        self.search = Search(target, edge, self._apply_unlisted)
        self._explainer, self._updates = explainer, updates
        self._steps: list[Step] = []
        self._current = current
        # Unknown updates make all values of the explanation unknown.
        self._initial = None if updates is None else current
        self._running = self._initial_value()

    def element(self) -> ExplainedElement:
        """Return the explanation of the element, once the search is complete."""
        search = self.search
        if not search.count:
            step = self._first_step(self._current)
            return _explained(search.target, self._current, (step,), 0)
        self._list_steps(search.stored[len(self._steps) :])
        steps = (self._first_step(self._initial), *self._steps)
        return _explained(search.target, self._result(), steps, search.count)

    def _initial_value(self) -> RunningValues | None:
        """Return the current value in data, None if it is unknown."""
        if self._initial is None or self._updates is None:
            return None
        return RunningValues(self._initial.reshape(1), self._explainer.plan.attributes)

    def _result(self) -> Array | None:
        """Return the element after all updates that were applied."""
        return None if self._running is None else self._running.values()[0, ...]

    def _first_step(self, current: Array | None) -> Step:
        return make_step("data", self.search.target, current, None, (), (), current)

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
        coordinates = self._explainer.plan.output_position(
            self.search.target, self._explainer.tuples.positions(self.search.target, indices)
        )
        picked = pick(
            values.as_void(self._updates), tuple(map(np.asarray, coordinates)), (len(indices),)
        )
        return picked.view(self._updates.dtype)


def _in_blocks(indices: Array, size: int = _BLOCK) -> Iterator[Array]:
    """Yield an array in slices of `size` elements."""
    for first in range(0, len(indices), size):
        yield indices[first : first + size]


def make_step(
    role: str,
    position: Position,
    value: Array | None,
    indices: Position | None,
    stored: Position,
    normalized: Position,
    result: Array | None,
) -> Step:
    """Return a step of elements as 0-d arrays."""
    stored_tuple = None if indices is None else stored
    return Step(
        role, position, _scalar(value), indices, stored_tuple, _scalar(result), normalized,
        (value, result),
    )  # fmt: skip


def _explained(
    position: Position, value: Array | None, steps: tuple[Step, ...], updates: int
) -> ExplainedElement:
    return ExplainedElement(position, _scalar(value), updates, steps, value)


def _scalar(value: Array | None) -> Scalar:
    return None if value is None else values.json_value(value)


def _text(value: Array | None) -> str:
    return "" if value is None else values.short_text(value)
