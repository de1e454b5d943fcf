"""Counts of the updates of each element: for means, and to find elements without updates."""

from typing import Any

import numpy as np
import pytest
from bits import results_match
from strategies import ARITHMETIC, Array, all_reduction_options, bits_equal, random_values
from test_large import expected_scatter
from thresholds import patched_thresholds

import ndtool
from ndtool import _kernels
from ndtool.engine import counting, tuning

SIZE = 60


@pytest.fixture(autouse=True, params=[False, True], ids=["", "table"])
def counts_in_a_table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test also with counts in a table of the slices that have updates."""
    if request.param:
        monkeypatch.setattr(tuning, "SPARSE_UPDATES", 0)
        monkeypatch.setattr(tuning, "COMPILED_CALL", 0)


def counting_options(dtype: np.dtype) -> list[dict[str, Any]]:
    """Return the reductions that count the updates of elements, or mark updated elements."""
    all_options = all_reduction_options(dtype)
    return [
        options for options in all_options if options["reduction"] == "mean" or len(options) > 1
    ]


def histogram(rng: np.random.Generator, dtype: np.dtype, size: int) -> tuple[Array, Array, Array]:
    """Return data, the rows of many updates, the last row only in later ones, and the updates."""
    rows = rng.integers(0, size, 20_000)
    rows[:9000] %= size - 1
    return random_values(rng, dtype, (SIZE,)), rows, random_values(rng, dtype, (len(rows),))


@pytest.mark.parametrize("size", [SIZE, SIZE - 9], ids=["every element", "some elements"])
@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_many_updates_of_few_elements_are_correct(dtype: np.dtype, size: int) -> None:
    """Once all elements have updates, the remaining ones are combined without a test."""
    data, rows, updates = histogram(np.random.default_rng(3), dtype, size)
    for options in counting_options(dtype):
        expected = expected_scatter(data, rows, updates, **options)
        for code in ("i8", "<i4"):
            actual = ndtool.scatter(data, rows.astype(code), updates, **options)
            assert results_match(actual, expected, options["reduction"]), (options, code)


@pytest.mark.parametrize("updates_per_slice", [0, 16, 1 << 30])
@pytest.mark.parametrize("dtype", ["f4", "i2", "c16"])
def test_neutral_elements_replace_current_values(
    dtype: str, updates_per_slice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless an update is a NaN; the first pass may end before the last update."""
    monkeypatch.setattr(tuning, "UPDATES_PER_SLICE", updates_per_slice)
    rng, element_type = np.random.default_rng(4), np.dtype(dtype)
    for options in counting_options(element_type):
        for has_special_values in (False, True):
            data, rows, updates = histogram(rng, element_type, SIZE)
            if not has_special_values:
                updates = rng.integers(-9, 9, updates.shape).astype(element_type)
            expected = expected_scatter(data, rows, updates, **options)
            actual = ndtool.scatter(data, rows, updates, **options)
            assert results_match(actual, expected, options["reduction"]), options


@pytest.mark.parametrize("has_nans", [False, True], ids=["numbers", "NaNs"])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 40])
def test_updates_of_short_and_long_slices_are_counted(width: int, has_nans: bool) -> None:
    rng = np.random.default_rng(5)
    data, updates = (random_values(rng, np.dtype("f4"), (count, width)) for count in (300, 900))
    if not has_nans:
        updates[np.isnan(updates)] = -0.0
    rows = rng.integers(0, 290, 900)
    flat_indices = (rows[:, None] * width + np.arange(width)).ravel()
    in_parts = {(tuning, "COMPILED_CALL"): 0, (tuning, "WORK_ITEM"): 1000}
    by_destination = in_parts | {(tuning, "MIN_SORTED"): 1, (tuning, "SORTED_OUTPUT"): 0}
    for options in counting_options(data.dtype):
        expected = expected_scatter(data, flat_indices, updates, **options)
        for thresholds in ({}, in_parts, by_destination):
            with patched_thresholds(thresholds):
                actual = ndtool.scatter(data, rows, updates, **options, threads=3)
            assert results_match(actual, expected, options["reduction"]), options


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("width", [1, 40])
def test_a_call_in_place_costs_what_its_updates_cost(
    axis: int | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither memory nor windows are for slices without updates."""
    rows, count, allocated = 1 << 21, 1 << 14, [0]
    allocate = counting._allocate_zeros
    monkeypatch.setattr(
        counting, "_allocate_zeros", lambda size: allocated.append(size) or allocate(size)
    )
    for name in ("scatter_batches", "apply_partitions"):
        monkeypatch.delattr(_kernels, name)  # they update windows
    rng = np.random.default_rng(9)
    shape = {None: (rows, width), 0: (rows // 64, 64), 1: (64, rows // 64)}[axis]
    flat = rng.integers(0, shape[axis or 0], count)
    index = flat if axis is None else flat.reshape((-1, 64) if axis == 0 else (64, -1))
    updates_shape = (count, width) if axis is None else index.shape
    updates = rng.integers(1, 99, updates_shape).astype("f4")
    call = ndtool.scatter if axis is None else ndtool.scatter_elements
    for options in counting_options(updates.dtype):
        data = np.zeros(shape, "f4")  # pages without updates are never touched
        call(data, index, updates, axis or 0, **options, out=data, threads=3)
        if axis is None:
            selected, position = np.unique(flat, return_inverse=True)
            dense = np.zeros((len(selected), width), "f4")
            assert bits_equal(
                data[selected], call(dense, position, updates, 0, **options, threads=1)
            )
        else:
            positions = np.indices(index.shape)
            positions[axis] = index
            places = np.ravel_multi_index(positions, shape).ravel()
            expected = expected_scatter(np.zeros(shape, "f4"), places, updates, **options)
            assert bits_equal(data, expected)
    assert max(allocated) <= 64 * count, "a table for the updates"
