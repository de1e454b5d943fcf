"""A scatter bound to buffers; copies of data and passes over updates, for all its algorithms."""

from collections.abc import Callable
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import BAD, LINE, Indices, KernelOptions, UpdateCounts, UpdateSpec
from ndtool.engine import tuning
from ndtool.engine.bind import Buffer
from ndtool.engine.counting import Combining
from ndtool.engine.gathers import ProgressCallback, silent
from ndtool.machine.pool import run_all
from ndtool.machine.threads import team
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Plan


class Scatter(NamedTuple):
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
    combining: Combining
    out: Buffer
    negatives: bool
    threads: int
    limit: int | None = None
    progress: ProgressCallback = silent
    write: Callable[[int, Buffer], object] | None = None
    guarded: bool = False

    @property
    def reduction(self) -> str:
        """The name of the reduction."""
        return self.combining.reduction

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

    def windowed(self, pitch: int) -> UpdateSpec:
        """Bind the updates to the reduction, where each window has counts of its own."""
        counts = self.combining.counts(None, len(self.updates) // pitch, pitch)
        return self.update_spec(pitch, counts, self.combining.neutral(self.dtype, pitch))

    @property
    def streamed(self) -> bool:
        """Whether the output is too large for the cache."""
        return len(self.out) >= tuning.NON_TEMPORAL


def copy(s: Scatter) -> None:
    """Copy data to out, unless out has them already."""
    if s.data is None:
        return
    size, data, write, step = len(s.data), s.data, s.write, tuning.WRITE_SIZE
    if write is not None:
        begins = iter(range(0, size, step))
        run_all(lambda at: write(at, data[at : at + step]), begins, team(s.threads, size))
        return
    for begin in range(0, size, tuning.WORK_ITEM):
        end = min(size, begin + tuning.WORK_ITEM)
        options = KernelOptions(team(s.threads, end - begin), s.streamed)
        _kernels.copy(data[begin:end], s.out[begin:end], options)


def counting(s: Scatter, width: int, apply: Callable[[UpdateSpec], int]) -> bool:
    """Apply all updates to out, with counts of all its slices; False if an index is out of bounds.

    apply: applies an update spec, and returns the result of `_kernels.scatter`. Without current
    values, a first pass replaces those of slices with updates by neutral elements, so that counts
    are not needed; not if an update is a NaN, or if all slices have updates soon. For means of long
    slices, it counts their updates, so that each slice is divided while it is in cache.
    """
    combining, tuples, slices = s.combining, len(s.updates) // width, len(s.out) // width
    neutral = combining.neutral(s.dtype, width) if width <= LINE else None
    if neutral is not None and tuples < tuning.UPDATES_PER_SLICE * slices:
        found = apply(s.update_spec(width, None, neutral, first_pass=True))
        if found & BAD:
            return False
        if not found:
            combining = combining._replace(include_self=True)
    counts = combining.new_counts(tuples, slices, width)
    if combining.has_totals(tuples, width):
        totals = s.update_spec(width, counts, first_pass=True)
        return not apply(totals) and not apply(s.update_spec(width, counts))
    if apply(s.update_spec(width, counts)):
        return False
    s.combining.divide(counts, s.out, width, s.dtype, s.threads)
    return True
