"""The limit of a case: the fastest of its plain loops, in C without checks, on the same arrays.

They are compiled for this processor on first use. A variant combines a way to divide the
work, a prefetch distance, and a kind of store; they are optimized one parameter at a time.
ndtool's share of the limit is the limit's time / ndtool's.
"""

import ctypes
import gc
import hashlib
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import problems
from cases import Case
from problems import Array, Problem
from report import processor
from timing import alternate, seconds, select_clock

import ndtool

HERE = Path(__file__).parent
SOURCES = [HERE / "limits.c", HERE / "limits_elements.c"]
FLAGS = ["-O3", "-march=native", "-fopenmp", "-ffp-contract=off", "-shared", "-fPIC"]
BUILD_FOLDER = HERE.parent / "build" / "bench"

OPERATIONS = {"none": 0, "add": 1, "max": 2}
BY_SLICES, BY_TUPLES, BY_LAST_UPDATE, BY_COLUMNS, SEQUENTIAL = range(5)
DIVISION_NAMES = ["by slices", "by tuples", "last update first", "by columns", "one thread"]
ATTEMPTS = 3  # of a variant, unless the first one is far slower
SLOW_FACTOR = 1.3


class NoCompilerError(Exception):
    """The limits cannot be compiled here; the reason is the message."""


class Job(ctypes.Structure):
    """As in limits.c."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("data", "updates", "indices", "out", "last_update")]
        + [(name, ctypes.c_int64) for name in ("size", "batches", "per_batch", "pitch", "k")]
        + [("strides", ctypes.c_int64 * 4)]
        + [(name, ctypes.c_int64) for name in ("width", "rows", "columns", "index_rows", "op")]
        + [
            (name, ctypes.c_int64)
            for name in ("ahead", "to_l1", "nontemporal", "division", "threads")
        ]
    )


class Variant(NamedTuple):
    """A variant of a loop.

    division: of the work between threads, or columns per block. ahead: the prefetch distance, in
    tuples or elements, or bytes of rows. to_l1: whether prefetches go to the L1 cache, else to L2.
    """

    division: int
    ahead: int
    to_l1: int
    nontemporal: int


def library() -> ctypes.CDLL:
    """Return the loops, compiled for this processor; raises NoCompilerError."""
    return _compile(os.environ.get("CC") or "gcc")


@lru_cache
def _compile(compiler: str) -> ctypes.CDLL:
    command = [*shlex.split(compiler), *FLAGS, *map(str, SOURCES)]
    sources = [path.read_text() for path in [HERE / "limits.h", *SOURCES]]
    build_key = repr([command, *sources, platform.machine(), processor()])
    library_path = BUILD_FOLDER / f"limits-{hashlib.sha256(build_key.encode()).hexdigest()[:16]}.so"
    if not library_path.exists():
        BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
        temporary = BUILD_FOLDER / f"limits-{os.getpid()}.so"
        try:
            subprocess.run(
                [*command, "-o", str(temporary)], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            raise NoCompilerError(lines[0]) from error
        temporary.replace(library_path)
    return ctypes.CDLL(str(library_path))


class Limit:
    """The loops of one case, called on its arrays and ndtool's output."""

    def __init__(self, problem: Problem, out: Array, threads: int) -> None:
        self._arrays = problem, out
        self._threads = threads
        self._job = _job(problem, out, threads)
        self._name, self.grid = _loop(problem, threads, out)
        self._loop = getattr(library(), self._name)
        if problem.case.operator == "scatter_nd" and BY_LAST_UPDATE in self.grid[0]:
            self._last_update = problems.copy_aligned(
                np.zeros(len(problem.data), np.int32), problems.NUMPY_OFFSET
            )
            self._job.last_update = self._last_update.ctypes.data
        self.variant = Variant(*(choices[len(choices) // 2] for choices in self.grid))

    @property
    def variant(self) -> Variant:
        return self._variant

    @variant.setter
    def variant(self, variant: Variant) -> None:
        self._variant = variant
        for name, value in variant._asdict().items():
            setattr(self._job, name, value)

    def __call__(self) -> None:
        self._loop(ctypes.byref(self._job))

    def search(self) -> None:
        """Select the fastest variant: the best value of each parameter in turn, twice.

        Prefetch distance and cache level are one parameter: each cache has its own distance.
        """
        durations: dict[Variant, float] = {}
        for names in (("ahead", "to_l1"), ("division",), ("nontemporal",)) * 2:
            choices = product(*(self.grid[Variant._fields.index(name)] for name in names))
            self.variant = min(
                [self._variant._replace(**dict(zip(names, c, strict=True))) for c in choices],
                key=lambda variant: self._seconds(variant, durations),
            )

    def _seconds(self, variant: Variant, durations: dict[Variant, float]) -> float:
        if variant not in durations:
            self.variant = variant
            clock = select_clock(self._threads)
            duration = seconds(self, clock)
            if duration < SLOW_FACTOR * min(durations.values(), default=duration):
                duration = min(duration, *(seconds(self, clock) for _ in range(ATTEMPTS - 1)))
            durations[variant] = duration
        return durations[variant]

    def all_variants(self) -> list[Variant]:
        """Return all variants, for tests."""
        return [Variant(*choice) for choice in product(*self.grid)]

    def description(self) -> str:
        division, ahead, to_l1, nontemporal = self._variant
        prefix = f"{division} columns, " if self._name.endswith("axis0") else ""
        has_division = self._name in ("scatter_rows", "scatter_scalars")
        if has_division and (self._threads > 1 or division == BY_LAST_UPDATE):
            prefix = f"{DIVISION_NAMES[division]}, "
        prefetch = f"ahead {ahead} L{2 - to_l1}" if ahead else "no prefetch"
        return f"{prefix}{prefetch}, {'non-temporal' if nontemporal else 'plain'} stores"


def _job(problem: Problem, out: Array, threads: int) -> Job:
    case, itemsize = problem.case, problem.data.itemsize
    b = case.batch_dims
    strides = problem.data.strides
    job = Job(
        data=problem.data.ctypes.data,
        updates=problem.updates.ctypes.data if problem.updates is not None else None,
        indices=problem.indices.ctypes.data,
        out=out.ctypes.data,
        size=problem.data.nbytes,
        op=OPERATIONS[case.reduction],
        threads=threads,
    )
    if case.has_tuples:
        job.batches = int(np.prod(case.indices_shape[:b], dtype=np.int64))
        job.per_batch = int(np.prod(case.indices_shape[b:-1], dtype=np.int64))
        job.pitch = strides[b - 1] if b else 0
        job.k = case.k
        job.strides = (ctypes.c_int64 * 4)(*strides[b : b + case.k])
        job.width = int(np.prod(case.data_shape[b + case.k :], dtype=np.int64)) * itemsize
    else:
        job.rows, job.columns = case.data_shape
        job.index_rows = case.indices_shape[0]
    return job


def _loop(problem: Problem, threads: int, out: Array) -> tuple[str, tuple[list[int], ...]]:
    """Return the name of a case's loop and the values of its parameters, as fields of Variant."""
    case, to_l1 = problem.case, [0, 1]
    stores = [0] if out.ctypes.data % 16 else [0, 1]
    if case.has_tuples:
        width = int(np.prod(case.data_shape[case.batch_dims + case.k :], dtype=np.int64)) * 4
        rows = [n for n in (0, 1, 2, 4, 8, 16, 32, 64) if n * width <= 1 << 15]
        if not case.is_scatter and width > problems.LINE:
            return "gather_rows", ([0], rows, to_l1, stores)
        if not case.is_scatter:
            return "gather_short", ([0], [0, 16, 32, 64, 128, 256], to_l1, stores)
        if width > 4:
            return "scatter_rows", (_divisions(case, threads), rows, to_l1, stores)
        divisions = [BY_SLICES, SEQUENTIAL] if threads > 1 else [BY_SLICES]
        return "scatter_scalars", (divisions, [0, 16, 32, 64, 128, 256, 512, 1024], to_l1, stores)
    if case.attribute:
        name = "scatter_axis1" if case.is_scatter else "gather_axis1"
        row = case.data_shape[1] * 4
        return name, ([0], [0, 1024, row // 2, row, 2 * row], to_l1, stores)
    name = "scatter_axis0" if case.is_scatter else "gather_axis0"
    if case.is_scatter:
        stores = [0]
    return name, ([32, 64, 256, 1024, 2048], [0, 16, 32, 64, 128, 256], to_l1, stores)


def _divisions(case: Case, threads: int) -> list[int]:
    """Return how threads may divide a scatter of rows without changing its result."""
    if case.reduction == "none":
        by_tuples = threads > 1 and case.pattern == "distinct"
        return [BY_SLICES, BY_LAST_UPDATE, *([BY_TUPLES] if by_tuples else [])]
    return [BY_SLICES, *([BY_COLUMNS] if threads > 1 else [])]


# By alignment of the arrays and number of threads: {"numpy": {"2": {...}}}.
Shares = dict[str, dict[str, dict[str, Any]]]


def measure(
    problem: Problem, alignments: Sequence[str], threads: Sequence[int], repeats: int
) -> Shares:
    """Time ndtool and the limit alternately."""
    expected, shares = problems.compute_expected(problem), {}
    for name in alignments:
        alignment = problems.ALIGNMENTS[name]
        aligned = problems.realign(problem, alignment)
        out = problems.copy_aligned(np.zeros_like(expected, order="C"), alignment)
        shares[name] = {str(n): _share(aligned, out, expected, n, repeats) for n in threads}
        del aligned, out
        gc.collect()
    return shares


def _share(
    problem: Problem, out: Array, expected: Array, threads: int, repeats: int
) -> dict[str, Any]:
    """Return medians in ms, and the best."""
    operator = getattr(ndtool, problem.case.operator)
    limit = Limit(problem, out, threads)
    limit.search()

    def call_ndtool() -> None:
        operator(*problem.arguments, out=out, threads=threads)

    clock = select_clock(threads)
    verified = problems.gives(call_ndtool, out, expected) and problems.gives(limit, out, expected)
    times = alternate(call_ndtool, limit, repeats, clock)
    return {
        "ndtool_ms": times.first,
        "limit_ms": times.second,
        "best": times[2:],
        "variant": limit.description(),
        "verified": verified,
    }
