"""The arguments of a scatter; copies of data and passes over updates, for all algorithms."""

from collections.abc import Callable
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import BAD, LINE, Indices, KernelOptions, UpdateCounts, UpdateSpec
from ndtool.engine import counting, tuning
from ndtool.engine.bind import Buffer
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.machine.pool import run_all
from ndtool.machine.threads import limit_threads
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

    def update_spec(
        self,
        pitch: int,
        counts: UpdateCounts | None = None,
        neutral: bytes | None = None,
        first_pass: bool = False,
    ) -> UpdateSpec:
        """Return an update spec: the updates, each of `pitch` bytes, and their reduction."""
        name = self.dtype.name
        return UpdateSpec(
            self.updates, pitch, self.attributes.reduction, name, counts, neutral, first_pass
        )

    def window_spec(self, pitch: int) -> UpdateSpec:
        """Return the update spec for an output updated in windows, each with its own counts."""
        counts = counting.bind_counts(self.attributes, None, len(self.updates) // pitch, pitch)
        return self.update_spec(
            pitch, counts, counting.neutral_elements(self.attributes, self.dtype, pitch)
        )

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


def apply_counted(call: ScatterCall, width: int, apply: Callable[[UpdateSpec], int]) -> bool:
    """Apply all updates to out, counted if necessary; return False if an index is out of bounds.

    width: bytes of a slice. apply: applies an update spec, and returns the result of
    `_kernels.scatter`. If current values are not included, a first pass writes neutral elements to
    slices with updates, so that no counts are needed, except if an update is a NaN, or if most
    slices have many updates. For means of long slices, a first pass counts the updates, so that
    each slice is divided while it is in cache.
    """
    tuples, slice_count = len(call.updates) // width, len(call.out) // width
    attributes, neutral = call.attributes, None
    if width <= LINE:
        neutral = counting.neutral_elements(attributes, call.dtype, width)
    if neutral is not None and tuples < tuning.UPDATES_PER_SLICE * slice_count:
        result = apply(call.update_spec(width, None, neutral, first_pass=True))
        if result & BAD:
            return False
        if not result:
            attributes = attributes._replace(include_self=True)
    counts = counting.allocate_counts(attributes, tuples, slice_count, width)
    if counting.has_totals(attributes, tuples, width):
        totals_spec = call.update_spec(width, counts, first_pass=True)
        return not apply(totals_spec) and not apply(call.update_spec(width, counts))
    if apply(call.update_spec(width, counts)):
        return False
    counting.divide_sums(call.attributes, counts, call.out, width, call.dtype, call.threads)
    return True
