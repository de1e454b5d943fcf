"""Counts of the updates of each slice of an output.

A mean is the sum of its summands in order, divided once by their count. If current values are not
included (include_self=False), the first update of a slice is copied and the others are reduced.
"""

from __future__ import annotations

import mmap
import os

from ndtool import _kernels
from ndtool._kernels import LINE, KernelOptions, UpdateCounts
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


def has_totals(attributes: Attributes, tuples: int, width: int) -> bool:
    """Whether a first pass counts all updates: a long slice is divided after its last one."""
    return attributes.is_mean and width > LINE and tuples < MAX_COUNT


def count_itemsize(attributes: Attributes, tuples: int, width: int) -> int:
    """Return the bytes of the update count of a slice; 0 if updates are not counted."""
    if not attributes.is_counted:
        return 0
    if not attributes.is_mean:
        return 1  # a flag: the slice has updates
    return 8 if tuples >= MAX_COUNT or has_totals(attributes, tuples, width) else 4


def bind_counts(
    attributes: Attributes,
    buffer: Buffer | None,
    tuples: int,
    width: int,
    with_totals: bool = False,
) -> UpdateCounts | None:
    """Bind a buffer of zeros as the update counts of slices; None if updates are not counted.

    width: bytes of a slice. buffer: None if each window of the output has counts of its own.
    """
    itemsize = count_itemsize(attributes, tuples, width)
    if not itemsize:
        return None
    return UpdateCounts(buffer, itemsize, attributes.copies_first_update, with_totals)


def allocate_counts(
    attributes: Attributes, tuples: int, slices: int, width: int
) -> UpdateCounts | None:
    """Allocate update counts of `slices` slices; None if updates are not counted."""
    itemsize = count_itemsize(attributes, tuples, width)
    if not itemsize:
        return None
    with_totals = has_totals(attributes, tuples, width)
    if not is_sparse(tuples, slices):
        zeros = _allocate_zeros(slices * itemsize)
        return bind_counts(attributes, zeros, tuples, width, with_totals)
    slots = row_slots(tuples)
    zeros = memoryview(_allocate_zeros(slots * (8 + itemsize)))
    return UpdateCounts(
        zeros[8 * slots :], itemsize, attributes.copies_first_update, with_totals,
        zeros[: 8 * slots], tuples, random_factor(),
    )  # fmt: skip


def neutral_elements(attributes: Attributes, dtype: Dtype, width: int) -> bytes | None:
    """Return the neutral element, repeated for a slice; None if current values are included.

    None also if reducing an update with it may change bits: in another floating-point state.
    """
    if not attributes.copies_first_update or attributes.reduction == "none":
        return None
    if dtype.kind not in "biu" and not _kernels.has_default_floats():
        return None
    return neutral_element(dtype, attributes.reduction) * (width // dtype.itemsize) or None


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
