"""The arguments of a scatter; copies of data and passes over updates, for all algorithms."""

from collections.abc import Callable
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import BLOCK, LINE, Indices, KernelOptions, UpdateCounts, UpdateSpec
from ndtool.engine import counting, tuning
from ndtool.engine.bind import Buffer
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.machine.threads import limit_threads, run_all
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan
from ndtool.rules.reductions import neutral_element


def neutral_block(dtype: Dtype, reduction: str) -> bytes:
    """Return the neutral element, repeated for a block of short slices; b"" if there is none."""
    return neutral_element(dtype, reduction) * (BLOCK * LINE // dtype.itemsize)


class ScatterCall(NamedTuple):
    """The arguments of a scatter: a plan and its buffers.

    data: the bytes to copy to out first; None if out already contains them. updates, out:
    contiguous, and in native byte order and aligned if there is a reduction. scratch_limit: bytes
    of scratch for sorting, SCRATCH if None. write_at(offset, bytes): writes to the output file, if
    that is faster than stores to out. validates_first: whether all indices are validated before out
    changes. current: what becomes of current values; `scatters.scatter` sets it.
    """

    plan: Plan
    dtype: Dtype
    data: Buffer | None
    indices: Indices
    updates: Buffer
    out: Buffer
    threads: int
    scratch_limit: int | None = None
    progress: ProgressCallback = ignore_progress
    write_at: Callable[[int, Buffer], object] | None = None
    validates_first: bool = False
    current: str = "included"

    @property
    def attributes(self) -> Attributes:
        """The attributes of the plan."""
        return self.plan.attributes

    def update_spec(
        self, pitch: int, current: str = "included", counts: UpdateCounts | None = None
    ) -> UpdateSpec:
        """Return an update spec: the updates, each of `pitch` bytes, and their reduction."""
        neutral = None
        if current in ("neutral", "fill"):
            neutral = neutral_block(self.dtype, self.attributes.reduction)
        reduction, name = self.attributes.reduction, self.dtype.name
        return UpdateSpec(self.updates, pitch, reduction, name, current, counts, neutral)

    def window_spec(self, pitch: int) -> UpdateSpec:
        """Return the update spec for an output updated in windows, each with its own counts."""
        counts = None
        if self.attributes.is_mean or self.current == "replaced":
            tuples = len(self.updates) // pitch
            counts = UpdateCounts(None, counting.count_itemsize(self.attributes, tuples))
        return self.update_spec(pitch, self.current, counts)

    def is_sparse(self, width: int) -> bool:
        """Whether most slices of `width` bytes have no update, so that nothing visits them all."""
        return counting.is_sparse(len(self.updates) // width, len(self.out) // width)

    @property
    def exceeds_cache(self) -> bool:
        """Whether the output exceeds the cache, so that non-temporal stores are faster."""
        return len(self.out) >= tuning.NON_TEMPORAL


def copy_data(call: ScatterCall) -> None:
    """Copy data to out, unless out already contains it."""
    if call.data is None:
        return
    size, data, write, step = len(call.data), call.data, call.write_at, tuning.WRITE_SIZE
    if write is not None:
        offsets, threads = iter(range(0, size, step)), limit_threads(call.threads, size)
        run_all(lambda offset: write(offset, data[offset : offset + step]), offsets, threads)
        return
    for start in range(0, size, tuning.WORK_ITEM):
        stop = min(size, start + tuning.WORK_ITEM)
        options = KernelOptions(limit_threads(call.threads, stop - start), call.exceeds_cache)
        _kernels.copy(data[start:stop], call.out[start:stop], options)


def current_values(call: ScatterCall, width: int) -> str:
    """Return what becomes of the current value of a slice with updates, see UpdateSpec.

    "neutral" instead of "replaced" where that gives the same bits: unless an update is a NaN.
    """
    if not call.attributes.copies_first_update:
        return "included"
    if width > LINE or not neutral_block(call.dtype, call.attributes.reduction):
        return "replaced"
    if call.dtype.kind in "biu":
        return "neutral"
    if not _kernels.has_default_floats():
        return "replaced"
    for start in range(0, len(call.updates), tuning.WORK_ITEM):
        updates = call.updates[start : start + tuning.WORK_ITEM]
        if _kernels.find_nan(updates, call.dtype.name, limit_threads(call.threads, len(updates))):
            return "replaced"
    return "neutral"


def apply_in_passes(call: ScatterCall, width: int, apply: Callable[[UpdateSpec], bool]) -> bool:
    """Apply all updates to out, outside of windows; return False if an index is out of bounds.

    width: bytes of a slice. apply: applies an update spec to all tuples, and returns that too.
    """
    current, counts = call.current, None
    if current == "neutral":
        if not apply(call.update_spec(width, "fill")):
            return False
        current = "included"
    if call.attributes.is_mean or current == "replaced":
        tuples, slice_count = len(call.updates) // width, len(call.out) // width
        counts = counting.allocate_counts(call.attributes, tuples, slice_count)
    if not apply(call.update_spec(width, current, counts)):
        return False
    counting.divide_sums(call.attributes, counts, call.out, width, call.dtype, call.threads)
    return True
