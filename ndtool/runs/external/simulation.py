"""A run whose tasks do all of their work, and report it to a simulated cluster.

Spilled data are in memory; what the tasks read and write is metered as of objects at a URL, with
the requests of `spillfiles.ObjectStore` and of chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from ndtool.arrays.boxes import Reader, Writer
from ndtool.arrays.sink import Sink
from ndtool.engine.gathers import ignore_progress
from ndtool.runs.calls import Inputs, OpenCall
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

    Tasks report to `meter`; another executor than the simulator runs them as fast as it can.
    """
    layout = partitioning.layout
    store = _MeteredStore(Store(layout[""], layout[""], (), layout), meter)
    sources = {role: _metered(source, meter) for role, source in call.sources.items()}
    inputs = Inputs(call.inference, sources, call.threads, call.spill)
    writer = execution.writer(_metered(sink, meter), partitioning, call.inference.plan)
    arrays = execution.arrays(inputs, partitioning, _Flat.of(writer, meter))
    arrays = arrays._replace(
        data=_Flat.of(arrays.data, meter), indices=_Flat.of(arrays.indices, meter),
        updates=arrays.updates and _Flat.of(arrays.updates, meter),
    )  # fmt: skip
    with closing(store):
        work = Work(call.inference, partitioning, arrays, store)

        def do(phase: str, number: int) -> Any:
            before = store.nbytes
            done = tasks.do(work, phase, number)
            # The tuples of the task, from the bytes that it spills for each or reads.
            tuples = (store.nbytes - before) / partitioning.spilled_per_tuple(0)
            meter.add(Step("computing", seconds=tuples / machine.sorted))
            return done

        for _ in phases.run(
            call.inference, partitioning, store, executor, do, ignore_progress, report
        ):
            pass


class _MeteredStore:
    """A spill store that reports the requests of objects."""

    prefetches = False

    def __init__(self, store: Store, meter: Meter) -> None:
        self.at_once, self.nbytes = store.at_once, 0
        self._store, self._meter = store, meter
        self._rest: Counter[Segment] = Counter()

    def create(self, segment: Segment) -> Segment:
        return self._store.create(segment)

    def write(self, segment: Segment, at: int, view: memoryview) -> None:
        self._store.write(segment, at, view)
        self._put(segment, len(view))
        self.nbytes += len(view)

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        self._put(segment, len(end))
        if self._rest.pop(segment, 0):
            self._meter.add(Step("put", puts=1))
        self._store.finish(segment, end)

    def expect(self, segment: Segment, at: int, nbytes: int) -> None:
        pass  # objects have no prefetch

    def read(self, segment: Segment, at: int, buffer: memoryview) -> None:
        size = spillfiles.OBJECT_BYTES
        objects = (at + len(buffer) - 1) // size - at // size + 1 if len(buffer) else 0
        self._meter.add(Step("get", gets=objects, nbytes=len(buffer)))
        self.nbytes += len(buffer)
        self._store.read(segment, at, buffer)

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        self._meter.add(Step("table", puts=1, nbytes=numbers.nbytes))
        self._store.tabulate(table, numbers)

    def discard(self, table: Table) -> None:
        self._store.discard(table)

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        numbers = self._store.lines(table, first, stop)
        self._meter.add(Step(f"line {table.name} {first}", gets=1, nbytes=numbers.nbytes))
        return numbers

    def close(self) -> None:
        self._store.close()

    def _put(self, segment: Segment, nbytes: int) -> None:
        objects, self._rest[segment] = divmod(self._rest[segment] + nbytes, spillfiles.OBJECT_BYTES)
        self._meter.add(Step("put", puts=objects, nbytes=nbytes))


class _Metered:
    """A chunked source or sink that reports its requests, an object for each chunk."""

    def __init__(self, of: Any, meter: Meter) -> None:
        self._of, self._meter = of, meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def block(self, number: int) -> memoryview:
        """Read a chunk."""
        chunk: memoryview = self._of.block(number)
        gets = -(-len(chunk) // http.LARGEST)
        self._meter.add(Step("chunk", gets=gets, nbytes=len(chunk)))
        return chunk

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write a chunk."""
        self._meter.add(Step("written", puts=1, nbytes=len(view)))
        self._of.write(start, view, block)


def _metered(array: Any, meter: Meter) -> Any:
    """Return a source or sink, metered if it has chunks."""
    return _Metered(array, meter) if array.metadata.in_chunks else array


class _Flat:
    """A reader or writer of a flat array that reports its range requests."""

    def __init__(self, of: Any, meter: Meter) -> None:
        self.over, self.width, self.chunk = of.over, of.width, None
        self._of, self._meter = of, meter

    @classmethod
    def of(cls, array: Reader | Writer | None, meter: Meter) -> Any:
        """Return a reader or writer, metered if its array is flat."""
        return (
            array if array is None or type(array).__name__.startswith("Grid") else cls(array, meter)
        )

    def read(self, box: Any, buffer: memoryview, chosen: Iterator[int] | None = None) -> None:
        """Read a box."""
        gets = -(-len(buffer) // http.LARGEST)
        self._meter.add(Step("chunk", gets=gets, nbytes=len(buffer)))
        self._of.read(box, buffer, chosen)

    def write(self, box: Any, buffer: memoryview) -> None:
        """Write a box."""
        self._meter.add(Step("written", puts=1, nbytes=len(buffer)))
        self._of.write(box, buffer)
