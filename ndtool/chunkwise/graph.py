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

    Chunks of data along the rows, and chunks of indices, have numbers in row-major order.
    reachable: for each chunk of indices, the rows that it may select from; reached_by: the inverse.
    splits: one for each chunk of indices. These, and the call as an argument of tasks, are values
    if indices are in memory, else keys.
    """

    def __init__(
        self,
        call: ChunkedCall,
        tuple_chunks: Chunks,
        names: dict[str, str],
        indices: Array | None,
        original: object,
        token: str,
    ) -> None:
        """Build the graph.

        tuple_chunks: the chunks of tuples. names: those of the chunked inputs, by role. indices:
        those in memory, made of `original`, or None.
        """
        self.call, self.names, self.token, self.axes = call, names, token, call.axes
        self.name = f"{call.inference.operator}-{token}"
        self.tasks: dict[Any, Any] = {}
        self.chunks = list(_boxes(tuple_chunks))
        self.inner = list(product(*(list(_boxes(one)) for one in self.axes.along(call.chunks))))
        self.in_memory = indices is not None
        self.call_key = self._shared(call, "call")
        self.splits: list[Any] = []
        self.reachable: list[list[int]] = []
        verdict = self._split_later() if indices is None else self._split_now(indices, original)
        self.reached_by: dict[int, list[int]] = {row: [] for row in range(call.skipped)}
        for at, rows in enumerate(self.reachable):
            for row in rows:
                self.reached_by[row].append(at)
        self.pairs: set[tuple[int, int]] = set()
        if self.in_memory:
            self.pairs |= {(at, row) for at, rows in enumerate(self.reachable) for row in rows}
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
        if self.in_memory and len(self.inner) == 1:
            return value
        self.tasks[self._key(what, *at)] = value
        return self._key(what, *at)

    def _split_later(self) -> Key:
        """Add the tasks that split indices, and the verdict on them; return its key."""
        reports = []
        rest = () if self.call.is_plain else (0,)
        for number, (at, origin, shape) in enumerate(self.chunks):
            key, chunk = self._key("split", number), (self.names["indices"], *at, *rest)
            self.tasks[key] = (splits.split, self.call_key, chunk, number, origin, shape)
            self.splits.append(key)
            if self.call.is_strict:
                reports.append(self._key("report", number))
                self.tasks[reports[-1]] = (attrgetter("report"), key)
            self.reachable.append(self._reachable(origin, shape) if prod(shape) else [])
        verdict = self._key("verdict")
        self.tasks[verdict] = (splits.bounds_verdict, self.call_key, reports)
        return verdict

    def _reachable(self, origin: Shape, shape: Shape) -> list[int]:
        """Return the chunks of data, along the rows, that tuples of a chunk may select from."""
        numbers: Array = np.zeros(1, int)
        for axis, source in zip(self.axes.rows, self.axes.sources, strict=True):
            sizes = np.array(self.call.chunks[axis])
            ends = np.cumsum(sizes)
            is_reachable = sizes > 0
            if source is not None:
                first = origin[source]
                is_reachable &= (ends - sizes < first + shape[source]) & (ends > first)
            numbers = (numbers[:, None] * len(sizes) + np.flatnonzero(is_reachable)).ravel()
        return list(map(int, numbers))

    def _split_now(self, indices: Array, original: object) -> Key | None:
        """Split indices in memory; return the key of the verdict if it is an error, else None."""
        reports = []
        for number, (_, origin, shape) in enumerate(self.chunks):
            box = tuple(slice(o, o + size) for o, size in zip(origin, shape, strict=True))
            split = splits.split(self.call, indices[box], number, origin, shape)
            reports.append(split.report)
            self.splits.append(split)
            self.reachable.append([row for row in split.ids.tolist() if row < self.call.skipped])
        try:
            splits.bounds_verdict(self.call, reports)
        except BoundsError as error:
            name_exactly(error, original)
            self.tasks[self._key("verdict")] = (_fail, error)
            return self._key("verdict")
        return None

    def _exchange(
        self, what: str, sources: dict[int, Any], targets: Sequence[int], by_row: bool
    ) -> dict[int, list[Any]]:
        """Return, for each target, the bundles with entries for it, in the order of sources.

        sources: the bundles of chunks of data if `by_row`, else of indices; targets: the others.
        Groups of many sources are bundled for groups of targets, so that a task depends on the
        square root of their number.
        """
        ids = list(sources)
        sources_of = dict.fromkeys(targets, ids)
        if self.in_memory:
            sources_of = {
                target: [one for one in ids if self._may_select(one, target, by_row)]
                for target in targets
            }
        crowded = [target for target in targets if len(sources_of[target]) > FEW]
        result = {target: [sources[one] for one in sources_of[target]] for target in targets}
        if len(crowded) < 2:
            return result
        size = isqrt(len(ids) - 1) + 1
        groups = [ids[first : first + size] for first in range(0, len(ids), size)]
        for group_targets in _groups(crowded, -(-len(crowded) // size)):
            bundles = []
            for group in groups:
                members = [
                    one
                    for one in group
                    if any(self._may_select(one, target, by_row) for target in group_targets)
                ]
                if members:
                    key = self._key(what, len(self.tasks))
                    self.tasks[key] = (
                        splits.select, [sources[one] for one in members], np.array(group_targets)
                    )  # fmt: skip
                    bundles.append((key, members))
            for target in group_targets:
                result[target] = [
                    key
                    for key, members in bundles
                    if any(self._may_select(one, target, by_row) for one in members)
                ]
        return result

    def _may_select(self, source: int, target: int, by_row: bool) -> bool:
        """Whether tuples of a chunk of indices may select from a chunk of data of its class."""
        if not self.in_memory:
            return True
        return ((target, source) if by_row else (source, target)) in self.pairs

    def _bundles(self, ats: Sequence[int], rows: Sequence[int]) -> dict[int, list[Any]]:
        """Return, for each row, the bundles with the tuples of some chunks that select from it."""
        if not self.in_memory:
            return self._exchange("splits", {at: self.splits[at] for at in ats}, rows, False)
        return {
            row: self._shared(
                [self.splits[at].only(row) for at in ats if (at, row) in self.pairs],
                "split", len(self.tasks),
            )
            for row in rows
        }  # fmt: skip

    def _tuples(self, at: int) -> Any:
        """Return the split of a chunk of indices, as an argument of several tasks."""
        split = self.splits[at]
        return self._shared(split, "tuples", at) if self.in_memory else split

    def _require_distinct(self, verdict: Key | None) -> Key:
        """Add the tasks that look for duplicates; return the key of their verdict."""
        keys = []
        for ats, rows in self._classes():
            for row, bundles in self._bundles(ats, rows).items():
                keys.append(self._key("repeated", row))
                self.tasks[keys[-1]] = (splits.repeated, self.call_key, verdict, row, bundles)
        key = self._key("distinct")
        self.tasks[key] = (splits.duplicates_verdict, self.call_key, verdict, keys)
        return key

    def _classes(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield chunks of indices with the chunks of data that all of these may select from."""
        if self.in_memory:
            yield list(range(len(self.splits))), [row for row, by in self.reached_by.items() if by]
            return
        classes: dict[tuple[int, ...], list[int]] = {}
        for row, by in self.reached_by.items():
            if by:
                classes.setdefault(tuple(by), []).append(row)
        for ats, rows in classes.items():
            yield list(ats), rows

    def _chunk(self, row: int, lane: Shape, slice_at: Shape) -> tuple[Key, Shape]:
        """Return the key and the shape of a chunk of data."""
        at = [0] * len(self.call.chunks)
        position = layouts.unravel_index(row, self.call.grid)
        for d, one in zip(self.axes.transposed, lane + position + slice_at, strict=True):
            at[d] = one
        sizes = tuple(self.call.chunks[d][one] for d, one in enumerate(at))
        return (self.names["data"], *at), sizes

    def _gather(self, verdict: Key | None) -> None:
        """Add the tasks of a gather, each of about as many rows as a chunk of the output."""
        bundles: list[list[list[Any]]] = [[[] for _ in self.splits] for _ in self.inner]
        for ats, rows in self._classes():
            for group in _groups(ats, len(rows)):
                reached = [
                    row for row in rows if any(self._may_select(at, row, False) for at in group)
                ]
                bundled = self._bundles(group, reached)
                for number, ((lane, _, _), (slice_at, _, _)) in enumerate(self.inner):
                    keys = {}
                    for row in reached:
                        chunk, shape = self._chunk(row, lane, slice_at)
                        keys[row] = self._key("gather", len(self.tasks))
                        self.tasks[keys[row]] = (
                            parts.gather_rows, self.call_key, verdict, chunk, shape, row,
                            bundled[row],
                        )  # fmt: skip
                    for at, inputs in self._exchange("rows", keys, group, True).items():
                        bundles[number][at] += inputs
        for number, ((lane, _, lanes), (slice_at, _, sizes)) in enumerate(self.inner):
            for at, (position, _, _) in enumerate(self.chunks):
                split = self._tuples(at)
                self.tasks[(self.name, *self.axes.arranged(position, lane, slice_at))] = (
                    parts.merge_rows, self.call_key, verdict, split, (lanes, sizes),
                    bundles[number][at],
                )  # fmt: skip

    def _scatter(self, verdict: Key | None) -> None:
        """Add the tasks of a scatter: one for each chunk of updates, and of data."""
        for (lane, _, lanes), (slice_at, _, sizes) in self.inner:
            bundled = {}
            for at, (position, _, _) in enumerate(self.chunks):
                split = self._tuples(at)
                chunk = (self.names["updates"], *self.axes.arranged(position, lane, slice_at))
                bundled[at] = self._key("bundle", len(self.tasks))
                self.tasks[bundled[at]] = (
                    parts.split_updates, self.call_key, split, chunk, (lanes, sizes)
                )  # fmt: skip
            bundles: dict[int, list[Any]] = {row: [] for row in self.reached_by}
            for ats, rows in self._classes():
                bundles |= self._exchange("updates", {at: bundled[at] for at in ats}, rows, False)
            for row, inputs in bundles.items():
                key, shape = self._chunk(row, lane, slice_at)
                self.tasks[(self.name, *key[1:])] = (
                    parts.apply_updates, self.call_key, verdict, key, shape, row, inputs
                )  # fmt: skip


def _groups(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield a sequence in groups of at most `size`."""
    for first in range(0, len(numbers), max(1, size)):
        yield numbers[first : first + max(1, size)]


def _fail(error: BoundsError) -> None:
    """Raise the error of indices that were in memory, when a result is computed."""
    raise copy(error)


def _boxes(chunks: Sequence[tuple[int, ...]]) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Yield the position, the origin and the shape of each chunk, in row-major order."""
    offsets = [(0, *accumulate(sizes)) for sizes in chunks]
    for coordinates in product(*(range(len(sizes)) for sizes in chunks)):
        origin = tuple(ends[i] for ends, i in zip(offsets, coordinates, strict=True))
        shape = tuple(sizes[i] for sizes, i in zip(chunks, coordinates, strict=True))
        yield coordinates, origin, shape
