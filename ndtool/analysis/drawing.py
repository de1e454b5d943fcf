"""The contents of a drawing of a call: the elements of its arrays, and the links between them.

Explanations provide them, so they are those of a run. Only small arrays are drawn.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import explain, mapping, tuples, values
from ndtool.analysis.explain import Element, Step
from ndtool.analysis.mapping import Position
from ndtool.analysis.oracle.blocks import in_order, silent
from ndtool.analysis.oracle.distances import opaque
from ndtool.analysis.tuples import Search, Tuples
from ndtool.analysis.typed import Typed
from ndtool.arrays import source
from ndtool.arrays.source import Source
from ndtool.errors import BoundsError, DuplicatesError
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Plan, Shape
from ndtool.runs.calls import OpenCall

LIMIT = 400  # elements of an array, beyond which a drawing is unreadable


class Grid(NamedTuple):
    """An array. elements: its elements as 0-d arrays, in row-major order; None if unknown."""

    shape: Shape
    elements: Sequence[NDArray[Any]] | None


class Named(NamedTuple):
    """An index tuple.

    at: its position in indices. cells: the positions of its components. written: the components.
    front: the components as used, none negative; None if the tuple selects nothing. beyond: the
    numbers of the components that are out of bounds.
    """

    at: Position
    cells: list[Position]
    written: Position
    front: Position | None
    beyond: list[int]


class Link(NamedTuple):
    """The positions of elements that one index tuple links.

    number: the linear index of the tuple. result: the element of the output after this update, None
    if unknown.
    """

    output: Position | None
    data: Position | None
    number: int | None
    updates: Position | None
    result: NDArray[Any] | None


class Drawing(NamedTuple):
    """A drawing of a call.

    grids: the arrays by the standards' names, in order; without output if an index is out of
    bounds. tuples: the index tuples in row-major order. links: the links of each element of the
    output, in order; without an output, of each element of data. valid: the lowest and highest
    valid index of each component.
    """

    grids: dict[str, Grid]
    tuples: list[Named]
    links: list[Link]
    valid: list[tuple[int, int]]


def draw(call: OpenCall) -> Drawing | None:
    """Return the drawing of an open call, or None if an array is too large."""
    plan = call.inference.plan
    if any(prod(shape) > LIMIT for shape in sizes(call).values()):
        return None
    rows = tuples.of(call)
    grids = {role: _grid(call, role) for role in call.sources}
    named = [_named(rows, at) for at in _positions(plan.positions)]
    number_of = {one.at: number for number, one in enumerate(named)}
    try:
        explained, _ = explain.explain(call, _positions(plan.output), every=True)
    except (BoundsError, DuplicatesError):
        links = _without_output(rows, number_of)
    else:
        grids["output"] = _output(plan.output, explained)
        links = [_link(one.at, step, number_of) for one in explained for step in one.steps]
        call.recheck()
    valid = [(_lowest(rows, size), size - 1) for size in mapping.sizes(plan)]
    return Drawing(grids, named, links, valid)


def sizes(call: OpenCall) -> dict[str, Shape]:
    """Return the shapes of all parts of a drawing; index tuples may have no components."""
    inputs = {f"elements of {role}": one.shape for role, one in call.inference.inputs.items()}
    plan = call.inference.plan
    return {**inputs, "elements of the output": plan.output, "index tuples": plan.positions}


def _positions(shape: Shape) -> list[Position]:
    return list(np.ndindex(shape))


def _grid(call: OpenCall, role: str) -> Grid:
    origin, (_, dtype, shape) = call.sources[role], call.inference.inputs[role]
    return Grid(shape, None if isinstance(origin, Typed) else elements(origin, dtype))


def elements(origin: Source, dtype: Dtype) -> list[NDArray[Any]]:
    """Return copies of an array's elements as Grid has them; dtype: their actual type."""
    metadata, buffer = origin.metadata, source.whole(origin).buffer
    array = values.as_array(buffer, dtype, metadata.shape, metadata.order == "F")
    flat = in_order(opaque(array)).copy().view(array.dtype)
    return [flat[n : n + 1].reshape(()) for n in range(len(flat))]


def _output(shape: Shape, explained: list[Element]) -> Grid:
    known = [one.value for one in explained if one.value is not None]
    return Grid(shape, known if len(known) == len(explained) else None)


def _named(call: Tuples, at: Position) -> Named:
    plan = call.plan
    lengths = mapping.sizes(plan)
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
    return -size if call.negatives else 0


def _link(at: Position, step: Step, number_of: dict[Position, int]) -> Link:
    number = None if step.indices is None else number_of[step.indices]
    data, updates = (step.position if step.role == role else None for role in ("data", "updates"))
    return Link(at, data, number, updates, step.result)


def _without_output(call: Tuples, number_of: dict[Position, int]) -> list[Link]:
    """Return the links between elements of data and the index tuples that select them."""
    plan = call.plan
    hunts = [Search(place, True) for place in _positions(plan.data)]
    call.search(hunts, call.blocks(silent))
    links = []
    for hunt in hunts:
        for at in (call.position(hunt.place, number) for number in hunt.told.tolist()):
            links.append(Link(None, hunt.place, number_of[at], _update(call, plan, hunt, at), None))
    return links


def _update(call: Tuples, plan: Plan, hunt: Search, at: Position) -> Position | None:
    scatters = call.call.inference.scatters
    return mapping.update_for(plan, hunt.place, at) if scatters else None
