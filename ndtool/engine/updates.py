"""A scatter bound to buffers; copies of data and passes over updates, for all its algorithms."""

from collections.abc import Callable
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import BAD, LINE, Indices, KernelOptions, UpdateCounts, UpdateSpec
from ndtool.engine import tuning
from ndtool.engine.bind import Buffer
from ndtool.engine.counting import ReductionOptions
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.machine.pool import run_all
from ndtool.machine.threads import limit_threads
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Plan


class ScatterCall(NamedTuple):
    """One scatter, bound to buffers.

    data: the bytes to copy to out first; None if out has them. updates, out: native, aligned and
    contiguous unless reduction is "none". limit: scratch bytes for sorting, SCRATCH if None. write:
    writes bytes to out at an offset, if that is faster than stores. guarded: whether the indices
    must be validated before out changes.
    """

    plan: Plan
    dtype: Dtype
    data: Buffer | None
    indices: Indices
    updates: Buffer
    reduction_options: ReductionOptions
    out: Buffer
    negatives: bool
    threads: int
    scratch_limit: int | None = None
    progress: ProgressCallback = ignore_progress
    write_at: Callable[[int, Buffer], object] | None = None
    validates_first: bool = False

    @property
    def reduction(self) -> str:
        """The name of the reduction."""
        return self.reduction_options.reduction

    def update_spec(
        self,
        pitch: int,
        counts: UpdateCounts | None = None,
        neutral: bytes | None = None,
        first_pass: bool = False,
    ) -> UpdateSpec:
        """Bind the updates, each of `pitch` bytes, to the reduction."""
        name = self.dtype.name
        return UpdateSpec(self.updates, pitch, self.reduction, name, counts, neutral, first_pass)

    def window_spec(self, pitch: int) -> UpdateSpec:
        """Bind the updates to the reduction, where each window has counts of its own."""
        counts = self.reduction_options.bind_counts(None, len(self.updates) // pitch, pitch)
        return self.update_spec(pitch, counts, self.reduction_options.neutral(self.dtype, pitch))

    @property
    def exceeds_cache(self) -> bool:
        """Whether the output is too large for the cache."""
        return len(self.out) >= tuning.NON_TEMPORAL


def copy_data(s: ScatterCall) -> None:
    """Copy data to out, unless out has them already."""
    if s.data is None:
        return
    size, data, write, step = len(s.data), s.data, s.write_at, tuning.WRITE_SIZE
    if write is not None:
        begins = iter(range(0, size, step))
        run_all(lambda at: write(at, data[at : at + step]), begins, limit_threads(s.threads, size))
        return
    for begin in range(0, size, tuning.WORK_ITEM):
        end = min(size, begin + tuning.WORK_ITEM)
        options = KernelOptions(limit_threads(s.threads, end - begin), s.exceeds_cache)
        _kernels.copy(data[begin:end], s.out[begin:end], options)


def apply_counted(s: ScatterCall, width: int, apply: Callable[[UpdateSpec], int]) -> bool:
    """Apply all updates to out, with counts of all its slices; False if an index is out of bounds.

    apply: applies an update spec, and returns the result of `_kernels.scatter`. Without current
    values, a first pass replaces those of slices with updates by neutral elements, so that counts
    are not needed; not if an update is a NaN, or if all slices have updates soon. For means of long
    slices, it counts their updates, so that each slice is divided while it is in cache.
    """
    reduction_options, tuples, slices = (
        s.reduction_options,
        len(s.updates) // width,
        len(s.out) // width,
    )
    neutral = reduction_options.neutral(s.dtype, width) if width <= LINE else None
    if neutral is not None and tuples < tuning.UPDATES_PER_SLICE * slices:
        found = apply(s.update_spec(width, None, neutral, first_pass=True))
        if found & BAD:
            return False
        if not found:
            reduction_options = reduction_options._replace(include_self=True)
    counts = reduction_options.allocate_counts(tuples, slices, width)
    if reduction_options.has_totals(tuples, width):
        totals = s.update_spec(width, counts, first_pass=True)
        return not apply(totals) and not apply(s.update_spec(width, counts))
    if apply(s.update_spec(width, counts)):
        return False
    s.reduction_options.divide_sums(counts, s.out, width, s.dtype, s.threads)
    return True
