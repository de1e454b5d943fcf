"""A sentence for each element of a drawing: how it is computed, or where it is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from ndtool.analysis.drawing import Drawing, Link
from ndtool.analysis.names import ElementNames
from ndtool.analysis.tuples import EDGE_TUPLES
from ndtool.analysis.values import short_text
from ndtool.errors import format_count
from ndtool.rules.plans import Position
from ndtool.runs.calls import OpenCall


def element_name(role: str, position: Position) -> str:
    """Return the name of an element by its array's role: `output[1, 0]`."""
    return role + (f"[{', '.join(map(str, position))}]" if position else "")


class Sentences:
    """The sentences for all elements of a drawn call."""

    def __init__(self, call: OpenCall, drawing: Drawing) -> None:
        self._names, self._drawing = ElementNames.of(call), drawing
        self._scatters = call.inference.scatters
        self._attributes = call.inference.plan.attributes
        self._reduction = self._attributes.reduction
        plan = call.inference.plan
        self._axis = plan.axis_of(0)
        self._links: dict[tuple[str, Any], list[Link]] = defaultdict(list)
        for link in drawing.links:
            for role in ("output", "data", "tuple_index", "updates"):
                self._links[role, getattr(link, role)].append(link)
        self._component_of_cell = {
            cell: (tuple_index, j)
            for tuple_index, drawn in enumerate(drawing.tuples)
            for j, cell in enumerate(drawn.component_positions)
        }

    def sentence(self, role: str, position: Position) -> str:
        """Return the sentence for an element."""
        sentence: str = getattr(self, f"_{role}_sentence")(position)
        return sentence

    def sources(self, position: Position) -> list[str]:
        """Return the steps that compute an element of the output."""
        links = self._links["output", position]
        if not self._scatters:
            return [self._source(link) for link in links]
        steps = [
            f"{sign} {self._named_update(link)},"
            f" {self._selected_by(link)}{self._result_suffix(link)}"
            for sign, link in zip(self._update_signs(), links[1:], strict=False)
        ]
        if (omitted := self._drawing.updates[position] - len(steps)) > 0:
            steps.insert(len(steps) // 2, f"{omitted} more")
        return [self._element_with_value("data", position), *steps]

    def _update_signs(self) -> Iterator[str]:
        """Yield the sign of each update of an element, such as +; the first may have =."""
        first, later = self._attributes.operator_signs
        return chain([first], repeat(later))

    def _output_sentence(self, position: Position) -> str:
        links, element = (
            self._links["output", position],
            self._element_with_value("output", position),
        )
        if not self._scatters:
            return f"{element} from {self._source(links[0])}"
        current, *update_steps = self.sources(position)
        count = self._drawing.updates[position]
        if not update_steps:
            return f"{element} from {element_name('data', position)}, which no index selects"
        if self._attributes.duplicates == "first":
            later_updates = (
                f"; {format_count(count - 1, 'later update')} ignored" if count > 1 else ""
            )
            first = (
                f"{element_name('updates', links[1].updates or ())}, {self._selected_by(links[1])}"
            )
            return f"{element} from {first}, which overwrites {current}{later_updates}"
        if self._reduction == "none":
            earlier_updates = (
                f" and {format_count(count - 1, 'earlier update')}" if count > 1 else ""
            )
            last = (
                f"{element_name('updates', links[-1].updates or ())},"
                f" {self._selected_by(links[-1])}"
            )
            return f"{element} from {last}, which overwrites {current}{earlier_updates}"
        update_steps = update_steps if count > len(links) - 1 else self._shorten_list(update_steps)
        return f"{element}: {'; '.join([current, *update_steps])}"

    def _data_sentence(self, position: Position) -> str:
        links, element = self._links["data", position], self._element_with_value("data", position)
        if "output" not in self._drawing.grids:
            selector = self._join_names([self._tuple_text(link.tuple_index) for link in links])
            return self._drawn_elements_sentence(
                element, links, f"is selected by {selector or 'no index'}"
            )
        if not self._scatters:
            return self._drawn_elements_sentence(
                element, links, f"goes to {self._output_names(links)}"
            )
        update_links = self._links["output", position][1:]
        if not update_links:
            return f"{element} is unchanged in {element_name('output', position)}"
        if self._attributes.copies_first_update:
            update = element_name("updates", update_links[0].updates or ())
            return f"{element} is replaced by {update}"
        if self._reduction == "none":
            update = element_name("updates", update_links[-1].updates or ())
            return f"{element} is overwritten by {update}"
        count = self._drawing.updates[position]
        return (
            f"{element} gets {format_count(count, 'update')} in {element_name('output', position)}"
        )

    def _indices_sentence(self, cell: Position) -> str:
        tuple_index, j = self._component_of_cell[cell]
        drawn, element = (
            self._drawing.tuples[tuple_index],
            self._element_with_value("indices", cell),
        )
        if j in drawn.out_of_bounds:
            lowest, highest = self._drawing.valid_ranges[j]
            valid = f"valid {lowest}..{highest}" if highest >= 0 else "no index is valid"
            axis, size = self._axis + j, highest + 1
            element += f" is out of bounds: axis {axis} of data has size {size}: {valid}"
            if drawn.normalized is None:
                return element
            return f"{element}; replaced by {self._names.tuple_text(drawn.normalized)}"
        if len(drawn.component_positions) > 1:
            element += f", in {self._tuple_text(tuple_index)}"
        elif drawn.normalized != drawn.stored and drawn.normalized is not None:
            element += f", which is {self._names.tuple_text(drawn.normalized)}"
        if drawn.normalized is None:
            return f"{element}, which selects nothing: it is out of bounds"
        links = self._links["tuple_index", tuple_index]
        if "output" not in self._drawing.grids:
            selected = self._join_names([element_name("data", link.data or ()) for link in links])
            return self._drawn_elements_sentence(element, links, f"selects {selected}")
        if not self._scatters:
            return self._drawn_elements_sentence(
                element, links, f"is used for {self._output_names(links)}"
            )
        applied = self._join_names([element_name("updates", link.updates or ()) for link in links])
        claim = f"applies {applied or 'nothing'} to {self._output_names(links)}"
        return self._drawn_elements_sentence(element, links, claim)

    def _updates_sentence(self, position: Position) -> str:
        links, element = (
            self._links["updates", position],
            self._element_with_value("updates", position),
        )
        if not links:
            return self._drawn_elements_sentence(
                element, links, "is dropped: its index is out of bounds"
            )
        (link,) = links
        selector = self._selected_by(link)
        if link.output is None:
            return f"{element} is for {element_name('data', link.data or ())}, {selector}"
        suffix = self._result_suffix(link)
        element_links = self._links["output", link.output]
        if self._attributes.duplicates == "first":
            suffix = (
                ""
                if link is element_links[1]
                else "; it is ignored: an earlier update was assigned"
            )
        elif self._reduction == "none" and link is not element_links[-1]:
            suffix = "; a later update overwrites it"
        return f"{element} goes to {element_name('output', link.output)}, {selector}{suffix}"

    def _drawn_elements_sentence(self, element: str, links: Sequence[Link], claim: str) -> str:
        """Return a sentence, which in an excerpt is limited to the drawn elements."""
        if self._drawing.is_complete:
            return f"{element} {claim}"
        return f"{element} {claim}, of the drawn elements" if links else element

    def _element_with_value(self, role: str, position: Position) -> str:
        grid = self._drawing.grids[role]
        element = element_name(role, position)
        if grid.elements is None:
            return element
        index = grid.flat_index(position)
        return element if index is None else f"{element} = {short_text(grid.elements[index])}"

    def _source(self, link: Link) -> str:
        if link.data is None:
            return f"the fill value, because {self._tuple_text(link.tuple_index)} is out of bounds"
        return f"{element_name('data', link.data)}, {self._selected_by(link)}"

    def _selected_by(self, link: Link) -> str:
        return f"selected by {self._tuple_text(link.tuple_index)}"

    def _tuple_text(self, tuple_index: int | None) -> str:
        assert tuple_index is not None
        drawn = self._drawing.tuples[tuple_index]
        text = f"{element_name('indices', drawn.position)} = {self._names.tuple_text(drawn.stored)}"
        if drawn.normalized in (None, drawn.stored):
            return text
        return f"{text}, which is {self._names.tuple_text(drawn.normalized or ())}"

    def _named_update(self, link: Link) -> str:
        return self._element_with_value("updates", link.updates or ())

    def _result_suffix(self, link: Link) -> str:
        if link.result is None or self._reduction == "none":
            return ""
        return f", gives {short_text(link.result)}"

    def _output_names(self, links: Sequence[Link]) -> str:
        return (
            self._join_names([element_name("output", link.output or ()) for link in links])
            or "no output"
        )

    def _join_names(self, names: list[str]) -> str:
        return ", ".join(self._shorten_list(names))

    def _shorten_list(self, texts: list[str]) -> list[str]:
        if len(texts) <= 2 * EDGE_TUPLES:
            return texts
        return [*texts[:EDGE_TUPLES], f"{len(texts) - 2 * EDGE_TUPLES} more", *texts[-EDGE_TUPLES:]]
