"""Counts of the updates of each slice of an output.

A mean is the sum of its summands in order, divided once by their count. Where a slice's first
update replaces the current value, it is the one whose count is 0.
"""

from __future__ import annotations

import mmap
import os

from ndtool import _kernels
from ndtool._kernels import LINE, KernelOptions, UpdateCounts, UpdateSpec
from ndtool.engine import tuning
from ndtool.engine.bind import Buffer
from ndtool.errors import ResourceError
from ndtool.machine import scratch
from ndtool.machine.threads import limit_threads
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.reductions import neutral_element

MAX_COUNT = (1 << 31) - 1  # tuples, from which counts have 8 bytes, not 4


def is_sparse(tuples: int, slices: int) -> bool:
    """Whether most slices have no update, so that a table numbers those that have any."""
    return tuning.SPARSE_UPDATES * tuples < slices


def count_itemsize(attributes: Attributes, tuples: int) -> int:
    """Return the bytes of the update count of a slice; 0 if updates are not counted."""
    if not attributes.is_counted:
        return 0
    return 8 if tuples >= MAX_COUNT else 4


def update_spec(
    updates: Buffer,
    width: int,
    attributes: Attributes,
    dtype: Dtype,
    counts: UpdateCounts | None = None,
) -> UpdateSpec:
    """Return the update spec of a scatter of slices of `width` bytes.

    counts: of all updates, if other ones precede these; else all are here, and current values that
    are not included can be replaced by neutral elements.
    """
    reduction, current, neutral = attributes.reduction, "included", b""
    if attributes.copies_first_update:
        if counts is None and width <= LINE:
            neutral = neutral_element(dtype, reduction)
        current = "neutral" if neutral else "replaced"
    itemsize = count_itemsize(attributes, len(updates) // max(1, width))
    return UpdateSpec(updates, width, reduction, dtype.name, neutral, itemsize, current, counts)


def allocate_counts(attributes: Attributes, tuples: int, slices: int) -> UpdateCounts:
    """Allocate update counts of `slices` slices, or of those that tuples select."""
    itemsize = count_itemsize(attributes, tuples)
    if not is_sparse(tuples, slices):
        return UpdateCounts(_allocate_zeros(slices * itemsize), itemsize)
    slots = row_slots(tuples)
    zeros = memoryview(_allocate_zeros(slots * (8 + itemsize)))
    return UpdateCounts(zeros[8 * slots :], itemsize, zeros[: 8 * slots], tuples, random_factor())


def divide_sums(
    attributes: Attributes,
    counts: UpdateCounts | None,
    out: Buffer,
    width: int,
    dtype: Dtype,
    threads: int,
) -> None:
    """Divide sums by their counts, if the reduction is a mean."""
    if counts is not None and attributes.is_mean:
        work = counts.tuples * (8 + width) or len(out)
        options = KernelOptions(limit_threads(threads, work))
        _kernels.divide_means(counts, out, width, dtype.name, attributes.include_self, options)


def row_slots(tuples: int) -> int:
    """Return the slots of a table of the rows that tuples select, at most half of them used."""
    return 1 << (2 * tuples).bit_length()


def random_factor() -> int:
    """Return a factor for the hash values of a table, which nobody can predict."""
    return int.from_bytes(os.urandom(8), "little") | 1


def _allocate_zeros(size: int) -> Buffer:
    """Return zeroed memory, whose pages the system allocates at their first access."""
    if size < 1 << 16:
        return bytearray(size)
    try:
        buffer = mmap.mmap(-1, size, scratch.PRIVATE | getattr(mmap, "MAP_NORESERVE", 0))
        scratch.advise(buffer, "MADV_HUGEPAGE")
        return buffer
    except (OSError, OverflowError):
        raise ResourceError(f"not enough memory for {size} bytes of counts of updates") from None
