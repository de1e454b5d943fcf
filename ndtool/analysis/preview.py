"""A preview of an output: the elements shown, computed without the others.

Gathers read only these elements. Scatters pass over all index tuples, in blocks, and apply the
updates of these elements in order, so the bits are those of a complete run.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import mapping, tuples, values
from ndtool.analysis.oracle.blocks import flat_view
from ndtool.analysis.running import RunningValues
from ndtool.analysis.values import EDGE_ITEMS
from ndtool.engine import layouts
from ndtool.engine.counting import ReductionOptions
from ndtool.rules.inference import Inference
from ndtool.rules.modes import Handling
from ndtool.rules.plans import ElementsPlan, NdPlan, Plan, Shape
from ndtool.rules.shapes import format_type
from ndtool.runs import operands
from ndtool.runs.bounds import normalize_indices
from ndtool.runs.operands import Validated

Array = NDArray[Any]
ElementUpdates = Iterator[
    tuple[Array, Array]
]  # linear indices of shown elements, and their updates

_SHOWN = 1000  # elements of a preview
_WHOLE = 100  # elements up to which an array is shown without gaps
_BLOCK = 1 << 18  # index tuples to process at a time


class Window(NamedTuple):
    """The elements of an array to show: all combinations of positions along its axes.

    corner: the number of leading axes of which only the first position is shown. gaps: whether only
    the ends of a long axis are shown, with one position between them for the omitted ones.
    """

    positions: tuple[tuple[int, ...], ...]
    corner: int
    gaps: bool

    @property
    def shape(self) -> Shape:
        """The number of positions shown along each axis."""
        return tuple(map(len, self.positions))


def text(validated: Validated) -> str:
    """Return the preview of a run's output, with its type and shape."""
    call, inference = validated.call, validated.call.inference
    title = format_type(inference.dtype, inference.plan.output)
    if inference.dtype.itemsize > values.MAX_ITEMSIZE:
        return f"{title}\nelements of {inference.dtype.itemsize} bytes are not shown\n"
    arrays = {"indices": values.as_array(validated.indices, *inference.inputs["indices"][1:])}
    loaded = {"data": operands.load_data(validated)}
    if inference.scatters:
        loaded["updates"] = operands.load(call, "updates")
    for role, operand in loaded.items():
        _, dtype, shape = operand.info
        arrays[role] = values.as_array(operand.byte_range.buffer, dtype, shape, operand.fortran)
    visible = window(inference.plan.output)
    return window_text(title, elements(inference, arrays, visible), visible)


def window_text(title: str, values_shown: Array, visible: Window) -> str:
    """Return the text of a window's elements, under a title."""
    corner = "[" + "0, " * visible.corner + "...] of " if visible.corner else ""
    return (
        corner
        + title
        + "\n"
        + values.format_array(values_shown[(0,) * visible.corner + (...,)], visible.gaps)
    )


def window(shape: Shape) -> Window:
    """Return the window of an array of any shape."""
    if 0 in shape:
        return Window(((),) * len(shape), 0, False)
    corner, count = len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        count *= min(shape[axis], 2 * EDGE_ITEMS + 1)
        if count > _SHOWN:
            break
        corner = axis
    shown_shape = shape[corner:]
    gaps = bool(np.prod(shown_shape, dtype=object) > _WHOLE)
    axis_positions = [_ends(size) if gaps else tuple(range(size)) for size in shown_shape]
    return Window(((0,),) * corner + tuple(axis_positions), corner, gaps)


def _ends(size: int) -> tuple[int, ...]:
    if size <= 2 * EDGE_ITEMS:
        return tuple(range(size))
    return (*range(EDGE_ITEMS + 1), *range(size - EDGE_ITEMS, size))


def elements(inference: Inference, arrays: dict[str, Array], visible: Window) -> Array:
    """Compute the elements of the output in a window; arrays: the inputs, indices validated."""
    plan, dtype = inference.plan, arrays["data"].dtype
    if not all(visible.shape):
        return np.empty(visible.shape, dtype)
    opaque = np.dtype((np.void, dtype.itemsize))  # or NumPy would make all true bools the same
    data = arrays["data"].view(opaque)
    rule = inference.handling
    if "updates" not in arrays:
        empty = np.frombuffer(inference.fill_bytes, opaque)
        return _gathered(plan, data, arrays["indices"], visible, rule, empty).view(dtype)
    result = pick(data, _index_arrays(visible.positions), visible.shape).view(dtype)
    updates_dtype = arrays["updates"].dtype
    arrays = {**arrays, "updates": arrays["updates"].view(opaque)}
    if isinstance(plan, NdPlan):
        targets = _linear_indices(_index_arrays(visible.positions), plan.data).reshape(-1)
        element_updates = tuples.element_updates(plan, arrays["indices"], rule, targets)
        updates_in_order = flat_view(arrays["updates"])
        updated: ElementUpdates = (
            (ordinal, np.asarray(updates_in_order[number])) for ordinal, number in element_updates
        )
    else:
        updated = _updates_of(plan, arrays, visible, rule)
    running = RunningValues(
        result.reshape(-1), ReductionOptions.from_attributes(inference.attributes)
    )
    for at, updates in updated:
        running.apply(at, updates.view(updates_dtype))
    return running.values().reshape(result.shape)


def _gathered(
    plan: Plan, data: Array, indices: Array, visible: Window, rule: Handling, empty: Array
) -> Array:
    """Gather the elements of a window; empty: the fill value's bytes."""
    positions = list(product(*visible.positions))
    rows = np.array(
        [np.atleast_1d(element_at(indices, mapping.tuple_of(plan, at))) for at in positions]
    )
    valid, normalized = tuples.selecting(plan, rows, rule)
    gathered = np.repeat(empty, len(positions))
    for number, index in zip(valid.tolist(), normalized.tolist(), strict=True):
        gathered[number] = element_at(data, mapping.source_of(plan, positions[number], index))
    return gathered.reshape(visible.shape)


def _updates_of(
    plan: ElementsPlan, arrays: dict[str, Array], visible: Window, rule: Handling
) -> ElementUpdates:
    """Yield linear indices in the window and their updates, in order along the axis."""
    a, size = plan.axis, plan.data[plan.axis]
    coordinates = [
        [p for p in along if p < n]
        for along, n in zip(visible.positions, plan.indices, strict=True)
    ]
    lines = int(np.prod([len(p) for d, p in enumerate(coordinates) if d != a]))
    step = max(1, _BLOCK // max(1, lines))
    for first in range(0, plan.indices[a], step):
        coordinates[a] = list(range(first, min(first + step, plan.indices[a])))
        at = _index_arrays(coordinates)
        block_shape = tuple(map(len, coordinates))
        picked = pick(arrays["indices"], at, block_shape)
        values = normalize_indices(picked, size, rule)
        if rule.pad is not None:
            values[picked == rule.pad] = size
        ordinal, hits = _matches(np.array(visible.positions[a]), values.reshape(-1))
        if len(ordinal):
            ordinals = list(np.unravel_index(hits, values.shape))
            ordinals[a] = ordinal
            updates = pick(arrays["updates"], at, block_shape).reshape(-1)[hits]
            yield _linear_indices(ordinals, visible.shape), updates


def _linear_indices(components: Sequence[Array] | Array, sizes: Shape) -> Array:
    """Return linear indices of coordinates; np.ravel_multi_index stops at 63 axes."""
    steps = layouts.contiguous_strides(sizes, 1)
    return np.asarray(sum(at * step for at, step in zip(components, steps, strict=True)))


def _matches(targets: Array, values: Array) -> tuple[Array, Array]:
    """Return where values occur in `targets`, which ascends: the positions there, and in values."""
    ordinal = np.searchsorted(targets, values)
    ordinal[ordinal == len(targets)] = 0
    (hits,) = np.nonzero(targets[ordinal] == values)
    return ordinal[hits], hits


def element_at(array: Array, position: tuple[int, ...]) -> Array:
    """Return the subarray at a position of the leading axes."""
    subscript: Any = (*position, ...)
    return np.asarray(array[subscript])


def pick(array: Array, at: tuple[Array, ...], shape: Shape) -> Array:
    """Return the elements selected by index arrays, one for each axis, in some shape.

    Skips axes of size 1, as NumPy takes at most 63 index arrays.
    """
    long_axes = [d for d, size in enumerate(array.shape) if size != 1]
    squeezed = array.reshape([array.shape[d] for d in long_axes])
    picked = np.asarray(squeezed[tuple(at[d] for d in long_axes)])
    return np.array(np.broadcast_to(picked, shape))


def _index_arrays(positions: Sequence[Sequence[int]]) -> tuple[Array, ...]:
    """Return index arrays that select every combination of positions."""
    return np.ix_(*(np.array(along, np.int64) for along in positions))
