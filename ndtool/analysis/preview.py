"""A preview of an output: some of its elements, computed without the others.

Gathers read only these elements. Scatters read all index tuples, in blocks, and apply the updates
of these elements in order, so the bits are those of a complete run.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import tuples, values
from ndtool.analysis.oracle.blocks import flat_view
from ndtool.analysis.running import RunningValues
from ndtool.analysis.values import EDGE_ITEMS
from ndtool.arrays.source import Source, load
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.inference import Inference
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan, Position, Shape
from ndtool.runs import operands
from ndtool.runs.operands import Validated
from ndtool.runs.touched import TouchedByGather

Array = NDArray[Any]

_MAX_SHOWN = 1000  # elements of a preview
_MAX_COMPLETE = 100  # elements of an array that is not summarized


class Window(NamedTuple):
    """The elements of an array to show: all combinations of positions along its axes.

    leading_axes: the number of leading axes of which only the first position is shown.
    is_summarized: whether only both ends of a long axis are shown; one position between them
    stands for all omitted ones.
    """

    positions: tuple[tuple[int, ...], ...]
    leading_axes: int
    is_summarized: bool

    @property
    def shape(self) -> Shape:
        """The number of positions shown along each axis."""
        return tuple(map(len, self.positions))


def text(validated: Validated) -> str:
    """Return the preview of a run's output, with its type and shape."""
    call, inference = validated.call, validated.call.inference
    title = shapes.format_type(inference.dtype, inference.plan.output)
    if inference.dtype.itemsize > values.MAX_ITEMSIZE:
        return f"{title}\nelements of {inference.dtype.itemsize} bytes are not shown\n"
    arrays = {"indices": values.as_array(validated.indices, *inference.inputs["indices"][1:])}
    loaded = {"data": operands.load_data(validated)}
    if inference.scatters:
        loaded["updates"] = load(call, "updates")
    for role, operand in loaded.items():
        _, dtype, shape = inference.inputs[role]
        arrays[role] = values.as_array(operand.buffer, dtype, shape, operand.strides)
    window = choose_window(inference.plan.output)
    return window_text(title, compute_elements(inference, arrays, window), window)


def window_text(title: str, elements: Array, window: Window) -> str:
    """Return the elements of a window as text, after a title."""
    prefix = "[" + "0, " * window.leading_axes + "...] of " if window.leading_axes else ""
    shown = elements[(0,) * window.leading_axes + (...,)]
    return f"{prefix}{title}\n{values.format_array(shown, window.is_summarized)}"


def choose_window(shape: Shape) -> Window:
    """Choose the window of an array by its shape."""
    if 0 in shape:
        return Window(((),) * len(shape), 0, False)
    leading_axes, count = len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        count *= min(shape[axis], 2 * EDGE_ITEMS + 1)
        if count > _MAX_SHOWN:
            break
        leading_axes = axis
    window_shape = shape[leading_axes:]
    is_summarized = bool(np.prod(window_shape, dtype=object) > _MAX_COMPLETE)
    axis_positions = [
        _edge_positions(size) if is_summarized else tuple(range(size)) for size in window_shape
    ]
    return Window(((0,),) * leading_axes + tuple(axis_positions), leading_axes, is_summarized)


def _edge_positions(size: int) -> tuple[int, ...]:
    if size <= 2 * EDGE_ITEMS:
        return tuple(range(size))
    return (*range(EDGE_ITEMS + 1), *range(size - EDGE_ITEMS, size))


def compute_elements(inference: Inference, arrays: dict[str, Array], window: Window) -> Array:
    """Compute the elements of the output in a window; arrays: inputs, with validated indices."""
    plan, dtype = inference.plan, arrays["data"].dtype
    plan = plan._replace(attributes=plan.attributes.rebased)
    if not all(window.shape):
        return np.empty(window.shape, dtype)
    void_type = np.dtype((np.void, dtype.itemsize))  # preserves the bytes of booleans
    data = arrays["data"].view(void_type)
    if "updates" not in arrays:
        fill_value = np.frombuffer(inference.fill_bytes, void_type)
        return _gather(plan, data, arrays["indices"], window, fill_value).view(dtype)
    positions = list(product(*window.positions))
    current = np.array([element_at(data, position) for position in positions], void_type)
    updates_dtype = arrays["updates"].dtype
    updates = flat_view(arrays["updates"].view(void_type))
    targets = np.array([tuples.linear_index(position, plan.data) for position in positions])
    running = RunningValues(current.view(dtype), plan.attributes)
    blocks = tuples.blocks(plan, arrays["indices"])
    for found, update_indices in tuples.links(plan, blocks, targets):
        running.apply(found, np.asarray(updates[update_indices]).view(updates_dtype))
    return running.values().reshape(window.shape)


def _gather(plan: Plan, data: Array, indices: Array, window: Window, fill_value: Array) -> Array:
    """Gather the elements of a window; fill_value: an array of one element."""
    positions, rows = list(product(*window.positions)), indices.reshape(-1, plan.k)
    gathered = np.repeat(fill_value, len(positions))
    for n, position in enumerate(positions):
        selected = tuples.tuple_at(plan, rows, plan.tuple_position(position))
        if selected is not None:
            gathered[n] = element_at(data, plan.data_position(position, selected))
    return gathered.reshape(window.shape)


def element_at(array: Array, position: tuple[int, ...]) -> Array:
    """Return the subarray at a position of the leading axes."""
    subscript: Any = (*position, ...)
    return np.asarray(array[subscript])


def elements_at(array_source: Source, dtype: Dtype, positions: list[Position]) -> list[Array]:
    """Return copies of elements as 0-d arrays, reading only these if the format allows it."""
    if not positions:
        return []
    metadata, touched = array_source.metadata, None
    if metadata.shape:
        indices = np.array(positions, np.int64)
        sizes = {"data": metadata.shape, "indices": indices.shape}
        plan = shapes.infer("gather_nd", sizes, Attributes())[1]
        index_type = dtypes.from_numpy(indices.dtype)
        touched = TouchedByGather(plan, indices.data.cast("B"), index_type, plan.attributes)
    buffer = array_source.load(touched)
    array = values.as_array(buffer, dtype, metadata.shape, metadata.strides)
    return [
        element_at(values.as_void(array), position).copy().view(array.dtype)
        for position in positions
    ]
