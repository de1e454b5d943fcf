"""Large indices, which validation before `out=` narrows: the same bits and
refusals."""

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
# data's shape, the axes that tuples index, batch_dims: rows that need two bytes, or four
SHAPES = [((40, 50), 2, 0), ((300, 400), 2, 0), ((3, 30, 20, 2), 2, 1), ((9, 8, 7, 6), 4, 0)]


@pytest.fixture(autouse=True)
def narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "NARROW_INDICES", 1)
    monkeypatch.setattr(tuning, "WORK_ITEM", 1 << 14)  # so that several calls narrow them


def drawn(shape: tuple[int, ...], k: int, b: int, count: int) -> np.ndarray:
    """Return index tuples, some negative."""
    sizes = shape[b : b + k]
    parts = [RNG.integers(-size, size, (*shape[:b], count)) for size in sizes]
    return np.stack(parts, -1)


def named(indices: np.ndarray, shape: tuple[int, ...], b: int) -> tuple[np.ndarray, ...]:
    batches = np.ix_(*map(np.arange, shape[:b]), np.arange(indices.shape[b]))[:b]
    return (*batches, *np.moveaxis(indices, -1, 0))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["i8", "u8", ">i8", "i4"])
@pytest.mark.parametrize(("shape", "k", "b"), SHAPES)
def test_tuples_name_the_same_rows(
    shape: tuple[int, ...], k: int, b: int, dtype: str, threads: int
) -> None:
    data = RNG.random(shape, np.float32)
    indices = drawn(shape, k, b, 3001)
    if dtype == "u8":
        indices %= shape[b : b + k]
    positions = named(indices, shape, b)
    wanted, stored = data[positions], indices.astype(dtype)
    for source in (data, np.asfortranarray(data)):
        out = np.empty_like(wanted)
        assert gather_nd(source, stored, b, out=out, threads=threads) is out
        assert_array_equal(out, wanted)
    if not b:
        updates, changed = RNG.random(wanted.shape, np.float32), data.copy()
        np.add.at(changed, positions, updates)
        out = np.empty_like(data)
        scatter_nd(data, stored, updates, "add", out=out, threads=threads)
        assert_array_equal(out, changed)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_elements_along_every_axis(axis: int, threads: int) -> None:
    data = RNG.random((200, 300), np.float32)
    indices = RNG.integers(-data.shape[axis], data.shape[axis], data.shape)
    out = np.empty_like(data)
    gather_elements(data, indices, axis, out=out, threads=threads)
    assert_array_equal(out, np.take_along_axis(data, indices, axis))
    positions, changed = list(np.indices(data.shape)), data.copy()
    positions[axis] = indices
    np.add.at(changed, tuple(positions), out)
    answer = np.empty_like(data)
    scatter_elements(data, indices, out, axis, "add", out=answer, threads=threads)
    assert_array_equal(answer, changed)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("streamed", [1, 1 << 40])
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("lines", [(7, 3000), (1, 70_000), (300, 520)])
def test_short_rows_are_copied_by_their_numbers(
    lines: tuple[int, int], dtype: str, streamed: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spatially local batches and others, indices of two bytes and four, cached data and larger."""
    monkeypatch.setattr(tuning, "NON_TEMPORAL", streamed)
    count, length = lines
    data = RNG.integers(0, 2, (count, length, np.dtype(dtype).itemsize), np.uint8).view(dtype)[
        ..., 0
    ]
    indices = RNG.integers(-length, length, (count, 2 * length + 77))
    buffer = np.zeros(indices.size + 1, dtype)
    out = buffer[1:].reshape(indices.shape)  # begins within a cache line
    gather_elements(data, indices, 1, out=out, threads=threads)
    assert out.tobytes() == np.take_along_axis(data, indices, 1).tobytes()
    assert buffer[0] == 0
    tuples = drawn(data.shape, 2, 0, 9001)
    out = np.empty(9001, dtype)
    gather_nd(data, tuples, out=out, threads=threads)
    assert out.tobytes() == data[tuple(tuples.T)].tobytes()


def test_row_indices_are_bound_to_their_rows() -> None:
    data, out = np.arange(5, dtype=np.uint8), np.empty(2, np.uint8)
    numbers = Indices(np.array([4, 4], np.uint16).view(np.uint8), 2, True, False, bound=5)
    piece = WorkItem(0, 2, 0, 1)
    five, four = (Addressing((rows,), (1,), 2, (), (), False) for rows in (5, 4))
    assert not _kernels.gather(five, data, 0, numbers, piece, out, KernelOptions(1))
    assert out.tolist() == [4, 4]
    with pytest.raises(ValueError, match="validated for other rows"):
        _kernels.gather(four, data, 0, numbers, piece, out, KernelOptions(1))


@pytest.mark.parametrize(
    ("itemsize", "unsigned", "swapped", "below"),
    [
        (1, True, False, 1), (8, False, False, 1), (2, False, False, 1), (4, True, False, 1),
        (2, True, True, 1), (4, False, True, 1),
        (2, True, False, 2**16 + 1), (4, False, False, 2**31 + 1),
    ],
)  # fmt: skip
def test_numbers_are_uint16_or_int32(
    itemsize: int, unsigned: bool, swapped: bool, below: int
) -> None:
    with pytest.raises(ValueError, match="uint16 or int32, in native order"):
        Indices(bytes(64), itemsize, unsigned, swapped, bound=below)


@pytest.mark.parametrize("k", [0, 1, 2, 64])
def test_tuples_of_few_bytes_are_numbered(k: int) -> None:
    """The largest block that the stack holds, despite its small size."""
    sizes, count = (100, 2)[:k] + (1,) * (k - 2), 3000
    indices = np.stack([RNG.integers(-size, size, count) for size in sizes] or [[]], -1)
    strides = tuple(int(np.prod(sizes[d + 1 :])) for d in range(k))
    numbers, stored = np.empty(count, np.uint32), indices.astype(np.int8).tobytes()
    rows = Addressing(sizes, strides, count, (), (), True)
    tuples = Indices(stored, 1, False, False)
    assert not _kernels.linearize_rows(rows, tuples, 0, count, numbers.view(np.uint8), 4, 1)
    assert_array_equal(numbers, indices % sizes @ np.array(strides, int) if k else 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_plain_numbers_that_every_batch_has(threads: int) -> None:
    data = RNG.random((5, 300, 2), np.float32)
    indices = RNG.integers(-300, 300, (7, 601))
    out = np.empty((5, 7, 601, 2), np.float32)
    gather(data, indices, 1, out=out, threads=threads)
    assert_array_equal(out, np.take(data, indices, 1))


@pytest.mark.parametrize("location", [0, 511, 512, 1700, 2999])
@pytest.mark.parametrize("value", [400, -401, 2**40, -(2**63)])
def test_an_index_out_of_bounds_leaves_out_unchanged(location: int, value: int) -> None:
    data = RNG.random((300, 400), np.float32)
    indices = drawn(data.shape, 2, 0, 3000)
    indices[location, 1] = value
    updates = RNG.random(3000, np.float32)
    for call, shape in (
        (lambda out: gather_nd(data, indices, out=out), updates.shape),
        (lambda out: scatter_nd(data, indices, updates, "add", out=out), data.shape),
    ):
        out = np.full(shape, 7, np.float32)
        with pytest.raises(BoundsError) as caught:
            call(out)
        assert (caught.value.position, caught.value.component) == ((location,), 1)
        assert (caught.value.value, caught.value.size) == (value, 400)
        assert (out == 7).all()


def test_an_out_of_large_parts_is_untouched_by_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
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
