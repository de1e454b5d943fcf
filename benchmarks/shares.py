"""ndtool's share of the limit: its speed relative to plain C, on the same arrays."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import problems
from cases import Case
from plain_c import Limit
from problems import Array, Problem
from timing import Call, Clock, alternate, median, select_clock

import ndtool
from ndtool.engine import narrow

Record = dict[str, Any]


def measure(
    problem: Problem,
    expected: Array,
    alignments: Sequence[str],
    threads: Sequence[int],
    repeats: int,
) -> Record:
    """Return records by alignment of the arrays and number of threads: {"numpy": {"2": {...}}}."""
    records: Record = {}
    for name in alignments:
        alignment = problems.ALIGNMENTS[name]
        aligned = problems.realign(problem, alignment)
        out = problems.copy_aligned(np.zeros_like(expected, order="C"), alignment)
        records[name] = {str(n): _share(aligned, out, expected, n, repeats) for n in threads}
        del aligned, out
        gc.collect()
    return records


def generate_case(case: Case) -> tuple[Problem, Array]:
    """Return the arrays of a case and its result."""
    problem = problems.generate(case)
    return problem, problems.compute_expected(problem)


def _share(problem: Problem, out: Array, expected: Array, threads: int, repeats: int) -> Record:
    """Time ndtool and the fastest plain loop alternately; medians in ms, and the best.

    check_ms: ndtool's validation of all indices before the first write to out, if any;
    without_check: the share when it is subtracted.
    """
    operator = getattr(ndtool, problem.case.operator)
    limit = Limit(problem, out, threads)
    limit.search()

    def call_ndtool() -> None:
        operator(*problem.arguments, out=out, threads=threads)

    verified = _verify_call(call_ndtool, out, expected) and _verify_call(limit, out, expected)
    clock = select_clock(threads)
    times = alternate(call_ndtool, limit, repeats, clock)
    check_ms = median(_time_validation(call_ndtool, clock) for _ in range(repeats)) * 1e3
    return {
        "ndtool_ms": times.first,
        "limit_ms": times.second,
        "share": times.second / times.first,
        "ndtool_best_ms": times.first_best,
        "limit_best_ms": times.second_best,
        "check_ms": check_ms,
        "without_check": times.second / max(times.first - check_ms, 1e-9),
        "variant": limit.description(),
        "verified": verified,
    }


def _verify_call(call: Call, out: Array, expected: Array) -> bool:
    out.view(np.uint8)[...] = 0xA5
    call()
    return problems.is_identical(out, expected)


def _time_validation(call: Call, clock: Clock) -> float:
    """Return the seconds in which a call validates all indices before it changes out."""
    durations: list[float] = []
    validate = narrow.validate

    @contextmanager
    def validate_timed(*arguments: Any) -> Iterator[narrow.ValidatedPlan]:
        start = clock()
        with validate(*arguments) as rows:
            durations.append(clock() - start)
            yield rows

    with patch.object(narrow, "validate", validate_timed):
        call()
    return sum(durations)


def print_records(case: str, records: Record) -> None:
    """Print a line for every alignment and number of threads."""
    for alignment, by_threads in records.items():
        for threads, r in by_threads.items():
            columns = f"{r['ndtool_ms']:8.2f} {r['limit_ms']:8.2f} ms"
            best = r["limit_best_ms"] / r["ndtool_best_ms"]
            share = f"share {r['share']:.2f} (of best times {best:.2f})"
            check = f"check {r['check_ms']:5.2f} ms, without it {r['without_check']:.2f}"
            loop = f"({r['variant']}){'' if r['verified'] else '  WRONG'}"
            print(
                f"{case:27} {alignment:7} {threads} {columns}  {share}  {check}  {loop}", flush=True
            )
