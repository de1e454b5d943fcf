"""The blocks and byte ranges of data that a gather reads, computed from its indices beforehand.

Only data that cannot be memory-mapped need this. Tuples are processed in batches. The result is a
superset of the bytes that the gather reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from ndtool._kernels import WorkItem, partition_ids
from ndtool.arrays.source import ArrayMetadata
from ndtool.engine import bind, layouts, tuning
from ndtool.errors import OutputError
from ndtool.rules import grid
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan, Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_] | list[int]  # flags, or the sorted indices of those that are set

BATCH_TUPLES = 1 << 18  # tuples that are processed together
GRANULE = 1 << 16  # bytes of contiguous data that are read or skipped together
_TEMPORARY_ARRAYS = 6  # arrays of BATCH_TUPLES int64 values that exist at a time


def memory(metadata: ArrayMetadata) -> int:
    """Estimate the bytes of memory that computing the touched blocks or ranges takes."""
    count = (
        grid.count_blocks(metadata.shape, metadata.block_shape)
        if metadata.is_chunked
        else metadata.nbytes // GRANULE
    )
    return count + _TEMPORARY_ARRAYS * 8 * BATCH_TUPLES


class TouchedByGather:
    """The blocks or byte ranges of data that a gather reads.

    indices: their bytes, of type `dtype`, in row-major order. attributes: of negative and
    out-of-bounds indices.
    """

    def __init__(
        self, plan: Plan, indices: memoryview, dtype: Dtype, attributes: Attributes
    ) -> None:
        self._plan, self._indices = plan, bind.bind_indices(indices, dtype, attributes)
        self._partitions = 1 + attributes.may_skip_tuples  # the last has skipped tuples
        self._row_shape, self._slice_shape = plan.all_slices, plan.slice_shape
        self._block_step: Shape | None = None
        self._touched_blocks: Flags | None = None

    def blocks(self, block_shape: Shape) -> Iterator[int]:
        """Yield the linear indices of the blocks of a grid that the gather reads, ascending."""
        coordinates = grid.grid_shape(self._plan.data, block_shape)
        row_axes = len(self._row_shape)
        if self._touched_blocks is None or self._block_step != block_shape:
            strides = layouts.contiguous_strides(coordinates[:row_axes], 1)
            self._touched_blocks = self._flags(
                block_shape[:row_axes], strides, 1, prod(coordinates[:row_axes])
            )
            self._block_step = block_shape
        blocks_per_row = prod(coordinates[row_axes:])  # a slice spans all blocks along its axes
        for row_indices in _batches(self._touched_blocks):
            for row_index in row_indices:
                yield from range(row_index * blocks_per_row, (row_index + 1) * blocks_per_row)

    def ranges(self, itemsize: int, order: str) -> Iterator[tuple[int, int]]:
        """Yield the disjoint byte ranges (start, stop) that the gather reads, ascending.

        order: the memory order of data, "C" or "F".
        """
        fortran = order == "F"
        width = prod(self._slice_shape)
        unit = itemsize if fortran else itemsize * width  # contiguous bytes that are read together
        if not unit:
            return
        row_count = prod(self._row_shape)
        granule = max(1, GRANULE // unit)
        strides = layouts.contiguous_strides(self._row_shape, 1, fortran)
        unit_steps = (1,) * len(self._row_shape)
        granule_flags = self._flags(unit_steps, strides, granule, -(-row_count // granule))
        first = stop = 0
        for element in range(width if fortran else 1):
            for granules in _batches(granule_flags):
                for granule_index in granules:
                    offset = (element * row_count + granule_index * granule) * unit
                    if offset != stop:
                        if stop > first:
                            yield first, stop
                        first = offset
                    stop = (
                        element * row_count + min(row_count, (granule_index + 1) * granule)
                    ) * unit
        if stop > first:
            yield first, stop

    def _flags(self, steps: Shape, strides: Shape, granule: int, count: int) -> Flags:
        """Return a flag for each position // granule, set if a tuple has it.

        The position of a tuple is the sum of strides * (coordinate // steps) of its row.
        """
        axes = list(zip(self._row_shape, steps, strides, strict=True))
        if self._plan.tuples <= tuning.FEW_TUPLES:
            found = set()
            for is_skipped, rows in self._selected():
                for row in (row for row, skip in zip(rows, is_skipped, strict=True) if not skip):
                    position = 0
                    for size, step, stride in reversed(axes):
                        row, coordinate = divmod(row, size)
                        position += coordinate // step * stride
                    found.add(position // granule)
            return sorted(found)
        import numpy as np

        touched = np.zeros(count, np.bool_)
        for is_skipped, rows in self._selected():
            remaining = np.asarray(rows)[np.frombuffer(is_skipped, np.uint8) == 0].astype(np.int64)
            positions = np.zeros(len(remaining), np.int64)
            for size, step, stride in reversed(axes):
                remaining, coordinates = np.divmod(remaining, size)
                positions += coordinates // step * stride
            touched[positions // granule] = True
            if touched.all():
                break
        return touched

    def _selected(self) -> Iterator[tuple[bytearray, memoryview]]:
        """Yield in batches whether tuples are skipped, and the rows that they select."""
        plan, row_count = self._plan, prod(self._row_shape)
        if not prod(plan.output) or not prod(plan.data):
            return
        rows, boxes = bind.bind_rows(plan), bind.bind_boxes((row_count,), (row_count,))
        for first in range(0, plan.tuples, BATCH_TUPLES):
            n = min(BATCH_TUPLES, plan.tuples - first)
            is_skipped, selected = bytearray(n), bytearray(n * boxes.row_bytes)
            offsets = memoryview(bytearray(8 * (self._partitions + 1))).cast("q")
            item = WorkItem(first, n, 0, 0)
            if partition_ids(rows, self._indices, 0, item, boxes, is_skipped, selected, offsets):
                raise OutputError("indices changed during the run")
            yield is_skipped, memoryview(selected).cast("I" if boxes.row_bytes == 4 else "Q")


def _batches(flags: Flags) -> Iterator[list[int]]:
    """Yield the indices of the flags that are set, ascending, in batches."""
    if isinstance(flags, list):
        yield flags
        return
    import numpy as np

    for first in range(0, len(flags), BATCH_TUPLES):
        yield (np.flatnonzero(flags[first : first + BATCH_TUPLES]) + first).tolist()
