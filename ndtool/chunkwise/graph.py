"""The graph of a call on chunked arrays, as tuples of a function and its arguments.

This is dask's format: a task is (function, argument, ...), a key is a tuple of a name and numbers,
and arguments that are keys, also in lists, are results of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate, product
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from ndtool.arguments import name_exactly
from ndtool.chunkwise import parts, splits
from ndtool.chunkwise.calls import Array, ChunkedCall, Chunks
from ndtool.engine import layouts
from ndtool.errors import BoundsError
from ndtool.rules.plans import Shape

Key = tuple[Any, ...]


class TaskGraph:
    """The graph of a call: `tasks` by key; those of the output have the name "".

    A position is that of a chunk in a grid: of indices (`at`), of data along the rows (`row`), or
    along the lanes and the run. touching: for each row the indices that may select from it;
    touched: the inverse. splits: by position of the indices. pieces: for each row the splits that
    select from it.
    """

    def __init__(
        self,
        call: ChunkedCall,
        over: Chunks,
        names: dict[str, str],
        indices: Array | None,
        given: object,
        token: str,
    ) -> None:
        """Build the graph.

        over: the chunks of tuples. names: those of the chunked inputs, by role. indices: those in
        memory, made of `given`, or None.
        """
        self.call, self.over, self.names, self.token = call, over, names, token
        self.axes, self.indices, self.given = call.axes, indices, given
        self.name = f"{call.inference.operator}-{token}"
        self.tasks: dict[Any, Any] = {}
        # What tasks know and take of indices: values if these are in memory, else keys.
        self.known = self._shared(call, "call")
        self.splits: dict[Shape, Any] = {}
        self.pieces: dict[Shape, Any] = {row: [] for row in _grid(call.grid)}
        self.touching: dict[Shape, list[Shape]] = {row: [] for row in self.pieces}
        self.touched: dict[Shape, list[Shape]] = {}
        verdict = self._split_later() if indices is None else self._split_now(indices)
        if call.inference.requires_distinct:
            verdict = self._require_distinct(verdict)
        if "updates" in names:
            self._scatter(verdict)
        else:
            self._gather(verdict)

    def _key(self, what: str, *at: int) -> Key:
        return (f"{self.call.inference.operator}-{what}-{self.token}", *at)

    def _shared(self, value: Any, what: str, *at: int) -> Any:
        """Return a value for several tasks; its key if it would be copied for many of them."""
        lanes, run = self.axes.along(self.call.chunks)
        if self.indices is not None and prod(map(len, lanes + run)) == 1:
            return value
        self.tasks[self._key(what, *at)] = value
        return self._key(what, *at)

    def _split_later(self) -> Key:
        """Add the tasks that split indices, and the verdict on them; return its key."""
        reports = []
        rest = () if self.call.is_plain else (0,)
        for at, origin, shape in _boxes(self.over):
            key = self.splits[at] = self._key("split", *at)
            self.tasks[key] = (
                splits.split, self.known, (self.names["indices"], *at, *rest), origin, shape
            )  # fmt: skip
            if self.call.is_strict:
                reports.append(self._key("report", *at))
                self.tasks[reports[-1]] = (attrgetter("report"), key)
            self.touched[at] = []
            for row in self._reach(origin, shape) if prod(shape) else ():
                self._connect(at, row, key)
        verdict = self._key("verdict")
        self.tasks[verdict] = (splits.bounds_verdict, self.known, reports)
        return verdict

    def _reach(self, origin: Shape, shape: Shape) -> list[Shape]:
        """Return the chunks of data, along the rows, that tuples of a chunk may select from."""
        ranges = []
        for axis, source in zip(self.axes.rows, self.axes.sources, strict=True):
            sizes = np.array(self.call.chunks[axis])
            ends = np.cumsum(sizes)
            reached = sizes > 0
            if source is not None:
                first = origin[source]
                reached &= (ends - sizes < first + shape[source]) & (ends > first)
            ranges.append(np.flatnonzero(reached).tolist())
        return list(product(*ranges))

    def _connect(self, at: Shape, row: Shape, piece: Any) -> None:
        """Connect a chunk of indices with a chunk of data that its tuples select from."""
        self.touched[at].append(row)
        self.touching[row].append(at)
        self.pieces[row].append(piece)

    def _split_now(self, indices: Array) -> Key | None:
        """Split indices in memory, and connect chunks that meet; return the verdict's key, if any.

        The only verdict is an error, raised when the result is computed.
        """
        reports = []
        for at, origin, shape in _boxes(self.over):
            box = tuple(slice(o, o + size) for o, size in zip(origin, shape, strict=True))
            found = splits.split(self.call, indices[box], origin, shape)
            reports.append(found.report)
            self.splits[at] = self._shared(found, "split", *at)
            self.touched[at] = []
            for number in map(int, found.ids):
                if number < self.call.skipped:
                    self._connect(at, layouts.unravel(number, self.call.grid), found.only(number))
        for row, some in self.pieces.items():
            if some:
                self.pieces[row] = self._shared(some, "piece", *row)
        try:
            splits.bounds_verdict(self.call, reports)
        except BoundsError as error:
            name_exactly(error, self.given)
            self.tasks[self._key("verdict")] = (_fail, error)
            return self._key("verdict")
        return None

    def _require_distinct(self, verdict: Key | None) -> Key:
        """Add the tasks that look for duplicates; return the key of their verdict."""
        found = []
        for number, (row, pieces) in enumerate(self.pieces.items()):
            key = self._key("repeated", *row)
            self.tasks[key] = (splits.repeated, self.known, verdict, number, pieces)
            found.append(key)
        key = self._key("distinct")
        self.tasks[key] = (splits.duplicates_verdict, self.known, found)
        return key

    def _free(self) -> Iterator[tuple[Shape, Shape, tuple[Shape, Shape]]]:
        """Yield the positions of the chunks along the lanes and the run, and their shapes."""
        lanes, run = self.axes.along(self.call.chunks)
        for lane, _, lane_sizes in _boxes(lanes):
            for one, _, sizes in _boxes(run):
                yield lane, one, (lane_sizes, sizes)

    def _chunk(self, row: Shape, lane: Shape, run: Shape) -> tuple[Key, Shape]:
        """Return the key and the shape of a chunk of data."""
        at = [0] * len(self.call.chunks)
        for d, one in zip(self.axes.transposed, lane + row + run, strict=True):
            at[d] = one
        sizes = tuple(self.call.chunks[d][one] for d, one in enumerate(at))
        return (self.names["data"], *at), sizes

    def _gather(self, verdict: Key | None) -> None:
        """Add the tasks of a gather: one for each chunk of data, and of the output."""
        for lane, run, free in self._free():
            picks = {}
            for number, (row, pieces) in enumerate(self.pieces.items()):
                if pieces:
                    chunk, shape = self._chunk(row, lane, run)
                    picks[row] = self._key("pick", *row, *lane, *run)
                    self.tasks[picks[row]] = (
                        parts.pick, self.known, verdict, chunk, shape, number, pieces
                    )  # fmt: skip
            for at, rows in self.touched.items():
                key = (self.name, *self.axes.arranged(at, lane, run))
                picked = [picks[row] for row in rows]
                self.tasks[key] = (
                    parts.merge, self.known, verdict, self.splits[at], free, picked
                )  # fmt: skip

    def _scatter(self, verdict: Key | None) -> None:
        """Add the tasks of a scatter: one for each chunk of data, which is one of the output."""
        for number, (row, pieces) in enumerate(self.pieces.items()):
            for lane, run, _ in self._free():
                chunk, shape = self._chunk(row, lane, run)
                by = self.touching[row]
                updates = [(self.names["updates"], *self.axes.arranged(at, lane, run)) for at in by]
                self.tasks[(self.name, *chunk[1:])] = (
                    parts.update, self.known, verdict, chunk, shape, number, pieces, updates
                )  # fmt: skip


def _fail(error: BoundsError) -> None:
    """Raise the error of indices that were in memory, when a result is computed."""
    raise copy(error)


def _grid(grid: Shape) -> Iterator[Shape]:
    """Yield the positions of a grid, in row-major order."""
    return product(*map(range, grid))


def _boxes(chunks: Sequence[tuple[int, ...]]) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Yield the position, the origin and the shape of each chunk, in row-major order."""
    begins = [(0, *accumulate(sizes)) for sizes in chunks]
    for at in _grid(tuple(map(len, chunks))):
        origin = tuple(some[one] for some, one in zip(begins, at, strict=True))
        yield at, origin, tuple(some[one] for some, one in zip(chunks, at, strict=True))
