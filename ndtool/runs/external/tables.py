"""The tables that a phase writes for the next: the groups, the segments, and offsets in them.

    offsets{d}      for each group at depth d, and for the end: its first tuple among those of all
                    groups at that depth, and its first segment of rows
    starts{d}-{g}   the attempts of the blocks of a group; then for each child, and for the end,
                    its offset in each block in tuples
    attempts{d}     the attempts of the segments of rows of all groups at depth d
    blocks{d}-{g}   for each block of a group, and for the end, its attempt, then its offset in each
                    child in tuples; derived from starts{d}-{g}, which is then discarded

Segments of rows have gathered rows, or the combined updates of a hot partition.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from operator import add, sub
from typing import NamedTuple

from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.results import TaskResult
from ndtool.runs.external.spill import SpillStore, Table


class Group(NamedTuple):
    """A group of rows, and the tuples that select them, in order; at depth 0 all rows.

    first: its first tuple among those of all groups at its depth. tuples: the number of tuples.
    block: the tuples of a block. segment: its first segment of rows in the table `attempts`.
    """

    depth: int
    number: int
    first: int
    tuples: int
    block: int
    segment: int = 0

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.tuples // self.block)

    def tuples_of(self, block: int) -> int:
        """Return the number of tuples of a block."""
        return min(self.block, self.tuples - block * self.block)

    def task_number(self, block: int, partitioning: Partitioning) -> int:
        """Return the number of the task for a block of this group."""
        return self.number * partitioning.blocks + block


class Tuples(NamedTuple):
    """The tuples of a group in the blocks of its parent: the start and stop in each block."""

    parent: Group
    attempts: memoryview
    starts: memoryview
    stops: memoryview


class BlockOffsets(NamedTuple):
    """The gathered rows of a block: the start and stop in each child, and the children's segments.

    attempt: the attempt that spilled the tuples of the block. attempts: those of the segments.
    """

    attempt: int
    children: list[Group]
    attempts: memoryview
    starts: memoryview
    stops: memoryview


class Tables:
    """Reads the tables of a run."""

    def __init__(self, partitioning: Partitioning, store: SpillStore) -> None:
        self._partitioning, self._store = partitioning, store

    def group(self, depth: int, number: int) -> Group:
        """Return a group at a depth."""
        return next(self._groups(depth, number, 1))

    def tuples(self, depth: int, number: int) -> Tuples:
        """Return the offsets of a group's tuples in the blocks of its parent."""
        parent_number, child = divmod(number, self._partitioning.fan_out(depth - 1))
        parent = self.group(depth - 1, parent_number)
        if not parent.tuples:
            return Tuples(parent, *(memoryview(array("q")) for _ in range(3)))
        table = _child_offsets_table(parent)
        lines = self._store.read_lines(table, 1 + child, 3 + child)
        attempts = self._store.read_lines(table, 0, 1)
        return Tuples(parent, attempts, lines[: parent.blocks], lines[parent.blocks :])

    def attempts(self, group: Group, count: int) -> memoryview:
        """Return the attempts of `count` segments of rows, from the first of a group on."""
        first = group.segment
        return self._store.read_lines(_attempts_table(group.depth), first, first + count)

    def block_offsets(self, group: Group, block: int) -> BlockOffsets:
        """Return the offsets of a block's gathered rows in the children of its group."""
        count = self._partitioning.children(group.number, group.depth)
        first = group.number * self._partitioning.fan_out(group.depth)
        children = list(self._groups(group.depth + 1, first, count))
        end = next(self._groups(group.depth + 1, first + count - 1, 1, uses_next_segment=True))
        lines = self._store.read_lines(
            Table(_block_offsets_name(group), 1 + count), block, block + 2
        )
        attempts = self.attempts(children[0], end.segment - children[0].segment)
        return BlockOffsets(lines[0], children, attempts, lines[1 : 1 + count], lines[2 + count :])

    def _groups(
        self, depth: int, first: int, count: int, uses_next_segment: bool = False
    ) -> Iterator[Group]:
        """Yield consecutive groups; uses_next_segment: with the first segment of the next group."""
        block = self._partitioning.block_tuples
        if not depth:
            yield Group(0, 0, 0, self._partitioning.rows.tuples, block)
            return
        lines = self._store.read_lines(_offsets_table(depth), first, first + count + 1)
        for i in range(count):
            first_tuple, segment, end_tuple, next_segment = lines[2 * i : 2 * i + 4]
            segment = next_segment if uses_next_segment else segment
            yield Group(depth, first + i, first_tuple, end_tuple - first_tuple, block, segment)


class TableBuilder:
    """Collects the results of tasks, depth by depth, and writes tables of them.

    depth: the depth of the groups whose blocks are split or restored.
    """

    def __init__(self, partitioning: Partitioning, store: SpillStore) -> None:
        self._partitioning, self._store = partitioning, store
        self._offsets = [_zeros(4)]
        self._offsets[0][2] = partitioning.rows.tuples
        self._child_offsets: list[dict[int, memoryview]] = []
        self._attempts = [memoryview(array("q"))]

    def groups(self, depth: int) -> Iterator[Group]:
        """Yield the groups at a depth that have tuples."""
        block, offsets = self._partitioning.block_tuples, self._offsets[depth]
        for number in range(len(offsets) // 2 - 1):
            first, segment, stop, _ = offsets[2 * number : 2 * number + 4]
            if stop > first:
                yield Group(depth, number, first, stop - first, block, segment)

    def group(self, depth: int, number: int) -> Group:
        """Return a group at a depth; an empty group if none has this number."""
        if number >= len(self._offsets[depth]) // 2 - 1:
            return Group(depth, number, 0, 0, self._partitioning.block_tuples)
        first, segment, stop, _ = self._offsets[depth][2 * number : 2 * number + 4]
        return Group(depth, number, first, stop - first, self._partitioning.block_tuples, segment)

    def blocks(self, depth: int) -> int:
        """Return the number of blocks of all groups at a depth."""
        return sum(group.blocks for group in self.groups(depth))

    def begin_splits(self, depth: int) -> None:
        """Prepare for the splits of groups at a depth."""
        children = self._partitioning.children
        self._child_offsets.append(
            {
                group.number: _zeros((2 + children(group.number, depth)) * group.blocks)
                for group in self.groups(depth)
            }
        )

    def add_split(self, number: int, result: TaskResult) -> None:
        """Add the result of a split."""
        group, block = divmod(number, self._partitioning.blocks)
        starts = self._child_offsets[-1][group]
        offsets = memoryview(result.offsets).cast("q")
        blocks = len(starts) // (1 + len(offsets))
        starts[block] = result.attempt
        starts[blocks + block :: blocks] = offsets

    def write_splits(self) -> None:
        """Write the tables of a depth after all of its blocks are split."""
        partitioning, depth = self._partitioning, len(self._child_offsets) - 1
        fan_out, segment_tuples = (
            partitioning.fan_out(depth),
            partitioning.segment_tuples(depth + 1),
        )
        offsets, tuples, segment = _zeros(2 * partitioning.groups(depth + 1) + 2), 0, 0
        offsets[0::2] = _int64s(self._first_tuples(depth, fan_out))
        for number in range(partitioning.groups(depth + 1)):
            offsets[2 * number + 1] = segment
            tuples = offsets[2 * number + 2] - offsets[2 * number]
            if partitioning.gathers or (
                depth + 1 == partitioning.levels and partitioning.is_combined(tuples)
            ):
                segment += -(-tuples // segment_tuples)
        offsets[-1] = segment
        self._offsets.append(offsets)
        self._attempts.append(_zeros(segment))
        self._store.write_table(_offsets_table(depth + 1), offsets)
        for group in self.groups(depth):
            self._store.write_table(
                _child_offsets_table(group), self._child_offsets[depth][group.number]
            )
        if depth and not partitioning.gathers:
            for group in self.groups(depth - 1):
                self._discard_child_offsets(group)

    def _discard_child_offsets(self, group: Group) -> None:
        """Release the child offsets of a group, which no later task reads."""
        del self._child_offsets[group.depth][group.number]
        self._store.discard_table(_child_offsets_table(group))

    def _first_tuples(self, depth: int, fan_out: int) -> Iterator[int]:
        """Yield the first tuple of each child of all groups at a depth, and the end."""
        first_tuple = 0
        for number in range(self._partitioning.groups(depth)):
            group, counts = self.group(depth, number), [0] * fan_out
            if group.tuples:
                lines = self._child_offsets[depth][number]
                sums = [
                    sum(lines[start : start + group.blocks])
                    for start in range(group.blocks, len(lines), group.blocks)
                ]
                counts[: len(sums) - 1] = map(sub, sums[1:], sums)
            for count in counts:
                yield first_tuple
                first_tuple += count
        yield first_tuple

    def add_segment(self, group: Group, index: int, attempt: int) -> None:
        """Add the attempt of a group's segment of rows; index: of the segment in the group."""
        self._attempts[group.depth][group.segment + index] = attempt

    def write_attempts(self, depth: int) -> None:
        """Write the table of the attempts of all segments of rows at a depth."""
        self._store.write_table(_attempts_table(depth), self._attempts[depth])

    def write_block_offsets(self, depth: int) -> None:
        """Write the tables that restore the rows of blocks at a depth."""
        for group in self.groups(depth):
            starts, blocks = self._child_offsets[depth][group.number], group.blocks
            count = len(starts) // blocks - 2
            line = 1 + count
            table, offsets_in_children = _zeros((1 + blocks) * line), [0] * count
            for block in range(blocks):
                table[block * line : (block + 1) * line] = _int64s(
                    [starts[block], *offsets_in_children]
                )
                offsets = starts[blocks + block :: blocks].tolist()
                offsets_in_children = list(
                    map(add, offsets_in_children, map(sub, offsets[1:], offsets))
                )
            table[blocks * line :] = _int64s([0, *offsets_in_children])
            self._store.write_table(Table(_block_offsets_name(group), line), table)
            del starts
            self._discard_child_offsets(group)

    def discard_block_offsets(self, depth: int) -> None:
        """Release the tables that restored the rows of blocks at a depth."""
        for group in self.groups(depth):
            line = 1 + self._partitioning.children(group.number, depth)
            self._store.discard_table(Table(_block_offsets_name(group), line))


def _child_offsets_table(group: Group) -> Table:
    return Table(f"starts{group.depth}-{group.number}", group.blocks)


def _block_offsets_name(group: Group) -> str:
    return f"blocks{group.depth}-{group.number}"


def _offsets_table(depth: int) -> Table:
    return Table(f"offsets{depth}", 2)


def _attempts_table(depth: int) -> Table:
    return Table(f"attempts{depth}", 1)


def _zeros(count: int) -> memoryview:
    return memoryview(bytearray(8 * count)).cast("q")


def _int64s(numbers: Iterable[int]) -> memoryview:
    return memoryview(array("q", numbers))
