"""The values that the tasks of a call share: the axes of data, the chunks, the inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.engine import check, layouts
from ndtool.errors import RuleError
from ndtool.inmemory.arguments import array, element_type
from ndtool.rules import shapes
from ndtool.rules.inference import Inference
from ndtool.rules.plans import ElementsPlan, Plan, Shape

Array = NDArray[Any]
Chunks = tuple[tuple[int, ...], ...]  # the sizes of chunks along each axis, as in dask


class Axes(NamedTuple):
    """The axes of data by kind.

    rows: the indexed axes. slice_axes: those within a slice. outer: the batch axes along which the
    same tuples apply. index_axes: for each axis of rows, the axis of indices that gives its
    coordinate, or None for the next component of the tuple. front: the number of axes of indices
    that precede the outer axes in a gather's output, and in updates.
    """

    outer: Shape
    rows: Shape
    slice_axes: Shape
    index_axes: tuple[int | None, ...]
    front: int

    @property
    def transposed(self) -> Shape:
        """The order of data's axes as (outer axes, rows, slice)."""
        return self.outer + self.rows + self.slice_axes

    def outer_and_slice_values(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return two lists of `values`, one per axis of data: of the outer axes, and of a slice."""
        return [values[d] for d in self.outer], [values[d] for d in self.slice_axes]

    def arrange(
        self, tuples: Sequence[Any], outer: Sequence[Any], slice_axes: Sequence[Any]
    ) -> Any:
        """Return items of tuples, outer axes and a slice in the order of a gather's output axes."""
        return (*tuples[: self.front], *outer, *tuples[self.front :], *slice_axes)


def axes_of(plan: Plan) -> Axes:
    """Return the axes of a plan."""
    rank = len(plan.data)
    all_axes = tuple(range(rank))
    if isinstance(plan, ElementsPlan):
        index_axes = tuple(None if d == plan.axis else d for d in all_axes)
        return Axes((), all_axes, (), index_axes, 0)
    leading, batch = len(plan.index_batch), len(plan.batch)
    indexed = all_axes[batch : batch + plan.k]
    index_axes = (*all_axes[:leading], *(None for _ in indexed))
    return Axes(
        all_axes[leading:batch],
        all_axes[:leading] + indexed,
        all_axes[batch + plan.k :],
        index_axes,
        leading,
    )


@dataclass(frozen=True, eq=False)
class ChunkedCall:
    """The values that all tasks of a call share. chunks: the sizes of chunks of data."""

    inference: Inference
    input_dtypes: dict[str, np.dtype[Any]]
    chunks: Chunks

    @property
    def plan(self) -> Plan:
        return self.inference.plan

    @cached_property
    def axes(self) -> Axes:
        return axes_of(self.plan)

    @property
    def has_scalar_indices(self) -> bool:
        """Whether each index is a tuple of one component, without an axis of components."""
        return isinstance(self.plan, ElementsPlan) or self.plan.has_scalar_indices

    @cached_property
    def is_strict(self) -> bool:
        """Whether an index out of bounds is an error."""
        return check.is_error(self.plan)

    @cached_property
    def grid(self) -> Shape:
        """The number of chunks along each axis of rows."""
        return tuple(len(self.chunks[d]) for d in self.axes.rows)

    @cached_property
    def skipped(self) -> int:
        """The number that skipped tuples have instead of the number of a chunk of data."""
        return prod(self.grid)

    @cached_property
    def row_type(self) -> np.dtype[Any]:
        """The integer type of a row index in a chunk."""
        largest = prod(max(self.chunks[d], default=0) for d in self.axes.rows)
        return np.dtype(np.uint32 if largest <= 1 << 32 else np.int64)

    def rows_in_chunk(self, data_chunk: int) -> int:
        """Return the number of rows of a chunk of data, given the chunk's number."""
        position = layouts.unravel_index(data_chunk, self.grid)
        return prod(self.chunks[d][i] for d, i in zip(self.axes.rows, position, strict=True))


def require_declared(call: ChunkedCall, role: str, value: object, shape: Shape) -> Array:
    """Return a chunk as an ndarray; RuleError unless it has the declared dtype and shape."""
    chunk, declared = array(role, value), call.input_dtypes[role]
    if chunk.dtype != declared and chunk.dtype == declared.newbyteorder():
        chunk = chunk.astype(declared)
    if chunk.shape != shape or chunk.dtype != declared:
        actual, expected = (element_type(role, dtype) for dtype in (chunk.dtype, declared))
        raise RuleError(
            f"a chunk of {role} is {shapes.format_type(actual, chunk.shape)}: its array declares"
            f" {shapes.format_type(expected, shape)}"
        )
    return chunk
