"""What is said of each element of a drawing: where it comes from, or where it goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ndtool.analysis import values
from ndtool.analysis.drawing import Drawing, Link
from ndtool.analysis.places import Position
from ndtool.analysis.tuples import FEW
from ndtool.cli.answers import MARKS, Names
from ndtool.engine import layouts
from ndtool.errors import printable
from ndtool.rules.shapes import ElementsPlan, Shape

if TYPE_CHECKING:
    from ndtool.runs.jobs import Job


def place(role: str, position: Position) -> str:
    """Return an element of an array by its role: `output[1, 0]`."""
    return role + (f"[{', '.join(map(str, position))}]" if position else "")


def value(one: Any) -> str:
    """Return an element as people read it."""
    return printable(values.element(one), 80)


def number_of(position: Position, shape: Shape) -> int:
    """Return where a position is in row-major order."""
    return sum(i * step for i, step in zip(position, layouts.contiguous(shape, 1), strict=True))


class Sentences:
    """A sentence for every element of the arrays of a call that is drawn."""

    def __init__(self, job: Job, drawing: Drawing) -> None:
        self._names, self._drawing = Names(job), drawing
        self._scatters = "updates" in job.sources
        self._reduction = job.inference.attributes.reduction
        plan = job.inference.plan
        self._axis = plan.axis if isinstance(plan, ElementsPlan) else len(plan.batch)
        self._links: dict[tuple[str, Any], list[Link]] = defaultdict(list)
        for link in drawing.links:
            for role in ("output", "data", "number", "updates"):
                self._links[role, getattr(link, role)].append(link)
        self._of_cell = {
            cell: (number, j)
            for number, one in enumerate(drawing.tuples)
            for j, cell in enumerate(one.cells)
        }

    def of(self, role: str, position: Position) -> str:
        """Return what is said of an element."""
        sentence: str = getattr(self, f"_{role}")(position)
        return sentence

    def sources(self, at: Position) -> list[str]:
        """Return what an element of the output is made of, step by step."""
        links = self._links["output", at]
        if not self._scatters:
            return [self._from(link) for link in links]
        old = self._element("data", at)
        mark = MARKS[self._reduction]
        return [old] + [
            f"{mark} {self._update(link)}, {self._by(link)}{self._gives(link)}"
            for link in links[1:]
        ]

    def _output(self, at: Position) -> str:
        links, this = self._links["output", at], self._element("output", at)
        if not self._scatters:
            return f"{this} from {self._from(links[0])}"
        old, *met = self._shortened(self.sources(at))
        if not met:
            return f"{this} from {place('data', at)}, which no index names"
        if self._reduction == "none":
            before = f" and {_count(len(links) - 2, 'earlier update')}" if len(links) > 2 else ""
            last = f"{place('updates', links[-1].updates or ())}, {self._by(links[-1])}"
            return f"{this} from {last}, in place of {old}{before}"
        return f"{this}: {'; '.join([old, *met])}"

    def _data(self, at: Position) -> str:
        links, this = self._links["data", at], self._element("data", at)
        if "output" not in self._drawing.grids:
            by = self._listed([self._tuple(link.number) for link in links])
            return f"{this} is named by {by or 'no index'}"
        if not self._scatters:
            return f"{this} goes to {self._outputs(links)}"
        met = self._links["output", at][1:]
        if not met:
            return f"{this} stays, in {place('output', at)}"
        if self._reduction == "none":
            return f"{this} goes nowhere: {place('updates', met[-1].updates or ())} takes its place"
        return f"{this} meets {_count(len(met), 'update')}, in {place('output', at)}"

    def _indices(self, cell: Position) -> str:
        number, j = self._of_cell[cell]
        one, this = self._drawing.tuples[number], self._element("indices", cell)
        if j in one.beyond:
            lowest, highest = self._drawing.valid[j]
            valid = f"valid {lowest}..{highest}" if highest >= 0 else "no index is valid"
            axis, size = self._axis + j, highest + 1
            this += f" is out of bounds: axis {axis} of data has size {size}: {valid}"
            taken = "" if one.front is None else f"; taken as {self._names.written(one.front)}"
            return this + taken
        if len(one.cells) > 1:
            this += f", in {self._tuple(number)}"
        elif one.front != one.written and one.front is not None:
            this += f", which is {self._names.written(one.front)}"
        if one.front is None:
            return f"{this}, which names nothing: it is out of bounds"
        links = self._links["number", number]
        if "output" not in self._drawing.grids:
            return f"{this} names {self._listed([place('data', x.data or ()) for x in links])}"
        if not self._scatters:
            return f"{this} fills {self._outputs(links)}"
        brought = self._listed([place("updates", link.updates or ()) for link in links])
        return f"{this} brings {brought or 'nothing'} to {self._outputs(links)}"

    def _updates(self, at: Position) -> str:
        links, this = self._links["updates", at], self._element("updates", at)
        if not links:
            return f"{this} goes nowhere: its index is out of bounds"
        (link,) = links
        by = self._by(link)
        if link.output is None:
            return f"{this} is for {place('data', link.data or ())}, {by}"
        rest = self._gives(link)
        if self._reduction == "none" and link is not self._links["output", link.output][-1]:
            rest = "; a later update takes its place"
        return f"{this} goes to {place('output', link.output)}, {by}{rest}"

    def _element(self, role: str, position: Position) -> str:
        grid = self._drawing.grids[role]
        this = place(role, position)
        if grid.elements is None:
            return this
        return f"{this} = {value(grid.elements[number_of(position, grid.shape)])}"

    def _from(self, link: Link) -> str:
        if link.data is None:
            return f"the filling, as {self._tuple(link.number)} is out of bounds"
        return f"{place('data', link.data)}, {self._by(link)}"

    def _by(self, link: Link) -> str:
        return f"named by {self._tuple(link.number)}"

    def _tuple(self, number: int | None) -> str:
        assert number is not None
        one = self._drawing.tuples[number]
        which = f"{place('indices', one.at)} = {self._names.written(one.written)}"
        if one.front in (None, one.written):
            return which
        return f"{which}, which is {self._names.written(one.front or ())}"

    def _update(self, link: Link) -> str:
        return self._element("updates", link.updates or ())

    def _gives(self, link: Link) -> str:
        if link.result is None or self._reduction == "none":
            return ""
        return f", gives {value(link.result)}"

    def _outputs(self, links: Sequence[Link]) -> str:
        return self._listed([place("output", link.output or ()) for link in links]) or "no output"

    def _listed(self, words: list[str]) -> str:
        return ", ".join(self._shortened(words))

    def _shortened(self, words: list[str]) -> list[str]:
        if len(words) <= 2 * FEW:
            return words
        return [*words[:FEW], f"{len(words) - 2 * FEW} more", *words[-FEW:]]


def _count(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)
