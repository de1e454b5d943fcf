"""Large indices, which validation before `out=` narrows: the same bits and errors."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ndtool import (
    BoundsError,
    _kernels,
    gather,
    gather_elements,
    gather_nd,
    scatter_elements,
    scatter_nd,
)
from ndtool._kernels import Addressing, Indices, KernelOptions, WorkItem
from ndtool.engine import tuning

RNG = np.random.default_rng(61)
# data's shape, the number of indexed axes, batch_dims: row indices of two or of four bytes
SHAPES = [((40, 50), 2, 0), ((300, 400), 2, 0), ((3, 30, 20, 2), 2, 1), ((9, 8, 7, 6), 4, 0)]


@pytest.fixture(autouse=True)
def narrow_small_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "NARROW_INDICES", 1)
    monkeypatch.setattr(tuning, "WORK_ITEM", 1 << 14)  # so that several calls narrow them


def random_indices(shape: tuple[int, ...], k: int, b: int, count: int) -> np.ndarray:
    """Return index tuples, some negative."""
    sizes = shape[b : b + k]
    components = [RNG.integers(-size, size, (*shape[:b], count)) for size in sizes]
    return np.stack(components, -1)


def numpy_index(indices: np.ndarray, shape: tuple[int, ...], b: int) -> tuple[np.ndarray, ...]:
    batch_coordinates = np.ix_(*map(np.arange, shape[:b]), np.arange(indices.shape[b]))[:b]
    return (*batch_coordinates, *np.moveaxis(indices, -1, 0))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["i8", "u8", ">i8", "i4"])
@pytest.mark.parametrize(("shape", "k", "b"), SHAPES)
def test_narrowed_tuples_select_the_same_slices(
    shape: tuple[int, ...], k: int, b: int, dtype: str, threads: int
) -> None:
    data = RNG.random(shape, np.float32)
    indices = random_indices(shape, k, b, 3001)
    if dtype == "u8":
        indices %= shape[b : b + k]
    positions = numpy_index(indices, shape, b)
    expected, stored = data[positions], indices.astype(dtype)
    for source in (data, np.asfortranarray(data)):
        out = np.empty_like(expected)
        assert gather_nd(source, stored, b, out=out, threads=threads) is out
        assert_array_equal(out, expected)
    if not b:
        updates, scattered = RNG.random(expected.shape, np.float32), data.copy()
        np.add.at(scattered, positions, updates)
        out = np.empty_like(data)
        scatter_nd(data, stored, updates, "add", out=out, threads=threads)
        assert_array_equal(out, scattered)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_elements_along_every_axis(axis: int, threads: int) -> None:
    data = RNG.random((200, 300), np.float32)
    indices = RNG.integers(-data.shape[axis], data.shape[axis], data.shape)
    out = np.empty_like(data)
    gather_elements(data, indices, axis, out=out, threads=threads)
    assert_array_equal(out, np.take_along_axis(data, indices, axis))
    positions, scattered = list(np.indices(data.shape)), data.copy()
    positions[axis] = indices
    np.add.at(scattered, tuple(positions), out)
    result = np.empty_like(data)
    scatter_elements(data, indices, out, axis, "add", out=result, threads=threads)
    assert_array_equal(result, scattered)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("non_temporal", [1, 1 << 40])
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("shape", [(7, 3000), (1, 70_000), (300, 520)])
def test_short_rows_are_gathered_by_row_indices(
    shape: tuple[int, int],
    dtype: str,
    non_temporal: int,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that fit in the cache or not, row indices of two or four bytes."""
    monkeypatch.setattr(tuning, "NON_TEMPORAL", non_temporal)
    count, length = shape
    data = RNG.integers(0, 2, (count, length, np.dtype(dtype).itemsize), np.uint8).view(dtype)[
        ..., 0
    ]
    indices = RNG.integers(-length, length, (count, 2 * length + 77))
    buffer = np.zeros(indices.size + 1, dtype)
    out = buffer[1:].reshape(indices.shape)  # begins within a cache line
    gather_elements(data, indices, 1, out=out, threads=threads)
    assert out.tobytes() == np.take_along_axis(data, indices, 1).tobytes()
    assert buffer[0] == 0
    tuples = random_indices(data.shape, 2, 0, 9001)
    out = np.empty(9001, dtype)
    gather_nd(data, tuples, out=out, threads=threads)
    assert out.tobytes() == data[tuple(tuples.T)].tobytes()


def test_row_indices_are_bound_to_their_rows() -> None:
    data, out = np.arange(5, dtype=np.uint8), np.empty(2, np.uint8)
    row_indices = Indices(np.array([4, 4], np.uint16).view(np.uint8), 2, True, False, bound=5)
    item = WorkItem(0, 2, 0, 1)
    five_rows, four_rows = (Addressing((rows,), (1,), 2, (), (), False) for rows in (5, 4))
    assert not _kernels.gather(five_rows, data, 0, row_indices, item, out, KernelOptions(1))
    assert out.tolist() == [4, 4]
    with pytest.raises(ValueError, match="validated for other rows"):
        _kernels.gather(four_rows, data, 0, row_indices, item, out, KernelOptions(1))


@pytest.mark.parametrize(
    ("itemsize", "unsigned", "swapped", "upper_bound"),
    [
        (1, True, False, 1), (8, False, False, 1), (2, False, False, 1), (4, True, False, 1),
        (2, True, True, 1), (4, False, True, 1),
        (2, True, False, 2**16 + 1), (4, False, False, 2**31 + 1),
    ],
)  # fmt: skip
def test_row_indices_are_uint16_or_int32(
    itemsize: int, unsigned: bool, swapped: bool, upper_bound: int
) -> None:
    with pytest.raises(ValueError, match="uint16 or int32, in native order"):
        Indices(bytes(64), itemsize, unsigned, swapped, bound=upper_bound)


@pytest.mark.parametrize("k", [0, 1, 2, 64])
def test_tuples_of_int8_are_linearized(k: int) -> None:
    """Blocks of one-byte components have the most tuples on the stack."""
    sizes, count = (100, 2)[:k] + (1,) * (k - 2), 3000
    indices = np.stack([RNG.integers(-size, size, count) for size in sizes] or [[]], -1)
    strides = tuple(int(np.prod(sizes[d + 1 :])) for d in range(k))
    row_indices, stored = np.empty(count, np.uint32), indices.astype(np.int8).tobytes()
    addressing = Addressing(sizes, strides, count, (), (), True)
    kernel_indices = Indices(stored, 1, False, False)
    assert not _kernels.linearize_rows(
        addressing, kernel_indices, 0, count, row_indices.view(np.uint8), 4, 1
    )
    assert_array_equal(row_indices, indices % sizes @ np.array(strides, int) if k else 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_one_array_of_indices_selects_from_every_batch(threads: int) -> None:
    data = RNG.random((5, 300, 2), np.float32)
    indices = RNG.integers(-300, 300, (7, 601))
    out = np.empty((5, 7, 601, 2), np.float32)
    gather(data, indices, 1, out=out, threads=threads)
    assert_array_equal(out, np.take(data, indices, 1))


@pytest.mark.parametrize("row", [0, 511, 512, 1700, 2999])
@pytest.mark.parametrize("value", [400, -401, 2**40, -(2**63)])
def test_an_index_out_of_bounds_leaves_out_unchanged(row: int, value: int) -> None:
    data = RNG.random((300, 400), np.float32)
    indices = random_indices(data.shape, 2, 0, 3000)
    indices[row, 1] = value
    updates = RNG.random(3000, np.float32)
    for call, shape in (
        (lambda out: gather_nd(data, indices, out=out), updates.shape),
        (lambda out: scatter_nd(data, indices, updates, "add", out=out), data.shape),
    ):
        out = np.full(shape, 7, np.float32)
        with pytest.raises(BoundsError) as excinfo:
            call(out)
        assert (excinfo.value.position, excinfo.value.component) == ((row,), 1)
        assert (excinfo.value.value, excinfo.value.size) == (value, 400)
        assert (out == 7).all()


def test_an_index_out_of_bounds_leaves_out_unchanged_in_large_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "MAX_PARTITIONS", 4)
    monkeypatch.setattr(tuning, "MAX_PARTITION", 1 << 18)
    size, count = 1 << 25, 1 << 15
    data, out = np.zeros(size, np.uint8), np.full(size, 7, np.uint8)
    indices = np.random.default_rng(0).integers(0, size, (count, 1))
    updates = np.ones(count, np.uint8)
    scatter_nd(data, indices, updates, out=out)
    assert out[indices[0, 0]] == 1
    out[:] = 7
    indices[-1] = size
    for threads in (1, 2):
        with pytest.raises(BoundsError, match="1 of 32768"):
            scatter_nd(data, indices, updates, out=out, threads=threads)
        assert (out == 7).all()
