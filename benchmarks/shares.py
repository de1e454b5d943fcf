"""ndtool's share of the limit: its speed relative to plain C, on the same arrays."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import problems
from cases import Case
from plainest import Limit
from problems import Array, Problem
from timing import Call, Clock, alternate, clock_of, median

import ndtool
from ndtool.engine import narrow

Record = dict[str, Any]


def measure(
    problem: Problem, wanted: Array, alignments: Sequence[str], threads: Sequence[int], repeats: int
) -> Record:
    """Return records by alignment of the arrays and number of threads: {"numpy": {"2": {...}}}."""
    records: Record = {}
    for name in alignments:
        alignment = problems.ALIGNMENTS[name]
        aligned = problems.moved(problem, alignment)
        out = problems.placed(np.zeros_like(wanted, order="C"), alignment)
        records[name] = {str(n): _share(aligned, out, wanted, n, repeats) for n in threads}
        del aligned, out
        gc.collect()
    return records


def drawn(case: Case) -> tuple[Problem, Array]:
    """Return the arrays of a case and its result."""
    problem = problems.make(case)
    return problem, problems.expected(problem)


def _share(problem: Problem, out: Array, wanted: Array, threads: int, repeats: int) -> Record:
    """Time ndtool and the fastest plain loop alternately; medians in ms, and the best.

    check_ms: ndtool's validation of all indices before the first write to out, if any;
    without_check: the share when it is subtracted.
    """
    operator = getattr(ndtool, problem.case.operator)
    limit = Limit(problem, out, threads)
    limit.search()

    def ours() -> None:
        operator(*problem.arguments, out=out, threads=threads)

    verified = _answers(ours, out, wanted) and _answers(limit, out, wanted)
    clock = clock_of(threads)
    pair = alternate(ours, limit, repeats, clock)
    check_ms = median(_checking(ours, clock) for _ in range(repeats)) * 1e3
    return {
        "ndtool_ms": pair.ours,
        "limit_ms": pair.theirs,
        "share": pair.theirs / pair.ours,
        "ndtool_best_ms": pair.our_best,
        "limit_best_ms": pair.their_best,
        "check_ms": check_ms,
        "without_check": pair.theirs / max(pair.ours - check_ms, 1e-9),
        "variant": limit.written(),
        "verified": verified,
    }


def _answers(call: Call, out: Array, wanted: Array) -> bool:
    out.view(np.uint8)[...] = 0xA5
    call()
    return problems.same(out, wanted)


def _checking(call: Call, clock: Clock) -> float:
    """Return the seconds in which a call validates all indices before it changes out."""
    spent: list[float] = []
    checked = narrow.validate

    @contextmanager
    def timed(*arguments: Any) -> Iterator[narrow.ValidatedPlan]:
        started = clock()
        with checked(*arguments) as work:
            spent.append(clock() - started)
            yield work

    with patch.object(narrow, "validate", timed):
        call()
    return sum(spent)


def show(case: str, records: Record) -> None:
    """Print a line for every alignment and number of threads."""
    for alignment, by_threads in records.items():
        for threads, r in by_threads.items():
            times = f"{r['ndtool_ms']:8.2f} {r['limit_ms']:8.2f} ms"
            best = r["limit_best_ms"] / r["ndtool_best_ms"]
            share = f"share {r['share']:.2f} (of best times {best:.2f})"
            check = f"check {r['check_ms']:5.2f} ms, without it {r['without_check']:.2f}"
            loop = f"({r['variant']}){'' if r['verified'] else '  WRONG'}"
            print(
                f"{case:27} {alignment:7} {threads} {times}  {share}  {check}  {loop}", flush=True
            )
