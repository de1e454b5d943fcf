"""Counts of the updates of each slice of an output.

A mean is the sum of its summands in order, divided once by their count. If current values are not
included (include_self=False), the first update of a slice is copied and the others are reduced.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import LINE, KernelOptions, UpdateCounts
from ndtool.engine.bind import Buffer
from ndtool.errors import ResourceError
from ndtool.machine import scratch
from ndtool.machine.threads import limit_threads
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.reductions import REDUCTIONS, neutral_element

MAX_COUNT = (1 << 31) - 1  # tuples, from which counts have 8 bytes, not 4


class ReductionOptions(NamedTuple):
    """How updates are reduced with current values and with each other.

    include_self: whether the current value is an operand of the reduction. duplicates: for
    reduction "none", which update of a slice is the result: "last", "first", or "error" (any
    duplicate is an error).
    """

    reduction: str
    include_self: bool = True
    duplicates: str = "last"

    @classmethod
    def from_attributes(cls, attributes: Attributes) -> ReductionOptions:
        """Return the reduction options in a call's attributes."""
        return cls(attributes.reduction, attributes.include_self, attributes.duplicates)

    @property
    def copies_first_update(self) -> bool:
        """Whether the first update of a slice is copied, not reduced with the current value."""
        return self.duplicates == "first" if self.reduction == "none" else not self.include_self

    @property
    def operator_signs(self) -> tuple[str, str]:
        """The signs of the first update of an element and of the others, such as ("=", "+")."""
        sign = REDUCTIONS[self.reduction].symbol
        return (
            "=" if self.copies_first_update else sign,
            "ignored" if self.duplicates == "first" else sign,
        )

    @property
    def is_counted(self) -> bool:
        """Whether the updates of each slice are counted."""
        return REDUCTIONS[self.reduction].needs_counts or self.copies_first_update

    @property
    def is_mean(self) -> bool:
        """Whether the reduction is a mean: sums are divided by the counts of their summands."""
        return REDUCTIONS[self.reduction].needs_counts

    def has_totals(self, tuples: int, width: int) -> bool:
        """Whether a first pass counts all updates: a long slice is divided after its last one."""
        return self.is_mean and width > LINE and tuples < MAX_COUNT

    def count_itemsize(self, tuples: int, width: int) -> int:
        """Return the bytes of the update count of a slice; 0 if updates are not counted."""
        if not self.is_counted:
            return 0
        if not self.is_mean:
            return 1  # a flag: the slice has updates
        return 8 if tuples >= MAX_COUNT or self.has_totals(tuples, width) else 4

    def bind_counts(
        self, buffer: Buffer | None, tuples: int, width: int, has_totals: bool = False
    ) -> UpdateCounts | None:
        """Bind a buffer of zeros as the update counts of slices; None if updates are not counted.

        width: bytes of a slice. buffer: None if each window of the output has counts of its own.
        """
        count_itemsize = self.count_itemsize(tuples, width)
        if not count_itemsize:
            return None
        return UpdateCounts(buffer, count_itemsize, self.copies_first_update, has_totals)

    def allocate_counts(self, tuples: int, slices: int, width: int) -> UpdateCounts | None:
        """Allocate update counts of `slices` slices; None if updates are not counted."""
        count_itemsize = self.count_itemsize(tuples, width)
        if not count_itemsize:
            return None
        zeros = _allocate_zeros(slices * count_itemsize, 16 * tuples > slices)
        return self.bind_counts(zeros, tuples, width, self.has_totals(tuples, width))

    def neutral_elements(self, dtype: Dtype, width: int) -> bytes | None:
        """Return the neutral element, repeated for a slice; None if current values are included.

        None also if reducing an update with it may change bits: in another floating-point state.
        """
        if not self.copies_first_update or self.reduction == "none":
            return None
        if dtype.kind not in "biu" and not _kernels.has_default_floats():
            return None
        return neutral_element(dtype, self.reduction) * (width // dtype.itemsize) or None

    def divide_sums(
        self, counts: UpdateCounts | None, out: Buffer, width: int, dtype: Dtype, threads: int
    ) -> None:
        """Divide sums by their counts, if the reduction is a mean."""
        if counts is not None and self.is_mean:
            options = KernelOptions(limit_threads(threads, len(out)))
            _kernels.divide_means(counts, out, width, dtype.name, self.include_self, options)


def _allocate_zeros(size: int, is_dense: bool) -> mmap.mmap:
    """Return zeroed memory, whose pages the system allocates at their first access.

    is_dense: whether most pages will be accessed, so that huge pages are faster.
    """
    try:
        buffer = mmap.mmap(-1, max(size, 1), scratch.PRIVATE | getattr(mmap, "MAP_NORESERVE", 0))
        if is_dense:
            scratch.advise(buffer, "MADV_HUGEPAGE")
        return buffer
    except (OSError, OverflowError):
        raise ResourceError(f"not enough memory for {size} bytes of counts of updates") from None
