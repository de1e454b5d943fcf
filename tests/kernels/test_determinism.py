"""Same inputs, same bits: any number of threads, repeatedly, any chunks, file or stream.

With lowered thresholds, small arrays use every algorithm; a spy records the functions called. Each
algorithm also runs on large arrays with the default thresholds. Expected bits come from ufunc.at,
see test_large.py.
"""

import _thread
import errno
import inspect
import io
import mmap
import operator
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

import numpy as np
import pytest
import thresholds
from bits import results_match
from command import ndtool as command
from command import save
from floatstates import float_state
from limits import fail_with
from strategies import (
    ARITHMETIC,
    COMPLEX,
    FLOATS,
    Array,
    all_reduction_options,
    bits_equal,
    random_values,
    raw_bytes,
)
from test_large import expected_scatter, order_sensitive_values
from thresholds import patched_thresholds

import ndtool
from ndtool import _kernels
from ndtool._kernels import Calls
from ndtool.engine import check, gathers, scatters, tuning
from ndtool.errors import BoundsError, ResourceError
from ndtool.formats import npy
from ndtool.inmemory import calls
from ndtool.machine import scratch
from ndtool.machine import threads as thread_counts
from ndtool.rules import dtypes
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request

THREAD_COUNTS = range(1, 1 + int(os.environ.get("NDTOOL_TEST_TEAMS", "16")))
REPEATS = int(os.environ.get("NDTOOL_TEST_REPEATS", "1"))


class Algorithm(NamedTuple):
    """Shapes for which one algorithm is chosen.

    function: in engine/scatters.py. kernel: the function of _kernels that it calls. axis: of an
    elements operator.
    """

    name: str
    function: str
    kernel: str
    data: tuple[int, ...]
    indices: tuple[int, ...]
    axis: int | None = None
    in_place: bool = False


IN_ORDER = ("_in_order", "scatter")
PARTITIONS = ("scatter_by_destination", "apply_partitions")
LINES = ("_by_batches", "scatter_batches")
SHORT_LINES = ("_by_batches", "scatter")
UNITS = ("_by_units", "scatter_tiles")
ALGORITHMS = (
    Algorithm("columns", *IN_ORDER, (5, 3000), (7, 1)),
    Algorithm("slices", *IN_ORDER, (40, 70), (300, 1)),
    Algorithm("partitions", *PARTITIONS, (5000,), (700, 1)),
    Algorithm("partitions in place", *PARTITIONS, (5000,), (700, 1), None, True),
    Algorithm("partitions of rows", *PARTITIONS, (300, 70), (400, 1)),
    Algorithm("partitions of a line", *PARTITIONS, (5000,), (700,), 0),
    Algorithm("lines", *LINES, (30, 64), (30, 64), 1),
    Algorithm("partial lines", *SHORT_LINES, (30, 64), (29, 40), 1),
    Algorithm("packed units", *UNITS, (20, 70), (20, 70), 0),
    Algorithm("units in place", *UNITS, (20, 70), (20, 70), 0, True),
    Algorithm("units with too many rows to pack", *UNITS, (300, 40), (300, 40), 0),
    Algorithm("partial units", *UNITS, (3, 20, 70), (2, 40, 69), 1),
    Algorithm("units of one column", *UNITS, (20, 30, 7), (20, 30, 1), 0),
)
LARGE = (
    Algorithm("columns", *IN_ORDER, (5, 300_000), (9, 1)),
    Algorithm("slices", *IN_ORDER, (40_000, 128), (20_000, 1)),
    Algorithm("partitions", *PARTITIONS, (5_000_000,), (600_000, 1)),  # for two threads
    Algorithm("partitions of rows", *PARTITIONS, (80_000, 70), (20_000, 1)),
    Algorithm("partitions of a line", *PARTITIONS, (4_500_000,), (600_000,), 0),
    Algorithm("lines", *LINES, (300, 3000), (300, 3000), 1),
    Algorithm("packed units", *UNITS, (900, 1100), (900, 1100), 0),
    Algorithm("units in place", *UNITS, (900, 1100), (900, 1100), 0, True),
)


class Call(NamedTuple):
    """A scatter whose bits must never vary."""

    algorithm: Algorithm
    arrays: tuple[Array, Array, Array]
    reduction_options: dict[str, Any]
    linear_indices: Array
    expected: Array

    def run(self, threads: int) -> Array:
        """Return the result computed by a number of threads."""
        data, *operands = self.arrays
        data = data.copy() if self.algorithm.in_place else data
        return self._replace(arrays=(data, *operands)).into(
            data if self.algorithm.in_place else None, threads
        )

    def into(self, out: Array | None, threads: int) -> Array:
        """Return the result, written to `out` if given."""
        data, *operands = self.arrays
        options: Any = {"out": out, "threads": threads, **self.reduction_options}
        if self.algorithm.axis is None:
            return ndtool.scatter_nd(data, *operands, **options)
        return ndtool.scatter_elements(data, *operands, self.algorithm.axis, **options)


def make_call(
    rng: np.random.Generator,
    algorithm: Algorithm,
    dtype: Any,
    reduction_options: dict[str, Any],
    few_targets: bool,
) -> Call:
    """Return a call for an algorithm; few_targets: updates go to three elements, else to distinct ones."""
    if algorithm.axis is None:
        indices, linear_indices = tuples(rng, algorithm, few_targets)
        shape = (len(indices), *algorithm.data[1:])
    else:
        indices, linear_indices = elements(rng, algorithm, algorithm.axis, few_targets)
        shape = indices.shape
    has_special_values = dtype not in COMPLEX and rng.integers(2)
    make_array = random_values if has_special_values else order_sensitive_values
    data, updates = make_array(rng, dtype, algorithm.data), make_array(rng, dtype, shape)
    expected = expected_scatter(data, linear_indices, updates, **reduction_options)
    return Call(algorithm, (data, indices, updates), reduction_options, linear_indices, expected)


def tuples(
    rng: np.random.Generator, algorithm: Algorithm, few_targets: bool
) -> tuple[Array, Array]:
    """Return index tuples and the linear indices of the elements that they select."""
    size, *slice_shape = algorithm.data
    rows = rng.permutation(size)
    rows = (
        rng.choice(rows[:3], algorithm.indices[0]) if few_targets else rows[: algorithm.indices[0]]
    )
    width = int(np.prod(slice_shape))
    return rows[:, None] - size, (rows[:, None] * width + np.arange(width)).ravel()


def elements(
    rng: np.random.Generator, algorithm: Algorithm, axis: int, few_targets: bool
) -> tuple[Array, Array]:
    """Return an index for each update and the linear indices of the selected elements."""
    size, shape = algorithm.data[axis], list(algorithm.indices)
    if few_targets:
        indices = rng.integers(0, 3, shape)
    else:
        length, shape[axis] = shape[axis], size
        indices = np.argsort(rng.random(shape), axis).take(range(min(size, length)), axis)
    coordinates = list(np.indices(indices.shape, sparse=True))
    coordinates[axis] = indices
    return indices, np.ravel_multi_index(np.broadcast_arrays(*coordinates), algorithm.data).ravel()


@pytest.fixture
def lowered_thresholds() -> Iterator[None]:
    """Lower the thresholds that choose the algorithm."""
    with patched_thresholds(thresholds.TEAMS):
        yield


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Record the algorithms and kernels called, and their numbers of threads."""
    max_threads: dict[str, int] = {}

    def record(name: str, call: dict[str, Any]) -> None:
        threads = call["options"].threads if "options" in call else 0
        max_threads[name] = max(max_threads.get(name, 0), threads)

    for name in {algorithm.function for algorithm in ALGORITHMS}:
        spy(monkeypatch, scatters, name, record)
    for name in {algorithm.kernel for algorithm in ALGORITHMS}:
        spy(monkeypatch, gathers._kernels, name, record)
    monkeypatch.setattr(tuning, "WIDE_SLICE", tuning.WIDE_SLICE)  # `force_algorithm` changes it
    return max_threads


def spy(
    patch: pytest.MonkeyPatch, module: Any, name: str, record: Callable[[str, dict[str, Any]], None]
) -> None:
    """Record all calls of a function: its name, and its arguments by name."""
    function = getattr(module, name)
    signature = inspect.signature(function)

    def wrapper(*args: Any) -> Any:
        record(name, signature.bind(*args).arguments)
        return function(*args)

    patch.setattr(module, name, wrapper)


def force_algorithm(algorithm: Algorithm) -> None:
    """Set the threshold of the algorithm for long slices so that the intended one is chosen."""
    tuning.WIDE_SLICE = 65 if algorithm.function == "_in_order" else 1 << 40


def compare(calls: list[Call], repeats: int, called: dict[str, int]) -> None:
    """Check that 1 to 16 threads give the same bits by the intended algorithm."""
    results = [call.run(1) for call in calls]
    for call, result in zip(calls, results, strict=True):
        assert results_match(result, call.expected, call.reduction_options["reduction"]), (
            call.algorithm,
            call.reduction_options,
        )
    for threads in THREAD_COUNTS:
        for call, result in zip(calls, results, strict=True):
            called.clear()
            force_algorithm(call.algorithm)
            for _ in range(repeats):
                assert bits_equal(call.run(threads), result), (
                    call.algorithm,
                    call.reduction_options,
                    threads,
                )
            function, kernel = call.algorithm.function, call.algorithm.kernel
            # sorting gains nothing
            in_order = threads == 1 and function == "scatter_by_destination"
            assert function in called or in_order, call.algorithm
            assert in_order or 1 < called[kernel] <= threads or threads == 1, call.algorithm


@pytest.mark.slow("each loop of each type has the bits of one thread")
@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_every_type_and_reduction_has_the_bits_of_one_thread(
    dtype: np.dtype, lowered_thresholds: None, called: dict[str, int]
) -> None:
    rng = np.random.default_rng(31)
    calls = [
        make_call(rng, algorithm, dtype, reduction_options, few_targets)
        for reduction_options in all_reduction_options(dtype)
        for algorithm in ALGORITHMS
        for few_targets in (True, False)
    ]
    compare(calls, REPEATS, called)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_all_threads_calculate_in_the_callers_floating_point_state(
    dtype: np.dtype, lowered_thresholds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding modes and flushed subnormal numbers; threads have started in another state."""
    monkeypatch.setattr(tuning, "WIDE_SLICE", tuning.WIDE_SLICE)
    rng = np.random.default_rng(46)
    for algorithm in {row.kernel + row.function: row for row in ALGORITHMS}.values():
        calls = [
            make_call(rng, algorithm, dtype, reduction_options, True)
            for reduction_options in all_reduction_options(dtype)
        ]
        force_algorithm(algorithm)
        for call in calls:
            data, _, updates = call.arrays
            for array in (data, updates):  # half of them subnormal
                small = rng.integers(0, 4, array.shape).astype(f"u{dtype.itemsize}").view(dtype)
                array[...] = np.where(rng.integers(0, 2, array.shape), small, array)
            before = call.run(2)
            with float_state("both"):
                results = [call.run(threads) for threads in (1, 2, 4)]
                expected = expected_scatter(
                    data, call.linear_indices, updates, **call.reduction_options
                )
            if dtype.itemsize > 2:  # NumPy's conversions to 16 bits ignore the rounding mode
                assert results_match(results[0], expected, call.reduction_options["reduction"])
            for result in results:
                assert bits_equal(result, results[0]), (algorithm, call.reduction_options)
            assert bits_equal(call.run(2), before), "the state of a thread is restored"


@pytest.mark.slow("the bits of one thread with the default thresholds")
@pytest.mark.parametrize("few_targets", [True, False], ids=["duplicates", "none"])
@pytest.mark.parametrize("reduction", ["none", "add", "mean"])
def test_algorithms_with_default_thresholds_have_the_bits_of_one_thread(
    reduction: str, few_targets: bool, called: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "LOCAL_FRACTION", 2)  # the three elements may be adjacent
    monkeypatch.setattr(thread_counts, "MIN_WORK", 1 << 20)  # is measured, and depends on the load
    rng = np.random.default_rng(32)
    compare(
        [
            make_call(rng, algorithm, np.dtype("f4"), {"reduction": reduction}, few_targets)
            for algorithm in LARGE
        ],
        REPEATS,
        called,
    )


@pytest.mark.parametrize("offset", [0, 4, 16])
@pytest.mark.parametrize("width", [16, 48, 1024, 1025])
def test_non_temporal_stores_have_the_bits_of_assignments(
    width: int, offset: int, lowered_thresholds: None
) -> None:
    """Aligned slices are complete cache lines; other offsets and widths are tested, too."""
    rng = np.random.default_rng(37)
    buffer = np.empty(64 * 40 * width + 128, np.uint8)
    offset += -buffer.ctypes.data % 64
    out = buffer[offset : offset + 40 * width * 4].view("f4").reshape(40, width)
    data, updates = (rng.random((count, width), np.float32) for count in (40, 500))
    for indices in (rng.integers(-40, 40, (500, 1)), np.repeat(rng.integers(0, 3, (250, 1)), 2, 0)):
        expected, gathered = data.copy(), data[indices[:, 0]]
        for row, update in zip(indices[:, 0], updates, strict=True):
            expected[row] = update
        for threads in THREAD_COUNTS:
            out[...] = 0
            assert bits_equal(
                ndtool.scatter_nd(data, indices, updates, out=out, threads=threads), expected
            )
            prefix = out[: len(indices[:40])]
            assert bits_equal(
                ndtool.gather_nd(data, indices[:40], out=prefix, threads=threads), gathered[:40]
            )


@pytest.mark.parametrize("limit", [1, 1 << 30], ids=["several passes", "one pass"])
@pytest.mark.parametrize("sizes", [(60_000,), (300, 200)], ids=str)
@pytest.mark.parametrize("reduction", ["add", "mean"])
def test_tuples_sorted_in_several_passes_are_updated_in_order(
    reduction: str,
    sizes: tuple[int, ...],
    limit: int,
    lowered_thresholds: None,
    called: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "SCRATCH", limit)
    rng = np.random.default_rng(39)
    count = 2 * _kernels.GROUP + 999
    data, updates = (rng.integers(0, 99, length, np.int32) for length in (60_000, count))
    linear_indices = rng.integers(0, 60_000, count)
    indices = np.stack(np.unravel_index(linear_indices, sizes), -1)
    options: Any = {"reduction": reduction, "include_self": reduction == "add"}
    expected = expected_scatter(data, linear_indices, updates, **options)
    for threads in (1, 3):
        called.clear()
        actual = ndtool.scatter_nd(
            data.reshape(sizes), indices, updates, threads=threads, **options
        )
        assert bits_equal(actual, expected.reshape(sizes))
        assert "apply_partitions" in called or (threads == 1 and reduction == "add")


@pytest.mark.parametrize("negatives", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda w: w.name)
def test_every_algorithm_detects_an_index_out_of_bounds(
    algorithm: Algorithm,
    negatives: bool,
    lowered_thresholds: None,
    called: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Skip the first validation, as if the indices changed after it."""
    monkeypatch.setattr(check, "check", lambda *_: None)
    options = {"reduction": "add", "negatives": negatives}
    call = make_call(
        np.random.default_rng(38), algorithm, np.dtype("f4"), {"reduction": "add"}, True
    )._replace(reduction_options=options)
    data, indices, updates = call.arrays
    size, last = algorithm.data[algorithm.axis or 0], indices.size - 1
    indices = indices if negatives else indices % size
    gather = getattr(ndtool, arguments(algorithm, "none")["operator"].replace("scatter", "gather"))
    force_algorithm(algorithm)
    assert bits_equal(call._replace(arrays=(data, indices, updates)).run(3), call.expected)
    for position, value, threads in product((0, last // 2, last), (size, -size - 1, -1), (1, 3)):
        if negatives and value == -1:
            continue
        wrong = indices.copy()
        wrong.flat[position] = value
        with pytest.raises(BoundsError, match=f"{value}"):
            call._replace(arrays=(data, wrong, updates)).run(threads)
        with pytest.raises(BoundsError, match=f"{value}"):
            gather(data, wrong, algorithm.axis or 0, threads=threads, negatives=negatives)
    assert algorithm.function in called


@pytest.mark.parametrize("limit", [1, 1 << 30], ids=["several passes", "one pass"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda w: w.name)
def test_an_index_out_of_bounds_leaves_the_output_unchanged(
    algorithm: Algorithm, limit: int, lowered_thresholds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "SCRATCH", limit)
    monkeypatch.setattr(tuning, "WIDE_SLICE", tuning.WIDE_SLICE)
    force_algorithm(algorithm)
    call = make_call(
        np.random.default_rng(44), algorithm, np.dtype("f4"), {"reduction": "add"}, False
    )
    data, indices, updates = call.arrays
    for position, threads in product((0, indices.size - 1), (1, 3)):
        wrong = indices.copy()
        wrong.flat[position] = algorithm.data[algorithm.axis or 0]
        for reduction in ("none", "add"):
            failing_call = call._replace(
                arrays=(data, wrong, updates), reduction_options={"reduction": reduction}
            )
            for out in (data, np.full_like(data, 7)):
                before = out.copy()
                with pytest.raises(BoundsError):
                    failing_call.into(out, threads)
                assert bits_equal(out, before), (position, threads, reduction)


@pytest.mark.parametrize("width", [16, 700, 40_000])
def test_ctrl_c_ends_a_gather_between_two_work_items(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing between the signal and the end of the call executes bytecode, which would see it."""
    monkeypatch.setattr(tuning, "WORK_ITEM", 1 << 12)
    compiled = Calls(
        np.ndarray, calls.ARRAY_API, calls.make_typed_call, min, scatters.needs_algorithm,
        calls.execute, vars(tuning),
    )  # fmt: skip
    data, index = np.ones((9, width), "u1"), np.full((90_000 // width + 1, 1), -1)
    out = np.zeros((len(index), width), "u1")
    gather = partial(compiled.call, data, index, None, out, "gather_nd", 1, "ndtool", *Attributes())
    assert gather() is out
    assert bits_equal(out, data[index[:, 0]])
    out[:] = 7
    with pytest.raises(KeyboardInterrupt):
        list(map(operator.call, [_thread.interrupt_main, gather]))
    assert (out == 7).any()


def arguments(algorithm: Algorithm, reduction: str) -> dict[str, Any]:
    """Return the operator and attributes of a request for an algorithm."""
    operator = "scatter_nd" if algorithm.axis is None else "scatter_elements"
    return {
        "operator": operator,
        "attributes": Attributes(axis=algorithm.axis or 0, reduction=reduction),
    }


@pytest.mark.parametrize("dtype", [np.dtype("f4"), np.dtype(">f2"), np.dtype(">f8")], ids=str)
def test_files_have_the_same_bits_for_any_chunk_size(
    dtype: np.dtype, lowered_thresholds: None, monkeypatch: pytest.MonkeyPatch, workdir: Path
) -> None:
    rng = np.random.default_rng(34)
    for algorithm in ALGORITHMS:
        call = make_call(rng, algorithm, dtype.newbyteorder("="), {"reduction": "add"}, True)
        data, indices, updates = call.arrays
        save(data=data.astype(dtype), indices=indices, updates=updates.astype(dtype))
        gather = arguments(algorithm, "none")["operator"].replace("scatter", "gather")
        gathered = getattr(ndtool, gather)(data, indices, algorithm.axis or 0)
        for chunk, threads in product((999, 1 << 22), (1, 3)):
            monkeypatch.setattr(tuning, "WRITE_SIZE", chunk)
            monkeypatch.setattr(tuning, "FILE_SCRATCH", chunk)
            names = ("data.npy", "indices.npy")
            options = {"output": "out.npy", "threads": threads}
            for request, expected in (
                (Request(data=names[0], indices=names[1], updates="updates.npy",
                              **arguments(algorithm, "add"), **options), call.expected),
                (Request(gather, *names, attributes=Attributes(axis=algorithm.axis or 0), **options), gathered),
            ):  # fmt: skip
                with OpenCall(request) as opened:
                    steps.run(opened)
                assert bits_equal(np.load("out.npy"), expected.astype(dtype)), (
                    algorithm,
                    chunk,
                    threads,
                )


# Units of 12 bytes, such as long doubles on some machines, occur only in files.
SWAP_UNITS = {"i2": 2, "m8[s]": 8, "f12": 12, "f16": 16, "c8": 4, "c24": 12, "U3": 4}


@pytest.mark.parametrize("code", SWAP_UNITS)
@pytest.mark.parametrize("order", "<>")
def test_updates_in_the_other_byte_order_are_swapped(order: str, code: str, workdir: Path) -> None:
    """A copy needs only the item size of a type, and the size of its byte-swapped units."""
    rng = np.random.default_rng(44)
    swapped_order = "<>".replace(order, "")
    itemsize = dtypes.from_code(order + code).itemsize
    data, updates = (rng.integers(0, 99, (count, itemsize), np.uint8) for count in (50, 30))
    index = rng.permutation(50)[:30, None]
    expected = data.copy()
    expected[index[:, 0]] = updates.reshape(30, -1, SWAP_UNITS[code])[..., ::-1].reshape(30, -1)
    for name, elements, descr in (
        ("data", data, order + code),
        ("updates", updates, swapped_order + code),
    ):
        header = npy.encode(dtypes.from_code(descr), elements.shape[:1])
        Path(f"{name}.npy").write_bytes(header + elements.tobytes())
    save(indices=index)
    with OpenCall(
        Request("scatter_nd", "data.npy", "indices.npy", "updates.npy", "out.npy")
    ) as call:
        steps.run(call)
    assert Path("out.npy").read_bytes()[-expected.size :] == expected.tobytes()
    if itemsize % 12 or code == "U3":
        data_array, update_array = (np.load(f"{name}.npy") for name in ("data", "updates"))
        result = ndtool.scatter_nd(data_array, index, update_array)
        assert result.dtype == data_array.dtype
        assert raw_bytes(result) == expected.tobytes()


@pytest.mark.parametrize("algorithm", [ALGORITHMS[2], ALGORITHMS[8]], ids=lambda w: w.name)
def test_streams_have_the_same_bits(algorithm: Algorithm, workdir: Path) -> None:
    call = make_call(
        np.random.default_rng(35), algorithm, np.dtype("f2"), {"reduction": "mul"}, True
    )
    names = ("data", "indices", "updates")
    save(**dict(zip(names, call.arrays, strict=True)))
    flags = ["--reduction", "mul"] + ([] if algorithm.axis is None else ["--axis", algorithm.axis])
    operator = arguments(algorithm, "mul")["operator"].replace("_", "-")
    stream = b"".join(Path(f"{name}.npy").read_bytes() for name in names)
    for threads in (1, 3):
        completed = command(operator, "-", "-", "-", *flags, "--threads", threads, stdin=stream)
        assert completed.status == 0, completed.err
        assert bits_equal(np.load(io.BytesIO(completed.out)), call.expected)


def test_concurrent_calls_have_the_same_bits(lowered_thresholds: None) -> None:
    rng = np.random.default_rng(36)
    calls = [
        make_call(rng, algorithm, np.dtype("f4"), {"reduction": "add"}, True)
        for algorithm in ALGORITHMS
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            for call, result in zip(
                calls * 20, pool.map(lambda c: c.run(2), calls * 20), strict=True
            ):
                assert bits_equal(result, call.expected), call.algorithm
    finally:
        sys.setswitchinterval(interval)


def sorted_call() -> Call:
    """Return a call that sorts its tuples by destination, on any number of threads."""
    return make_call(
        np.random.default_rng(45), ALGORITHMS[2], np.dtype("f4"), {"reduction": "mean"}, True
    )


def test_a_refused_madvise_is_ignored(
    lowered_thresholds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux without transparent huge pages rejects the call, although the constant is defined."""

    class Refusing(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    scratch._cached.clear()
    monkeypatch.setattr(mmap, "mmap", Refusing)
    call = sorted_call()
    assert bits_equal(call.run(2), call.expected)
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    scratch._cached.clear()
    assert bits_equal(call.run(2), call.expected)
    scratch._cached.clear()


def test_insufficient_memory_for_scratch_is_reported(
    lowered_thresholds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch._cached.clear()
    monkeypatch.setattr(mmap, "mmap", fail_with(errno.ENOMEM))
    with pytest.raises(ResourceError, match=r"^not enough memory for a buffer of \d+ bytes$"):
        sorted_call().run(1)


def test_scratch_is_cached_once(lowered_thresholds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """After calls in many threads, only one scratch buffer is retained."""
    acquire, barrier, buffers = scratch.acquire, Barrier(4), []

    def record_buffer(size: int) -> Any:
        buffers.append(allocated := acquire(size))
        barrier.wait()
        return allocated

    scratch._cached.clear()
    call = sorted_call()
    with monkeypatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(scratch, "acquire", record_buffer)
        for result in pool.map(lambda _: call.run(1), range(8)):
            assert bits_equal(result, call.expected)
    assert len({id(allocated) for allocated in buffers}) >= 4
    (cached,) = scratch._cached
    call.run(1)
    assert scratch._cached[0] is cached


def test_threads_that_share_a_table_of_counts_have_the_same_bits(
    lowered_thresholds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "SPARSE_UPDATES", 0)
    rng = np.random.default_rng(47)
    for algorithm in (ALGORITHMS[1], ALGORITHMS[2], ALGORITHMS[4]):
        for options in ({"reduction": "mean"}, {"reduction": "max", "include_self": False}):
            call = make_call(rng, algorithm, np.dtype("f4"), options, False)
            for threads in THREAD_COUNTS:
                monkeypatch.setattr(tuning, "SCRATCH", 1 << threads)
                assert results_match(call.run(threads), call.expected, options["reduction"])
