"""The arguments of a scatter; copies of data and passes over updates, for all algorithms."""

from collections.abc import Callable
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import Indices, KernelOptions, UpdateSpec
from ndtool.engine import counting, tuning
from ndtool.engine.bind import Buffer
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.machine.threads import limit_threads, run_all
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan


class ScatterCall(NamedTuple):
    """The arguments of a scatter: a plan and its buffers.

    data: the bytes to copy to out first; None if out already contains them. updates, out:
    contiguous, and in native byte order and aligned if there is a reduction. scratch_limit: bytes
    of scratch for sorting, SCRATCH if None. write_at(offset, bytes): writes to the output file, if
    that is faster than stores to out. validates_first: whether all indices are validated before out
    changes.
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

    @property
    def attributes(self) -> Attributes:
        """The attributes of the plan."""
        return self.plan.attributes

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


def apply_in_passes(
    call: ScatterCall, spec: UpdateSpec, apply: Callable[[UpdateSpec], bool]
) -> bool:
    """Apply all updates to out, outside of windows; return False if an index is out of bounds.

    apply: applies an update spec to all tuples, and returns that too.
    """
    counts, attributes, width = None, call.attributes, spec.pitch
    if spec.is_counted:
        tuples, slice_count = len(call.updates) // width, len(call.out) // width
        counts = counting.allocate_counts(attributes, tuples, slice_count)
    if not all(map(apply, spec.passes(counts))):
        return False
    counting.divide_sums(attributes, counts, call.out, width, call.dtype, call.threads)
    return True
