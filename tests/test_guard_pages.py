"""No byte outside the arrays is read or written: each is between guard pages.

All kernels run in child processes, so that a fault fails a test. Arrays begin at a page
boundary ("start"), end at one ("end") or are unaligned ("unaligned"); so is scratch.
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

from ndtool import errors, gather_elements, gather_nd, scatter_elements, scatter_nd
from ndtool.engine import bind, destinations, gathers, scatters, tuning
from ndtool.engine import copies as turning
from ndtool.machine import scratch as memory
from ndtool.machine import threads as teams
from ndtool.rules import dtypes

Array = np.ndarray[Any, Any]
tuning.NUMPY_COPY = tuning.SMALL_CALL = 0  # disables the fast path for small arrays

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pages are protected by mprotect")

ALL = "NDTOOL_TEST_ALL" in os.environ  # set by `make torture`
WIDTHS = [
    width
    for width in range(1, 131)
    if ALL or width < 18 or width > 126 or width % 16 in (15, 0, 1, 8)
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
    """Register a function that a child runs."""
    algorithms[function.__name__] = function
    return function


@pytest.mark.slow("kernels read and write no byte beside their arrays, at every width")
@pytest.mark.parametrize("name", [
    "rows", "far", "lines", "columns", "batches", "strided", "turned", "index_types", "last_axis", "other_axis",
    "scattered_moves", "scattered_elements", "reduced_runs", "reduced_elements", "copies",
    "changing_indices",
])  # fmt: skip
def test_no_access_outside_the_arrays(name: str) -> None:
    run = child(name)
    assert run.returncode == 0, run.stderr


def test_every_algorithm_is_tested() -> None:
    (mark,) = (m for m in test_no_access_outside_the_arrays.pytestmark if m.name == "parametrize")
    assert mark.args[1] == [name for name in algorithms if not name.startswith("reads_")]


@pytest.mark.parametrize("name", ["reads_before", "reads_after"])
def test_guard_pages_fault(name: str) -> None:
    run = child(name)
    assert run.returncode in (-signal.SIGSEGV, -signal.SIGBUS), run.stderr
    assert f"in {name}" in run.stderr


def child(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "faulthandler", __file__, name]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)


def limit(**limits: int) -> None:
    """Set the thresholds that choose the algorithm."""
    for name, value in limits.items():
        (home,) = (one for one in (tuning, teams) if hasattr(one, name))
        setattr(home, name, value)
    bind.bind_units.cache_clear()


def values(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Return random bits of any type."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return rng.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)


def call(
    operator: Callable[..., Array], expected: Array, arrays: tuple[Array, ...], *rest: Any
) -> None:
    """Call an operator with arrays and an output between guard pages, in all alignments."""
    for guard_pages.position, threads in CALLS:
        out = memory_block(expected.nbytes).view(expected.dtype).reshape(expected.shape)
        operator(*(guarded_copy(a) for a in arrays), *rest, out=out, threads=threads)
        assert out.tobytes() == expected.tobytes(), (guard_pages.position, threads, arrays)


def in_place(
    operator: Callable[..., Array], expected: Array, arrays: tuple[Array, ...], *rest: Any
) -> None:
    """As call, with data as the output."""
    for guard_pages.position in ("end", "start"):
        data, indices, updates = (guarded_copy(a) for a in arrays)
        operator(data, indices, updates, *rest, out=data, threads=2)
        assert data.tobytes() == expected.tobytes(), (guard_pages.position, arrays)


def ends(rng: np.random.Generator, sizes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Return index tuples, most of which select the first or the last slice."""
    index = rng.integers(-np.array(sizes), sizes, (*shape, len(sizes)))
    index[rng.random(shape) < 0.4] = 0
    index[rng.random(shape) < 0.4] = -1
    return index


def limits() -> Iterator[None]:
    """Disable the fast path of small calls, and enable streamed outputs."""
    limit(MIN_WORK=1)
    yield
    limit(NON_TEMPORAL=1, WORK_ITEM=1 << 16)
    yield


@algorithm
def rows() -> None:
    rng = np.random.default_rng(1)
    for _ in limits():
        for width, sizes in product(WIDTHS, ((5,), (2, 3), (2, 1, 3))):
            data = values(rng, "u1", (*sizes, width))
            for count in (7, 530) if len(sizes) == 1 else (1, 9):
                index = ends(rng, sizes, (count,))
                expected = data[tuple(np.moveaxis(index, -1, 0))]
                call(gather_nd, expected, (data, index))
                if count < 10:
                    item = np.dtype(f"V{width}")
                    call(gather_nd, expected.view(item), (data.view(item), index))


@algorithm
def far() -> None:
    """Data that exceed the cache: the slices of the next block are prefetched."""
    rng = np.random.default_rng(15)
    for _ in limits():
        for width, count in product((1, 3, 4, 16, 64, 65), (127, 128, 129, 257, 513)):
            size = (1 << 19) // width
            data, index = values(rng, f"V{width}", (size,)), ends(rng, (size,), (count,))
            call(gather_nd, data[index[:, 0]], (data, index))
            updates = values(rng, f"V{width}", (1,)).repeat(count)
            expected = data.copy()
            expected[index[:, 0]] = updates
            call(scatter_nd, expected, (data, index, updates))


@algorithm
def lines() -> None:
    """Streamed outputs are written in complete cache lines; no adjacent byte changes."""
    rng = np.random.default_rng(16)
    limit(MIN_WORK=1, NON_TEMPORAL=1)
    for width in range(1, 601):
        guard_pages.position = ("end", "start", "unaligned")[width % 3]
        data = guarded_copy(values(rng, "u1", (5, width)))
        index = guarded_copy(ends(rng, (5,), (97 if width % 50 else 1100,)))
        expected = data[index[:, 0]].tobytes()
        whole = np.empty(len(expected) + 256, np.uint8)
        whole = whole[-whole.ctypes.data % 64 :]
        for phase in range(width % 4, 64, 4):
            begin = 64 + phase
            whole[:] = 0xA5
            out = whole[begin : begin + len(expected)].reshape(-1, width)
            gather_nd(data, index, out=out, threads=1 + (width + phase) % 3)
            rest = len(whole) - begin - len(expected)
            assert whole.tobytes() == b"\xa5" * begin + expected + b"\xa5" * rest, (width, phase)


@algorithm
def columns() -> None:
    rng = np.random.default_rng(2)
    limit(MIN_WORK=1)
    for streamed, width in product((1, 1 << 40), (65536, 65537, 65599, 131071)):
        limit(NON_TEMPORAL=streamed)
        data, index = values(rng, "u1", (3, width)), np.array([[2], [0], [-1]])
        call(gather_nd, data[index[:, 0]], (data, index))
        updates = data[::-1].copy()
        expected = data.copy()
        expected[index[:, 0]] = updates
        call(scatter_nd, expected, (data, index, updates))
        in_place(scatter_nd, expected, (data, index, updates))
        limit(WORK_ITEM=1 << 15)
        call(gather_nd, data[index[:, 0]], (data, index))
        limit(WORK_ITEM=1 << 26)


@algorithm
def batches() -> None:
    """With 513 tuples a batch is prefetched before it is gathered from."""
    rng = np.random.default_rng(3)
    limit(MIN_WORK=1)
    for width, turn, count in product(WIDTHS, (1, -1), (3, 513)):
        batch, size = (5, 3) if count == 3 else (2, 67)
        data = values(rng, "u1", (batch, size, width))[::turn, ::-turn]
        index = ends(rng, (size,), (batch, count))
        expected = data[np.arange(batch)[:, None], index[..., 0]]
        call(gather_nd, expected, (data, index), 1)
    item = np.dtype("f4")
    for size in (1, 15, 16, 17, 31, 1023, 1024, 1025, 32767):
        data, index = values(rng, item, (3, 2, size)), ends(rng, (size,), (3, 2, 600))
        call(gather_nd, np.take_along_axis(data, index[..., 0], 2), (data, index), 2)


@algorithm
def strided() -> None:
    rng = np.random.default_rng(4)
    limit(MIN_WORK=1, MAX_PACKED=0)
    for width in WIDTHS:
        item = np.dtype(f"V{width}")
        for steps in ((1, 3, 6), (6, 2, 1), (-1, 3, -6), (0, 5, 1)):
            shape = (3, 2, 4)
            extent = sum(abs(s) * (n - 1) for s, n in zip(steps, shape, strict=True)) + 1
            memory = values(rng, item, (extent,))
            first = -sum(s * (n - 1) for s, n in zip(steps, shape, strict=True) if s < 0)
            data = np.lib.stride_tricks.as_strided(
                memory[first:], shape, tuple(s * width for s in steps)
            )
            index = ends(rng, (3,), (9,))
            call(gather_nd, data[index[:, 0]], (data, index))
            limit(WORK_ITEM=3 * width)  # slices are divided into work items
            call(gather_nd, data[index[:, 0]], (data, index))
            limit(WORK_ITEM=1 << 26)
            along = ends(rng, (2,), (3, 5, 4))[..., 0]
            call(gather_elements, np.take_along_axis(data, along, 1), (data, along), 1)
            last = ends(rng, (4,), (3, 2, 9))[..., 0]
            call(gather_elements, np.take_along_axis(data, last, 2), (data, last), 2)


@algorithm
def turned() -> None:
    """Data in Fortran order are normalized first."""
    rng = np.random.default_rng(14)
    limit(MIN_WORK=1)
    for width in WIDTHS:
        item = np.dtype(f"V{width}")
        for shape in ((65, 3), (3, 65), (2, 33, 2)):
            data = values(rng, item, shape[::-1]).T
            index = rng.permutation(shape[0])[:, None]
            call(gather_nd, data[index[:, 0]], (data, index))
            call(gather_nd, data[index[:, 0], ::-1], (data[:, ::-1], index))
            one, updates = np.array([[0]]), values(rng, item, (1, *shape[1:]))
            expected = np.concatenate([updates, data[1:]])
            call(scatter_nd, expected, (data, one, updates))
    for shape in ((4097, 2), (8193, 17), (2, 4097, 17)):
        data = values(rng, "f4", shape[::-1]).T
        index = rng.permutation(shape[0])[:, None]
        call(gather_nd, data[index[:, 0]], (data, index))


def refused(data: Array, index: Array, component: int, value: int) -> None:
    """Gather with one index out of bounds."""
    bad = index.copy()
    bad[component % len(bad), component] = value
    for threads in (1, 2):
        try:
            gather_nd(guarded_copy(data), guarded_copy(bad), threads=threads)
        except IndexError:
            continue
        raise AssertionError((bad.dtype, bad.shape, component, value))


@algorithm
def index_types() -> None:
    rng = np.random.default_rng(5)
    limit(MIN_WORK=1)
    for code, k, count in product(INDEX_CODES, (1, 2, 3, 5, 20), (1, 3, 33, 513, 1027)):
        sizes = (3,) * min(k, 3) + (1,) * (k - 3)
        index = ends(rng, sizes, (count,))
        index = (index % sizes if "u" in code else index).astype(code)
        data = values(rng, "f4", sizes)
        positions = tuple(np.moveaxis(index.astype(int), -1, 0))
        call(gather_nd, data[positions], (data, index))
        if k < 4:
            call(gather_nd, np.empty((count, 0)), (np.empty((*sizes, 0)), index))
        for component, size in enumerate(sizes[:5]):
            refused(data, index, component, size)
            if "i" in code:
                refused(data, index, component, -size - 1)
    for code, axis, count in product(INDEX_CODES, (0, 1), (1, 3, 33, 513)):
        index = rng.integers(0, 3, (count, 3) if axis == 0 else (3, count)).astype(code)
        data = values(rng, "f4", (3, 3))
        call(
            gather_elements, np.take_along_axis(data, index.astype(int), axis), (data, index), axis
        )


@algorithm
def last_axis() -> None:
    rng = np.random.default_rng(6)
    for _ in limits():
        for width, length in product(WIDTHS, (1, 9, 515)):
            data = values(rng, f"V{width}", (3, 7))
            index = ends(rng, (7,), (3, length))[..., 0]
            call(gather_elements, np.take_along_axis(data, index, 1), (data, index), 1)


@algorithm
def other_axis() -> None:
    rng = np.random.default_rng(7)
    gathers.bytearray = guarded_buffer
    limit(MIN_WORK=1)
    for packed, width, columns in product((True, False), WIDTHS, (1, 6, 70)):
        limit(CACHE_SIZE=1 << 19 if packed else 0, WORK_ITEM=1 << 26 if packed else 1 << 14)
        data = values(rng, f"V{width}", (2, 5, columns + (columns == 6)))
        index = ends(rng, (5,), (2, 9, columns))[..., 0]
        call(gather_elements, np.take_along_axis(data[..., :columns], index, 1), (data, index), 1)
    limit(CACHE_SIZE=1 << 19)
    for columns in (511, 512, 513, 1030):
        data, index = values(rng, "f4", (3, columns)), rng.integers(-3, 3, (600, columns))
        call(gather_elements, np.take_along_axis(data, index, 0), (data, index), 0)


def with_and_without_old_values(
    operator: Callable[..., Array], reduction: str, both: bool
) -> Iterator[Callable[..., Array]]:
    """Yield an operator and, if `both`, the same without the current values, if it has it."""
    yield operator
    if both and reduction != "sub":
        yield partial(operator, include_self=False)


def scatter_algorithms() -> Iterator[str]:
    """Alternate the algorithms for scatters of few tuples."""
    scatters.bytearray = destinations.bytearray = gathers.bytearray = guarded_buffer
    assert callable(memory.acquire)  # or the guard pages would be at another address
    memory.acquire, memory._cached = guarded_buffer, deque(maxlen=0)
    limit(MIN_WORK=1)
    yield "as it is"
    limit(CACHE_SIZE=256, MIN_SORTED=1, SORTED_OUTPUT=0, LOCAL_FRACTION=2, NON_TEMPORAL=1)
    yield "streamed parts"
    limit(CACHE_SIZE=64, SORTED_OUTPUT=0, LOCAL_FRACTION=2, NON_TEMPORAL=1 << 40, WORK_ITEM=1 << 12)
    yield "small parts"


@algorithm
def scattered_moves() -> None:
    rng = np.random.default_rng(8)
    for _ in scatter_algorithms():
        for width in WIDTHS:
            count = width % 30 + 1
            data, index = values(rng, "u1", (40, width)), rng.permutation(40)[:count, None]
            index[0] = index[0] if 39 in index else 39
            updates = values(rng, "u1", (count, width))
            expected = data.copy()
            expected[index[:, 0]] = updates
            call(scatter_nd, expected, (data, index - 40, updates))
            in_place(scatter_nd, expected, (data, index, updates))
        whole = values(rng, "u1", (3, 130))
        call(scatter_nd, whole[2], (whole[0], np.empty((3, 0), int), whole))


@algorithm
def scattered_elements() -> None:
    rng = np.random.default_rng(9)
    for _ in scatter_algorithms():
        for width, axis in product(WIDTHS, (1, 2)):
            item, columns = np.dtype(f"V{width}"), (1, 6, 70)[width % 3]
            shape = (2, 7, columns) if axis == 1 else (2, 3, 9)
            part = shape[2] if width % 2 or axis == 2 else columns - columns // 2
            data = values(rng, item, shape)
            index = np.argsort(rng.random(shape), axis)[..., :part]
            updates = values(rng, item, index.shape)
            expected = data.copy()
            np.put_along_axis(expected[..., :part], index, updates, axis)
            call(scatter_elements, expected, (data, index, updates), axis)
            in_place(scatter_elements, expected, (data, index, updates), axis)


@algorithm
def reduced_runs() -> None:
    rng = np.random.default_rng(10)
    for name in dtypes.ARITHMETIC:
        item = np.dtype(name) if name != "bfloat16" else bfloat16()
        every = [width for width in WIDTHS if width * item.itemsize <= 130]
        for way_ in scatter_algorithms():
            widths = every if way_ == "as it is" else {1, 2, 3, *every[15::16]}
            for width, op in product(widths, REDUCTIONS[name]):
                data, updates = values(rng, item, (30, width)), values(rng, item, (35, width))
                index = ends(rng, (30,), (35,))
                for operator in with_and_without_old_values(scatter_nd, op, width < 3):
                    expected = operator(data, index, updates, op, threads=1)
                    call(operator, expected, (data, index, updates), op)
                    if width < 5:
                        in_place(operator, expected, (data, index, updates), op)


@algorithm
def reduced_elements() -> None:
    rng = np.random.default_rng(11)
    for name in dtypes.ARITHMETIC:
        item = np.dtype(name) if name != "bfloat16" else bfloat16()
        for _ in scatter_algorithms():
            for columns, axis, op in product((1, 5, 67), (0, 1), REDUCTIONS[name]):
                data, updates = values(rng, item, (6, columns)), values(rng, item, (6, columns))
                index = ends(rng, (data.shape[axis],), data.shape)[..., 0]
                for operator in with_and_without_old_values(scatter_elements, op, columns == 5):
                    expected = operator(data, index, updates, axis, op, threads=1)
                    call(operator, expected, (data, index, updates), axis, op)
                    in_place(operator, expected, (data, index, updates), axis, op)


@algorithm
def copies() -> None:
    rng = np.random.default_rng(12)
    gathers.bytearray = guarded_buffer
    index = np.array([[0], [-1]])
    for streamed in (1, 1 << 40):
        limit(MIN_WORK=1, WORK_ITEM=128, NON_TEMPORAL=streamed)
        for size in range(1, 400):
            data, updates = values(rng, "u1", (size,)), values(rng, "u1", (2,))
            expected = data.copy()
            expected[index[:, 0]] = updates
            call(scatter_nd, expected, (data, index, updates))
    for unit, count in product(range(1, 18), (*range(1, 40), 129)):
        data = values(rng, "u1", (count, unit))
        turned = guarded_copy(data)
        turning.swap_bytes(memoryview(turned.reshape(-1)), unit)
        assert turned.tobytes() == data[:, ::-1].tobytes()
    for width in (*WIDTHS, 1009, 1999):
        data = guarded_copy(values(rng, f"V{width}", (3, 5, 4) if width < 1009 else (9, 11, 13)))
        for axes in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
            turned = data.transpose(axes)
            buffer = memoryview(data.reshape(-1).view(np.uint8))
            out = memoryview(memory_block(data.nbytes))
            void = dtypes.from_numpy(data.dtype)
            turning.normalize(
                bind.Operand(buffer, 0, turned.strides), turned.shape, void, "<", out, 2
            )
            assert bytes(out) == turned.tobytes()


@algorithm
def changing_indices() -> None:
    """Another thread changes the indices during the calls: values are wrong, but no access is
    out of bounds."""
    rng = np.random.default_rng(13)
    limit(MIN_WORK=1, MIN_SORTED=1, CACHE_SIZE=1 << 10, SORTED_OUTPUT=0, LOCAL_FRACTION=2)
    data, updates = guarded_copy(values(rng, "f4", (1000,))), guarded_copy(np.ones(30_000, "f4"))
    index, right = guarded_copy(np.zeros(30_000, int)), rng.integers(-1000, 1000, 30_000)
    wrong = np.where(rng.random(30_000) < 0.0005, 1 << 40, right)
    tuples, over, outcomes = index[:, None], False, set()

    def change_indices() -> None:
        while not over:
            np.copyto(index, wrong)
            np.copyto(index, right)

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
                outcomes.add("done")
            except errors.NdtoolError as error:
                outcomes.add(type(error).__name__)
    over = True
    thread.join()
    assert {"done", "BoundsError"} <= outcomes, outcomes


def bfloat16() -> np.dtype:
    """Return bfloat16, whose import only two children need."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


@algorithm
def reads_before() -> None:
    guard_pages.position = "start"
    ctypes.string_at(guarded_copy(np.ones(3)).ctypes.data - 1, 1)


@algorithm
def reads_after() -> None:
    ctypes.string_at(guarded_copy(np.ones(3)).ctypes.data + 24, 1)


if __name__ == "__main__":
    limit(TEMPORARY_OUTPUT=0)
    algorithms[sys.argv[1]]()
