"""Explain elements: the sources of an element of the output, the destinations of one of data.

One pass over all indices, in blocks, validates them and compares them with the requested
positions. The kernels apply updates in order, so values are those of a run. Lists have the first
and the last items, so that answers take bounded time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import tuples, values
from ndtool.analysis.answers import HIDDEN, Answer, Scalar, Value
from ndtool.analysis.names import ElementNames
from ndtool.analysis.oracle.blocks import BLOCK_BYTES, ProgressCallback, flat_view, silent
from ndtool.analysis.preview import elements_at
from ndtool.analysis.running import RunningValues, rounding_advice
from ndtool.analysis.tuples import EDGE_TUPLES, MAX_EDGE_TUPLES, Ends, Tuples
from ndtool.analysis.typed import TypeSource
from ndtool.arrays.source import load
from ndtool.engine import layouts
from ndtool.errors import UsageError, format_count, option
from ndtool.notebook import Table
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Position, Shape
from ndtool.rules.shapes import format_shape
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall

Array = NDArray[Any]
_Pair = tuple[Array | None, Array | None]
_Row = tuple[str, ...]


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
    return f"... {count} {noun}: {option('all', True)} lists up to {2 * MAX_EDGE_TUPLES}"


def _update_row(names: ElementNames, n: int, step: Step) -> _Row:
    name, (value, result) = names.name_of(step.role, step.position), map(_text, step.arrays)
    if step.indices is None:
        return "current", name, value, "", ""
    remark = names.bounds_remark(step.tuple or (), step.normalized)
    index = names.index_text(step.indices, step.tuple or (), remark)
    return f"{names.plan.attributes.operator_signs[n > 1]} update", name, value, index, result


def _gather_rows(names: ElementNames, step: Step) -> list[_Row]:
    stored = step.tuple or ()
    remark = names.bounds_remark(stored, step.normalized)
    if not remark and (written := names.written(step.normalized)) != stored:
        remark = f", which is {names.tuple_text(written)}"
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
    outputs = [_normalize("at", position, plan.output, "the output") for position in outputs]
    origins = [_normalize("from_", position, plan.data, "data") for position in origins]
    if call.inference.requires_distinct:
        operands.validate(call)
    explainer = _Explainer(call, list_all)
    is_scatter = call.inference.scatters
    explain_elements = explainer.explain_scatter if is_scatter else explainer.explain_gather
    explained = tuple(explain_elements(outputs, origins, progress))
    call.require_unchanged()
    names, remarks = ElementNames.of(call), rounding_advice(call)
    return Explanation(call.reported.operator, explained, is_scatter, names, tuple(remarks))


def _normalize(name: str, position: Position, shape: Shape, array: str) -> Position:
    """Return a validated position without negative components."""
    prefix = f"{option(name)} {','.join(map(str, position)) or '()'}"
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
        self._tuples: Tuples = tuples.load_tuples(call)

    def explain_gather(
        self, outputs: list[Position], origins: list[Position], progress: ProgressCallback
    ) -> Iterator[ExplainedElement | ExplainedOrigin]:
        ends = [Ends(self._edge) for _ in origins]
        for n, linked in self._links(origins, progress):
            ends[n].add(linked)
        selected = [self._tuple(position) for position in outputs]
        positions = [
            self.plan.data_position(position, found.normalized)
            for position, found in zip(outputs, selected, strict=True)
            if found.normalized
        ]
        data = iter(self._data_elements(positions + origins))
        sources = iter(positions)
        fill_value = memoryview(self.call.inference.fill_bytes)
        for position, found in zip(outputs, selected, strict=True):
            origin: Position = ()
            if found.normalized:
                origin, value = next(sources), next(data)
            else:
                value = values.as_array(fill_value, self.call.inference.dtype, ())
            step = _step("data" if found.normalized else "fill", origin, value, found, value)
            yield ExplainedElement(position, _scalar(value), 0, (step,), value)
        for target, end, value in zip(origins, ends, data, strict=True):
            copies = tuple(map(self._linked_position, end.stored))
            index_tuples = tuple(
                (found.position, found.stored) for found in map(self._tuple, copies)
            )
            yield ExplainedOrigin(
                target, _scalar(value), copies, end.count, 0, value, index_tuples, ""
            )

    def explain_scatter(
        self, outputs: list[Position], origins: list[Position], progress: ProgressCallback
    ) -> Iterator[ExplainedElement | ExplainedOrigin]:
        current, updates = self._data_elements(outputs + origins), self._updates()
        edges = [self._edge] * len(outputs) + [EDGE_TUPLES] * len(origins)
        elements = [
            _UpdatedElement(value, updates, self.plan.attributes, edge)
            for value, edge in zip(current, edges, strict=True)
        ]
        for n, linked in self._links(outputs + origins, progress):
            elements[n].add(linked)
        explained = list(map(self._explain_updates, outputs + origins, elements))
        yield from explained[: len(outputs)]
        for item, value in zip(explained[len(outputs) :], current[len(outputs) :], strict=True):
            yield self._scatter_origin(item, value)

    def _links(
        self, targets: list[Position], progress: ProgressCallback
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Check all tuples; yield the number of a target, and the next elements linked to it."""
        indices = [tuples.linear_index(target, self.plan.data) for target in targets]
        checked = self._tuples.checked(progress)
        for numbers, linked in tuples.links(self.plan, checked, np.array(indices, np.int64)):
            for n in np.unique(numbers).tolist():
                yield n, linked[numbers == n]

    def _explain_updates(self, target: Position, element: _UpdatedElement) -> ExplainedElement:
        """Return the explanation of an element of a scatter's output."""
        current = element.initial
        steps = [Step("data", target, _scalar(current), None, None, _scalar(current), (),
                      (current, current))]  # fmt: skip
        for linked, (value, result) in element.listed():
            position = self._linked_position(linked)
            steps.append(_step("updates", position, value, self._tuple(position), result))
        result, count = element.result(), element.ends.count
        return ExplainedElement(target, _scalar(result), count, tuple(steps), result)

    def _scatter_origin(self, element: ExplainedElement, current: Array | None) -> ExplainedOrigin:
        """Explain an element of data in a scatter, whose only copy is at the same position."""
        attributes = self.plan.attributes
        names, updates = ElementNames.of(self.call), format_count(element.updates, "update")
        outputs: tuple[Position, ...] = ()
        if element.updates and attributes.copies_first_update:
            update = names.name_of("updates", element.steps[1].position)
            effect = f"was replaced by {update}, the first of {updates}"
        elif element.updates and attributes.reduction == "none":
            update = names.name_of("updates", element.steps[-1].position)
            effect = f"was overwritten by {update}, the last of {updates}"
        else:
            outputs = (element.at,)
            suffix = f" and got {updates}" if element.updates else " unchanged"
            effect = f"was copied to {names.name_of('output', element.at)}{suffix}"
        count, scalar = len(outputs), _scalar(current)
        return ExplainedOrigin(
            element.at, scalar, outputs, count, element.updates, current, (), effect
        )

    def _linked_position(self, index: int) -> Position:
        inputs = self.call.inference.inputs
        linked = inputs["updates"].shape if "updates" in inputs else self.plan.output
        return layouts.unravel_index(index, linked)

    def _tuple(self, linked: Position) -> _FoundTuple:
        """Return the tuple that selects an element of the output or of updates."""
        position = self.plan.tuple_position(linked)
        stored, normalized = self._tuples.at(position)
        if normalized is None and not self.plan.attributes.may_skip_tuples:
            raise operands.changed_error(self.call.inference)
        return _FoundTuple(position, stored, normalized or ())

    def _data_elements(self, positions: list[Position]) -> Sequence[Array | None]:
        """Return elements of data as 0-d arrays; None if data are a type."""
        data = self.call.sources["data"]
        if isinstance(data, TypeSource):
            return [None] * len(positions)
        return elements_at(data, self.call.inference.dtype, positions)

    def _updates(self) -> Array | None:
        if isinstance(self.call.sources["updates"], TypeSource):
            return None
        _, dtype, shape = self.call.inference.inputs["updates"]
        operand = load(self.call, "updates")
        return values.as_array(operand.buffer, dtype, shape, operand.strides)


class _FoundTuple(NamedTuple):
    """The position of an index tuple, the tuple as stored, and without negative components."""

    position: Position
    stored: Position
    normalized: Position


class _UpdatedElement:
    """An element of a scatter's output, and the updates applied to it in order.

    current: its value in data. updates: all updates, None if they are unknown. edge: how many
    updates are listed at each end.
    """

    def __init__(
        self, current: Array | None, updates: Array | None, attributes: Attributes, edge: int
    ) -> None:
        self.ends, self._current = Ends(edge), current
        self._pairs: list[_Pair] = []  # of the listed updates applied so far: value and result
        self._updates, self._running = None, None
        if current is not None and updates is not None:
            self._updates = flat_view(values.as_void(updates))
            self._dtype = updates.dtype
            self._running = RunningValues(current.reshape(1), attributes)

    @property
    def initial(self) -> Array | None:
        """The value in data; None if unknown updates make all results unknown."""
        return None if self._running is None and self.ends.count else self._current

    def add(self, indices: NDArray[np.int64]) -> None:
        """Add the linear indices of the next updates."""
        omitted = self.ends.add(indices)
        if self._running is None or not len(omitted):
            return
        self._list(self.ends.first.tolist())
        size = max(1, BLOCK_BYTES // self._dtype.itemsize)
        for first in range(0, len(omitted), size):
            self._apply(omitted[first : first + size])

    def listed(self) -> Iterator[tuple[int, _Pair]]:
        """Yield the linear index of each listed update, its value, and the result after it."""
        self._list(self.ends.stored)
        yield from zip(self.ends.stored, self._pairs, strict=True)

    def result(self) -> Array | None:
        """Return the element after all updates."""
        return self.initial if self._running is None else self._running.values()[0, ...]

    def _list(self, indices: list[int]) -> None:
        """Apply the updates that are not yet listed one by one."""
        for index in indices[len(self._pairs) :]:
            value = self._apply(np.array([index]))
            self._pairs.append((None if value is None else value[0, ...], self.result()))

    def _apply(self, indices: NDArray[np.int64]) -> Array | None:
        if self._running is None or self._updates is None:
            return None
        updates = np.asarray(self._updates[indices]).view(self._dtype)
        self._running.apply(np.zeros(len(indices), np.int64), updates)
        return updates


def _step(
    role: str, position: Position, value: Array | None, found: _FoundTuple, result: Array | None
) -> Step:
    """Return a step of elements as 0-d arrays."""
    return Step(
        role, position, _scalar(value), found.position, found.stored, _scalar(result),
        found.normalized, (value, result),
    )  # fmt: skip


def _scalar(value: Array | None) -> Scalar:
    return None if value is None else values.json_value(value)


def _text(value: Array | None) -> str:
    return "" if value is None else values.short_text(value)
