"""The blocks and byte ranges of data that a gather reads, computed from its indices beforehand.

Only data that cannot be memory-mapped need this. NumPy processes the indices in slabs. The result
is a superset of the bytes that the gather reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from ndtool.arrays.source import ArrayMetadata
from ndtool.engine import layouts
from ndtool.rules import grid
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan, Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IndexArray = NDArray[np.int64]

BATCH_COMPONENTS = 1 << 18  # index components that are processed together
GRANULE = 1 << 16  # bytes of contiguous data that are read or skipped together
MAX_FLAGS = 1 << 25  # maximum size of an IndexSet that is an array of flags
_TEMPORARY_ARRAYS = 6  # arrays of SLAB int64 values that exist at a time


def memory(metadata: ArrayMetadata) -> int:
    """Estimate the bytes of memory that computing the touched blocks or ranges takes."""
    count = (
        grid.count_blocks(metadata.shape, metadata.block_shape)
        if metadata.is_chunked
        else metadata.nbytes // GRANULE
    )
    return min(count, MAX_FLAGS) + _TEMPORARY_ARRAYS * 8 * BATCH_COMPONENTS


class TouchedByGather:
    """The blocks or byte ranges of data that a gather reads.

    indices: their bytes, of type `dtype`, in row-major order. attributes: of negative and
    out-of-bounds indices.
    """

    def __init__(
        self,
        plan: Plan,
        indices: memoryview,
        dtype: Dtype,
        attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
    ) -> None:
        self._plan, self._indices, self._attributes = plan, indices, attributes
        self._code = f"{dtype.order}{dtype.kind}{dtype.itemsize}"
        self._row_shape, self._slice_shape = plan.all_slices, plan.slice_shape
        self._indexed_axes = tuple(map(plan.axis_of, range(plan.k)))
        self._positions = plan.with_index_tuples.positions
        self._block_step: Shape | None = None
        self._touched_blocks: IndexSet | None = None

    def blocks(self, block_shape: Shape) -> Iterator[int]:
        """Yield the linear indices of the blocks of a grid that the gather reads, ascending."""
        coordinates = grid.grid_shape(self._plan.data, block_shape)
        row_axes = len(self._row_shape)
        if self._touched_blocks is None or self._block_step != block_shape:
            strides = layouts.contiguous_strides(coordinates[:row_axes], 1)
            self._touched_blocks = self._touched_indices(
                block_shape[:row_axes], strides, 1, prod(coordinates[:row_axes])
            )
            self._block_step = block_shape
        blocks_per_row = prod(coordinates[row_axes:])  # a slice spans all blocks along its axes
        for row_indices in self._touched_blocks.sorted_batches():
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
        granule_set = self._touched_indices(unit_steps, strides, granule, -(-row_count // granule))
        first = stop = 0
        for element in range(width if fortran else 1):
            for granules in granule_set.sorted_batches():
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

    def _stored_rows(self, tuple_indices: IndexArray) -> IndexArray:
        """Return the rows of stored indices that contain tuples; batches may share rows."""
        plan = self._plan
        if plan.batch_repeats == 1:
            return tuple_indices
        per_batch = plan.tuples_per_batch
        return (
            tuple_indices // (plan.batch_repeats * per_batch) * per_batch
            + tuple_indices % per_batch
        )

    def _touched_indices(self, steps: Shape, strides: Shape, granule: int, count: int) -> IndexSet:
        """Return the set of position // granule for all tuples.

        The position of a tuple is the sum of strides * (coordinate // steps).
        """
        touched = IndexSet(count)
        if not prod(self._plan.output) or not prod(self._plan.data):
            return touched
        import numpy as np

        from ndtool.inmemory.normalizing import normalize_indices

        k, tuples = len(self._indexed_axes), prod(self._positions)
        values = np.frombuffer(self._indices, self._code).reshape(-1, k)
        position_strides = layouts.contiguous_strides(self._positions, 1)
        step = max(1, BATCH_COMPONENTS // k)
        for first in range(0, tuples, step):
            tuple_indices = np.arange(first, min(first + step, tuples))
            slab = values[self._stored_rows(tuple_indices)]
            rows, is_dropped = np.zeros(len(slab), np.int64), np.zeros(len(slab), np.bool_)
            for component, axis in enumerate(self._indexed_axes):
                size = self._row_shape[axis]
                coordinates, _ = normalize_indices(slab[:, component], size, self._attributes)
                is_dropped |= coordinates == size
                rows += coordinates // steps[axis] * strides[axis]
            for axis, size in enumerate(self._row_shape):
                if axis not in self._indexed_axes and steps[axis] < size:
                    coordinates = tuple_indices // position_strides[axis] % self._positions[axis]
                    rows += coordinates // steps[axis] * strides[axis]
            touched.add(rows[~is_dropped] // granule if is_dropped.any() else rows // granule)
        return touched


class IndexSet:
    """A set of indices below `count`: an array of flags, or a sorted array if that is larger."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._flags: NDArray[np.bool_] | None = None
        self._batches: list[Any] = []
        self._merged_count = self._unmerged_count = 0

    def add(self, indices: IndexArray) -> None:
        """Add indices to the set."""
        import numpy as np

        if self._count <= MAX_FLAGS:
            if self._flags is None:
                self._flags = np.zeros(self._count, np.bool_)
            self._flags[indices] = True
            return
        self._batches.append(np.unique(indices))
        self._unmerged_count += len(self._batches[-1])
        if self._unmerged_count > max(self._merged_count, BATCH_COMPONENTS):
            self._merge()

    def sorted_batches(self) -> Iterator[list[int]]:
        """Yield all indices, ascending, in batches."""
        import numpy as np

        if self._flags is not None:
            for first in range(0, self._count, BATCH_COMPONENTS):
                flags = self._flags[first : first + BATCH_COMPONENTS]
                yield (np.flatnonzero(flags) + first).tolist()
        elif self._batches:
            self._merge()
            (sorted_indices,) = self._batches
            for first in range(0, len(sorted_indices), BATCH_COMPONENTS):
                yield sorted_indices[first : first + BATCH_COMPONENTS].tolist()

    def _merge(self) -> None:
        import numpy as np

        self._batches = [np.unique(np.concatenate(self._batches))]
        self._merged_count, self._unmerged_count = len(self._batches[0]), 0
