"""The choice of a partitioning: the number of levels by cost, within a limit of memory.

The unit of cost is the sequential read of a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import lcm

from ndtool.arrays.source import ArrayMetadata
from ndtool.engine import tuning
from ndtool.errors import ResourceError, format_size
from ndtool.rules.inference import Inference
from ndtool.runs.external.partitioning import MAX_LEVELS, Partitioning
from ndtool.runs.external.units import file_shape, slab, tuple_shape

# Partitions a run for a budget in bytes, and a number of levels; None if that is impossible.
Partition = Callable[[int, int], Partitioning | None]
Memory = Callable[[Partitioning], int]
MIN_POWER, MAX_POWER = 10, 34  # if memory is short, budgets of 2^10 to 2^33 bytes are tried


def choose(
    partition: Partition, budget: int, allowed: int, segment_cost: int = tuning.SEGMENT_COST,
    memory: Memory = lambda partitioning: partitioning.memory,
) -> Partitioning | None:  # fmt: skip
    """Return the cheapest partitioning that takes at most `allowed` bytes of memory, None if none.

    budget: bytes for partitions and blocks; if no such partitioning fits, smaller and larger
    budgets are tried. segment_cost: see `cost`.
    """
    cheapest = _cheapest(_partitionings_by_levels(partition, budget), allowed, segment_cost, memory)
    return cheapest or _cheapest(_minimal_partitionings(partition), allowed, segment_cost, memory)


def min_memory(
    partition: Partition, memory: Memory = lambda partitioning: partitioning.memory
) -> int:
    """Return the bytes of memory that the smallest partitioning takes; 0 if there is none."""
    return min(map(memory, _minimal_partitionings(partition)), default=0)


def memory_error(needed: int, allowed: int) -> ResourceError:
    """Return the error that a run needs more memory than --memory allows."""
    unit = 10 ** max(0, len(str(needed)) - 3)
    needed = -(-needed // unit) * unit  # rounded up to three digits
    return ResourceError(
        f"--memory {format_size(allowed)} is less than the {format_size(needed)} that this run"
        " needs at least",
        hint=f"--memory {needed}, or more",
    )


def cost(partitioning: Partitioning, segment_cost: int = tuning.RANDOM_READ_COST) -> int:
    """Return the cost of a sweep in addition to the reads and writes of direct execution.

    segment_cost: the cost of a random read of spilled data. A gather reads each segment twice.
    """
    rows, depths = partitioning.rows, range(1, partitioning.levels + 1)
    seek_cost = 2 * _segment_count(partitioning) * segment_cost * partitioning.spilled
    offsets = sum(
        partitioning.blocks_at(depth - 1) * partitioning.fan_out(depth - 1) for depth in depths
    )
    sort_cost = (rows.tuples * partitioning.levels + offsets) * tuning.SORT_COST
    read = rows.row_count * rows.width * partitioning.gathers
    return (
        read
        + 2 * partitioning.spilled
        + sort_cost
        + seek_cost // max(1, partitioning.spilled_total)
    )


def _segment_count(partitioning: Partitioning) -> int:
    """Return the maximum number of segments that all levels read."""
    return sum(map(partitioning.segments, range(1, partitioning.levels + 1)))


def _partitionings_by_levels(partition: Partition, budget: int) -> Iterator[Partitioning]:
    """Yield the partitionings for a budget, each with more levels than the previous one."""
    previous = 0
    for levels in range(1, MAX_LEVELS + 1):
        partitioning = partition(budget, levels)
        if partitioning is not None and partitioning.levels > previous:
            previous = partitioning.levels
            yield partitioning


def _minimal_partitionings(partition: Partition) -> Iterator[Partitioning]:
    """Yield partitionings of runs that buffer nothing in memory and execute one task at a time.

    Larger blocks have smaller tables.
    """
    for power, multiplier in product(reversed(range(MIN_POWER, MAX_POWER)), (1, 2, 4, 8, 16)):
        for partitioning in _partitionings_by_levels(partition, 1 << power):
            block = partitioning.block_tuples * multiplier
            yield partitioning._replace(block_tuples=block, in_memory=0, index_bytes=0).fit_to(0)


def _cheapest(
    partitionings: Iterator[Partitioning], allowed: int, segment_cost: int, memory: Memory
) -> Partitioning | None:
    """Return the cheapest partitioning that fits; each further level must halve the segments."""
    best: Partitioning | None = None
    for candidate in partitionings:
        if memory(candidate) <= allowed and (
            best is None
            or (
                cost(candidate, segment_cost) < cost(best, segment_cost)
                and (
                    candidate.levels <= best.levels
                    or 2 * _segment_count(candidate) <= _segment_count(best)
                )
            )
        ):
            best = candidate
    return best


def reread_bytes(
    inference: Inference, sources: dict[str, ArrayMetadata], partitioning: Partitioning
) -> int:
    """Return the maximum bytes of indices and updates that are read repeatedly.

    Two blocks read a chunk that contains the boundary between them. Each batch reads the indices
    that batches share, unless they are in memory.
    """
    reread, ends, rows = 0, partitioning.blocks - 1, partitioning.rows
    if not rows.tuples:
        return 0
    for role, metadata in sources.items():
        if role == "data" or (role == "indices" and partitioning.index_bytes):
            continue
        positions = inference.plan.positions if role == "indices" else tuple_shape(inference.plan)
        unit = slab(file_shape(metadata), positions)
        if role == "indices" and rows.repeats > 1:
            read = rows.tuples
            if (
                rows.period * rows.repeats == rows.tuples
            ):  # one group: a period is read once a block
                read = ends * min(partitioning.block_tuples, rows.period) + min(
                    partitioning.tuple_count(ends), rows.period
                )
            reread += (
                read + 2 * partitioning.blocks * (unit - 1)
            ) * rows.tuple_bytes - metadata.nbytes
        else:
            divided = ends - ends * partitioning.block_tuples // lcm(
                partitioning.block_tuples, unit
            )
            reread += divided * unit * (metadata.nbytes // rows.tuples)
    return reread
