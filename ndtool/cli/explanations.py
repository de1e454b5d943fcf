"""Explanations of elements as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, zip_longest
from typing import Any, NamedTuple

from ndtool.analysis import values
from ndtool.analysis.explain import Copy, Element, Listing, Origin, Step
from ndtool.analysis.records import has_plain_indices
from ndtool.analysis.tuples import EDGE_TUPLES
from ndtool.analysis.typed import TypeSource
from ndtool.cli.wrapping import terminal_columns, wrap_lines
from ndtool.errors import argument_name, format_count
from ndtool.rules.modes import MODES
from ndtool.runs.calls import OpenCall

Rows = Sequence[tuple[str, ...]] | Listing[tuple[str, ...]]

_FIRST_LINE_CELLS = 3  # cells on the first line of a row that is too wide for one line


class ElementNames:
    """The names of elements in explanations: of files by file name, of other inputs by role."""

    def __init__(self, call: OpenCall) -> None:
        self._call = call

    @property
    def has_integer_indices(self) -> bool:
        """Whether an index is one integer, not a tuple."""
        return has_plain_indices(self._call.inference.plan)

    def name_of(self, role: str, position: tuple[int, ...]) -> str:
        """Return the name of an element: `table.npy[3, 0]`."""
        coordinates = f"[{', '.join(map(str, position))}]" if position else ""
        return self._name(role) + coordinates

    def index_text(
        self, position: tuple[int, ...], index: tuple[int, ...], remark: str = ""
    ) -> str:
        """Return an index tuple as text, followed by a remark: `rows.npy[7] = (-876)`."""
        return f"{self.name_of('indices', position)} = {self.tuple_text(index)}{remark}"

    def tuple_text(self, index: tuple[int, ...]) -> str:
        """Return a tuple as text; a single integer has no parentheses."""
        return str(index[0]) if self.has_integer_indices else f"({', '.join(map(str, index))})"

    def bounds_remark(self, step: Step) -> str:
        """Return the remark on a tuple that is padding or out of bounds, else ""."""
        sizes = self._call.inference.plan.sizes
        attributes = self._call.inference.plan.attributes
        if attributes.pad is not None and attributes.pad in step.stored:
            return ", padding"
        minimum = -1 if attributes.negatives else 0
        if all(minimum * size <= i < size for i, size in zip(step.stored, sizes, strict=True)):
            return ""
        mode = MODES[attributes.out_of_bounds]
        if not mode.redirects:
            return ", out of bounds"
        return f", out of bounds, {mode.participle} to {self.tuple_text(step.normalized)}"

    def _name(self, role: str) -> str:
        source = self._call.sources.get(role)
        if source is None or isinstance(source, TypeSource) or source.name.startswith("["):
            return role
        return argument_name(source.name)


class Explanation(NamedTuple):
    """An explanation: a title and rows. omission: a remark on omitted rows, before `remark_row`."""

    title: str
    rows: Rows
    remark_row: int = 0
    omission: str = ""


def explanation_lines(
    call: OpenCall, elements: list[Element], origins: list[Origin]
) -> Iterator[str]:
    """Yield explanations as lines of text."""
    for i, explanation in enumerate(explain_elements(call, elements, origins)):
        yield "\n" * bool(i)
        yield from _format_explanation(explanation)


def explain_elements(
    call: OpenCall, elements: list[Element], origins: list[Origin]
) -> list[Explanation]:
    """Return an explanation for each element of the output, then of data."""
    names = ElementNames(call)
    explanations = [_explain_element(call, names, element) for element in elements]
    return explanations + [_explain_origin(call, names, origin) for origin in origins]


def _format_explanation(explanation: Explanation) -> Iterator[str]:
    yield wrap_lines([explanation.title], 1)
    for i, row in enumerate(_row_lines(explanation.rows)):
        if explanation.omission and i == explanation.remark_row:
            yield wrap_lines([f"  ... {explanation.omission}"], 1)
        yield wrap_lines(row.splitlines(), 1)


def _explain_element(call: OpenCall, names: ElementNames, element: Element) -> Explanation:
    title = names.name_of("output", element.position) + _value_suffix(element.value)
    if not call.inference.scatters:
        return Explanation(title, _gather_rows(names, next(iter(element.steps))))
    signs = call.inference.plan.attributes.operator_signs

    def row(i: int, step: Step) -> tuple[str, ...]:
        name, value = names.name_of(step.role, step.position), _format_element(step.value)
        if step.indices is None:
            return "current", name, value, "", ""
        index = names.index_text(step.indices, step.stored, names.bounds_remark(step))
        return f"{signs[i > 1]} update", name, value, index, _format_element(step.result)

    omitted_updates = element.updates - len(element.steps) + 1
    omission = f"{omitted_updates} more updates: --all lists them" if omitted_updates else ""
    return Explanation(
        title,
        Listing(len(element.steps), lambda: map(row, count(), element.steps)),
        1 + EDGE_TUPLES,
        omission,
    )


def _gather_rows(names: ElementNames, step: Step) -> list[tuple[str, ...]]:
    assert step.indices is not None
    remark = names.bounds_remark(step)
    if not remark and step.normalized != step.stored:
        remark = f", which is {names.tuple_text(step.normalized)}"
    index = "index", names.index_text(step.indices, step.stored, remark)
    return [index, ("data", names.name_of("data", step.position))] if step.normalized else [index]


def _explain_origin(call: OpenCall, names: ElementNames, origin: Origin) -> Explanation:
    title = names.name_of("data", origin.position) + _value_suffix(origin.value)
    if origin.element is not None:
        return Explanation(f"{title} {_scatter_text(call, names, origin, origin.element)}", [])
    count = format_count(origin.total, "element") if origin.total else "no element"

    def row(copy: Copy) -> tuple[str, ...]:
        return names.name_of("output", copy.position), names.index_text(
            copy.indices or (), copy.stored
        )

    rows = Listing(len(origin.outputs), lambda: map(row, origin.outputs))
    omitted_rows = origin.total - len(rows)
    omission = f"{omitted_rows} more: --all lists them" if omitted_rows else ""
    return Explanation(f"{title} was copied to {count} of the output", rows, EDGE_TUPLES, omission)


def _scatter_text(call: OpenCall, names: ElementNames, origin: Origin, element: Element) -> str:
    """Describe the effect of a scatter on an element of data."""
    updates = format_count(element.updates, "update")
    if not origin.total and call.inference.plan.attributes.copies_first_update:
        _, step, *_ = element.steps
        return f"was replaced by {names.name_of('updates', step.position)}, the first of {updates}"
    if not origin.total:
        *_, step = element.steps
        update_name = names.name_of("updates", step.position)
        return f"was overwritten by {update_name}, the last of {updates}"
    suffix = f" and got {updates}" if element.updates else " unchanged"
    return f"was copied to {names.name_of('output', origin.position)}{suffix}"


def _value_suffix(value: Any) -> str:
    return "" if value is None else f" = {_format_element(value)}"


def _format_element(value: Any) -> str:
    return "" if value is None else values.short_text(value)


def _row_lines(rows: Rows) -> Iterator[str]:
    """Yield a line per row, or two lines if the widest row exceeds the terminal."""
    widths: list[int] = []
    for row in rows:
        widths = [max(pair) for pair in zip_longest(widths, map(len, row), fillvalue=0)]
    while widths and not widths[-1]:
        widths.pop()
    is_one_line = sum(widths) + 2 * len(widths) <= terminal_columns(1)
    first_line_cells = len(widths) if is_one_line else _FIRST_LINE_CELLS
    for row in rows:
        first_cells, second_line = (
            row[:first_line_cells],
            "  ".join(row[first_line_cells:]).rstrip(),
        )
        line = "  ".join(map(str.ljust, first_cells, widths)).rstrip()
        yield f"  {line}" + (f"\n    {second_line}" if second_line else "")
