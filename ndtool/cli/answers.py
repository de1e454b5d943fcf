"""What analyses found, as words for people and as objects for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool import __version__
from ndtool.analysis import places, values
from ndtool.analysis.explain import Element, Origin, Step
from ndtool.analysis.tuples import FEW
from ndtool.analysis.typed import Typed
from ndtool.cli import records
from ndtool.cli.folding import columns, lines
from ndtool.errors import called, printable
from ndtool.rules.shapes import ElementsPlan

if TYPE_CHECKING:
    from ndtool.runs.jobs import Job

MARKS = {"none": "=", "add": "+", "mul": "*", "max": "max", "min": "min"}


def explained_record(
    job: Job, elements: list[Element], origins: list[Origin], asked: bool
) -> dict[str, Any]:
    """Return an explanation for JSON; asked: whether there was one question only."""
    listed = [*map(_element_record, elements), *map(_origin_record, origins)]
    told = listed[0] if asked else {"explained": listed}
    return {"version": __version__, "operator": job.inference.operator, **told}


def _element_record(element: Element) -> dict[str, Any]:
    return {
        "at": element.at,
        "value": _plain(element.value),
        "updates": element.updates,
        "steps": [
            {
                "role": step.role,
                "position": step.position,
                "value": _plain(step.value),
                "indices": step.indices,
                "tuple": None if step.indices is None else step.named,
                "result": _plain(step.result),
            }
            for step in element.steps
        ],
    }


def _origin_record(origin: Origin) -> dict[str, Any]:
    return {
        "from": origin.position,
        "value": _plain(origin.value),
        "outputs": [copy.at for copy in origin.outputs],
        "count": origin.total,
        "updates": origin.element.updates if origin.element else 0,
    }


def _plain(value: Any) -> bool | int | float | str | None:
    return None if value is None else values.plain(value)


class Names:
    """What the arrays of a call are called: types, and what is written out, by their roles."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def alone(self) -> bool:
        """Whether an index is a number, not a tuple of them."""
        plan = self._job.inference.plan
        return isinstance(plan, ElementsPlan) or plan.repeated

    def place(self, role: str, position: tuple[int, ...]) -> str:
        """Return an element of an array: `table.npy[3, 0]`."""
        where = f"[{', '.join(map(str, position))}]" if position else ""
        return self._name(role) + where

    def index(self, position: tuple[int, ...], index: tuple[int, ...], more: str = "") -> str:
        """Return an index tuple, and what more is said of it: `rows.npy[7] = (-876)`."""
        return f"{self.place('indices', position)} = {self.written(index)}{more}"

    def written(self, index: tuple[int, ...]) -> str:
        """Return the components of a tuple; a number that stands alone has no brackets."""
        return str(index[0]) if self.alone else f"({', '.join(map(str, index))})"

    def bent(self, step: Step) -> str:
        """Say what became of a tuple that is out of bounds."""
        sizes = places.sizes(self._job.inference.plan)
        if all(-size <= i < size for i, size in zip(step.named, sizes, strict=True)):
            return ""
        done = {"clip": "clipped", "wrap": "wrapped"}
        rule = self._job.inference.attributes.out_of_bounds
        to = f", {done[rule]} to {self.written(step.taken)}" if rule in done else ""
        return f", out of bounds{to}"

    def _name(self, role: str) -> str:
        given = self._job.sources.get(role)
        if given is None or isinstance(given, Typed) or given.name.startswith("["):
            return role
        return called(given.name)


class Told(NamedTuple):
    """An answer: its title, rows below it, and at which of them `more` says what is left out."""

    title: str
    rows: Sequence[tuple[str, ...]]
    place: int = 0
    more: str = ""


def explained(job: Job, elements: list[Element], origins: list[Origin]) -> str:
    """Return an explanation in words."""
    return "\n".join(map(_written, told(job, elements, origins)))


def told(job: Job, elements: list[Element], origins: list[Origin]) -> list[Told]:
    """Return an explanation, an answer for each question."""
    names = Names(job)
    return [_element(job, names, one) for one in elements] + [_origin(names, o) for o in origins]


def _written(one: Told) -> str:
    rows = _fitted(one.rows)
    if one.more:
        rows.insert(one.place, f"  ... {one.more}")
    return lines([part for row in (one.title, *rows) for part in row.splitlines()], 1)


def _element(job: Job, names: Names, element: Element) -> Told:
    title = names.place("output", element.at) + _equals(element.value)
    if "updates" not in job.sources:
        return Told(title, _gathered(job, names, element.steps[0]))
    mark = MARKS[job.inference.attributes.reduction]
    rows = [
        (
            "old" if step.indices is None else f"{mark} update",
            names.place(step.role, step.position),
            _shown(step.value),
            "" if step.indices is None else names.index(step.indices, step.named, names.bent(step)),
            "" if step.indices is None else _shown(step.result),
        )
        for step in element.steps
    ]
    left_out = element.updates - len(element.steps) + 1
    more = f"{left_out} more updates: --all tells them" if left_out else ""
    return Told(title, rows, 1 + FEW, more)


def _gathered(job: Job, names: Names, step: Step) -> list[tuple[str, ...]]:
    assert step.indices is not None
    which = names.bent(step)
    if not which and step.taken != step.named:
        which = f", which is {names.written(step.taken)}"
    index = "index", names.index(step.indices, step.named, which)
    return [index, ("data", names.place("data", step.position))] if step.taken else [index]


def _origin(names: Names, origin: Origin) -> Told:
    title = names.place("data", origin.position) + _equals(origin.value)
    if origin.element is not None:
        return Told(f"{title} {_stayed(names, origin, origin.element)}", [])
    count = f"{origin.total} element" + "s" * (origin.total != 1) if origin.total else "no element"
    rows = [
        (names.place("output", copy.at), names.index(copy.indices or (), copy.named))
        for copy in origin.outputs
    ]
    left_out = origin.total - len(origin.outputs)
    more = f"{left_out} more: --all tells them" if left_out else ""
    return Told(f"{title} went to {count} of the output", rows, FEW, more)


def _stayed(names: Names, origin: Origin, element: Element) -> str:
    """Say what came of an element of a scatter's data."""
    updates = f"{element.updates} update" + "s" * (element.updates != 1)
    if not origin.outputs:
        last = names.place("updates", element.steps[-1].position)
        return f"went nowhere: {last} took its place, the last of {updates}"
    met = f", where it met {updates}" if element.updates else " as it is"
    return f"went to {names.place('output', origin.outputs[0].at)}{met}"


def _equals(value: Any) -> str:
    return "" if value is None else f" = {_shown(value)}"


def _shown(value: Any) -> str:
    return "" if value is None else printable(values.element(value), 80)


def _fitted(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a line for each row, or where that is wider than the terminal, two."""
    fitted = _indented(rows)
    if max(map(len, fitted), default=0) <= columns(1):
        return fitted
    heads = _indented([row[:3] for row in rows])
    tails = ["  ".join(row[3:]).rstrip() for row in rows]
    return [
        head + (f"\n    {tail}" if tail else "") for head, tail in zip(heads, tails, strict=True)
    ]


def _indented(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    return [f"  {line}" for line in records.aligned(rows[0], rows[1:]).splitlines()]
