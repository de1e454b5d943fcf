"""No byte outside the arrays is read or written: each array is between guard pages.

All kernels run in child processes, so that a fault fails a test. Arrays begin at a page
boundary ("start"), end at one ("end") or are unaligned ("unaligned"); so does scratch memory.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from threading import Thread
from typing import Any

import guard_pages
import numpy as np
import pytest
from guard_pages import guarded_buffer, guarded_copy, memory_block

from ndtool import _kernels, errors, gather_elements, gather_nd, scatter_elements, scatter_nd
from ndtool.engine import bind, copies, destinations, gathers, scatters, tuning
from ndtool.machine import scratch as scratch_memory
from ndtool.machine import threads as teams
from ndtool.rules import dtypes

Array = np.ndarray[Any, Any]
tuning.COMPILED_CALL = 0  # small scatters take the general path

pytestmark = pytest.mark.skipif(os.name != "posix", reason="guard pages require mprotect")

EXHAUSTIVE = "NDTOOL_TEST_ALL" in os.environ  # set by `make torture`
WIDTHS = [
    width
    for width in range(1, 131)
    if EXHAUSTIVE or width < 18 or width > 126 or width % 16 in (15, 0, 1, 8)
]
CALLS = (
    ("end", 1),
    ("start", 1),
    ("end", 3),
    ("start", 2),
    ("unaligned", 2),
)  # alignments and threads
REDUCTIONS = {
    name: ("add", "sub", "mul")
    + (() if name.startswith("complex") else ("max", "min"))
    + (() if name == "bool" else ("mean",))
    for name in dtypes.ARITHMETIC
}
INDEX_CODES = [f"{o}{kind}{size}" for o in "<>" for kind in "iu" for size in (1, 2, 4, 8)]

algorithms: dict[str, Callable[[], None]] = {}


def algorithm(function: Callable[[], None]) -> Callable[[], None]:
    """Register a function that a child process runs."""
    algorithms[function.__name__] = function
    return function


@pytest.mark.slow("kernels read and write no byte outside their arrays, at every slice size")
@pytest.mark.parametrize("name", [
    "rows", "beyond_cache", "cache_lines", "columns", "batches", "strided", "transposed_data", "index_types", "last_axis", "other_axis",
    "scatter_slices", "scatter_by_elements", "reduce_slices", "reduce_by_elements", "array_copies",
    "changing_indices",
])  # fmt: skip
def test_no_access_outside_the_arrays(name: str) -> None:
    completed = run_child(name)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("name", ["strided", "index_types", "last_axis", "other_axis"])
def test_the_compiled_path_accesses_nothing_outside_the_arrays(name: str) -> None:
    completed = run_child(name, "compiled")
    assert completed.returncode == 0, completed.stderr


def test_every_algorithm_is_tested() -> None:
    (mark,) = (m for m in test_no_access_outside_the_arrays.pytestmark if m.name == "parametrize")
    assert mark.args[1] == [name for name in algorithms if not name.startswith("read_")]


@pytest.mark.parametrize("name", ["read_before_array", "read_after_array"])
def test_guard_pages_fault(name: str) -> None:
    completed = run_child(name)
    assert completed.returncode in (-signal.SIGSEGV, -signal.SIGBUS), completed.stderr
    assert f"in {name}" in completed.stderr


def run_child(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "faulthandler", __file__, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def set_thresholds(**thresholds: int) -> None:
    """Set the thresholds that choose the algorithm."""
    for name, value in thresholds.items():
        (module,) = (candidate for candidate in (tuning, teams) if hasattr(candidate, name))
        setattr(module, name, value)


def random_bits(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Return an array of a type with random bits."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return rng.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)


def check(operator: Callable[..., Array], arrays: tuple[Array, ...], *attributes: Any) -> None:
    """Call an operator between guard pages, in all alignments: it has the bits of a plain call."""
    expected = operator(*arrays, *attributes, threads=1)
    for guard_pages.position, threads in CALLS:
        out = memory_block(expected.nbytes).view(expected.dtype).reshape(expected.shape)
        operator(*(guarded_copy(a) for a in arrays), *attributes, out=out, threads=threads)
        assert out.tobytes() == expected.tobytes(), (guard_pages.position, threads, arrays)


def check_in_place(
    operator: Callable[..., Array], arrays: tuple[Array, ...], *attributes: Any
) -> None:
    """Check a call also with data as the output."""
    check(operator, arrays, *attributes)
    expected = operator(*arrays, *attributes, threads=1)
    for guard_pages.position in ("end", "start"):
        data, indices, updates = (guarded_copy(a) for a in arrays)
        operator(data, indices, updates, *attributes, out=data, threads=2)
        assert data.tobytes() == expected.tobytes(), (guard_pages.position, arrays)


def boundary_indices(
    rng: np.random.Generator, sizes: tuple[int, ...], shape: tuple[int, ...]
) -> Array:
    """Return index tuples, most of which select the first or the last slice."""
    index = rng.integers(-np.array(sizes), sizes, (*shape, len(sizes)))
    index[rng.random(shape) < 0.4] = 0
    index[rng.random(shape) < 0.4] = -1
    return index


def each_threshold_set() -> Iterator[None]:
    """Yield twice: without the fast path of small calls, then also with non-temporal stores."""
    set_thresholds(MIN_WORK=1)
    yield
    set_thresholds(NON_TEMPORAL=1, WORK_ITEM=1 << 16)
    yield


@algorithm
def rows() -> None:
    rng = np.random.default_rng(1)
    for _ in each_threshold_set():
        for width, sizes in product(WIDTHS, ((5,), (2, 3), (2, 1, 3))):
            data = random_bits(rng, "u1", (*sizes, width))
            for count in (7, 530) if len(sizes) == 1 else (1, 9):
                index = boundary_indices(rng, sizes, (count,))
                check(gather_nd, (data, index))
                if count < 10:
                    check(gather_nd, (data.view(f"V{width}"), index))


@algorithm
def beyond_cache() -> None:
    """Data that exceed the cache: the slices of the next block are prefetched."""
    rng = np.random.default_rng(15)
    for _ in each_threshold_set():
        for width, count in product((1, 3, 4, 16, 64, 65), (127, 128, 129, 257, 513)):
            size = (1 << 19) // width
            data = random_bits(rng, f"V{width}", (size,))
            index = boundary_indices(rng, (size,), (count,))
            check(gather_nd, (data, index))
            check(scatter_nd, (data, index, random_bits(rng, f"V{width}", (count,))))


@algorithm
def cache_lines() -> None:
    """Streamed outputs are written in complete cache lines; no adjacent byte changes."""
    rng = np.random.default_rng(16)
    set_thresholds(MIN_WORK=1, NON_TEMPORAL=1)
    for width in (*range(1, 601), 2049, 4104):
        guard_pages.position = ("end", "start", "unaligned")[width % 3]
        data = guarded_copy(random_bits(rng, "u1", (5, width)))
        index = guarded_copy(boundary_indices(rng, (5,), (97 if width % 50 else 1100,)))
        expected = data[index[:, 0]].tobytes()
        buffer = np.empty(len(expected) + 256, np.uint8)
        buffer = buffer[-buffer.ctypes.data % 64 :]
        for offset in range(width % 4, 64, 4):
            start = 64 + offset
            buffer[:] = 0xA5
            out = buffer[start : start + len(expected)].reshape(-1, width)
            gather_nd(data, index, out=out, threads=1 + (width + offset) % 3)
            trailing = len(buffer) - start - len(expected)
            assert buffer.tobytes() == b"\xa5" * start + expected + b"\xa5" * trailing, (
                width,
                offset,
            )


@algorithm
def columns() -> None:
    rng = np.random.default_rng(2)
    set_thresholds(MIN_WORK=1)
    for non_temporal, width in product((1, 1 << 40), (65536, 65537, 65599, 131071)):
        set_thresholds(NON_TEMPORAL=non_temporal)
        data, index = random_bits(rng, "u1", (3, width)), np.array([[2], [0], [-1]])
        check(gather_nd, (data, index))
        check_in_place(scatter_nd, (data, index, data[::-1].copy()))
        set_thresholds(WORK_ITEM=1 << 15)
        check(gather_nd, (data, index))
        set_thresholds(WORK_ITEM=1 << 26)


@algorithm
def batches() -> None:
    """With 513 tuples a batch is prefetched before it is gathered from."""
    rng = np.random.default_rng(3)
    set_thresholds(MIN_WORK=1)
    for width, step, count in product(WIDTHS, (1, -1), (3, 513)):
        batch, size = (5, 3) if count == 3 else (2, 67)
        data = random_bits(rng, "u1", (batch, size, width))[::step, ::-step]
        check(gather_nd, (data, boundary_indices(rng, (size,), (batch, count))), 1)
    for size in (1, 15, 16, 17, 31, 1023, 1024, 1025, 32767):
        data = random_bits(rng, "f4", (3, 2, size))
        check(gather_nd, (data, boundary_indices(rng, (size,), (3, 2, 600))), 2)


@algorithm
def strided() -> None:
    rng = np.random.default_rng(4)
    set_thresholds(MIN_WORK=1, MAX_PACKED=0)
    for width in WIDTHS:
        item = np.dtype(f"V{width}")
        for steps in ((1, 3, 6), (6, 2, 1), (-1, 3, -6), (0, 5, 1)):
            shape = (3, 2, 4)
            extent = sum(abs(s) * (n - 1) for s, n in zip(steps, shape, strict=True)) + 1
            buffer = random_bits(rng, item, (extent,))
            first = -sum(s * (n - 1) for s, n in zip(steps, shape, strict=True) if s < 0)
            data = np.lib.stride_tricks.as_strided(
                buffer[first:], shape, tuple(s * width for s in steps)
            )
            index = boundary_indices(rng, (3,), (9,))
            check(gather_nd, (data, index))
            set_thresholds(WORK_ITEM=3 * width)  # slices are divided into work items
            check(gather_nd, (data, index))
            set_thresholds(WORK_ITEM=1 << 26)
            check(gather_elements, (data, boundary_indices(rng, (2,), (3, 5, 4))[..., 0]), 1)
            check(gather_elements, (data, boundary_indices(rng, (4,), (3, 2, 9))[..., 0]), 2)


@algorithm
def transposed_data() -> None:
    """Data in Fortran order are normalized first."""
    rng = np.random.default_rng(14)
    set_thresholds(MIN_WORK=1)
    for width in WIDTHS:
        item = np.dtype(f"V{width}")
        for shape in ((65, 3), (3, 65), (2, 33, 2)):
            data = random_bits(rng, item, shape[::-1]).T
            index = rng.permutation(shape[0])[:, None]
            check(gather_nd, (data, index))
            check(gather_nd, (data[:, ::-1], index))
            check(scatter_nd, (data, np.array([[0]]), random_bits(rng, item, (1, *shape[1:]))))
    for shape in ((4097, 2), (8193, 17), (2, 4097, 17)):
        data = random_bits(rng, "f4", shape[::-1]).T
        check(gather_nd, (data, rng.permutation(shape[0])[:, None]))


def check_refused(data: Array, index: Array, component: int, value: int) -> None:
    """Check that a gather with one index out of bounds raises IndexError."""
    invalid = index.copy()
    invalid[component % len(invalid), component] = value
    for threads in (1, 2):
        try:
            gather_nd(guarded_copy(data), guarded_copy(invalid), threads=threads)
        except IndexError:
            continue
        raise AssertionError((invalid.dtype, invalid.shape, component, value))


@algorithm
def index_types() -> None:
    rng = np.random.default_rng(5)
    set_thresholds(MIN_WORK=1)
    for code, k, count in product(INDEX_CODES, (1, 2, 3, 5, 20), (1, 3, 33, 513, 1027)):
        sizes = (3,) * min(k, 3) + (1,) * (k - 3)
        index = boundary_indices(rng, sizes, (count,))
        index = (index % sizes if "u" in code else index).astype(code)
        data = random_bits(rng, "f4", sizes)
        check(gather_nd, (data, index))
        if k < 4:
            check(gather_nd, (np.empty((*sizes, 0)), index))
        for component, size in enumerate(sizes[:5]):
            check_refused(data, index, component, size)
            if "i" in code:
                check_refused(data, index, component, -size - 1)
    for code, axis, count in product(INDEX_CODES, (0, 1), (1, 3, 33, 513)):
        index = rng.integers(0, 3, (count, 3) if axis == 0 else (3, count)).astype(code)
        check(gather_elements, (random_bits(rng, "f4", (3, 3)), index), axis)


@algorithm
def last_axis() -> None:
    rng = np.random.default_rng(6)
    for _ in each_threshold_set():
        for width, length in product(WIDTHS, (1, 9, 515)):
            index = boundary_indices(rng, (7,), (3, length))[..., 0]
            check(gather_elements, (random_bits(rng, f"V{width}", (3, 7)), index), 1)


@algorithm
def other_axis() -> None:
    rng = np.random.default_rng(7)
    gathers.bytearray = guarded_buffer
    set_thresholds(MIN_WORK=1)
    for packed, width, columns in product((True, False), WIDTHS, (1, 6, 70)):
        set_thresholds(
            CACHE_SIZE=1 << 19 if packed else 0, WORK_ITEM=1 << 26 if packed else 1 << 14
        )
        data = random_bits(rng, f"V{width}", (2, 5, columns + (columns == 6)))
        check(gather_elements, (data, boundary_indices(rng, (5,), (2, 9, columns))[..., 0]), 1)
    set_thresholds(CACHE_SIZE=1 << 19)
    for columns in (511, 512, 513, 1030):
        data, index = random_bits(rng, "f4", (3, columns)), rng.integers(-3, 3, (600, columns))
        check(gather_elements, (data, index), 0)


def with_and_without_include_self(
    operator: Callable[..., Array], reduction: str, both: bool
) -> Iterator[Callable[..., Array]]:
    """Yield an operator; if `both`, also with include_self=False, which sub does not have."""
    yield operator
    if both and reduction != "sub":
        yield partial(operator, include_self=False)


def scatter_algorithms() -> Iterator[str]:
    """Yield names of scatter algorithms, each with thresholds at which few tuples use it."""
    scatters.bytearray = destinations.bytearray = gathers.bytearray = guarded_buffer
    assert callable(scratch_memory.acquire)  # else arrays would not be next to guard pages
    scratch_memory.acquire, scratch_memory._cached = guarded_buffer, deque(maxlen=0)
    set_thresholds(MIN_WORK=1)
    yield "default thresholds"
    set_thresholds(CACHE_SIZE=256, MIN_SORTED=1, SORTED_OUTPUT=0, LOCAL_FRACTION=2, NON_TEMPORAL=1)
    yield "streamed partitions"
    set_thresholds(
        CACHE_SIZE=64, SORTED_OUTPUT=0, LOCAL_FRACTION=2, NON_TEMPORAL=1 << 40, WORK_ITEM=1 << 12
    )
    yield "small partitions"


@algorithm
def scatter_slices() -> None:
    rng = np.random.default_rng(8)
    for _ in scatter_algorithms():
        for width in WIDTHS:
            count = width % 30 + 1
            data, index = random_bits(rng, "u1", (40, width)), rng.permutation(40)[:count, None]
            index[0] = index[0] if 39 in index else 39
            check_in_place(scatter_nd, (data, index - 40, random_bits(rng, "u1", (count, width))))
        rows = random_bits(rng, "u1", (3, 130))
        check(scatter_nd, (rows[0], np.empty((3, 0), int), rows))


@algorithm
def scatter_by_elements() -> None:
    rng = np.random.default_rng(9)
    for _ in scatter_algorithms():
        for width, axis in product(WIDTHS, (1, 2)):
            item, columns = np.dtype(f"V{width}"), (1, 6, 70)[width % 3]
            shape = (2, 7, columns) if axis == 1 else (2, 3, 9)
            index_columns = shape[2] if width % 2 or axis == 2 else columns - columns // 2
            index = np.argsort(rng.random(shape), axis)[..., :index_columns]
            data, updates = random_bits(rng, item, shape), random_bits(rng, item, index.shape)
            check_in_place(scatter_elements, (data, index, updates), axis)


@algorithm
def reduce_slices() -> None:
    rng = np.random.default_rng(10)
    for name in dtypes.ARITHMETIC:
        item = np.dtype(name) if name != "bfloat16" else bfloat16()
        all_widths = [width for width in WIDTHS if width * item.itemsize <= 130]
        for algorithm_name in scatter_algorithms():
            some_widths = {1, 2, 3, *all_widths[15::16]}
            widths = all_widths if algorithm_name == "default thresholds" else some_widths
            for width, op in product(widths, REDUCTIONS[name]):
                data, updates = (random_bits(rng, item, (count, width)) for count in (30, 35))
                index = boundary_indices(rng, (30,), (35,))
                for operator in with_and_without_include_self(scatter_nd, op, width < 3):
                    (check_in_place if width < 5 else check)(operator, (data, index, updates), op)


@algorithm
def reduce_by_elements() -> None:
    rng = np.random.default_rng(11)
    for name in dtypes.ARITHMETIC:
        item = np.dtype(name) if name != "bfloat16" else bfloat16()
        for _ in scatter_algorithms():
            for columns, axis, op in product((1, 5, 67), (0, 1), REDUCTIONS[name]):
                data, updates = (random_bits(rng, item, (6, columns)) for _ in range(2))
                index = boundary_indices(rng, (data.shape[axis],), data.shape)[..., 0]
                for operator in with_and_without_include_self(scatter_elements, op, columns == 5):
                    check_in_place(operator, (data, index, updates), axis, op)


@algorithm
def array_copies() -> None:
    rng = np.random.default_rng(12)
    gathers.bytearray = guarded_buffer
    index = np.array([[0], [-1]])
    for non_temporal in (1, 1 << 40):
        set_thresholds(MIN_WORK=1, WORK_ITEM=128, NON_TEMPORAL=non_temporal)
        for size in range(1, 400):
            data, updates = random_bits(rng, "u1", (size,)), random_bits(rng, "u1", (2,))
            check(scatter_nd, (data, index, updates))
    for unit, count in product(range(1, 18), (*range(1, 40), 129)):
        data = random_bits(rng, "u1", (count, unit))
        swapped = guarded_copy(data)
        copies.swap_bytes(memoryview(swapped.reshape(-1)), unit)
        assert swapped.tobytes() == data[:, ::-1].tobytes()
        joined = guarded_copy(data)
        _kernels.interleave(guarded_copy(data).reshape(-1), joined.reshape(-1), count)
        assert joined.tobytes() == data.T.tobytes()
    for width in (*WIDTHS, 1009, 1999):
        data = guarded_copy(
            random_bits(rng, f"V{width}", (17, 9, 40) if width < 1009 else (9, 11, 13))
        )
        for axes in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
            transposed = data.transpose(axes)
            buffer = memoryview(data.reshape(-1).view(np.uint8))
            out = memoryview(memory_block(data.nbytes))
            void = dtypes.from_numpy(data.dtype)
            copies.normalize(
                bind.Operand(buffer, 0, transposed.strides), transposed.shape, void, "<", out, 2
            )
            assert bytes(out) == transposed.tobytes()


@algorithm
def changing_indices() -> None:
    """Another thread changes the indices during the calls; no access is out of bounds."""
    rng = np.random.default_rng(13)
    set_thresholds(MIN_WORK=1, MIN_SORTED=1, CACHE_SIZE=1 << 10, SORTED_OUTPUT=0, LOCAL_FRACTION=2)
    data, updates = (
        guarded_copy(random_bits(rng, "f4", (1000,))),
        guarded_copy(np.ones(30_000, "f4")),
    )
    index, valid = guarded_copy(np.zeros(30_000, int)), rng.integers(-1000, 1000, 30_000)
    invalid = np.where(rng.random(30_000) < 0.0005, 1 << 40, valid)
    tuples, is_finished, outcomes = index[:, None], False, set()

    def change_indices() -> None:
        while not is_finished:
            np.copyto(index, invalid)
            np.copyto(index, valid)

    thread = Thread(target=change_indices)
    thread.start()
    for _ in range(300):
        for operator, *arguments in (
            (gather_nd, data, tuples),
            (gather_elements, data, index),
            (scatter_nd, data, tuples, updates, "add"),
            (scatter_elements, data, index, updates, 0, "max"),
            (scatter_nd, data, tuples, updates, "mean"),
            (partial(scatter_nd, include_self=False), data, tuples, updates, "mean"),
            (partial(scatter_elements, include_self=False), data, index, updates, 0, "add"),
        ):
            try:
                operator(*arguments, threads=2)
                outcomes.add("completed")
            except errors.NdtoolError as error:
                outcomes.add(type(error).__name__)
    is_finished = True
    thread.join()
    assert {"completed", "BoundsError"} <= outcomes, outcomes


def bfloat16() -> np.dtype:
    """Return bfloat16 of ml_dtypes, which only two child processes import."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


@algorithm
def read_before_array() -> None:
    guard_pages.position = "start"
    ctypes.string_at(guarded_copy(np.ones(3)).ctypes.data - 1, 1)


@algorithm
def read_after_array() -> None:
    ctypes.string_at(guarded_copy(np.ones(3)).ctypes.data + 24, 1)


if __name__ == "__main__":
    set_thresholds(TEMPORARY_OUTPUT=0)
    if sys.argv[2:] == ["compiled"]:
        set_thresholds(COMPILED_CALL=1 << 20)
    algorithms[sys.argv[1]]()
