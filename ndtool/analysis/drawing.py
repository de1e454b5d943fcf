"""The drawing of a call in an HTML report: elements of its arrays, and the links between them.

Values are those of a run, as explanations compute them. Large arrays are drawn in part: elements in
focus, their neighbours, and what they are linked to, at all combinations of some coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod

from ndtool.analysis import explain, preview, tuples, values
from ndtool.analysis.answers import Value
from ndtool.analysis.explain import ExplainedElement
from ndtool.analysis.tuples import EDGE_TUPLES, Tuples
from ndtool.analysis.typed import TypeSource
from ndtool.arrays.source import Source
from ndtool.engine import layouts
from ndtool.errors import argument_name
from ndtool.rules.plans import Plan, Position, Shape
from ndtool.rules.shapes import format_type
from ndtool.runs.calls import OpenCall
from ndtool.storage import locations

MAX_ELEMENTS = 400  # drawn elements of an array; a drawing of more is unreadable
_MAX_COMPLETE = 100  # elements of an array that is drawn completely although others are not
_MAX_UPDATE_BYTES = 1 << 28  # bytes of updates that a drawing may read completely
_MAX_CENTERS = 3  # elements in focus that one drawing shows
# Sizes of excerpts: distances from elements in focus along the last axis and the last but one, and
# the number of updates at each end of a longer list.
_WINDOWS = ((3, 1, EDGE_TUPLES), (2, 1, 3), (1, 1, 2), (1, 0, 2), (0, 0, 1))

Axes = tuple[Sequence[int], ...]  # the drawn coordinates of each axis, ascending


@dataclass(frozen=True, slots=True)
class Grid(Value):
    """The drawn elements of an array, at all combinations of coordinates of its axes.

    role: its name in the standards, or "actual" for an output to verify. type: dtype and shape.
    values: the elements as text, in row-major order; None if they are unknown. wrong: the numbers
    of the elements that differ from the output.
    """

    role: str
    name: str | None
    type: str
    shape: Shape
    axes: tuple[tuple[int, ...], ...]
    values: tuple[str, ...] | None
    wrong: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DrawnTuple(Value):
    """A drawn index tuple. cells: the positions of its components in indices.

    selects: the tuple without negative components, None if it selects nothing. out_of_bounds: which
    components are out of bounds, from 0.
    """

    position: Position
    cells: tuple[Position, ...]
    selects: Position | None
    out_of_bounds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Link(Value):
    """The positions of elements that the index tuple at the position `indices` links.

    result: the element of the output after this update, as text, None if it is unknown.
    """

    output: Position | None
    data: Position | None
    indices: Position | None
    updates: Position | None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Drawing(Value):
    """A drawing of a call.

    grids: the inputs and the output. tuples: in row-major order. links: those of each element of
    the output, in order; of many updates the first and last. counts: the number of updates of each
    element of the output. valid: the lowest and highest index of each component. axis: the first
    indexed axis. kept: the update that a scatter without reduction keeps, first or last. replaces:
    whether the first update replaces the element of data. signs: of the first update and of later
    ones. is_complete: whether all elements are drawn. selected: elements to mark, as role and
    position.
    """

    grids: tuple[Grid, ...]
    tuples: tuple[DrawnTuple, ...]
    links: tuple[Link, ...]
    counts: tuple[int, ...]
    valid: tuple[tuple[int, int], ...]
    axis: int
    scatters: bool
    kept: str | None
    replaces: bool
    signs: tuple[str, str]
    has_scalar_indices: bool
    is_complete: bool
    selected: tuple[tuple[str, Position], ...]


def has_large_updates(call: OpenCall) -> bool:
    """Whether a drawing would read large updates from chunks or a remote file completely."""
    updates = call.sources.get("updates")
    if updates is None or isinstance(updates, TypeSource):
        return False
    unmapped = updates.metadata.is_chunked or locations.is_url(updates.name)
    return unmapped and updates.metadata.nbytes > _MAX_UPDATE_BYTES


def draw(
    call: OpenCall, outputs: Sequence[Position], origins: Sequence[Position], actual: Source | None
) -> Drawing | None:
    """Return the drawing of an open call; None if too many elements are linked.

    outputs, origins: elements of the output and of data in focus. actual: an output to verify, of
    the right type. Raises BoundsError if an index is out of bounds.
    """
    plan, attributes = call.inference.plan, call.inference.plan.attributes
    index_tuples = tuples.load_tuples(call)
    shapes = {role: item.shape for role, item in call.inference.inputs.items()}
    shapes["output"] = plan.output
    # Tuples without components count, too.
    is_small = max(map(prod, (*shapes.values(), plan.positions))) <= MAX_ELEMENTS
    for candidate in _explained(call, outputs, origins, is_small):
        elements, links = candidate
        focus = [*links, *(Link(None, position, None, None) for position in origins)]
        axes = _axes(plan, shapes, focus, MAX_ELEMENTS if is_small else _MAX_COMPLETE)
        if call.inference.scatters:
            axes["data"] = axes["output"]
        if all(prod(map(len, coordinates)) <= MAX_ELEMENTS for coordinates in axes.values()):
            break
    else:
        return None
    grids = [_input_grid(call, role, axes[role]) for role in call.inference.inputs]
    grids += _output_grids(call, axes["output"], elements, actual)
    call.require_unchanged()
    is_assigned = call.inference.scatters and attributes.reduction == "none"
    return Drawing(
        tuple(grids),
        tuple(_drawn_tuples(index_tuples, axes["indices"])),
        tuple(links),
        tuple(element.updates for element in elements),
        tuple(map(attributes.valid_indices, plan.sizes)),
        plan.axis_of(0),
        call.inference.scatters,
        ("first" if attributes.duplicates == "first" else "last") if is_assigned else None,
        attributes.copies_first_update,
        attributes.operator_signs,
        plan.has_scalar_indices,
        all(tuple(map(len, grid.axes)) == grid.shape for grid in grids),
        (*(("output", position) for position in outputs), *(("data", p) for p in origins)),
    )


def _explained(
    call: OpenCall, outputs: Sequence[Position], origins: Sequence[Position], is_small: bool
) -> Iterator[tuple[list[ExplainedElement], list[Link]]]:
    """Yield explained elements of the output and their links, the most first.

    Raises BoundsError for any index out of bounds.
    """
    shape, explained = call.inference.plan.output, dict[Position, ExplainedElement]()
    everything = tuple(map(range, shape))
    if is_small:
        elements = explain.explain(call, list(product(*everything)), list_all=True).elements
        yield (
            elements,
            [link for element in elements for link in _links(element, len(element.steps))],
        )
        return
    centers = _centers(call, outputs, origins)[:_MAX_CENTERS]
    for count, window in product(range(len(centers), 0, -1), (None, *_WINDOWS)):
        if window is None:
            axes: Axes = everything if prod(shape) <= _MAX_COMPLETE else ()
        else:
            axes = _around(shape, centers[:count], window)
        if prod(map(len, axes)) > MAX_ELEMENTS or len(axes) < len(shape):
            continue
        positions = list(product(*axes))
        missing = [position for position in positions if position not in explained]
        if missing or not explained:
            answer = explain.explain(call, missing)
            explained.update((element.at, element) for element in answer.elements)
        elements, edge = [explained[position] for position in positions], (window or _WINDOWS[0])[2]
        yield elements, [link for element in elements for link in _links(element, edge)]


def _links(element: ExplainedElement, edge: int) -> Iterator[Link]:
    """Yield the links of an element: its current value, and its first and last updates."""
    current, *updates = element.steps
    if len(updates) > 2 * edge:
        updates = [*updates[:edge], *updates[-edge:]]
    for step in (current, *updates):
        data, update = (
            step.position if step.role == role else None for role in ("data", "updates")
        )
        result = None if step.arrays[1] is None else values.short_text(step.arrays[1])
        yield Link(element.at, data, step.indices, update, result)


def _centers(
    call: OpenCall, outputs: Sequence[Position], origins: Sequence[Position]
) -> list[Position]:
    """Return the positions in the output that are in focus, or else a first one."""
    plan = call.inference.plan
    centers = [*outputs, *origins]
    if not call.inference.scatters:
        copies = explain.explain(call, (), origins).origins if origins else []
        centers = [*outputs, *(position for origin in copies for position in origin.outputs)]
    elif not centers:  # the first element that the first block of tuples selects
        for first, block in islice(tuples.blocks(plan, tuples.load_tuples(call).rows), 1):
            for row in tuples.select(plan, first, block)[1][:1].tolist():
                start = plan.slice_start(layouts.unravel_index(row, plan.slice_grid))
                centers = [(*start, *(0 for _ in plan.slice_shape))]
    return centers or [(0,) * len(plan.output)]


def _around(
    shape: Shape, centers: Sequence[Position], window: tuple[int, int, int] = _WINDOWS[0]
) -> Axes:
    """Return the coordinates of elements and of their neighbours in a window."""
    columns, rows, _ = window
    distances = ([0] * len(shape) + [rows, columns])[2:]
    return tuple(
        sorted({j for i in coordinates for j in range(max(i - d, 0), min(i + d + 1, size))})
        for coordinates, d, size in zip(zip(*centers, strict=True), distances, shape, strict=True)
    )


def _axes(
    plan: Plan, shapes: dict[str, Shape], links: Sequence[Link], max_complete: int
) -> dict[str, Axes]:
    """Return the coordinates of each array that cover all links, in `indices` complete tuples.

    max_complete: the number of elements of an input that is drawn completely.
    """
    axes: dict[str, Axes] = {}
    for role, shape in shapes.items():
        own = plan.positions if role == "indices" else shape
        positions = [at for link in links if (at := getattr(link, role)) is not None]
        if max(prod(shape), prod(own)) <= (0 if role == "output" else max_complete):
            axes[role] = tuple(map(range, shape))
            continue
        covered = _around(own, [(0,) * len(own)])
        if positions:
            covered = tuple(sorted(set(items)) for items in zip(*positions, strict=True))
        axes[role] = (*covered, *map(range, shape[len(own) :]))
    return axes


def _drawn_tuples(call: Tuples, axes: Axes) -> Iterator[DrawnTuple]:
    """Yield the tuples at all combinations of coordinates in indices."""
    plan = call.plan
    ranges = list(map(plan.attributes.valid_indices, plan.sizes))
    for position in product(*axes[: len(plan.positions)]):
        cells = [position]
        if len(plan.positions) < len(plan.indices):
            cells = [(*position, j) for j in range(plan.k)]
        stored, selects = call.at(position)
        pairs = enumerate(zip(stored, ranges, strict=True))
        wrong = tuple(j for j, (i, (lowest, highest)) in pairs if not lowest <= i <= highest)
        yield DrawnTuple(position, tuple(cells), selects, wrong)


def _input_grid(call: OpenCall, role: str, axes: Axes) -> Grid:
    source, (_, dtype, shape) = call.sources[role], call.inference.inputs[role]
    if role == "indices" and call.inference.plan.attributes.rebases_indices:
        source = call.stored_indices
        dtype = source.metadata.dtype
    texts, coordinates = None, tuple(map(tuple, axes))
    if not isinstance(source, TypeSource):
        elements = preview.elements_at(source, dtype, list(product(*axes)))
        texts = tuple(map(values.short_text, elements))
    name, type_text = argument_name(source.name), format_type(dtype, shape)
    return Grid(role, name, type_text, shape, coordinates, texts)


def _output_grids(
    call: OpenCall, axes: Axes, elements: list[ExplainedElement], actual: Source | None
) -> Iterator[Grid]:
    """Yield the grid of the output, and that of the output to verify."""
    dtype, shape = call.inference.dtype, call.inference.plan.output
    expected = [element.array for element in elements if element.array is not None]
    texts = tuple(map(values.short_text, expected)) if len(expected) == len(elements) else None
    coordinates = tuple(map(tuple, axes))
    grid = Grid("output", None, format_type(dtype, shape), shape, coordinates, texts)
    yield grid
    if actual is not None and texts is not None:
        found = preview.elements_at(actual, dtype, list(product(*axes)))
        pairs = enumerate(zip(found, expected, strict=True))
        wrong = tuple(number for number, (a, b) in pairs if a.tobytes() != b.tobytes())
        texts = tuple(map(values.short_text, found))
        name = argument_name(actual.name)
        yield replace(grid, role="actual", name=name, values=texts, wrong=wrong)
