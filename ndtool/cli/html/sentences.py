"""A sentence for each element of a drawing: how it is computed, or what it is used for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from ndtool.analysis.drawing import Drawing, Link
from ndtool.analysis.mapping import Position
from ndtool.analysis.tuples import EDGE_TUPLES
from ndtool.analysis.values import short_text
from ndtool.cli.answers import Names
from ndtool.engine.counting import ReductionOptions
from ndtool.errors import format_count
from ndtool.rules.plans import ElementsPlan
from ndtool.runs.calls import OpenCall


def name_of(role: str, position: Position) -> str:
    """Return the name of an element by its array's role: `output[1, 0]`."""
    return role + (f"[{', '.join(map(str, position))}]" if position else "")


class Sentences:
    """The sentences for all elements of a drawn call."""

    def __init__(self, call: OpenCall, drawing: Drawing) -> None:
        self._names, self._drawing = Names(call), drawing
        self._scatters = call.inference.scatters
        self._reduction_options = ReductionOptions.from_attributes(call.inference.attributes)
        self._reduction = self._reduction_options.reduction
        plan = call.inference.plan
        self._axis = plan.axis if isinstance(plan, ElementsPlan) else len(plan.batch)
        self._links: dict[tuple[str, Any], list[Link]] = defaultdict(list)
        for link in drawing.links:
            for role in ("output", "data", "tuple_index", "updates"):
                self._links[role, getattr(link, role)].append(link)
        self._of_cell = {
            cell: (number, j)
            for number, drawn in enumerate(drawing.tuples)
            for j, cell in enumerate(drawn.component_positions)
        }

    def of(self, role: str, position: Position) -> str:
        """Return the sentence for an element."""
        sentence: str = getattr(self, f"_{role}")(position)
        return sentence

    def sources(self, at: Position) -> list[str]:
        """Return the steps that compute an element of the output."""
        links = self._links["output", at]
        if not self._scatters:
            return [self._from(link) for link in links]
        steps = [
            f"{sign} {self._update(link)}, {self._by(link)}{self._gives(link)}"
            for sign, link in zip(self._signs(), links[1:], strict=False)
        ]
        if (omitted := self._drawing.updates[at] - len(steps)) > 0:
            steps.insert(len(steps) // 2, f"{omitted} more")
        return [self._element("data", at), *steps]

    def _signs(self) -> Iterator[str]:
        """Yield the sign of each update of an element: the first may be copied."""
        first, later = self._reduction_options.operator_signs
        return chain([first], repeat(later))

    def _output(self, at: Position) -> str:
        links, element = self._links["output", at], self._element("output", at)
        if not self._scatters:
            return f"{element} from {self._from(links[0])}"
        current, *changes = self.sources(at)
        count = self._drawing.updates[at]
        if not changes:
            return f"{element} from {name_of('data', at)}, which no index selects"
        if self._reduction_options.duplicates == "first":
            ignored = f"; {format_count(count - 1, 'later update')} ignored" if count > 1 else ""
            first = f"{name_of('updates', links[1].updates or ())}, {self._by(links[1])}"
            return f"{element} from {first}, which overwrites {current}{ignored}"
        if self._reduction == "none":
            overwritten = f" and {format_count(count - 1, 'earlier update')}" if count > 1 else ""
            last = f"{name_of('updates', links[-1].updates or ())}, {self._by(links[-1])}"
            return f"{element} from {last}, which overwrites {current}{overwritten}"
        update_steps = changes if count > len(links) - 1 else self._shortened(changes)
        return f"{element}: {'; '.join([current, *update_steps])}"

    def _data(self, at: Position) -> str:
        links, element = self._links["data", at], self._element("data", at)
        if "output" not in self._drawing.grids:
            by = self._listed([self._tuple(link.tuple_index) for link in links])
            return self._claim(element, links, f"is selected by {by or 'no index'}")
        if not self._scatters:
            return self._claim(element, links, f"goes to {self._outputs(links)}")
        changes = self._links["output", at][1:]
        if not changes:
            return f"{element} is unchanged in {name_of('output', at)}"
        if self._reduction_options.copies_first_update:
            return f"{element} is replaced by {name_of('updates', changes[0].updates or ())}"
        if self._reduction == "none":
            return f"{element} is overwritten by {name_of('updates', changes[-1].updates or ())}"
        count = self._drawing.updates[at]
        return f"{element} gets {format_count(count, 'update')} in {name_of('output', at)}"

    def _indices(self, cell: Position) -> str:
        number, j = self._of_cell[cell]
        drawn, element = self._drawing.tuples[number], self._element("indices", cell)
        if j in drawn.out_of_bounds:
            lowest, highest = self._drawing.valid_ranges[j]
            valid = f"valid {lowest}..{highest}" if highest >= 0 else "no index is valid"
            axis, size = self._axis + j, highest + 1
            element += f" is out of bounds: axis {axis} of data has size {size}: {valid}"
            if drawn.normalized is None:
                return element
            return f"{element}; replaced by {self._names.tuple_text(drawn.normalized)}"
        if len(drawn.component_positions) > 1:
            element += f", in {self._tuple(number)}"
        elif drawn.normalized != drawn.stored and drawn.normalized is not None:
            element += f", which is {self._names.tuple_text(drawn.normalized)}"
        if drawn.normalized is None:
            return f"{element}, which selects nothing: it is out of bounds"
        links = self._links["tuple_index", number]
        if "output" not in self._drawing.grids:
            selected = self._listed([name_of("data", link.data or ()) for link in links])
            return self._claim(element, links, f"selects {selected}")
        if not self._scatters:
            return self._claim(element, links, f"is used for {self._outputs(links)}")
        applied = self._listed([name_of("updates", link.updates or ()) for link in links])
        claim = f"applies {applied or 'nothing'} to {self._outputs(links)}"
        return self._claim(element, links, claim)

    def _updates(self, at: Position) -> str:
        links, element = self._links["updates", at], self._element("updates", at)
        if not links:
            return self._claim(element, links, "is dropped: its index is out of bounds")
        (link,) = links
        by = self._by(link)
        if link.output is None:
            return f"{element} is for {name_of('data', link.data or ())}, {by}"
        suffix = self._gives(link)
        of_element = self._links["output", link.output]
        if self._reduction_options.duplicates == "first":
            suffix = (
                "" if link is of_element[1] else "; it is ignored: an earlier update was assigned"
            )
        elif self._reduction == "none" and link is not of_element[-1]:
            suffix = "; a later update overwrites it"
        return f"{element} goes to {name_of('output', link.output)}, {by}{suffix}"

    def _claim(self, element: str, links: Sequence[Link], claim: str) -> str:
        """Return a sentence; in an excerpt it is about the drawn elements only."""
        if self._drawing.is_complete:
            return f"{element} {claim}"
        return f"{element} {claim}, of the drawn elements" if links else element

    def _element(self, role: str, position: Position) -> str:
        grid = self._drawing.grids[role]
        element = name_of(role, position)
        if grid.elements is None:
            return element
        number = grid.flat_index(position)
        return element if number is None else f"{element} = {short_text(grid.elements[number])}"

    def _from(self, link: Link) -> str:
        if link.data is None:
            return f"the fill value, because {self._tuple(link.tuple_index)} is out of bounds"
        return f"{name_of('data', link.data)}, {self._by(link)}"

    def _by(self, link: Link) -> str:
        return f"selected by {self._tuple(link.tuple_index)}"

    def _tuple(self, number: int | None) -> str:
        assert number is not None
        drawn = self._drawing.tuples[number]
        text = f"{name_of('indices', drawn.position)} = {self._names.tuple_text(drawn.stored)}"
        if drawn.normalized in (None, drawn.stored):
            return text
        return f"{text}, which is {self._names.tuple_text(drawn.normalized or ())}"

    def _update(self, link: Link) -> str:
        return self._element("updates", link.updates or ())

    def _gives(self, link: Link) -> str:
        if link.result is None or self._reduction == "none":
            return ""
        return f", gives {short_text(link.result)}"

    def _outputs(self, links: Sequence[Link]) -> str:
        return self._listed([name_of("output", link.output or ()) for link in links]) or "no output"

    def _listed(self, names: list[str]) -> str:
        return ", ".join(self._shortened(names))

    def _shortened(self, texts: list[str]) -> list[str]:
        if len(texts) <= 2 * EDGE_TUPLES:
            return texts
        return [*texts[:EDGE_TUPLES], f"{len(texts) - 2 * EDGE_TUPLES} more", *texts[-EDGE_TUPLES:]]
