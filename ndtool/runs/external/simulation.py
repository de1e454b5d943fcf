"""A run on a simulated cluster: tasks are executed, and report their requests to the simulator.

Spilled data are in memory. The tasks' reads and writes are counted as requests for objects at a
URL, those of `spillfiles.ObjectStore` and of chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from ndtool.arrays.boxes import Reader, Writer
from ndtool.arrays.sink import Sink
from ndtool.engine.gathers import ignore_progress
from ndtool.runs.calls import OpenCall, OpenInputs
from ndtool.runs.executors import Executor
from ndtool.runs.executors.simulator import Meter, Step
from ndtool.runs.external import execution, phases, spillfiles, tasks
from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.phases import ReportCallback
from ndtool.runs.external.spill import Segment, Table
from ndtool.runs.external.spillstore import Store
from ndtool.runs.external.work import Work
from ndtool.runs.machines import Machine
from ndtool.storage import http


def run(
    call: OpenCall,
    partitioning: Partitioning,
    sink: Sink,
    executor: Executor,
    meter: Meter,
    machine: Machine,
    report: ReportCallback,
) -> None:
    """Execute a run on a simulated cluster, into a sink; `executor.now()` is then its duration.

    Tasks report to `meter`; an executor other than the simulator runs them without delays.
    """
    layout = partitioning.layout
    store = _MeteredStore(Store(layout[""], layout[""], (), layout), meter)
    sources = {role: _metered(source, meter) for role, source in call.sources.items()}
    inputs = OpenInputs(call.inference, sources, call.threads, call.spill)
    writer = execution.writer(_metered(sink, meter), partitioning, call.inference.plan)
    arrays = execution.arrays(inputs, partitioning, _MeteredFlat.wrap(writer, meter))
    arrays = arrays._replace(
        data=_MeteredFlat.wrap(arrays.data, meter),
        indices=_MeteredFlat.wrap(arrays.indices, meter),
        updates=arrays.updates and _MeteredFlat.wrap(arrays.updates, meter),
    )  # fmt: skip
    with closing(store):
        work = Work(call.inference, partitioning, arrays, store)

        def do(phase: str, number: int) -> Any:
            before = store.nbytes
            result = tasks.run_task(work, phase, number)
            # The number of tuples follows from the bytes that the task spilled or read.
            tuples = (store.nbytes - before) / partitioning.spilled_per_tuple(0)
            meter.add(Step("computing", seconds=tuples / machine.sort_rate))
            return result

        for _ in phases.run(
            call.inference, partitioning, store, executor, do, ignore_progress, report
        ):
            pass


class _MeteredStore:
    """A spill store that counts requests as for objects."""

    can_prefetch = False

    def __init__(self, store: Store, meter: Meter) -> None:
        self.concurrency, self.nbytes = store.concurrency, 0
        self._store, self._meter = store, meter
        self._unsent: Counter[Segment] = Counter()

    def create(self, segment: Segment) -> Segment:
        return self._store.create(segment)

    def write(self, segment: Segment, offset: int, view: memoryview) -> None:
        self._store.write(segment, offset, view)
        self._add_puts(segment, len(view))
        self.nbytes += len(view)

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        self._add_puts(segment, len(end))
        if self._unsent.pop(segment, 0):
            self._meter.add(Step("put", puts=1))
        self._store.finish(segment, end)

    def prefetch(self, segment: Segment, offset: int, nbytes: int) -> None:
        pass  # objects have no prefetch

    def read(self, segment: Segment, offset: int, buffer: memoryview) -> None:
        size = spillfiles.OBJECT_BYTES
        objects = (offset + len(buffer) - 1) // size - offset // size + 1 if len(buffer) else 0
        self._meter.add(Step("get", gets=objects, nbytes=len(buffer)))
        self.nbytes += len(buffer)
        self._store.read(segment, offset, buffer)

    def write_table(self, table: Table, numbers: memoryview) -> None:
        self._meter.add(Step("table", puts=1, nbytes=numbers.nbytes))
        self._store.write_table(table, numbers)

    def discard_table(self, table: Table) -> None:
        self._store.discard_table(table)

    def read_lines(self, table: Table, first: int, stop: int) -> memoryview:
        numbers = self._store.read_lines(table, first, stop)
        self._meter.add(Step(f"line {table.name} {first}", gets=1, nbytes=numbers.nbytes))
        return numbers

    def close(self) -> None:
        self._store.close()

    def _add_puts(self, segment: Segment, nbytes: int) -> None:
        objects, self._unsent[segment] = divmod(
            self._unsent[segment] + nbytes, spillfiles.OBJECT_BYTES
        )
        self._meter.add(Step("put", puts=objects, nbytes=nbytes))


class _MeteredChunks:
    """A chunked source or sink that counts requests, as for an object for each chunk."""

    def __init__(self, array: Any, meter: Meter) -> None:
        self._array, self._meter = array, meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)

    def block(self, index: int) -> memoryview:
        """Read a chunk."""
        chunk: memoryview = self._array.block(index)
        gets = -(-len(chunk) // http.MAX_REQUEST)
        self._meter.add(Step("chunk", gets=gets, nbytes=len(chunk)))
        return chunk

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write a chunk."""
        self._meter.add(Step("written", puts=1, nbytes=len(view)))
        self._array.write(start, view, block)


def _metered(array: Any, meter: Meter) -> Any:
    """Return a source or sink, wrapped to count the requests of its chunks, if it has any."""
    return _MeteredChunks(array, meter) if array.metadata.is_chunked else array


class _MeteredFlat:
    """A reader or writer of a flat array that counts requests, as for ranges of an object."""

    def __init__(self, array: Any, meter: Meter) -> None:
        self.leading_shape, self.width, self.chunk_shape = array.leading_shape, array.width, None
        self._array, self._meter = array, meter

    @classmethod
    def wrap(cls, array: Reader | Writer | None, meter: Meter) -> Any:
        """Return a reader or writer, metered if its array is flat."""
        return (
            array if array is None or type(array).__name__.startswith("Grid") else cls(array, meter)
        )

    def read(self, box: Any, buffer: memoryview, chosen: Iterator[int] | None = None) -> None:
        """Read a box."""
        gets = -(-len(buffer) // http.MAX_REQUEST)
        self._meter.add(Step("chunk", gets=gets, nbytes=len(buffer)))
        self._array.read(box, buffer, chosen)

    def write(self, box: Any, buffer: memoryview) -> None:
        """Write a box."""
        self._meter.add(Step("written", puts=1, nbytes=len(buffer)))
        self._array.write(box, buffer)
