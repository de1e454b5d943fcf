"""The state that the tasks of a run share: open arrays, bound plans and buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from ndtool._kernels import LINE, Indices
from ndtool.arrays.boxes import FlatReader, Reader, Writer, read_range, read_repeated
from ndtool.engine import bind
from ndtool.engine.check import is_error
from ndtool.machine import pool
from ndtool.rules.dtypes import NATIVE
from ndtool.rules.inference import Inference
from ndtool.rules.plans import NdPlan
from ndtool.runs.external.batches import Allocate
from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.spill import SpillStore
from ndtool.runs.external.tables import Tables
from ndtool.storage.local import ByteRange


class Arrays(NamedTuple):
    """The arrays of a run. updates: None for gathers. output: None if nothing is written."""

    data: Reader
    indices: Reader
    updates: Reader | None
    output: Writer | None


class Work:
    """The state that the tasks of a run share: open arrays, bound plans and buffers."""

    def __init__(
        self, inference: Inference, partitioning: Partitioning, arrays: Arrays, store: SpillStore
    ) -> None:
        self.inference, self.partitioning = inference, partitioning
        self.arrays, self.store = arrays, store
        plan, dtype = inference.plan, inference.dtype
        if is_error(plan):
            plan = plan._replace(attributes=plan.attributes._replace(out_of_bounds="error"))
        self.attributes = plan.attributes
        self.plan = plan.with_index_tuples if isinstance(plan, NdPlan) else plan
        self.rows = bind.bind_rows(self.plan)
        # The bytes of a row.
        self.fill_bytes = inference.fill_bytes * (partitioning.rows.width // dtype.itemsize)
        order = dtype.order if self.attributes.reduction == "none" else NATIVE
        # Whether arithmetic needs a byte swap of data, and of updates.
        self.swaps_data = dtype.swap_size > 1 and dtype.order != order
        updates = inference.inputs.get("updates")
        self.swaps_updates = bool(updates and dtype.swap_size > 1 and updates.dtype.order != order)
        self.tables = Tables(partitioning, store)
        self._partition_buffers, self._scratch = (
            pool.BufferPool(partitioning.partition_bytes),
            pool.BufferPool(partitioning.scratch_bytes),
        )
        self._indices = arrays.indices
        if partitioning.index_bytes:
            buffer = memoryview(bytearray(partitioning.index_bytes))
            read_range(arrays.indices, 0, buffer)
            self._indices = FlatReader(ByteRange(buffer), arrays.indices.leading_shape, Lock())

    def indices(self, block: int, allocate: Allocate) -> Indices:
        """Return the indices of a block."""
        rows, first = self.partitioning.rows, block * self.partitioning.block_tuples
        n = self.partitioning.tuple_count(block)
        buffer = allocate(n * rows.tuple_bytes)
        if rows.repeats > 1:
            read_repeated(self._indices, first, buffer, rows.period, rows.repeats)
        elif buffer:  # tuples may have no components
            read_range(self._indices, first, buffer)
        return self._bind(buffer)

    def first_occurrences(
        self, block: int, allocate: Allocate, indices: Indices | None = None
    ) -> Indices:
        """Return the stored indices that occur in a block for the first time.

        indices: the indices of the block, which are returned unless batches share tuples.
        """
        if indices is not None and self.partitioning.rows.repeats == 1:
            return indices
        first, stop = self.partitioning.first_occurrences(block)
        buffer = allocate((stop - first) * self.partitioning.rows.tuple_bytes)
        if buffer:
            read_range(self._indices, first, buffer)
        return self._bind(buffer)

    def _bind(self, buffer: memoryview) -> Indices:
        return bind.bind_indices(buffer, self.inference.inputs["indices"].dtype, self.attributes)

    @contextmanager
    def partition_buffer(self) -> Iterator[memoryview]:
        """Yield a buffer for a partition of data."""
        buffer = self._partition_buffers.acquire()
        yield buffer
        self._partition_buffers.release(buffer)

    @contextmanager
    def arena(self) -> Iterator[Allocate]:
        """Yield an allocator of scratch memory, aligned to cache lines."""
        buffer, offset = self._scratch.acquire(), 0

        def allocate(nbytes: int) -> memoryview:
            nonlocal offset
            start = offset
            offset += -(-nbytes // LINE) * LINE
            return buffer[start : start + nbytes]

        yield allocate
        self._scratch.release(buffer)
