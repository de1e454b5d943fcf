"""Counts of the updates of each slice of an output.

A mean is the sum of its summands in order, divided once by their number. If current values are not
included, the first update of a slice is copied and the next ones are reduced.
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
from ndtool.rules.reductions import REDUCTIONS, neutral

MAX_COUNT = (1 << 31) - 1  # tuples that counts of four bytes can count


class ReductionOptions(NamedTuple):
    """How updates are combined with the current values and with each other.

    include_self: whether the current value takes part in the reduction. duplicates: for reduction
    "none", which of several updates to the same slice is the result: "last", "first" or "error".
    """

    reduction: str
    include_self: bool = True
    duplicates: str = "last"

    @classmethod
    def from_attributes(cls, attributes: Attributes) -> ReductionOptions:
        """Return how a call's attributes combine updates."""
        return cls(attributes.reduction, attributes.include_self, attributes.duplicates)

    @property
    def copies_first_update(self) -> bool:
        """Whether the first update of an element is copied."""
        return self.duplicates == "first" if self.reduction == "none" else not self.include_self

    @property
    def operator_signs(self) -> tuple[str, str]:
        """How the first update of an element, and how each of the next, is written."""
        symbol = REDUCTIONS[self.reduction].symbol
        return (
            "=" if self.copies_first_update else symbol,
            "ignored" if self.duplicates == "first" else symbol,
        )

    @property
    def is_counted(self) -> bool:
        """Whether the updates of each slice are counted."""
        return REDUCTIONS[self.reduction].counts or self.copies_first_update

    @property
    def is_mean(self) -> bool:
        """Whether sums are divided by the numbers of their summands."""
        return REDUCTIONS[self.reduction].counts

    def has_totals(self, tuples: int, width: int) -> bool:
        """Whether totals precede the updates, so that long slices are divided after their last."""
        return self.is_mean and width > LINE and tuples < MAX_COUNT

    def count_itemsize(self, tuples: int, width: int) -> int:
        """Return the bytes of the count of a slice of `width` bytes; 0 if nothing is counted."""
        if not self.is_counted:
            return 0
        if not self.is_mean:
            return 1  # a flag
        return 8 if tuples >= MAX_COUNT or self.has_totals(tuples, width) else 4

    def bind_counts(
        self, buffer: Buffer | None, tuples: int, width: int, has_totals: bool = False
    ) -> UpdateCounts | None:
        """Bind zeros, as many as an output has slices; None if nothing is counted.

        Without a buffer, each window of the output has its own counts.
        """
        each = self.count_itemsize(tuples, width)
        return UpdateCounts(buffer, each, self.copies_first_update, has_totals) if each else None

    def allocate_counts(self, tuples: int, slices: int, width: int) -> UpdateCounts | None:
        """Return zeros for the updates by a number of tuples; None if nothing is counted."""
        each = self.count_itemsize(tuples, width)
        if not each:
            return None
        zeros = _zeros(slices * each, 16 * tuples > slices)
        return self.bind_counts(zeros, tuples, width, self.has_totals(tuples, width))

    def neutral(self, dtype: Dtype, width: int) -> bytes | None:
        """Return neutral elements for a slice, if they can replace current values; else None."""
        if not self.copies_first_update or self.reduction == "none":
            return None
        return neutral(dtype, self.reduction) * (width // dtype.itemsize) or None

    def divide_sums(
        self, counts: UpdateCounts | None, out: Buffer, width: int, dtype: Dtype, threads: int
    ) -> None:
        """Divide the sums of a mean by their counts; other reductions are complete."""
        if counts is not None and self.is_mean:
            options = KernelOptions(limit_threads(threads, len(out)))
            _kernels.divide_means(counts, out, width, dtype.name, self.include_self, options)


def _zeros(size: int, most: bool) -> mmap.mmap:
    """Return zeroed memory, whose pages the system allocates when they are first accessed.

    most: whether most of them will be accessed.
    """
    try:
        buffer = mmap.mmap(-1, max(size, 1), scratch.PRIVATE | getattr(mmap, "MAP_NORESERVE", 0))
        if most:
            scratch.advise(buffer, "MADV_HUGEPAGE")
        return buffer
    except (OSError, OverflowError):
        raise ResourceError(f"not enough memory for {size} bytes of counts") from None
