"""Same inputs, same bits: any number of threads, repeatedly, any chunks, file or stream.

Lowered thresholds make small arrays take every algorithm; a spy records which ran. Each algorithm
also runs at its real size. Expected bits come from ufunc.at, see test_large.py.
"""

import errno
import inspect
import io
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

import numpy as np
import pytest
import thresholds
from bits import agree
from command import execute, save
from command import ndtool as command
from limits import failing
from strategies import ARITHMETIC, COMPLEX, Array, combinations_of, random_values, raw, same
from test_large import expected_scatter, numbers
from thresholds import lowered

import ndtool
from ndtool import _kernels
from ndtool.engine import check, gathers, scatters, tuning
from ndtool.errors import BoundsError, ResourceError
from ndtool.formats import npy
from ndtool.inmemory import calls
from ndtool.machine import scratch
from ndtool.rules import dtypes
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

TEAMS = range(1, 1 + int(os.environ.get("NDTOOL_TEST_TEAMS", "16")))
REPEATS = int(os.environ.get("NDTOOL_TEST_REPEATS", "1"))


class Algorithm(NamedTuple):
    """Shapes that lead to one algorithm.

    taken: the function in scatters and the kernel. axis: of an elements operator.
    """

    name: str
    taken: tuple[str, str]
    data: tuple[int, ...]
    indices: tuple[int, ...]
    axis: int | None = None
    in_place: bool = False


IN_ORDER = ("_in_order", "scatter")
PARTS = ("scatter_by_destination", "apply_partitions")
LINES = ("_by_batches", "scatter_batches")
SHORT_LINES = ("_by_batches", "scatter")
UNITS = ("_by_units", "scatter_units")
WAYS = (
    Algorithm("columns", IN_ORDER, (5, 3000), (7, 1)),
    Algorithm("runs", IN_ORDER, (40, 70), (300, 1)),
    Algorithm("parts", PARTS, (5000,), (700, 1)),
    Algorithm("parts in place", PARTS, (5000,), (700, 1), None, True),
    Algorithm("parts of rows", PARTS, (300, 70), (400, 1)),
    Algorithm("parts of a line", PARTS, (5000,), (700,), 0),
    Algorithm("lines", LINES, (30, 64), (30, 64), 1),
    Algorithm("lines in part", SHORT_LINES, (30, 64), (29, 40), 1),
    Algorithm("packed units", UNITS, (20, 70), (20, 70), 0),
    Algorithm("units in place", UNITS, (20, 70), (20, 70), 0, True),
    Algorithm("units too tall to pack", UNITS, (300, 40), (300, 40), 0),
    Algorithm("units in part", UNITS, (3, 20, 70), (2, 40, 69), 1),
    Algorithm("units of one column", UNITS, (20, 30, 7), (20, 30, 1), 0),
)
LARGE = (
    Algorithm("columns", IN_ORDER, (5, 300_000), (9, 1)),
    Algorithm("runs", IN_ORDER, (40_000, 128), (20_000, 1)),
    Algorithm("parts", PARTS, (5_000_000,), (600_000, 1)),  # for two threads
    Algorithm("parts of rows", PARTS, (80_000, 70), (20_000, 1)),
    Algorithm("parts of a line", PARTS, (4_500_000,), (600_000,), 0),
    Algorithm("lines", LINES, (300, 3000), (300, 3000), 1),
    Algorithm("packed units", UNITS, (900, 1100), (900, 1100), 0),
    Algorithm("units in place", UNITS, (900, 1100), (900, 1100), 0, True),
)


class Call(NamedTuple):
    """A scatter whose bits must never vary."""

    algorithm: Algorithm
    arrays: tuple[Array, Array, Array]
    combination: dict[str, Any]
    expected: Array

    def run(self, threads: int) -> Array:
        """Return the result with some number of threads."""
        data, *others = self.arrays
        data = data.copy() if self.algorithm.in_place else data
        return self._replace(arrays=(data, *others)).into(
            data if self.algorithm.in_place else None, threads
        )

    def into(self, out: Array | None, threads: int) -> Array:
        """Return the result, written to `out` if given."""
        data, *others = self.arrays
        options: Any = {"out": out, "threads": threads, **self.combination}
        if self.algorithm.axis is None:
            return ndtool.scatter_nd(data, *others, **options)
        return ndtool.scatter_elements(data, *others, self.algorithm.axis, **options)


def a_call(
    rng: np.random.Generator,
    algorithm: Algorithm,
    dtype: Any,
    combination: dict[str, Any],
    heavy: bool,
) -> Call:
    """Return a call for an algorithm; its duplicates are heavy (three elements) or none."""
    if algorithm.axis is None:
        indices, flat = tuples(rng, algorithm, heavy)
        shape = (len(indices), *algorithm.data[1:])
    else:
        indices, flat = elements(rng, algorithm, algorithm.axis, heavy)
        shape = indices.shape
    special = dtype not in COMPLEX and rng.integers(2)
    fill = random_values if special else numbers
    data, updates = fill(rng, dtype, algorithm.data), fill(rng, dtype, shape)
    expected = expected_scatter(data, flat, updates, **combination)
    return Call(algorithm, (data, indices, updates), combination, expected)


def tuples(rng: np.random.Generator, algorithm: Algorithm, heavy: bool) -> tuple[Array, Array]:
    """Return index tuples and the linear indices of the elements that they select."""
    size, *run = algorithm.data
    rows = rng.permutation(size)
    rows = rng.choice(rows[:3], algorithm.indices[0]) if heavy else rows[: algorithm.indices[0]]
    width = int(np.prod(run))
    return rows[:, None] - size, (rows[:, None] * width + np.arange(width)).ravel()


def elements(
    rng: np.random.Generator, algorithm: Algorithm, axis: int, heavy: bool
) -> tuple[Array, Array]:
    """Return an index for each element and the linear indices of the elements selected."""
    size, shape = algorithm.data[axis], list(algorithm.indices)
    if heavy:
        indices = rng.integers(0, 3, shape)
    else:
        length, shape[axis] = shape[axis], size
        indices = np.argsort(rng.random(shape), axis).take(range(min(size, length)), axis)
    where = list(np.indices(indices.shape, sparse=True))
    where[axis] = indices
    return indices, np.ravel_multi_index(np.broadcast_arrays(*where), algorithm.data).ravel()


@pytest.fixture
def small() -> Iterator[None]:
    """Lower the thresholds that choose the algorithm."""
    with lowered(thresholds.TEAMS):
        yield


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Record the algorithms and kernels called, and their numbers of threads."""
    seen: dict[str, int] = {}

    def note(name: str, call: dict[str, Any]) -> None:
        threads = call["options"].threads if "options" in call else 0
        seen[name] = max(seen.get(name, 0), threads)

    for algorithm, kernel in {algorithm.taken for algorithm in WAYS}:
        spy(monkeypatch, scatters, algorithm, note)
        spy(monkeypatch, gathers._kernels, kernel, note)
    monkeypatch.setattr(tuning, "WIDE_SLICE", tuning.WIDE_SLICE)  # `lead` changes it
    return seen


def spy(
    patch: pytest.MonkeyPatch, module: Any, name: str, note: Callable[[str, dict[str, Any]], None]
) -> None:
    """Record all calls of a function: its name, and its arguments by name."""
    function = getattr(module, name)
    signature = inspect.signature(function)

    def noting(*args: Any) -> Any:
        note(name, signature.bind(*args).arguments)
        return function(*args)

    patch.setattr(module, name, noting)


def lead(algorithm: Algorithm) -> None:
    """Exclude the algorithm for long slices, to test another one."""
    tuning.WIDE_SLICE = 65 if algorithm.taken == IN_ORDER else 1 << 40


def compare(calls: list[Call], repeats: int, taken: dict[str, int]) -> None:
    """Run the calls with 1 to 16 threads, by the intended algorithm: one result."""
    first = [call.run(1) for call in calls]
    for call, result in zip(calls, first, strict=True):
        assert agree(result, call.expected, call.combination["reduction"]), (
            call.algorithm,
            call.combination,
        )
    for threads in TEAMS:
        for call, result in zip(calls, first, strict=True):
            taken.clear()
            lead(call.algorithm)
            for _ in range(repeats):
                assert same(call.run(threads), result), (call.algorithm, call.combination, threads)
            algorithm, kernel = call.algorithm.taken
            in_order = (
                threads == 1 and algorithm == "scatter_by_destination"
            )  # sorting gains nothing
            assert algorithm in taken or in_order, call.algorithm
            assert in_order or 1 < taken[kernel] <= threads or threads == 1, call.algorithm


@pytest.mark.slow("each loop of each type has the bits of one thread")
@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_every_type_and_reduction(dtype: np.dtype, small: None, taken: dict[str, int]) -> None:
    rng = np.random.default_rng(31)
    calls = [
        a_call(rng, algorithm, dtype, combination, heavy)
        for combination in combinations_of(dtype)
        for algorithm in WAYS
        for heavy in (True, False)
    ]
    compare(calls, REPEATS, taken)


@pytest.mark.slow("the bits of one thread with the thresholds that users have")
@pytest.mark.parametrize("heavy", [True, False], ids=["heavy", "none"])
@pytest.mark.parametrize("reduction", ["none", "add", "mean"])
def test_algorithms_at_their_real_size(
    reduction: str, heavy: bool, taken: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "LOCAL_FRACTION", 2)  # three elements may be neighbours
    rng = np.random.default_rng(32)
    compare(
        [a_call(rng, w, np.dtype("f4"), {"reduction": reduction}, heavy) for w in LARGE],
        REPEATS,
        taken,
    )


@pytest.mark.parametrize("begin", [0, 4, 16])
@pytest.mark.parametrize("width", [16, 48, 1024, 1025])
def test_runs_that_bypass_the_cache(width: int, begin: int, small: None) -> None:
    """Complete cache lines if aligned; also other offsets and widths."""
    rng = np.random.default_rng(37)
    buffer = np.empty(64 * 40 * width + 128, np.uint8)
    begin += -buffer.ctypes.data % 64
    out = buffer[begin : begin + 40 * width * 4].view("f4").reshape(40, width)
    data, updates = (rng.random((n, width), np.float32) for n in (40, 500))
    for indices in (rng.integers(-40, 40, (500, 1)), np.repeat(rng.integers(0, 3, (250, 1)), 2, 0)):
        expected, gathered = data.copy(), data[indices[:, 0]]
        for position, update in zip(indices[:, 0], updates, strict=True):
            expected[position] = update
        for threads in TEAMS:
            out[...] = 0
            assert same(
                ndtool.scatter_nd(data, indices, updates, out=out, threads=threads), expected
            )
            part = out[: len(indices[:40])]
            assert same(
                ndtool.gather_nd(data, indices[:40], out=part, threads=threads), gathered[:40]
            )


@pytest.mark.parametrize("packed", [0, 1 << 28])
def test_gathers(packed: int, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MAX_PACKED", packed)
    rng = np.random.default_rng(33)
    memory = random_values(rng, np.dtype("f4"), (20, 21, 22))
    turned = memory.transpose(2, 0, 1), np.asfortranarray(memory)
    for data in (memory, *turned, memory[::2, ::-1]):
        rows = rng.integers(-10, 10, (3000, 1))
        picked = [rng.integers(-10, 10, data.shape) for _ in data.shape]
        for threads in (1, 2, 3, 5, 8, 16):
            assert same(ndtool.gather_nd(data, rows, threads=threads), data[rows[:, 0]])
            for axis, index in enumerate(picked):
                actual = ndtool.gather_elements(data, index, axis, threads=threads)
                assert same(actual, np.take_along_axis(data, index, axis))


@pytest.mark.parametrize("limit", [1, 1 << 30], ids=["several goes", "one go"])
@pytest.mark.parametrize("sizes", [(60_000,), (300, 200)], ids=str)
@pytest.mark.parametrize("reduction", ["add", "mean"])
def test_more_tuples_than_are_sorted_at_once(
    reduction: str,
    sizes: tuple[int, ...],
    limit: int,
    small: None,
    taken: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "SCRATCH", limit)
    rng = np.random.default_rng(39)
    count = 2 * _kernels.GROUP + 999
    data, updates = (rng.integers(0, 99, n, np.int32) for n in (60_000, count))
    flat = rng.integers(0, 60_000, count)
    indices = np.stack(np.unravel_index(flat, sizes), -1)
    options: Any = {"reduction": reduction, "include_self": reduction == "add"}
    expected = expected_scatter(data, flat, updates, **options)
    for threads in (1, 3):
        taken.clear()
        actual = ndtool.scatter_nd(
            data.reshape(sizes), indices, updates, threads=threads, **options
        )
        assert same(actual, expected.reshape(sizes))
        assert "apply_partitions" in taken or (threads == 1 and reduction == "add")


@pytest.mark.parametrize("algorithm", WAYS, ids=lambda w: w.name)
def test_every_algorithm_detects_an_index_out_of_bounds(
    algorithm: Algorithm, small: None, taken: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skip the first validation, as if the indices changed after it."""
    monkeypatch.setattr(check, "check", lambda *_: None)
    call = a_call(np.random.default_rng(38), algorithm, np.dtype("f4"), {"reduction": "add"}, True)
    data, indices, updates = call.arrays
    size, last = algorithm.data[algorithm.axis or 0], indices.size - 1
    moved = getattr(ndtool, arguments(algorithm, "none")["operator"].replace("scatter", "gather"))
    lead(algorithm)
    for position, value, threads in product((0, last // 2, last), (size, -size - 1), (1, 3)):
        wrong = indices.copy()
        wrong.flat[position] = value
        with pytest.raises(BoundsError, match=f"{value}"):
            call._replace(arrays=(data, wrong, updates)).run(threads)
        with pytest.raises(BoundsError, match=f"{value}"):
            moved(data, wrong, algorithm.axis or 0, threads=threads)
    assert algorithm.taken[0] in taken


@pytest.mark.parametrize("limit", [1, 1 << 30], ids=["several goes", "one go"])
@pytest.mark.parametrize("algorithm", WAYS, ids=lambda w: w.name)
def test_an_index_out_of_bounds_leaves_the_output_unchanged(
    algorithm: Algorithm, limit: int, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "SCRATCH", limit)
    monkeypatch.setattr(tuning, "WIDE_SLICE", tuning.WIDE_SLICE)
    lead(algorithm)
    call = a_call(np.random.default_rng(44), algorithm, np.dtype("f4"), {"reduction": "add"}, False)
    data, indices, updates = call.arrays
    for position, threads in product((0, indices.size - 1), (1, 3)):
        wrong = indices.copy()
        wrong.flat[position] = algorithm.data[algorithm.axis or 0]
        for reduction in ("none", "add"):
            again = call._replace(
                arrays=(data, wrong, updates), combination={"reduction": reduction}
            )
            for out in (data, np.full_like(data, 7)):
                before = out.copy()
                with pytest.raises(BoundsError):
                    again.into(out, threads)
                assert same(out, before), (position, threads, reduction)


@pytest.mark.parametrize("algorithm", WAYS, ids=lambda w: w.name)
def test_every_algorithm_refuses_negative_indices_of_specs(
    algorithm: Algorithm, small: None, taken: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = calls.bind_call
    monkeypatch.setattr(calls, "bind_call", lambda *call: bind(*call)._replace(negatives=False))
    monkeypatch.setattr(check, "check", lambda *_: None)
    call = a_call(np.random.default_rng(42), algorithm, np.dtype("f4"), {"reduction": "add"}, True)
    data, indices, updates = call.arrays
    size = algorithm.data[algorithm.axis or 0]
    moved = getattr(ndtool, arguments(algorithm, "none")["operator"].replace("scatter", "gather"))
    lead(algorithm)
    for value, threads in product((-1, -size), (1, 3)):
        index = indices % size
        assert same(call._replace(arrays=(data, index, updates)).run(threads), call.expected)
        index.flat[-1] = value
        with pytest.raises(BoundsError, match=f"{value}\n.*valid 0..{size - 1}"):
            call._replace(arrays=(data, index, updates)).run(threads)
        with pytest.raises(BoundsError, match=f"{value}\n.*valid 0..{size - 1}"):
            moved(data, index, algorithm.axis or 0, threads=threads)
    assert algorithm.taken[0] in taken


def test_gathers_of_axes_that_cannot_be_merged(small: None) -> None:
    rng = np.random.default_rng(40)
    data = random_values(rng, np.dtype("f4"), (8, 6, 10, 6))[:, ::2, ::2, ::2]
    for axis in range(4):
        index = rng.integers(0, data.shape[axis], data.shape)
        expected = np.take_along_axis(data, index, axis)
        assert same(ndtool.gather_elements(data, index, axis, threads=2), expected)
    index = rng.integers(0, 3, (8, 50, 1))  # slices with gaps, in batches
    expected = data[np.arange(8)[:, None], index[..., 0]]
    for threads in (1, 2, 5):
        assert same(ndtool.gather_nd(data, index, 1, threads=threads), expected)


@pytest.mark.parametrize("width", [16, 700, 40_000])
def test_no_call_gathers_more_than_a_work_item(
    width: int, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends a run between two kernel calls."""
    moved = []

    def note(_: str, call: dict[str, Any]) -> None:
        moved.append(call["item"].tuples * call["item"].width)

    spy(monkeypatch, gathers._kernels, "gather", note)
    data, index = np.ones((9, width), "u1"), np.full((90_000 // width + 1, 1), -1)
    assert same(ndtool.gather_nd(data, index), data[index[:, 0]])
    assert sum(moved) == len(index) * width
    assert tuning.WORK_ITEM // 2 < max(moved) <= tuning.WORK_ITEM


def arguments(algorithm: Algorithm, reduction: str) -> dict[str, Any]:
    """Return the arguments of a call in a request."""
    operator = "scatter_nd" if algorithm.axis is None else "scatter_elements"
    return {
        "operator": operator,
        "attributes": Attributes(axis=algorithm.axis or 0, reduction=reduction),
    }


@pytest.mark.parametrize("dtype", [np.dtype("f4"), np.dtype(">f2"), np.dtype(">f8")], ids=str)
def test_files_in_chunks_of_any_size(
    dtype: np.dtype, small: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(34)
    for algorithm in WAYS:
        call = a_call(rng, algorithm, dtype.newbyteorder("="), {"reduction": "add"}, True)
        data, indices, updates = call.arrays
        save(data=data.astype(dtype), indices=indices, updates=updates.astype(dtype))
        moved = arguments(algorithm, "none")["operator"].replace("scatter", "gather")
        read = getattr(ndtool, moved)(data, indices, algorithm.axis or 0)
        for chunk, threads in product((999, 1 << 22), (1, 3)):
            monkeypatch.setattr(tuning, "WRITE_SIZE", chunk)
            monkeypatch.setattr(tuning, "FILE_SCRATCH", chunk)
            names = ("data.npy", "indices.npy")
            options = {"output": "out.npy", "threads": threads}
            for request, expected in (
                (Request(data=names[0], indices=names[1], updates="updates.npy",
                              **arguments(algorithm, "add"), **options), call.expected),
                (Request(moved, *names, attributes=Attributes(axis=algorithm.axis or 0), **options), read),
            ):  # fmt: skip
                with OpenCall(request) as job:
                    steps.run(job)
                assert same(np.load("out.npy"), expected.astype(dtype)), (algorithm, chunk, threads)


# Units of 12 bytes, such as long doubles on some machines, occur only in files.
TURNED = {
    "i2": 2,
    "f4": 4,
    "m8[s]": 8,
    "f12": 12,
    "f16": 16,
    "c8": 4,
    "c24": 12,
    "c32": 16,
    "U3": 4,
}


@pytest.mark.parametrize("code", TURNED)
@pytest.mark.parametrize("order", "<>")
def test_updates_in_the_other_byte_order(
    order: str, code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A copy moves complete elements: of the type it needs only the unit of byte order."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(44)
    other = "<>".replace(order, "")
    itemsize = dtypes.from_code(order + code).itemsize
    data, updates = (rng.integers(0, 99, (n, itemsize), np.uint8) for n in (50, 30))
    index = rng.permutation(50)[:30, None]
    expected = data.copy()
    expected[index[:, 0]] = updates.reshape(30, -1, TURNED[code])[..., ::-1].reshape(30, -1)
    for name, elements, descr in (("data", data, order + code), ("updates", updates, other + code)):
        head = npy.encode(dtypes.from_code(descr), elements.shape[:1])
        Path(f"{name}.npy").write_bytes(head + elements.tobytes())
    save(indices=index)
    with OpenCall(
        Request("scatter_nd", "data.npy", "indices.npy", "updates.npy", "out.npy")
    ) as call:
        steps.run(call)
    assert Path("out.npy").read_bytes()[-expected.size :] == expected.tobytes()
    if itemsize % 12 or code == "U3":
        left, right = (np.load(f"{name}.npy") for name in ("data", "updates"))
        result = ndtool.scatter_nd(left, index, right)
        assert result.dtype == left.dtype
        assert raw(result) == expected.tobytes()


@pytest.mark.parametrize("algorithm", [WAYS[2], WAYS[6], WAYS[8]], ids=lambda w: w.name)
def test_streams(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    call = a_call(np.random.default_rng(35), algorithm, np.dtype("f2"), {"reduction": "mul"}, True)
    names = ("data", "indices", "updates")
    save(**dict(zip(names, call.arrays, strict=True)))
    flags = ["--reduction", "mul"] + ([] if algorithm.axis is None else ["--axis", algorithm.axis])
    operator = arguments(algorithm, "mul")["operator"].replace("_", "-")
    stream = b"".join(Path(f"{name}.npy").read_bytes() for name in names)
    for threads in (1, 3):
        ran = command(operator, "-", "-", "-", *flags, "--threads", threads, stdin=stream)
        assert ran.status == 0, ran.err
        assert same(np.load(io.BytesIO(ran.out)), call.expected)


def test_concurrent_calls(small: None) -> None:
    rng = np.random.default_rng(36)
    calls = [
        a_call(rng, algorithm, np.dtype("f4"), {"reduction": "add"}, True) for algorithm in WAYS
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            for call, result in zip(
                calls * 20, pool.map(lambda c: c.run(2), calls * 20), strict=True
            ):
                assert same(result, call.expected), call.algorithm
    finally:
        sys.setswitchinterval(interval)


def sorted_call() -> Call:
    """Return a call that sorts its tuples by destination, on any number of threads."""
    return a_call(np.random.default_rng(45), WAYS[2], np.dtype("f4"), {"reduction": "mean"}, True)


def test_advice_that_the_system_refuses(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without transparent huge pages defines the constant and rejects the call."""

    class Refusing(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    scratch._cached.clear()
    monkeypatch.setattr(mmap, "mmap", Refusing)
    call = sorted_call()
    assert same(call.run(2), call.expected)
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    scratch._cached.clear()
    assert same(call.run(2), call.expected)
    scratch._cached.clear()


def test_insufficient_scratch(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch._cached.clear()
    monkeypatch.setattr(mmap, "mmap", failing(errno.ENOMEM))
    with pytest.raises(ResourceError, match=r"^not enough memory for a buffer of \d+ bytes$"):
        sorted_call().run(1)


def test_scratch_is_cached_once(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was once called with many threads does not retain as much scratch."""
    buffer, together, made = scratch.acquire, Barrier(4), []

    def noting(size: int) -> Any:
        made.append(one := buffer(size))
        together.wait()
        return one

    scratch._cached.clear()
    call = sorted_call()
    with monkeypatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(scratch, "acquire", noting)
        for result in pool.map(lambda _: call.run(1), range(8)):
            assert same(result, call.expected)
    assert len({id(one) for one in made}) >= 4
    (before,) = scratch._cached
    call.run(1)
    assert scratch._cached[0] is before


def test_planted_races_still_run() -> None:
    planted = Path(__file__).parent / "sanitize" / "planted.py"
    ran = execute(sys.executable, planted, "disjoint_batches")
    assert (ran.status, ran.err) == (0, "")
