"""Sizes that use blocks, tiles, partitions and threads, compared with NumPy's bits.

The expected values come from ufunc.at on flat indices, which test_reference.py ties to the
reference; a gather's and a move's come from one fancy index on opaque bytes.
"""

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pytest
from bits import results_match
from strategies import (
    ARITHMETIC,
    COMPLEX,
    INTEGERS,
    Array,
    bits_equal,
    mean_of,
    random_values,
    raw_bytes,
    reductions_of,
    sample,
    to_layout,
    ufunc_of,
    void_view,
)

import ndtool
from ndtool.arrays.source import ContiguousSource
from ndtool.engine import gathers, tuning
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request

THREADS = (1, 2, 3)


class ScatterCase(NamedTuple):
    """A case of scatter_nd: N index tuples of k components from a distribution."""

    name: str
    data_shape: tuple[int, ...]
    k: int
    tuples_shape: tuple[int, ...]
    distribution: str = "uniform"


SCATTERS = (
    ScatterCase("scalars", (300, 700), 2, (150_001,)),
    ScatterCase("few scalars, large data", (1000, 1000), 2, (5000,)),
    ScatterCase("scalars of four axes", (9, 11, 7, 13), 4, (3, 50_001)),
    ScatterCase("histogram", (1000,), 1, (140_003,)),
    ScatterCase("one slice", (1000,), 1, (140_003,), "same"),
    ScatterCase("sorted", (50_000,), 1, (140_003,), "sorted"),
    ScatterCase("two slices at the ends", (70_000,), 1, (140_003,), "ends"),
    ScatterCase("rows of 7 elements", (500, 7), 1, (40_001,)),
    ScatterCase("rows", (300, 65), 1, (5001,)),
    ScatterCase("huge slices", (3, 200_003), 1, (5,)),
    ScatterCase("complete tensor", (150_001,), 0, (3,)),
)


def random_indices(rng: np.random.Generator, case: ScatterCase) -> Array:
    """Return valid int64 index tuples, some of them negative."""
    shape = (*case.tuples_shape, case.k)
    limits = np.array(case.data_shape[: case.k], np.int64)
    indices = rng.integers(-limits, limits, shape) if case.k else np.empty(shape, np.int64)
    if case.distribution == "same":
        indices[:] = 3
    elif case.distribution == "sorted":
        indices = np.sort(indices % limits, axis=0)
    elif case.distribution == "ends":
        indices = np.where(indices < 0, 0, -1)
    return indices


def slice_indices(case: ScatterCase, indices: Array) -> tuple[Array, int]:
    """Return the linear index of the slice that each index tuple selects, and its length."""
    slices = np.zeros(indices.shape[:-1], np.int64)
    for component, size in enumerate(case.data_shape[: case.k]):
        slices = slices * size + indices[..., component] % size
    return slices.ravel(), int(np.prod(case.data_shape[case.k :], dtype=np.int64))


def order_sensitive_values(
    rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]
) -> Array:
    """Return values whose sums and products depend on the order and are finite for many terms."""
    if dtype.kind in "iub":
        return random_values(rng, dtype, shape)
    if dtype.kind == "c":
        components = order_sensitive_values(rng, np.dtype(f"f{dtype.itemsize // 2}"), (*shape, 2))
        return components.view(dtype).reshape(shape)
    floats = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
    floats[rng.random(shape) < 0.1] = 1.0
    return floats.astype(dtype)


def expected_scatter(
    data: Array,
    flat: Array,
    updates: Array,
    reduction: str,
    include_self: bool = True,
    duplicates: str = "last",
) -> Array:
    """Return data with updates applied in sequence; flat: linear indices of elements of data."""
    output = void_view(data).copy().view(data.dtype)
    target, source = output.reshape(-1), updates.reshape(-1)
    if duplicates == "first":
        positions, first = np.unique(flat, return_index=True)
        void_view(target)[positions] = void_view(source)[first]
        return output
    if reduction == "none":
        last = np.full(data.size, -1)
        np.maximum.at(last, flat, np.arange(flat.size))
        is_updated = last >= 0
        void_view(target)[is_updated] = void_view(source)[last[is_updated]]
        return output
    counts = np.bincount(flat, minlength=data.size)
    if not include_self:
        positions, first = np.unique(flat, return_index=True)
        void_view(target)[positions] = void_view(source)[first]
        flat, source = np.delete(flat, first), np.delete(source, first)
    with np.errstate(all="ignore"):
        ufunc_of(data.dtype, reduction).at(target, flat, source)
    if reduction == "mean":
        has_updates = counts > 0
        target[has_updates] = mean_of(target[has_updates], counts[has_updates] + include_self)
    return output


DTYPES_AND_REDUCTIONS = [(d, r) for d in ARITHMETIC for r in reductions_of(d)]


def parameter_id(value: Any) -> str:
    """Return the name of a parameter."""
    if isinstance(value, ScatterCase):
        return value.name
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(
    ("case", "dtype_and_reduction"), sample(9, SCATTERS, DTYPES_AND_REDUCTIONS), ids=parameter_id
)
def test_scatter_nd(case: ScatterCase, dtype_and_reduction: tuple[np.dtype, str]) -> None:
    dtype, reduction = dtype_and_reduction
    rng = np.random.default_rng(crc32(f"{case.name} {dtype} {reduction}".encode()))
    indices = random_indices(rng, case)
    slices, width = slice_indices(case, indices)
    flat = (slices[:, None] * width + np.arange(width)).ravel()
    shape = case.tuples_shape + case.data_shape[case.k :]
    random = rng.integers(2) and dtype not in COMPLEX
    draw_values = random_values if random else order_sensitive_values
    data, updates = draw_values(rng, dtype, case.data_shape), draw_values(rng, dtype, shape)
    expected = expected_scatter(data, flat, updates, reduction)
    before = raw_bytes(data), raw_bytes(indices), raw_bytes(updates)
    for threads in THREADS:
        actual = ndtool.scatter_nd(data, indices, updates, reduction, threads=threads)
        assert results_match(actual, expected, reduction), threads
    assert (raw_bytes(data), raw_bytes(indices), raw_bytes(updates)) == before


# shapes of data and of indices
ELEMENTS = (
    ((60, 70, 65), (60, 70, 65)),
    ((2, 300, 301), (1, 299, 300)),
    ((3, 5, 7), (3, 5, 7)),
    ((2, 1, 300_007), (2, 1, 40_001)),
)


@pytest.mark.parametrize(
    ("shapes", "axis", "dtype_and_reduction"),
    sample(9, ELEMENTS, range(3), DTYPES_AND_REDUCTIONS),
    ids=parameter_id,
)
def test_scatter_elements(
    shapes: tuple[tuple[int, ...], ...], axis: int, dtype_and_reduction: tuple[np.dtype, str]
) -> None:
    dtype, reduction = dtype_and_reduction
    rng = np.random.default_rng(21)
    shape, index_shape = shapes[0], list(shapes[1])
    size = shape[axis]
    index_shape[axis] *= 6 if size < 10 else 2
    indices = rng.integers(-size, size, index_shape)
    coordinates = list(np.indices(index_shape, sparse=True))
    coordinates[axis] = indices % size
    flat = np.ravel_multi_index(np.broadcast_arrays(*coordinates), shape).ravel()
    data, updates = (
        order_sensitive_values(rng, dtype, drawn) for drawn in (shape, tuple(index_shape))
    )
    expected = expected_scatter(data, flat, updates, reduction)
    for threads in THREADS:
        actual = ndtool.scatter_elements(data, indices, updates, axis, reduction, threads=threads)
        assert results_match(actual, expected, reduction), threads


@pytest.mark.parametrize(("dtype", "reduction"), DTYPES_AND_REDUCTIONS, ids=lambda v: str(v))
def test_blocks_of_updates_into_one_slice(dtype: np.dtype, reduction: str) -> None:
    rng = np.random.default_rng(crc32(f"{dtype} {reduction}".encode()))
    for draw_values, other_row in product(
        (order_sensitive_values, random_values), (None, 0, 1, 255, 511)
    ):
        if draw_values is random_values and dtype in COMPLEX:
            continue
        indices = np.full((512 + 40, 1), 2)
        if other_row is not None:
            indices[other_row] = 1
        data, updates = draw_values(rng, dtype, (3,)), draw_values(rng, dtype, (len(indices),))
        expected = expected_scatter(data, indices[:, 0], updates, reduction)
        actual = ndtool.scatter_nd(data, indices, updates, reduction)
        assert results_match(actual, expected, reduction), (draw_values, other_row)


@pytest.mark.parametrize("itemsize", [1, 2, 3, 4, 7, 8, 16, 100])
def test_gather_nd(itemsize: int) -> None:
    rng = np.random.default_rng(22)
    dtype = np.dtype(f"V{itemsize}")
    for shape, b, index_shape in (
        ((400, 500), 0, (3, 50_001, 2)),
        ((5000, 3), 0, (40_001, 1)),
        ((100, 257), 0, (5001, 1)),
        ((2, 100_003), 0, (5, 1)),
        ((40, 50, 60), 1, (40, 4001, 2)),
        ((150_001, 3), 1, (150_001, 1)),
        ((300, 400, 2), 2, (300, 400, 1)),
        ((6, 30, 20, 17), 1, (6, 999, 2)),
    ):
        data = random_values(rng, dtype, shape)
        k = index_shape[-1]
        indices = rng.integers(-np.array(shape[b : b + k]), shape[b : b + k], index_shape)
        batch_coordinates = np.indices(index_shape[:-1], sparse=True)[:b]
        expected = data[(*batch_coordinates, *np.moveaxis(indices, -1, 0))]
        for threads in THREADS:
            assert bits_equal(ndtool.gather_nd(data, indices, b, threads=threads), expected)


@pytest.mark.parametrize(("itemsize", "axis"), sample(3, [1, 2, 3, 4, 8, 16, 40], range(3)))
def test_gather_elements(itemsize: int, axis: int) -> None:
    rng = np.random.default_rng(23)
    dtype = np.dtype(f"V{itemsize}")
    for shape in ((60, 70, 65), (2, 300, 301), (400, 3, 200), (50_003, 1, 3)):
        data = random_values(rng, dtype, shape)
        index_shape = tuple(2 * d if d_axis == axis else d for d_axis, d in enumerate(shape))
        indices = rng.integers(-shape[axis], shape[axis], index_shape)
        expected = np.take_along_axis(data, indices, axis)
        for threads in THREADS:
            assert bits_equal(
                ndtool.gather_elements(data, indices, axis, threads=threads), expected
            )


LAYOUTS = ("Fortran", "reversed", "strided", "unaligned", "broadcast")
CODES = [dtype.newbyteorder(order).str for dtype in INTEGERS for order in "<>"]


@pytest.mark.parametrize(("code", "layout"), sample(4, CODES, LAYOUTS))
def test_index_types_and_layouts(code: str, layout: str) -> None:
    rng = np.random.default_rng(24)
    dtype = np.dtype(code)
    sizes = np.array([100, 120])
    lowest = -sizes if dtype.kind == "i" else 0 * sizes
    data = random_values(rng, np.dtype("f4"), tuple(sizes))
    indices = to_layout(rng.integers(lowest, sizes, (70_001, 2)).astype(dtype), layout)
    rows, columns = np.moveaxis(indices.astype(np.int64), -1, 0)
    updates = order_sensitive_values(rng, np.dtype("f4"), rows.shape)
    flat = rows % 100 * 120 + columns % 120
    expected_sum = expected_scatter(data, flat, updates, "add")
    for threads in THREADS:
        assert bits_equal(ndtool.gather_nd(data, indices, threads=threads), data[rows, columns])
        assert bits_equal(
            ndtool.scatter_nd(data, indices, updates, "add", threads=threads), expected_sum
        )
    axis_indices = indices[:, :1]
    column = random_values(rng, np.dtype("f4"), (100, 1))
    gathered = ndtool.gather_elements(column, axis_indices, 0, threads=2)
    assert bits_equal(gathered, column[rows % 100])


@pytest.mark.parametrize("threads", THREADS)
def test_the_first_of_many_invalid_indices_is_reported(threads: int) -> None:
    rng = np.random.default_rng(25)
    data = random_values(rng, np.dtype("f4"), (300, 200))
    for _ in range(5):
        indices = rng.integers(0, 200, (7, 30_000, 2))
        invalid_rows = np.sort(rng.choice(210_000, 3, replace=False))
        indices.reshape(-1, 2)[invalid_rows, [1, 0, 1]] = [200, 300, -201]
        out = np.full(indices.shape[:-1], 7, np.float32)
        with pytest.raises(ndtool.BoundsError) as excinfo:
            ndtool.gather_nd(data, indices, out=out, threads=threads)
        error = excinfo.value
        assert error.position == tuple(np.unravel_index(invalid_rows[0], (7, 30_000)))
        assert (error.component, error.axis, error.value) == (1, 1, 200)
        assert (error.size, error.count, error.total) == (200, 3, 210_000)
        assert (out == 7).all()
        with pytest.raises(ndtool.BoundsError) as excinfo:
            ndtool.scatter_nd(data, indices, out, "add", out=data, threads=threads)
        assert excinfo.value.fields() == error.fields()
        for axis in (0, 1):
            invalid = rng.integers(0, 200, (300, 200))
            position = (int(rng.integers(299)), int(rng.integers(200)))
            invalid[position], invalid[-1, -1] = -301, 300
            with pytest.raises(ndtool.BoundsError) as excinfo:
                ndtool.gather_elements(data, invalid, axis, threads=threads)
            error = excinfo.value
            assert (error.position, error.count) == (position, 2)
            assert (error.axis, error.component) == (axis, None)


@pytest.mark.parametrize(("count", "width"), [(20, 600), (3000, 20_000), (60_000, 1)])
def test_a_cold_file_is_prefetched_in_fewer_calls_than_pages(
    count: int, width: int, monkeypatch: pytest.MonkeyPatch, workdir: Path
) -> None:
    rng = np.random.default_rng(28)
    data = rng.integers(0, 256, (3_000_000 // width, width), np.uint8)
    index = rng.integers(0, len(data), (count * 40 // width or 1, 1))
    np.save("data.npy", data)
    np.save("index.npy", index)
    calls = []
    prefetch, advise = gathers._kernels.will_need, ContiguousSource.advise

    def count_prefetch(*arguments: Any) -> int:
        calls.append(prefetch(*arguments))
        return calls[-1]

    def count_advise(*arguments: Any) -> None:
        calls.append(1)
        advise(*arguments)

    monkeypatch.setattr(ContiguousSource, "cached_fraction", lambda _: 0.0)
    monkeypatch.setattr(ContiguousSource, "advise", count_advise)
    monkeypatch.setattr(gathers._kernels, "will_need", count_prefetch)
    with OpenCall(Request("gather_nd", "data.npy", "index.npy", output="out.npy")) as open_call:
        steps.run(open_call)
    assert bits_equal(np.load("out.npy"), data[index[:, 0]])
    assert 0 < sum(calls) <= data.nbytes // 4096 + 1


def test_an_index_out_of_bounds_leaves_out_unchanged_in_large_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "MAX_PARTITIONS", 4)
    monkeypatch.setattr(tuning, "MAX_PARTITION", 1 << 18)
    size, count = 1 << 25, 1 << 15
    data, out = np.zeros(size, np.uint8), np.full(size, 7, np.uint8)
    indices = np.random.default_rng(0).integers(0, size, (count, 1))
    updates = np.ones(count, np.uint8)
    ndtool.scatter_nd(data, indices, updates, out=out)
    assert out[indices[0, 0]] == 1
    out[:] = 7
    indices[-1] = size
    for threads in (1, 2):
        with pytest.raises(ndtool.BoundsError, match="1 of 32768"):
            ndtool.scatter_nd(data, indices, updates, out=out, threads=threads)
        assert (out == 7).all()
