"""Explanations as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, zip_longest
from typing import Any, NamedTuple

from ndtool.analysis import mapping, values
from ndtool.analysis.explain import Copy, Element, Listing, Origin, Step
from ndtool.analysis.records import has_plain_indices
from ndtool.analysis.tuples import EDGE_TUPLES
from ndtool.analysis.typed import TypeSource
from ndtool.cli.folding import columns, lines
from ndtool.engine.counting import ReductionOptions
from ndtool.errors import argument_name, format_count
from ndtool.rules.modes import MODES
from ndtool.runs.calls import OpenCall

Rows = Sequence[tuple[str, ...]] | Listing[tuple[str, ...]]

_HEAD = 3  # cells of a row that stay on its first line


class Names:
    """The names of arrays in answers: files by name, types and literals by role."""

    def __init__(self, call: OpenCall) -> None:
        self._call = call

    @property
    def plain_indices(self) -> bool:
        """Whether an index is one integer, not a tuple."""
        return has_plain_indices(self._call.inference.plan)

    def name_of(self, role: str, position: tuple[int, ...]) -> str:
        """Return the name of an element: `table.npy[3, 0]`."""
        coordinates = f"[{', '.join(map(str, position))}]" if position else ""
        return self._name(role) + coordinates

    def index(self, position: tuple[int, ...], index: tuple[int, ...], more: str = "") -> str:
        """Return the text of an index tuple, with a remark: `rows.npy[7] = (-876)`."""
        return f"{self.name_of('indices', position)} = {self.tuple_text(index)}{more}"

    def tuple_text(self, index: tuple[int, ...]) -> str:
        """Return a tuple as text; a single integer has no parentheses."""
        return str(index[0]) if self.plain_indices else f"({', '.join(map(str, index))})"

    def bounds_remark(self, step: Step) -> str:
        """Return the remark on a tuple that is padding or out of bounds, "" for any other."""
        sizes = mapping.indexed_sizes(self._call.inference.plan)
        handling = self._call.inference.handling
        if handling.pad is not None and handling.pad in step.stored:
            return ", padding"
        least = -1 if handling.negatives else 0
        if all(least * size <= i < size for i, size in zip(step.stored, sizes, strict=True)):
            return ""
        mode = MODES[self._call.inference.attributes.out_of_bounds]
        to = f", {mode.done} to {self.tuple_text(step.normalized)}" if mode.redirects else ""
        return f", out of bounds{to}"

    def _name(self, role: str) -> str:
        source = self._call.sources.get(role)
        if source is None or isinstance(source, TypeSource) or source.name.startswith("["):
            return role
        return argument_name(source.name)


class AnswerText(NamedTuple):
    """An answer: a title and rows; `more` is a remark on omitted rows, before row `remark_row`."""

    title: str
    rows: Rows
    remark_row: int = 0
    more: str = ""


def explained(call: OpenCall, elements: list[Element], origins: list[Origin]) -> Iterator[str]:
    """Yield an explanation as text, by lines."""
    for number, answer_text in enumerate(answer_texts(call, elements, origins)):
        yield "\n" * bool(number)
        yield from _answer_lines(answer_text)


def answer_texts(
    call: OpenCall, elements: list[Element], origins: list[Origin]
) -> list[AnswerText]:
    """Return an explanation, one answer per element."""
    names = Names(call)
    answer_texts = [_element(call, names, element) for element in elements]
    return answer_texts + [_origin(call, names, origin) for origin in origins]


def _answer_lines(answer: AnswerText) -> Iterator[str]:
    yield lines([answer.title], 1)
    for number, row in enumerate(_row_lines(answer.rows)):
        if answer.more and number == answer.remark_row:
            yield lines([f"  ... {answer.more}"], 1)
        yield lines(row.splitlines(), 1)


def _element(call: OpenCall, names: Names, element: Element) -> AnswerText:
    title = names.name_of("output", element.position) + _value_suffix(element.value)
    if not call.inference.scatters:
        return AnswerText(title, _gathered(names, next(iter(element.steps))))
    signs = ReductionOptions.from_attributes(call.inference.attributes).operator_signs

    def row(number: int, step: Step) -> tuple[str, ...]:
        name, value = names.name_of(step.role, step.position), _shown(step.value)
        if step.indices is None:
            return "current", name, value, "", ""
        index = names.index(step.indices, step.stored, names.bounds_remark(step))
        return f"{signs[number > 1]} update", name, value, index, _shown(step.result)

    omitted = element.updates - len(element.steps) + 1
    more = f"{omitted} more updates: --all lists them" if omitted else ""
    return AnswerText(
        title,
        Listing(len(element.steps), lambda: map(row, count(), element.steps)),
        1 + EDGE_TUPLES,
        more,
    )


def _gathered(names: Names, step: Step) -> list[tuple[str, ...]]:
    assert step.indices is not None
    remark = names.bounds_remark(step)
    if not remark and step.normalized != step.stored:
        remark = f", which is {names.tuple_text(step.normalized)}"
    index = "index", names.index(step.indices, step.stored, remark)
    return [index, ("data", names.name_of("data", step.position))] if step.normalized else [index]


def _origin(call: OpenCall, names: Names, origin: Origin) -> AnswerText:
    title = names.name_of("data", origin.position) + _value_suffix(origin.value)
    if origin.element is not None:
        return AnswerText(f"{title} {_scattered(call, names, origin, origin.element)}", [])
    count = format_count(origin.total, "element") if origin.total else "no element"

    def row(copy: Copy) -> tuple[str, ...]:
        return names.name_of("output", copy.position), names.index(copy.indices or (), copy.stored)

    answer_texts = Listing(len(origin.outputs), lambda: map(row, origin.outputs))
    omitted = origin.total - len(answer_texts)
    more = f"{omitted} more: --all lists them" if omitted else ""
    return AnswerText(f"{title} went to {count} of the output", answer_texts, EDGE_TUPLES, more)


def _scattered(call: OpenCall, names: Names, origin: Origin, element: Element) -> str:
    """Describe what a scatter did to an element of data."""
    updates = format_count(element.updates, "update")
    if (
        not origin.total
        and ReductionOptions.from_attributes(call.inference.attributes).copies_first_update
    ):
        _, step, *_ = element.steps
        return f"was replaced by {names.name_of('updates', step.position)}, the first of {updates}"
    if not origin.total:
        *_, step = element.steps
        last = names.name_of("updates", step.position)
        return f"was overwritten by {last}, the last of {updates}"
    suffix = f" and got {updates}" if element.updates else " unchanged"
    return f"went to {names.name_of('output', origin.position)}{suffix}"


def _value_suffix(value: Any) -> str:
    return "" if value is None else f" = {_shown(value)}"


def _shown(value: Any) -> str:
    return "" if value is None else values.short_text(value)


def _row_lines(rows: Rows) -> Iterator[str]:
    """Yield a line per row, or two if the widest row exceeds the terminal."""
    widths: list[int] = []
    for row in rows:
        widths = [max(pair) for pair in zip_longest(widths, map(len, row), fillvalue=0)]
    while widths and not widths[-1]:
        widths.pop()
    split = len(widths) if sum(widths) + 2 * len(widths) <= columns(1) else _HEAD
    for row in rows:
        head, tail = row[:split], "  ".join(row[split:]).rstrip()
        line = "  ".join(map(str.ljust, head, widths)).rstrip()
        yield f"  {line}" + (f"\n    {tail}" if tail else "")
