"""The graph of a call on chunked arrays, as tuples of a function and its arguments.

This is dask's format: a task is (function, argument, ...), a key is a tuple of a name and numbers,
and arguments that are keys, also in lists, are results of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate, product
from math import isqrt, prod
from operator import attrgetter
from typing import Any

import numpy as np

from ndtool.chunkwise import parts, splits
from ndtool.chunkwise.calls import Array, ChunkedCall, Chunks
from ndtool.engine import layouts
from ndtool.errors import BoundsError
from ndtool.inmemory.arguments import name_exactly
from ndtool.rules.plans import Shape

Key = tuple[Any, ...]
FEW = 4  # bundles that a task depends on without an exchange


class TaskGraph:
    """The graph of a call: `tasks` by key; those of the output have the name of the graph.

    Chunks of data along the rows, and chunks of indices, have numbers in row-major order. touched:
    for each chunk of indices, the rows that it may select from; touching: the inverse. splits: one
    for each chunk of indices. These, and what tasks know of the call, are values if indices are in
    memory, else keys.
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
        self.call, self.names, self.token, self.axes = call, names, token, call.axes
        self.name = f"{call.inference.operator}-{token}"
        self.tasks: dict[Any, Any] = {}
        self.chunks = list(_boxes(over))
        self.free = list(product(*(list(_boxes(one)) for one in self.axes.along(call.chunks))))
        self.in_memory = indices is not None
        self.known = self._shared(call, "call")
        self.splits: list[Any] = []
        self.touched: list[list[int]] = []
        verdict = self._split_later() if indices is None else self._split_now(indices, given)
        self.touching: dict[int, list[int]] = {row: [] for row in range(call.skipped)}
        for at, rows in enumerate(self.touched):
            for row in rows:
                self.touching[row].append(at)
        self.pairs: set[tuple[int, int]] = set()
        if self.in_memory:
            self.pairs |= {(at, row) for at, rows in enumerate(self.touched) for row in rows}
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
        if self.in_memory and len(self.free) == 1:
            return value
        self.tasks[self._key(what, *at)] = value
        return self._key(what, *at)

    def _split_later(self) -> Key:
        """Add the tasks that split indices, and the verdict on them; return its key."""
        reports = []
        rest = () if self.call.is_plain else (0,)
        for number, (at, origin, shape) in enumerate(self.chunks):
            key, chunk = self._key("split", number), (self.names["indices"], *at, *rest)
            self.tasks[key] = (splits.split, self.known, chunk, number, origin, shape)
            self.splits.append(key)
            if self.call.is_strict:
                reports.append(self._key("report", number))
                self.tasks[reports[-1]] = (attrgetter("report"), key)
            self.touched.append(self._reach(origin, shape) if prod(shape) else [])
        verdict = self._key("verdict")
        self.tasks[verdict] = (splits.bounds_verdict, self.known, reports)
        return verdict

    def _reach(self, origin: Shape, shape: Shape) -> list[int]:
        """Return the chunks of data, along the rows, that tuples of a chunk may select from."""
        numbers: Array = np.zeros(1, int)
        for axis, source in zip(self.axes.rows, self.axes.sources, strict=True):
            sizes = np.array(self.call.chunks[axis])
            ends = np.cumsum(sizes)
            reached = sizes > 0
            if source is not None:
                first = origin[source]
                reached &= (ends - sizes < first + shape[source]) & (ends > first)
            numbers = (numbers[:, None] * len(sizes) + np.flatnonzero(reached)).ravel()
        return list(map(int, numbers))

    def _split_now(self, indices: Array, given: object) -> Key | None:
        """Split indices in memory; return the verdict's key, if any.

        The only verdict is an error, raised when the result is computed.
        """
        reports = []
        for number, (_, origin, shape) in enumerate(self.chunks):
            box = tuple(slice(o, o + size) for o, size in zip(origin, shape, strict=True))
            found = splits.split(self.call, indices[box], number, origin, shape)
            reports.append(found.report)
            self.splits.append(found)
            self.touched.append([row for row in found.ids.tolist() if row < self.call.skipped])
        try:
            splits.bounds_verdict(self.call, reports)
        except BoundsError as error:
            name_exactly(error, given)
            self.tasks[self._key("verdict")] = (_fail, error)
            return self._key("verdict")
        return None

    def _exchange(
        self, what: str, sources: dict[int, Any], targets: Sequence[int], by_row: bool
    ) -> dict[int, list[Any]]:
        """Return, for each target, the bundles that have parts for it, in the order of sources.

        sources: the bundles of chunks of data if `by_row`, else of indices; targets: the others. If
        a target has many sources, groups of sources are bundled for groups of targets, so that a
        task depends on the square root of them and not on parts for all targets.
        """
        ids = list(sources)
        some = dict.fromkeys(targets, ids)
        if self.in_memory:
            some = {
                target: [one for one in ids if self._meet(one, target, by_row)]
                for target in targets
            }
        many = [target for target in targets if len(some[target]) > FEW]
        found = {target: [sources[one] for one in some[target]] for target in targets}
        if len(many) < 2:
            return found
        size = isqrt(len(ids) - 1) + 1
        groups = [ids[first : first + size] for first in range(0, len(ids), size)]
        for wanted in _cut(many, -(-len(many) // size)):
            bundles = []
            for group in groups:
                of = [
                    one
                    for one in group
                    if any(self._meet(one, target, by_row) for target in wanted)
                ]
                if of:
                    key = self._key(what, len(self.tasks))
                    self.tasks[key] = (
                        splits.select, [sources[one] for one in of], np.array(wanted)
                    )  # fmt: skip
                    bundles.append((key, of))
            for target in wanted:
                found[target] = [
                    key for key, of in bundles if any(self._meet(one, target, by_row) for one in of)
                ]
        return found

    def _meet(self, source: int, target: int, by_row: bool) -> bool:
        """Whether tuples of a chunk of indices may select from a chunk of data of its class."""
        if not self.in_memory:
            return True
        return ((target, source) if by_row else (source, target)) in self.pairs

    def _pieces(self, ats: Sequence[int], rows: Sequence[int]) -> dict[int, list[Any]]:
        """Return, for each row, the bundles with the tuples of some chunks that select from it."""
        if not self.in_memory:
            return self._exchange("pieces", {at: self.splits[at] for at in ats}, rows, False)
        return {
            row: self._shared(
                [self.splits[at].only(row) for at in ats if (at, row) in self.pairs],
                "piece", len(self.tasks),
            )
            for row in rows
        }  # fmt: skip

    def _require_distinct(self, verdict: Key | None) -> Key:
        """Add the tasks that look for duplicates; return the key of their verdict."""
        found = []
        for ats, rows in self._classes():
            for row, bundles in self._pieces(ats, rows).items():
                found.append(self._key("repeated", row))
                self.tasks[found[-1]] = (splits.repeated, self.known, verdict, row, bundles)
        key = self._key("distinct")
        self.tasks[key] = (splits.duplicates_verdict, self.known, verdict, found)
        return key

    def _classes(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield chunks of indices, and the chunks of data that all of these, no others, may reach.

        Of indices in memory, all: each pair that meets is known.
        """
        if self.in_memory:
            yield list(range(len(self.splits))), [row for row, by in self.touching.items() if by]
            return
        classes: dict[tuple[int, ...], list[int]] = {}
        for row, by in self.touching.items():
            if by:
                classes.setdefault(tuple(by), []).append(row)
        for ats, rows in classes.items():
            yield list(ats), rows

    def _chunk(self, row: int, lane: Shape, run: Shape) -> tuple[Key, Shape]:
        """Return the key and the shape of a chunk of data."""
        at = [0] * len(self.call.chunks)
        position = layouts.unravel(row, self.call.grid)
        for d, one in zip(self.axes.transposed, lane + position + run, strict=True):
            at[d] = one
        sizes = tuple(self.call.chunks[d][one] for d, one in enumerate(at))
        return (self.names["data"], *at), sizes

    def _gather(self, verdict: Key | None) -> None:
        """Add the tasks of a gather, so that each picks about as much as a chunk of the output."""
        bundles: list[list[list[Any]]] = [[[] for _ in self.splits] for _ in self.free]
        for ats, rows in self._classes():
            for group in _cut(ats, len(rows)):
                met = [row for row in rows if any(self._meet(at, row, False) for at in group)]
                pieces = self._pieces(group, met)
                for number, ((lane, _, _), (run, _, _)) in enumerate(self.free):
                    picks = {}
                    for row in met:
                        chunk, shape = self._chunk(row, lane, run)
                        picks[row] = self._key("pick", len(self.tasks))
                        self.tasks[picks[row]] = (
                            parts.pick, self.known, verdict, chunk, shape, row, pieces[row]
                        )  # fmt: skip
                    for at, found in self._exchange("rows", picks, group, True).items():
                        bundles[number][at] += found
        for number, ((lane, _, lanes), (run, _, sizes)) in enumerate(self.free):
            for at, (position, _, _) in enumerate(self.chunks):
                piece = (
                    self._shared(self.splits[at], "tuples", at)
                    if self.in_memory
                    else self.splits[at]
                )
                self.tasks[(self.name, *self.axes.arranged(position, lane, run))] = (
                    parts.merge, self.known, verdict, piece, (lanes, sizes), bundles[number][at]
                )  # fmt: skip

    def _scatter(self, verdict: Key | None) -> None:
        """Add the tasks of a scatter: one for each chunk of updates, and of data."""
        for (lane, _, lanes), (run, _, sizes) in self.free:
            dealt = {}
            for at, (position, _, _) in enumerate(self.chunks):
                piece = (
                    self._shared(self.splits[at], "tuples", at)
                    if self.in_memory
                    else self.splits[at]
                )
                chunk = (self.names["updates"], *self.axes.arranged(position, lane, run))
                dealt[at] = self._key("deal", len(self.tasks))
                self.tasks[dealt[at]] = (parts.deal, self.known, piece, chunk, (lanes, sizes))
            bundles: dict[int, list[Any]] = {row: [] for row in self.touching}
            for ats, rows in self._classes():
                bundles |= self._exchange("updates", {at: dealt[at] for at in ats}, rows, False)
            for row, found in bundles.items():
                key, shape = self._chunk(row, lane, run)
                self.tasks[(self.name, *key[1:])] = (
                    parts.update, self.known, verdict, key, shape, row, found
                )  # fmt: skip


def _cut(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield a sequence in groups of at most `size`."""
    for first in range(0, len(numbers), max(1, size)):
        yield numbers[first : first + max(1, size)]


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
