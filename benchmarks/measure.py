"""The measurement of a case: ndtool, every peer and a memcpy, with every result verified."""

import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import peers
import plain_c
import problems
from cases import Case
from problems import Array, Problem
from timing import MIN_MEMCPY, Call, Memcpy, alternate, alternate_loops, seconds

import ndtool

Record = dict[str, Any]

SLOW_CALL = 1.0  # seconds; slower calls are timed three times only
# Whether a peer's bits equal those of the sequential loop, differ by rounding, or are wrong.
ANSWERS = ["exact", "rounding", "wrong"]


def measure(
    case: Case,
    names: Sequence[str],
    repeats: int,
    alignments: Sequence[str] = (),
    threads: Sequence[int] = (),
) -> Record:
    """Return the record of a case: medians in ms; ratios above 1 mean that ndtool is faster.

    memcpy_ratio is None for small outputs. limit: times by alignment of the arrays and number of
    threads; none without a compiler.
    """
    problem = problems.generate(case)  # aligned as NumPy does
    expected = problems.compute_expected(problem)
    out = problems.copy_aligned(np.zeros_like(expected), problems.NUMPY_OFFSET)
    verified = [problems.gives(ndtool_call(problem, out, n), out, expected) for n in (1, 2)]
    methods = {"out=": ndtool_call(problem, out), "new output": ndtool_call(problem, None)}
    method, call, answer = _find_fastest(methods, expected, min(3, repeats))
    verified.append(answer == "exact")
    records = {}
    for name in names:
        records[name] = _compare_with(call, problem, expected, name, repeats)
        gc.collect()
    ratios = {name: p["ms"] / p["ndtool_ms"] for name, p in records.items() if "ms" in p}
    fastest = min(ratios, key=lambda name: ratios[name], default=None)
    with ThreadPoolExecutor(1) as pool:
        memcpy_times = alternate(call, Memcpy(out.nbytes, pool), repeats)
    verified.append(problems.is_identical(call(), expected))
    try:
        limit = plain_c.measure(problem, alignments, threads, repeats)
    except plain_c.NoCompilerError as error:
        print(f"no limits: {error}")
        limit = {}
    verified += [r["verified"] for by_threads in limit.values() for r in by_threads.values()]
    is_large = out.nbytes >= MIN_MEMCPY
    return {
        "ndtool_ms": records[fastest]["ndtool_ms"] if fastest else memcpy_times.first,
        "way": method,
        "verified": all(verified),
        "peers": records,
        "fastest": fastest,
        "ratio": ratios[fastest] if fastest else None,
        "memcpy_ratio": memcpy_times.second / memcpy_times.first if is_large else None,
        "limit": limit,
    }


def ndtool_call(problem: Problem, out: Array | None, threads: int = 2) -> Call:
    """Return ndtool's call of a case, into a preallocated output or a new one."""
    operator = getattr(ndtool, problem.case.operator)
    return lambda: operator(*problem.arguments, out=out, threads=threads)


def scaling(case: Case, repeats: int) -> float:
    """Return the speedup of two threads over one."""
    problem = problems.generate(case)
    out = problems.copy_aligned(np.zeros(case.output, problem.data.dtype), problems.NUMPY_OFFSET)
    times = alternate(ndtool_call(problem, out), ndtool_call(problem, out, 1), repeats)
    return times.second / times.first


def _compare_with(call: Call, problem: Problem, expected: Array, name: str, repeats: int) -> Record:
    """Time ndtool and one peer alternately; a reason instead of times if that fails."""
    try:
        methods = peers.PEERS[name](problem)
        method, peer, answer = _find_fastest(methods, expected, min(3, repeats // 2))
        if seconds(peer) > SLOW_CALL:
            repeats = min(3, repeats)
        times = alternate(call, peer, repeats)
        after = classify_answer(peers.as_array(peer()), expected)
    except peers.NotOfferedError as reason:
        return {"reason": f"not offered: {reason}"}
    except ImportError as error:
        return {"reason": f"not installed: {error.name}"}
    except Exception as error:  # any error of a peer is reported, and the others are measured
        return {"reason": f"failed: {type(error).__name__}: {str(error)[:200]}"}
    answer = max(answer, after, key=ANSWERS.index)
    return {"ms": times.second, "ndtool_ms": times.first, "way": method, "answer": answer}


def classify_answer(answer: Array, expected: Array) -> str:
    if problems.is_identical(answer, expected):
        return "exact"
    return "rounding" if problems.is_close(answer, expected) else "wrong"


def _find_fastest(methods: peers.Methods, expected: Array, tries: int) -> tuple[str, Call, str]:
    """Try every variant, compiled and warm; omit failing ones if another succeeds."""
    fastest, failure = None, None
    for name, call in methods.items():
        try:
            answer = classify_answer(peers.as_array(call()), expected)
            elapsed = min(seconds(call) for _ in range(tries))
        except Exception as error:
            failure = error
            continue
        if fastest is None or elapsed < fastest[0]:
            fastest = elapsed, name, call, answer
    if fastest is None:
        raise failure or peers.NotOfferedError("no way")
    return fastest[1:]


def small_call(repeats: int) -> Record:
    """Time calls on a (3, 4) array with two indices, in us: ndtool and NumPy's indexing.

    times_numpy: the worst ratio of a gather, a scatter, and each with `out`.
    """
    data, updates = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((2, 4), np.float32)
    indices, gathered, updated = np.array([[2], [0]]), np.empty_like(updates), data.copy()
    row_indices = indices[:, 0].copy()

    def scatter_with_numpy() -> Any:
        out = data.copy()
        out[row_indices] = updates
        return out

    calls: list[Call] = [
        lambda: ndtool.gather_nd(data, indices),
        lambda: data[row_indices],
        lambda: ndtool.scatter_nd(data, indices, updates),
        scatter_with_numpy,
        lambda: ndtool.gather_nd(data, indices, out=gathered),
        lambda: gathered.__setitem__(..., data[row_indices]),
        lambda: ndtool.scatter_nd(updated, indices, updates, out=updated),
        lambda: updated.__setitem__(row_indices, updates),
    ]
    elapsed = alternate_loops(calls, 2000, repeats)
    ratios = [elapsed[i] / elapsed[i + 1] for i in range(0, 8, 2)]
    return {"ndtool_us": elapsed[0], "numpy_us": elapsed[1], "times_numpy": max(ratios)}
