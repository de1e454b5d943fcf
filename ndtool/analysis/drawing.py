"""The facts of a drawing of a call: the elements of its arrays, and which of them belong together.

They are those of explanations, so of the run itself; only small arrays are drawn.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import explain, places, tuples, values
from ndtool.analysis.distances import opaque
from ndtool.analysis.explain import Element, Step
from ndtool.analysis.places import Position
from ndtool.analysis.reference import in_order, silent
from ndtool.analysis.tuples import Hunt, Tuples
from ndtool.analysis.typed import Typed
from ndtool.arrays import source
from ndtool.arrays.source import Source
from ndtool.errors import BoundsError
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import Plan, Shape
from ndtool.runs.jobs import Job

LIMIT = 400  # elements of an array that a person takes in


class Grid(NamedTuple):
    """An array; elements: arrays without axes, in row-major order, None without known values."""

    shape: Shape
    elements: Sequence[NDArray[Any]] | None


class Named(NamedTuple):
    """An index tuple; at: its position in indices, cells: those of its components.

    written: the components. front: as they are taken, None where they name nothing. beyond:
    the numbers of components that are out of bounds.
    """

    at: Position
    cells: list[Position]
    written: Position
    front: Position | None
    beyond: list[int]


class Link(NamedTuple):
    """Elements that meet; their positions, and the number of the tuple that brings them together.

    result: what the element of the output is then, None where no value is known.
    """

    output: Position | None
    data: Position | None
    number: int | None
    updates: Position | None
    result: NDArray[Any] | None


class Drawing(NamedTuple):
    """grids: by the standards' names, in order; no output where an index is out of bounds.

    tuples: in row-major order. links: of each element of the output all that it is made of, one
    after the other; without an output, of each element of data what names it. valid: the lowest and
    highest index that each component may be.
    """

    grids: dict[str, Grid]
    tuples: list[Named]
    links: list[Link]
    valid: list[tuple[int, int]]


def draw(job: Job) -> Drawing | None:
    """Return the drawing of a call whose inputs are open, None where an array is too large."""
    plan = job.inference.plan
    if any(prod(shape) > LIMIT for shape in sizes(job).values()):
        return None
    call = tuples.of(job)
    grids = {role: _grid(job, role) for role in job.sources}
    named = [_named(call, at) for at in _positions(plan.positions)]
    number_of = {one.at: number for number, one in enumerate(named)}
    try:
        explained, _ = explain.explain(job, _positions(plan.output), every=True)
    except BoundsError:
        links = _without_output(call, number_of)
    else:
        grids["output"] = _output(plan.output, explained)
        links = [_link(one.at, step, number_of) for one in explained for step in one.steps]
    valid = [(_lowest(call, size), size - 1) for size in places.sizes(plan)]
    return Drawing(grids, named, links, valid)


def sizes(job: Job) -> dict[str, Shape]:
    """Return the shapes of what a drawing shows; a tuple may be of no element."""
    inputs = {f"elements of {role}": one.shape for role, one in job.inference.inputs.items()}
    plan = job.inference.plan
    return {**inputs, "elements of the output": plan.output, "index tuples": plan.positions}


def _positions(shape: Shape) -> list[Position]:
    return list(np.ndindex(shape))


def _grid(job: Job, role: str) -> Grid:
    origin, (_, dtype, shape) = job.sources[role], job.inference.inputs[role]
    return Grid(shape, None if isinstance(origin, Typed) else elements(origin, dtype))


def elements(origin: Source, dtype: Dtype) -> list[NDArray[Any]]:
    """Return copies of an array's elements as Grid has them; dtype: what they are taken as."""
    facts, buffer = origin.facts, source.whole(origin).buffer
    array = values.as_array(buffer, dtype, facts.shape, facts.order == "F")
    flat = in_order(opaque(array)).copy().view(array.dtype)
    return [flat[n : n + 1].reshape(()) for n in range(len(flat))]


def _output(shape: Shape, explained: list[Element]) -> Grid:
    known = [one.value for one in explained if one.value is not None]
    return Grid(shape, known if len(known) == len(explained) else None)


def _named(call: Tuples, at: Position) -> Named:
    plan = call.plan
    lengths = places.sizes(plan)
    alone = len(plan.positions) == len(plan.indices)
    cells = [at] if alone else [(*at, j) for j in range(len(lengths))]
    written = tuple(int(call.indices[cell]) for cell in cells)
    beyond = [
        j
        for j, (i, size) in enumerate(zip(written, lengths, strict=True))
        if not _lowest(call, size) <= i < size
    ]
    return Named(at, cells, written, call.taken(written), beyond)


def _lowest(call: Tuples, size: int) -> int:
    return -size if call.operands.negatives else 0


def _link(at: Position, step: Step, number_of: dict[Position, int]) -> Link:
    number = None if step.indices is None else number_of[step.indices]
    data, updates = (step.position if step.role == role else None for role in ("data", "updates"))
    return Link(at, data, number, updates, step.result)


def _without_output(call: Tuples, number_of: dict[Position, int]) -> list[Link]:
    """Return which elements of data the tuples within bounds name."""
    plan = call.plan
    hunts = [Hunt(place, True) for place in _positions(plan.data)]
    call.search(hunts, call.blocks(silent))
    links = []
    for hunt in hunts:
        for at in (call.position(hunt.place, number) for number in hunt.told):
            links.append(Link(None, hunt.place, number_of[at], _update(call, plan, hunt, at), None))
    return links


def _update(call: Tuples, plan: Plan, hunt: Hunt, at: Position) -> Position | None:
    scatters = "updates" in call.operands.sources
    return places.update_for(plan, hunt.place, at) if scatters else None
