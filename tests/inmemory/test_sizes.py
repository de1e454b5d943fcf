"""Empty arrays, and sizes beyond 32 bits: sparse files, 64 axes.

Large arrays are maps of sparse files: they take address space, but neither memory nor disk.
"""

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool as command
from command import save
from strategies import Array, bits_equal

import ndtool
from ndtool.analysis.oracle import reference
from ndtool.engine import tuning
from ndtool.errors import BoundsError, NdtoolError, RuleError
from ndtool.rules import inference, shapes
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request

G = 1 << 30
THREADS = (1, 2)


@pytest.fixture
def several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the work that repays a thread."""
    monkeypatch.setattr("ndtool.machine.threads.MIN_WORK", 1)


def sparse(shape: tuple[int, ...], dtype: Any = "u1", name: str = "data.npy") -> Array:
    """Map a new sparse .npy file of zeros."""
    try:
        return np.asarray(np.lib.format.open_memmap(name, "w+", np.dtype(dtype), shape))
    except OSError as error:
        pytest.skip(f"no sparse file of this size here: {error}")


def distinct_elements(dtype: Any, count: int) -> Array:
    """Return distinct elements."""
    dtype = np.dtype(dtype)
    return np.arange(1, 1 + count * dtype.itemsize, dtype="u1").view(dtype)


# More than 2^31 and 2^32 elements and bytes

POSITIONS = np.array([0, 1, 2 * G - 1, 2 * G, 2 * G + 1, 4 * G - 1, 4 * G, 4 * G + 6])


@pytest.mark.parametrize("dtype", ["u1", "f8", "V3"])
def test_elements_beyond_32_bits(dtype: str, workdir: Path, several_threads: None) -> None:
    data = sparse((4 * G + 7,), dtype)
    data[POSITIONS] = expected = distinct_elements(dtype, 8)
    tuples = POSITIONS[:, None]
    for threads in THREADS:
        for turned in (tuples, tuples - data.size):
            assert bits_equal(ndtool.gather_nd(data, turned, threads=threads), expected)
            assert bits_equal(ndtool.gather_elements(data, turned[:, 0], threads=threads), expected)
    for bad in (4 * G + 7, -4 * G - 8, G << 20):
        with pytest.raises(BoundsError) as excinfo:
            ndtool.gather_nd(data, np.array([[5], [bad]]))
        assert (excinfo.value.value, excinfo.value.size) == (bad, 4 * G + 7)
    reversed_updates = expected[::-1].copy()
    ndtool.scatter_nd(data, tuples, reversed_updates, out=data)
    assert bits_equal(data[POSITIONS], reversed_updates)
    ndtool.scatter_elements(data, POSITIONS - data.size, expected, out=data)
    assert bits_equal(data[POSITIONS], expected)
    if dtype != "V3":
        ndtool.scatter_nd(data, tuples[[6, 6]], reversed_updates[[0, 1]], "add", out=data)
        assert data[POSITIONS[6]] == expected[6] + reversed_updates[0] + reversed_updates[1]


def test_products_beyond_31_bits(workdir: Path) -> None:
    """With 32-bit products, 46341 * 46341 would be negative."""
    data = sparse((1, 46342, 46341))
    data[0, 46341, 0], data[0, 46341, 46340] = 42, 43
    last = np.array([[0, 46341, 0], [0, -1, -1], [-1, 0, 46340]])
    rows = ndtool.gather_nd(data, last[:, :2])
    assert rows[:, [0, -1]].tolist() == [[42, 43], [42, 43], [0, 0]]
    assert ndtool.gather_nd(data, last).tolist() == [42, 43, 0]
    assert ndtool.gather_nd(data, last[:1, 1:], 1).tolist() == [42]
    axis_indices = np.full((1, 1, 46341), 46341)
    assert ndtool.gather_elements(data, axis_indices, 1)[0, 0, [0, -1]].tolist() == [42, 43]
    ndtool.scatter_nd(data, last, np.array([7, 8, 9], "u1"), out=data)
    assert (data[0, 46341, [0, -1]].tolist(), data[0, 0, -1]) == ([7, 8], 9)
    ndtool.scatter_elements(
        data, axis_indices, np.full(axis_indices.shape, 5, "u1"), 1, "add", out=data
    )
    assert data[0, 46341, [0, 1, -1]].tolist() == [12, 5, 13]


def test_strides_beyond_32_bits(workdir: Path, several_threads: None) -> None:
    require_memory = sparse((5, 3, 2 * G + 1))
    require_memory[:, :, [0, 5, -1]] = values = distinct_elements("u1", 45).reshape(5, 3, 3)
    for data in (require_memory[:, ::-1, :], require_memory.transpose(1, 0, 2)):
        small = data[:, :, [0, 5, -1]]
        assert bits_equal(values, require_memory[:, :, [0, 5, -1]])
        index = np.array([[2, 1, 2 * G], [0, -1, 0], [-1, 0, 5]])
        expected = data[tuple(index.T)]
        assert bits_equal(ndtool.gather_nd(data, index, threads=2), expected)
        batch = np.broadcast_to(np.array([[2 * G], [5]]), (data.shape[0], data.shape[1], 2, 1))
        assert bits_equal(ndtool.gather_nd(data, batch, 2, threads=2), small[:, :, [2, 1]])
        for axis in (0, 1):
            axis_indices = np.full((data.shape[0], data.shape[1], 9), -1)
            picked = ndtool.gather_elements(data, axis_indices, axis, threads=2)
            assert bits_equal(
                picked, data[:, :, :9].take(np.full(axis_indices.shape[axis], -1), axis)
            )
        last = np.broadcast_to(np.array([2 * G, -1, 5]), (*data.shape[:2], 3))
        assert bits_equal(ndtool.gather_elements(data, last, 2, threads=2), small[:, :, [2, 2, 1]])


def test_units_beyond_32_bits(workdir: Path, several_threads: None) -> None:
    """Elements operators along axes that are not the last, updated in place."""
    data = sparse((3, 2, 2 * G + 1))
    index, ones = np.ones((3, 1, 70), "i1"), np.ones((3, 1, 70), "u1")
    for threads in THREADS:
        ndtool.scatter_elements(data, index, ones, 1, "add", out=data, threads=threads)
        ndtool.scatter_elements(data, index, ones, 0, "max", out=data, threads=threads)
    assert data[:, 1, :70].tolist() == [[2] * 70] * 3
    assert data[:, 0, :71].tolist() == [[0] * 71, [1] * 70 + [0], [0] * 71]
    far = ndtool.scatter_elements(
        data, np.full((3, 2, 2), 2 * G), np.full((3, 2, 2), 3, "u1"), 2, "add", out=data
    )
    assert far[:, :, -1].tolist() == [[6, 6]] * 3


@pytest.mark.parametrize("width", [1, 3, 70])
def test_sorting_beyond_42_bits(width: int, workdir: Path, several_threads: None) -> None:
    """Partitions of more rows than 32 bits can number: 1024 are not enough."""
    rows = (5 << 40) // width
    data = sparse((rows, width))
    rows_to_check = np.array(
        [0, 1, (1 << 32) - 1, (1 << 33) // width, rows // 2, rows - 2, rows - 1]
    )
    index = np.tile(rows_to_check, tuning.MIN_SORTED + 1)[:, None]
    updates = np.ones((len(index), width), "u1")
    for threads in THREADS:
        ndtool.scatter_nd(data, index, updates, "add", out=data, threads=threads)
    assert (data[rows_to_check] == 2 * (tuning.MIN_SORTED + 1) % 256).all()
    ndtool.scatter_nd(data, index, updates, out=data)
    assert (data[rows_to_check] == 1).all()
    assert not data[[2, (1 << 32) // width, rows // 2 - 1, rows // 2 + 1]].any()


def test_the_command_line_beyond_32_bits(workdir: Path) -> None:
    data = sparse((4 * G + 7,), "f8")
    data[POSITIONS] = expected = distinct_elements("f8", 8)
    del data
    save(indices=POSITIONS, tuples=POSITIONS[:, None] - 4 * G - 7)
    for operator, indices in (("gather-nd", "tuples.npy"), ("gather-elements", "indices.npy")):
        result = command(operator, "data.npy", indices, "-o", "out.npy")
        assert result.status == 0, result.err
        assert bits_equal(np.load("out.npy"), expected)
    save(tuples=np.array([[0], [4 * G + 7]]))
    result = command("gather-nd", "data.npy", "tuples.npy", "-o", "out.npy")
    assert result.status == 5
    assert f"tuples.npy[1, 0] = {4 * G + 7}" in result.err


# These move more than 2 GiB of actual data.


@pytest.fixture
def require_memory() -> None:
    """Skip if memory is insufficient."""
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 7 * G:
        pytest.skip("needs 7 GiB of memory")


@pytest.mark.slow("slices of more than 2^31 elements are copied whole")
def test_one_huge_run(workdir: Path, require_memory: None) -> None:
    data = sparse((2, 2 * G + 5))
    data[1, POSITIONS[:5]] = expected = distinct_elements("u1", 5)
    run = ndtool.gather_nd(data, np.array([[1]]))
    assert run.shape == (1, 2 * G + 5)
    assert bits_equal(run[0, POSITIONS[:5]], expected)
    data = np.zeros(data.shape, "u1")
    ndtool.scatter_nd(data, np.array([[-1]]), run, "max", out=data)
    assert bits_equal(data[1, POSITIONS[:5]], expected)
    assert not data[0, POSITIONS[:5]].any()


@pytest.mark.slow("tuples are counted in 64 bits")
def test_indices_beyond_31_bits(workdir: Path, require_memory: None) -> None:
    indices = sparse((2 * G + 5, 1), "i1")
    indices[POSITIONS[:5]] = 1
    values = ndtool.gather_nd(np.array([3, 4], "u1"), indices)
    assert values.shape == (2 * G + 5,)
    assert (values[POSITIONS[:5]] == 4).all()
    assert int(values.sum(dtype="u8")) == 3 * 2 * G + 4 * 5
    sums = ndtool.scatter_nd(np.zeros(2, "u1"), indices, values, "add")
    assert sums.tolist() == [3 * 2 * G % 256, 20]
    indices[2 * G + 3] = 2
    with pytest.raises(BoundsError) as excinfo:
        ndtool.gather_nd(np.array([3, 4], "u1"), indices)
    error = excinfo.value
    assert (error.position, error.count, error.total) == ((2 * G + 3,), 1, 2 * G + 5)


# Counts beyond int64


def zeros_of_one_element(shape: tuple[int, ...], dtype: Any = "u1") -> Array:
    """Return zeros of any shape; all share one element."""
    return np.broadcast_to(np.zeros(1, dtype), shape)


def test_products_beyond_63_bits() -> None:
    for data, indices in (
        (zeros_of_one_element((1, 1 << 40)), zeros_of_one_element((1 << 40, 1), "i1")),
        (zeros_of_one_element((1, 1 << 60)), zeros_of_one_element((8, 1), "i8")),
        (zeros_of_one_element((2, 1 << 40, 0)), zeros_of_one_element((1 << 40, 1), "i1")),
    ):
        with pytest.raises(RuleError, match="elements: at most 2\\^63 - 1 fit"):
            ndtool.gather_nd(data, indices)
    with pytest.raises(RuleError, match="bytes: at most 2\\^63 - 1 fit"):
        ndtool.gather_nd(
            zeros_of_one_element((1, 1 << 55), "f8"), zeros_of_one_element((1 << 5, 1), "i1")
        )
    with pytest.raises(MemoryError):
        ndtool.gather_nd(zeros_of_one_element((1, 1 << 60)), zeros_of_one_element((7, 1), "i8"))
    with pytest.raises(MemoryError):
        ndtool.scatter_nd(zeros_of_one_element((1 << 62,)), np.array([[1]]), np.ones(1, "u1"))


@pytest.mark.parametrize("size", [1 << 62, (1 << 62) + 1, (1 << 63) - 1])
def test_the_longest_axes(size: int) -> None:
    """Also with `out`: the check before it adds indices and sizes."""
    data = zeros_of_one_element((size,))
    for index in (size - 1, -size, 1 << 61):
        out = np.ones(3, "u1")
        assert ndtool.gather(data, np.array([index] * 3), out=out).tolist() == [0, 0, 0]
    for index in (size, -size - 1):
        if -(1 << 63) <= index < 1 << 63:
            with pytest.raises(BoundsError):
                ndtool.gather(data, np.array([0, 0, index]), out=out)


def test_slices_of_broadcast_data_stay_in_its_buffer() -> None:
    """A stride of zero: 2^58 rows that share memory."""
    data = zeros_of_one_element((1 << 58, 3), "f4")
    index = np.array([[0, 1], [(1 << 58) - 1, -1], [-(1 << 58), 0]])
    assert ndtool.gather_nd(data, index).tolist() == [0, 0, 0]
    with pytest.raises(BoundsError):
        ndtool.gather_nd(data, [*index, [1 << 58, 0]])


def test_the_largest_output_that_can_be_counted() -> None:
    max_size = (1 << 63) - 1
    trace, plan = shapes.infer(
        "gather_nd", {"data": (1, max_size), "indices": (1, 1)}, Attributes()
    )
    assert plan.output == (1, max_size)
    inference.check_bytes(plan, 1, trace)
    with pytest.raises(RuleError, match="bytes"):
        inference.check_bytes(plan, 2, trace)
    with pytest.raises(RuleError, match="elements"):
        shapes.infer("gather_nd", {"data": (1, max_size + 1), "indices": (1, 1)}, Attributes())


# 64 axes, long tuples, many batches


@pytest.mark.parametrize("seed", range(2))
def test_64_axes(seed: int, several_threads: None) -> None:
    rng = np.random.default_rng(seed)
    shape = rng.permutation([2] * 8 + [3, 5] + [1] * 54)
    data = rng.integers(0, 1 << 30, shape).transpose(rng.permutation(64))
    if seed % 2:
        data = data[(slice(None, None, -1),) * 64]
    sizes = np.array(data.shape)
    flat = data.ravel()
    steps = np.append(np.cumprod(sizes[::-1])[::-1], 1)[1:]
    for k in range(1, 65):
        index = rng.integers(-sizes[:k], sizes[:k], (37, k))
        rows = index % sizes[:k] @ steps[:k] // steps[k - 1]
        expected = flat.reshape(-1, steps[k - 1])[rows].reshape(37, *sizes[k:])
        assert bits_equal(ndtool.gather_nd(data, index, threads=2), expected)
        rows, first = np.unique(rows, return_index=True)
        updates = rng.integers(0, 99, expected[first].shape)
        result = ndtool.scatter_nd(data, index[first], updates, "add", threads=2)
        moved = flat.reshape(-1, steps[k - 1]).copy()
        moved[rows] += updates.reshape(len(rows), -1)
        assert result.tobytes() == moved.tobytes()
    for b in (1, 31, 62):
        index = np.zeros((*data.shape[:b], 1), int)
        assert bits_equal(ndtool.gather_nd(data, index, b), data.take(0, b))


def test_an_output_of_65_axes_is_refused() -> None:
    with pytest.raises(RuleError, match="rank 65: at most 64"):
        ndtool.gather_nd(np.zeros((1,) * 64), np.zeros((1, 1, 1), int))


# Empty arrays


def shapes_of(ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [shape for rank in ranks for shape in product((0, 1, 2), repeat=rank)]


def empty_calls(ranks: tuple[int, ...]) -> Iterator[tuple[str, list[Array], dict[str, Any]]]:
    """Yield a call for every combination of small shapes with an empty array."""
    shapes = shapes_of(ranks)
    for shape, location in product(shapes, shapes):
        data, indices = (
            np.arange(np.prod(shape, dtype=int)).reshape(shape),
            np.zeros(location, "i8"),
        )
        for b in range(len(shape)):
            if 0 in shape + location:
                yield "gather_nd", [data, indices], {"batch_dims": b}
            if 0 in shape + location and len(shape) == len(location):
                yield "gather_elements", [data, indices], {"axis": b}
                updates = np.full(location, 7)
                for reduction in ("none", "add"):
                    options = {"axis": b, "reduction": reduction}
                    yield "scatter_elements", [data, indices, updates], options
        updates = np.full(location[:-1] + shape[location[-1] :], 7)
        if 0 in shape + location + updates.shape:
            for reduction in ("none", "add", "mean"):
                yield "scatter_nd", [data, indices, updates], {"reduction": reduction}


def outcome(function: Any, *args: Any, **options: Any) -> Any:
    """Return a result, or the error raised."""
    try:
        return function(*args, **options)
    except NdtoolError as error:
        return error


def require_agreement(actual: Any, expected: Any) -> bool:
    """Whether both give the same bits or refuse for the same reason."""
    if isinstance(expected, BoundsError) and isinstance(actual, BoundsError):
        positions = [
            (e.position, e.component, e.axis, e.value, e.count) for e in (actual, expected)
        ]
        return positions[0] == positions[1]
    if isinstance(expected, NdtoolError):
        return type(actual) is type(expected)
    return isinstance(actual, np.ndarray) and bits_equal(actual, expected)


def test_every_empty_combination(workdir: Path, several_threads: None) -> None:
    results, refusals = 0, 0
    for operator, arrays, options in empty_calls((1, 2)):
        expected = outcome(getattr(reference, operator), *arrays, **options)
        function, call = getattr(ndtool, operator), (operator, [a.shape for a in arrays], options)
        for threads in THREADS:
            actual = outcome(function, *arrays, **options, threads=threads)
            assert require_agreement(actual, expected), call
        if not isinstance(expected, np.ndarray):
            refusals += 1
            continue
        results += 1
        out = np.full(expected.shape, -1)
        assert function(*arrays, **options, out=out) is out, call
        assert bits_equal(out, expected), call
        if results % 5 == 0:
            names = ("data", "indices", "updates")[: len(arrays)]
            save(**dict(zip(names, arrays, strict=True)))
            request = Request(
                operator,
                *(f"{name}.npy" for name in names),
                output="out.npy",
                attributes=Attributes(**options),
            )
            assert bits_equal(run(request), expected), call
    assert min(results, refusals) > 100


def run(request: Request) -> Array:
    """Return the output of one run."""
    with OpenCall(request) as call:
        steps.run(call)
    return np.load("out.npy")
