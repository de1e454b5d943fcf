"""The task graph of a call on chunked arrays.

It has dask's format: a task is a tuple (function, argument, ...), a key is a tuple of a name and
numbers, and an argument that is a key, or a list of keys, stands for the results of these tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate, chain, product
from math import isqrt, prod
from operator import attrgetter
from typing import Any

import numpy as np

from ndtool.engine import layouts
from ndtool.errors import BoundsError
from ndtool.inmemory.arguments import restore_exact_index
from ndtool.outofcore.lazy import datachunks, splits
from ndtool.outofcore.lazy.calls import Array, ChunkedCall, Chunks
from ndtool.rules.plans import Shape

Key = tuple[Any, ...]
MIN_EXCHANGED = 4  # a task depends on up to so many bundles without an exchange


class TaskGraph:
    """The graph of a call: `tasks` by key; the keys of the output have the name of the graph.

    Chunks of data (along the axes of rows) and chunks of indices have numbers in row-major order.
    splits: the split of each chunk of indices. reachable, reached_by: if indices are in memory, the
    chunks of data that each chunk of indices selects from, and the inverse; tasks then take the
    splits and the call as values, else as keys.
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

        tuple_chunks: the chunks of tuples. names: the names of the chunked inputs, by role.
        indices: indices in memory, converted from `original`, or None.
        """
        self.call, self.names, self.token, self.axes = call, names, token, call.axes
        self.name = f"{call.inference.operator}-{token}"
        self.tasks: dict[Any, Any] = {}
        self.chunks = list(_boxes(tuple_chunks))
        self.outer_and_slices = list(
            product(
                *(list(_boxes(sizes)) for sizes in self.axes.outer_and_slice_values(call.chunks))
            )
        )
        self.in_memory = indices is not None
        self.call_key = self._share(call, "call")
        self.splits: list[Any] = []
        self.reachable: list[list[int]] = []
        self.reached_by: dict[int, list[int]] = {}
        verdict = self._split_later() if indices is None else self._split_now(indices, original)
        for index_chunk, data_chunks in enumerate(self.reachable):
            for data_chunk in data_chunks:
                self.reached_by.setdefault(data_chunk, []).append(index_chunk)
        if call.inference.requires_distinct:
            verdict = self._require_distinct(verdict)
        if "updates" in names:
            self._scatter(verdict)
        else:
            self._gather(verdict)

    def _key(self, kind: str, *numbers: int) -> Key:
        return (f"{self.call.inference.operator}-{kind}-{self.token}", *numbers)

    def _share(self, value: Any, kind: str, *numbers: int) -> Any:
        """Return a value as an argument of several tasks; its key, if many tasks take it."""
        if self.in_memory and len(self.outer_and_slices) == 1:
            return value
        self.tasks[self._key(kind, *numbers)] = value
        return self._key(kind, *numbers)

    def _split_later(self) -> Key:
        """Add the tasks that split indices, and the task of the verdict; return its key."""
        reports = []
        component = () if self.call.has_scalar_indices else (0,)
        for number, (position, origin, shape) in enumerate(self.chunks):
            key, chunk = self._key("split", number), (self.names["indices"], *position, *component)
            self.tasks[key] = (splits.split, self.call_key, chunk, number, origin, shape)
            self.splits.append(key)
            if self.call.is_strict:
                reports.append(self._key("report", number))
                self.tasks[reports[-1]] = (attrgetter("report"), key)
        verdict = self._key("verdict")
        self.tasks[verdict] = (splits.bounds_verdict, self.call_key, reports)
        return verdict

    def _reachable(self, origin: Shape, shape: Shape) -> list[int]:
        """Return the chunks of data that the tuples of a chunk of indices may select from."""
        reachable: Array = np.zeros(1, int)
        for axis, index_axis in zip(self.axes.rows, self.axes.index_axes, strict=True):
            sizes = np.array(self.call.chunks[axis])
            stops = np.cumsum(sizes)
            is_reachable = sizes > 0
            if index_axis is not None:
                start = origin[index_axis]
                is_reachable &= (stops - sizes < start + shape[index_axis]) & (stops > start)
            reachable = (reachable[:, None] * len(sizes) + np.flatnonzero(is_reachable)).ravel()
        return list(map(int, reachable))

    def _split_now(self, indices: Array, original: object) -> Key | None:
        """Split indices in memory; return the key of a task that raises the error, if any."""
        reports = []
        for number, (_, origin, shape) in enumerate(self.chunks):
            box = tuple(
                slice(start, start + size) for start, size in zip(origin, shape, strict=True)
            )
            split = splits.split(self.call, indices[box], number, origin, shape)
            reports.append(split.report)
            self.splits.append(split)
            self.reachable.append(
                [data_chunk for data_chunk in split.ids.tolist() if data_chunk < self.call.skipped]
            )
        try:
            splits.bounds_verdict(self.call, reports)
        except BoundsError as error:
            restore_exact_index(error, original)
            self.tasks[self._key("verdict")] = (_raise_copy, error)
            return self._key("verdict")
        return None

    def _exchange(
        self, kind: str, sources: dict[int, Any], targets: Sequence[int], from_data: bool
    ) -> dict[int, list[Any]]:
        """Return, for each target, the bundles with entries for it, in the order of sources.

        sources: the bundles of chunks of data if `from_data`, else of chunks of indices. targets:
        the chunks of the other array. Groups of many sources are bundled for groups of targets, so
        that a task depends on about the square root of their number.
        """
        numbers = list(sources)
        neighbors = self.reachable if from_data else self.reached_by

        def sources_of(target: int) -> list[int]:
            """Return the sources that may have entries for a target."""
            return [i for i in neighbors[target] if i in sources] if self.in_memory else numbers

        many_source_targets = [
            target for target in targets if len(sources_of(target)) > MIN_EXCHANGED
        ]
        if len(many_source_targets) < 2:
            many_source_targets = []
        size = isqrt(max(0, len(numbers) - 1)) + 1
        group_of = {number: i // size for i, number in enumerate(numbers)}
        result: dict[int, list[Any]] = {}
        for group_targets in _groups(many_source_targets, -(-len(many_source_targets) // size)):
            needed = dict.fromkeys(chain.from_iterable(map(sources_of, group_targets)))
            if not self.in_memory:
                needed = dict.fromkeys(numbers)
            members: dict[int, list[Any]] = {}
            for number in sorted(needed):
                members.setdefault(group_of[number], []).append(sources[number])
            keys: dict[int, Key] = {}
            for group, bundles in members.items():
                keys[group] = self._key(kind, len(self.tasks))
                self.tasks[keys[group]] = (splits.select, bundles, np.array(group_targets))
            for target in group_targets:
                groups = set(keys)
                if self.in_memory:
                    groups = {group_of[number] for number in sources_of(target)}
                result[target] = [keys[group] for group in sorted(groups)]
        for target in targets:
            if target not in result:
                result[target] = [sources[number] for number in sources_of(target)]
        return result

    def _bundles(
        self, index_chunks: Sequence[int], data_chunks: Sequence[int]
    ) -> dict[int, list[Any]]:
        """Return, for each chunk of data, the bundles with the tuples that select from it."""
        if not self.in_memory:
            sources = {i: self.splits[i] for i in index_chunks}
            return self._exchange("splits", sources, data_chunks, False)
        return {
            data_chunk: self._share(
                [
                    self.splits[i].subset(data_chunk)
                    for i in self.reached_by[data_chunk]
                    if i in index_chunks
                ],
                "split", len(self.tasks),
            )
            for data_chunk in data_chunks
        }  # fmt: skip

    def _split_argument(self, index_chunk: int) -> Any:
        """Return the split of a chunk of indices as an argument of several tasks."""
        split = self.splits[index_chunk]
        return self._share(split, "tuples", index_chunk) if self.in_memory else split

    def _require_distinct(self, verdict: Key | None) -> Key:
        """Add the tasks that search for duplicates; return the key of their verdict."""
        keys = []
        for index_chunks, data_chunks in self._classes():
            for data_chunk, bundles in self._bundles(index_chunks, data_chunks).items():
                keys.append(self._key("duplicates", data_chunk))
                self.tasks[keys[-1]] = (
                    splits.find_duplicate,
                    self.call_key,
                    verdict,
                    data_chunk,
                    bundles,
                )
        key = self._key("distinct")
        self.tasks[key] = (splits.duplicates_verdict, self.call_key, verdict, keys)
        return key

    def _classes(self) -> Iterator[tuple[Sequence[int], list[int]]]:
        """Yield chunks of indices, with the chunks of data that each of them may select from."""
        if self.in_memory:
            yield range(len(self.splits)), sorted(self.reached_by)
            return
        # Chunks of indices in the same place along the axes that give coordinates are alike.
        axes = [axis for axis in self.axes.index_axes if axis is not None]
        alike: dict[tuple[Any, ...], list[int]] = {}
        for number, (_, origin, shape) in enumerate(self.chunks):
            if prod(shape):
                place = tuple((origin[axis], shape[axis]) for axis in axes)
                alike.setdefault(place, []).append(number)
        reaching: dict[int, list[int]] = {}
        for i, (first, *_) in enumerate(alike.values()):
            for data_chunk in self._reachable(*self.chunks[first][1:]):
                reaching.setdefault(data_chunk, []).append(i)
        classes: dict[tuple[int, ...], list[int]] = {}
        for data_chunk in sorted(reaching):
            classes.setdefault(tuple(reaching[data_chunk]), []).append(data_chunk)
        index_chunks = list(alike.values())
        for numbers, data_chunks in classes.items():
            yield sorted(chain.from_iterable(index_chunks[i] for i in numbers)), data_chunks

    def _chunk(
        self, data_chunk: int, outer_position: Shape, slice_position: Shape
    ) -> tuple[Key, Shape]:
        """Return the key and the shape of a chunk of data."""
        coordinates = [0] * len(self.call.chunks)
        position = layouts.unravel_index(data_chunk, self.call.grid)
        for d, coordinate in zip(
            self.axes.transposed, outer_position + position + slice_position, strict=True
        ):
            coordinates[d] = coordinate
        sizes = tuple(self.call.chunks[d][coordinate] for d, coordinate in enumerate(coordinates))
        return (self.names["data"], *coordinates), sizes

    def _gather(self, verdict: Key | None) -> None:
        """Add the tasks of a gather, each of about as many rows as a chunk of the output."""
        bundles: list[list[list[Any]]] = [[[] for _ in self.splits] for _ in self.outer_and_slices]
        for index_chunks, data_chunks in self._classes():
            for group in _groups(index_chunks, len(data_chunks)):
                reached = data_chunks
                if self.in_memory:
                    found = chain.from_iterable(self.reachable[number] for number in group)
                    reached = sorted(dict.fromkeys(found))
                bundled = self._bundles(group, reached)
                for number, ((outer_position, _, _), (slice_position, _, _)) in enumerate(
                    self.outer_and_slices
                ):
                    keys = {}
                    for data_chunk in reached:
                        chunk, shape = self._chunk(data_chunk, outer_position, slice_position)
                        keys[data_chunk] = self._key("gather", len(self.tasks))
                        self.tasks[keys[data_chunk]] = (
                            datachunks.gather_rows, self.call_key, verdict, chunk, shape,
                            data_chunk, bundled[data_chunk],
                        )  # fmt: skip
                    for index_chunk, inputs in self._exchange("rows", keys, group, True).items():
                        bundles[number][index_chunk] += inputs
        for number, ((outer_position, _, outer_shape), (slice_position, _, sizes)) in enumerate(
            self.outer_and_slices
        ):
            for index_chunk, (position, _, _) in enumerate(self.chunks):
                split = self._split_argument(index_chunk)
                coordinates = self.axes.arrange(position, outer_position, slice_position)
                self.tasks[(self.name, *coordinates)] = (
                    datachunks.merge_rows, self.call_key, verdict, split, (outer_shape, sizes),
                    bundles[number][index_chunk],
                )  # fmt: skip

    def _scatter(self, verdict: Key | None) -> None:
        """Add the tasks of a scatter: one for each chunk of updates, and of data."""
        for (outer_position, _, outer_shape), (slice_position, _, sizes) in self.outer_and_slices:
            bundled = {}
            for index_chunk, (position, _, _) in enumerate(self.chunks):
                split = self._split_argument(index_chunk)
                chunk = (
                    self.names["updates"],
                    *self.axes.arrange(position, outer_position, slice_position),
                )
                bundled[index_chunk] = self._key("bundle", len(self.tasks))
                self.tasks[bundled[index_chunk]] = (
                    datachunks.split_updates, self.call_key, split, chunk, (outer_shape, sizes)
                )  # fmt: skip
            bundles: dict[int, list[Any]] = {number: [] for number in range(self.call.skipped)}
            for index_chunks, data_chunks in self._classes():
                bundles |= self._exchange(
                    "updates",
                    {index_chunk: bundled[index_chunk] for index_chunk in index_chunks},
                    data_chunks,
                    False,
                )
            for data_chunk, inputs in bundles.items():
                key, shape = self._chunk(data_chunk, outer_position, slice_position)
                self.tasks[(self.name, *key[1:])] = (
                    datachunks.apply_updates, self.call_key, verdict, key, shape, data_chunk, inputs
                )  # fmt: skip


def _groups(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield a sequence in groups of at most `size`."""
    for first in range(0, len(numbers), max(1, size)):
        yield numbers[first : first + max(1, size)]


def _raise_copy(error: BoundsError) -> None:
    """Raise the error about indices in memory when a result is computed."""
    raise copy(error)


def _boxes(chunks: Sequence[tuple[int, ...]]) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Yield the position, the origin and the shape of each chunk, in row-major order."""
    offsets = [(0, *accumulate(sizes)) for sizes in chunks]
    for coordinates in product(*(range(len(sizes)) for sizes in chunks)):
        origin = tuple(ends[i] for ends, i in zip(offsets, coordinates, strict=True))
        shape = tuple(sizes[i] for sizes, i in zip(chunks, coordinates, strict=True))
        yield coordinates, origin, shape
