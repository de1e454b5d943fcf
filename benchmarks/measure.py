"""The measurement of a case: ndtool, every peer and a memcpy, with every result verified."""

import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
import peers
import problems
import shares
from cases import Case
from plain_c import NoCompilerError
from problems import Array
from tensor_peers import as_array
from timing import MIN_MEMCPY, Call, Memcpy, alternate, alternate_loops, seconds

import ndtool

Record = dict[str, Any]

SLOW_CALL = 1.0  # seconds; slower calls are timed three times only


class NdtoolCall:
    """ndtool's call of a case: its arrays, the expected result, and a preallocated output."""

    def __init__(self, case: Case) -> None:
        self.problem = problems.generate(case)  # aligned as NumPy does
        self.expected = problems.compute_expected(self.problem)
        self.out = problems.copy_aligned(np.zeros_like(self.expected), problems.NUMPY_OFFSET)
        self._operator = getattr(ndtool, case.operator)
        self.verified = self.verify(1)
        self.verified &= self.verify(peers.THREADS)

    def __call__(self) -> None:
        self._operator(*self.problem.arguments, out=self.out, threads=peers.THREADS)

    def on_one_thread(self) -> None:
        """Return the single-threaded call to compare with NumPy, which has one thread."""
        self._operator(*self.problem.arguments, out=self.out, threads=1)

    def verify(self, threads: int) -> bool:
        self.out.view(np.uint8)[...] = 0xA5
        self._operator(*self.problem.arguments, out=self.out, threads=threads)
        return problems.is_identical(self.out, self.expected)


def measure(
    case: Case,
    names: Sequence[str],
    repeats: int,
    alignments: Sequence[str] = (),
    threads: Sequence[int] = (),
) -> Record:
    """Return the record of a case: medians in ms; ratios above 1 mean that ndtool is faster.

    best_ratio compares the best times instead: if far from ratio, the machine was busy. Fields
    about memcpy are None for small outputs. limit: shares by alignment of the arrays and number of
    threads; none without a compiler.
    """
    ndtool_call = NdtoolCall(case)
    record: Record = {"ndtool_ms": None, "verified": ndtool_call.verified, "peers": {}}
    for name in names:
        record["peers"][name] = _compare_with(ndtool_call, name, repeats)
        gc.collect()
    timed = {name: peer for name, peer in record["peers"].items() if peer["ms"] is not None}
    fastest = min(timed, key=lambda name: timed[name]["ratio"], default=None)
    with ThreadPoolExecutor(1) as pool:
        memcpy_times = alternate(ndtool_call, Memcpy(ndtool_call.out.nbytes, pool), repeats)
    large = ndtool_call.out.nbytes >= MIN_MEMCPY
    record["verified"] &= problems.is_identical(ndtool_call.out, ndtool_call.expected)
    limit = _time_plain_c(ndtool_call, alignments, threads, repeats)
    answers = [r["verified"] for by_threads in limit.values() for r in by_threads.values()]
    record["verified"] &= all(answers)
    return record | {
        "ndtool_ms": timed[fastest]["ndtool_ms"] if fastest else memcpy_times.first,
        "fastest": fastest,
        "ratio": timed[fastest]["ratio"] if fastest else None,
        "best_ratio": min((peer["best_ratio"] for peer in timed.values()), default=None),
        "memcpy_ms": memcpy_times.second if large else None,
        "memcpy_ratio": memcpy_times.second / memcpy_times.first if large else None,
        "limit": limit,
    }


def _time_plain_c(
    ndtool_call: NdtoolCall, alignments: Sequence[str], threads: Sequence[int], repeats: int
) -> Record:
    try:
        return shares.measure(
            ndtool_call.problem, ndtool_call.expected, alignments, threads, repeats
        )
    except NoCompilerError as error:
        print(f"no limits: {error}")
        return {}


def scaling(case: Case, repeats: int) -> float:
    """Return the speedup of two threads over one."""
    ndtool_call = NdtoolCall(case)
    times = alternate(ndtool_call, ndtool_call.on_one_thread, repeats)
    return times.second / times.first


def _compare_with(ndtool_call: NdtoolCall, name: str, repeats: int) -> Record:
    """Time ndtool and one peer alternately; a reason instead of times if that fails."""
    record: Record = {"ms": None}
    try:
        methods = peers.methods_of(name)(ndtool_call.problem)
        method, call, answer = _find_fastest(methods, ndtool_call.expected, min(3, repeats // 2))
        elapsed = seconds(call)
        times = alternate(ndtool_call, call, repeats if elapsed < SLOW_CALL else min(3, repeats))
        after = _classify_answer(as_array(call()), ndtool_call.expected)
    except peers.NotOfferedError as reason:
        return record | {"reason": f"not offered: {reason}"}
    except ImportError as error:
        return record | {"reason": f"not installed: {error.name}"}
    except Exception as error:  # any error of a peer is reported, and the others are measured
        return record | {"reason": f"failed: {type(error).__name__}: {str(error)[:200]}"}
    answer = max(answer, after, key=ANSWERS.index)
    return {
        "ms": times.second,
        "ndtool_ms": times.first,
        "ratio": times.second / times.first,
        "best_ratio": times.second_best / times.first_best,
        "way": method,
        "answer": answer,
        "reason": None,
    }


# Whether a peer's bits equal those of the sequential loop, differ by rounding, or are wrong.
ANSWERS = ["exact", "rounding", "wrong"]


def _classify_answer(answer: Array, expected: Array) -> str:
    if problems.is_identical(answer, expected):
        return "exact"
    return "rounding" if problems.is_close(answer, expected) else "wrong"


def _find_fastest(methods: peers.Methods, expected: Array, tries: int) -> tuple[str, Call, str]:
    """Try every variant, compiled and warm; omit failing ones if another succeeds."""
    fastest, failure = None, None
    for name, call in methods.items():
        try:
            answer = _classify_answer(as_array(call()), expected)
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
    """Time calls on a (3, 4) array with two indices, in us: ndtool, NumPy's indexing, onnxruntime.

    times_numpy: the worst ratio of a gather, a scatter, and each with `out`.
    """
    data, updates = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((2, 4), np.float32)
    indices, gathered, updated = np.array([[2], [0]]), np.empty_like(updates), data.copy()
    row_indices = indices[:, 0].copy()

    def scatter_with_numpy() -> Array:
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
    verified = all(problems.is_identical(calls[i](), calls[i + 1]()) for i in (0, 2))
    if find_spec("onnxruntime") and find_spec("onnx"):
        import onnxruntime as ort

        operands = {"data": data, "indices": indices}
        session = peers.onnx_session(ort.SessionOptions(), "GatherND", {}, operands)
        calls.append(lambda: session.run(None, operands))
    elapsed = [*alternate_loops(calls, 2000, repeats), None][:9]
    return {
        "ndtool_us": elapsed[0],
        "numpy_us": elapsed[1],
        "onnxruntime_us": elapsed[8],
        "times_numpy": max(elapsed[i] / elapsed[i + 1] for i in range(0, 8, 2)),
        "of_onnxruntime": elapsed[0] / elapsed[8] if elapsed[8] else None,
        "verified": verified,
    }
