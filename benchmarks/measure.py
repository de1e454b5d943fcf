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
from plainest import NoCompilerError
from problems import Array
from tensor_peers import as_array
from timing import LARGE, Call, Memcpy, alternate, alternate_loops, seconds

import ndtool

Record = dict[str, Any]

SLOW = 1.0  # seconds; slower calls are timed three times only


class Measured:
    """ndtool's side of a case: its arrays, the correct result, and a call with a reused output."""

    def __init__(self, case: Case) -> None:
        self.problem = problems.make(case)  # aligned as NumPy does
        self.wanted = problems.expected(self.problem)
        self.out = problems.placed(np.zeros_like(self.wanted), problems.NUMPY)
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
        return problems.same(self.out, self.wanted)


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
    mine = Measured(case)
    record: Record = {"ndtool_ms": None, "verified": mine.verified, "peers": {}}
    for name in names:
        record["peers"][name] = _beside(mine, name, repeats)
        gc.collect()
    timed = {name: peer for name, peer in record["peers"].items() if peer["ms"] is not None}
    fastest = min(timed, key=lambda name: timed[name]["ratio"], default=None)
    with ThreadPoolExecutor(1) as pool:
        beside_memcpy = alternate(mine, Memcpy(mine.out.nbytes, pool), repeats)
    large = mine.out.nbytes >= LARGE
    record["verified"] &= problems.same(mine.out, mine.wanted)
    limit = _limit(mine, alignments, threads, repeats)
    answers = [r["verified"] for by_threads in limit.values() for r in by_threads.values()]
    record["verified"] &= all(answers)
    return record | {
        "ndtool_ms": timed[fastest]["ndtool_ms"] if fastest else beside_memcpy.ours,
        "fastest": fastest,
        "ratio": timed[fastest]["ratio"] if fastest else None,
        "best_ratio": min((peer["best_ratio"] for peer in timed.values()), default=None),
        "memcpy_ms": beside_memcpy.theirs if large else None,
        "memcpy_ratio": beside_memcpy.theirs / beside_memcpy.ours if large else None,
        "limit": limit,
    }


def _limit(
    mine: Measured, alignments: Sequence[str], threads: Sequence[int], repeats: int
) -> Record:
    try:
        return shares.measure(mine.problem, mine.wanted, alignments, threads, repeats)
    except NoCompilerError as error:
        print(f"no limits: {error}")
        return {}


def scaling(case: Case, repeats: int) -> float:
    """Return the speedup of two threads over one."""
    mine = Measured(case)
    pair = alternate(mine, mine.on_one_thread, repeats)
    return pair.theirs / pair.ours


def _beside(mine: Measured, name: str, repeats: int) -> Record:
    """Time ndtool and one peer alternately; a reason instead of times if that fails."""
    record: Record = {"ms": None}
    try:
        ways = peers.ways_of(name)(mine.problem)
        way, call, answer = _fastest(ways, mine.wanted, min(3, repeats // 2))
        took = seconds(call)
        pair = alternate(mine, call, repeats if took < SLOW else min(3, repeats))
        after = _judged(as_array(call()), mine.wanted)
    except peers.NotOfferedError as reason:
        return record | {"reason": f"not offered: {reason}"}
    except ImportError as error:
        return record | {"reason": f"not installed: {error.name}"}
    except Exception as error:  # any error of a peer is reported, and the others are measured
        return record | {"reason": f"failed: {type(error).__name__}: {str(error)[:200]}"}
    answer = max(answer, after, key=ANSWERS.index)
    return {
        "ms": pair.theirs,
        "ndtool_ms": pair.ours,
        "ratio": pair.theirs / pair.ours,
        "best_ratio": pair.their_best / pair.our_best,
        "way": way,
        "answer": answer,
        "reason": None,
    }


# Whether a peer's bits equal those of the sequential loop, differ by rounding, or are wrong.
ANSWERS = ["exact", "rounding", "wrong"]


def _judged(answer: Array, wanted: Array) -> str:
    if problems.same(answer, wanted):
        return "exact"
    return "rounding" if problems.close(answer, wanted) else "wrong"


def _fastest(ways: peers.Ways, wanted: Array, tries: int) -> tuple[str, Call, str]:
    """Try every variant, compiled and warm; omit failing ones if another succeeds."""
    best, failure = None, None
    for name, call in ways.items():
        try:
            answer = _judged(as_array(call()), wanted)
            took = min(seconds(call) for _ in range(tries))
        except Exception as error:
            failure = error
            continue
        if best is None or took < best[0]:
            best = took, name, call, answer
    if best is None:
        raise failure or peers.NotOfferedError("no way")
    return best[1:]


def small_call(repeats: int) -> Record:
    """Time calls on a (3, 4) array with two indices, in us: ndtool, NumPy's indexing, onnxruntime.

    times_numpy: the worst ratio of a gather, a scatter, and each with `out`.
    """
    data, updates = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((2, 4), np.float32)
    indices, found, changed = np.array([[2], [0]]), np.empty_like(updates), data.copy()
    first = indices[:, 0].copy()

    def scattered() -> Array:
        out = data.copy()
        out[first] = updates
        return out

    calls: list[Call] = [
        lambda: ndtool.gather_nd(data, indices),
        lambda: data[first],
        lambda: ndtool.scatter_nd(data, indices, updates),
        scattered,
        lambda: ndtool.gather_nd(data, indices, out=found),
        lambda: found.__setitem__(..., data[first]),
        lambda: ndtool.scatter_nd(changed, indices, updates, out=changed),
        lambda: changed.__setitem__(first, updates),
    ]
    verified = all(problems.same(calls[at](), calls[at + 1]()) for at in (0, 2))
    if find_spec("onnxruntime") and find_spec("onnx"):
        import onnxruntime as ort

        operands = {"data": data, "indices": indices}
        session = peers.onnx_session(ort.SessionOptions(), "GatherND", {}, operands)
        calls.append(lambda: session.run(None, operands))
    took = [*alternate_loops(calls, 2000, repeats), None][:9]
    return {
        "ndtool_us": took[0],
        "numpy_us": took[1],
        "onnxruntime_us": took[8],
        "times_numpy": max(took[at] / took[at + 1] for at in range(0, 8, 2)),
        "of_onnxruntime": took[0] / took[8] if took[8] else None,
        "verified": verified,
    }
