"""Counts of updates: of more updates than one test for slices without any, by each type."""

from typing import Any

import numpy as np
import pytest
from bits import results_match
from strategies import ARITHMETIC, Array, all_reduction_options, bits_equal, random_values
from test_large import expected_scatter
from thresholds import lowered

import ndtool
from ndtool.engine import tuning

SLOTS = 60


def counted(dtype: np.dtype) -> list[dict[str, Any]]:
    """Return the combinations that need to know which elements have updates, or how many."""
    every = all_reduction_options(dtype)
    return [c for c in every if c["reduction"] == "mean" or len(c) > 1]


def histogram(rng: np.random.Generator, dtype: np.dtype, slots: int) -> tuple[Array, Array, Array]:
    """Return data, the elements that many updates go to, the last of them late, and updates."""
    places = rng.integers(0, slots, 20_000)
    places[:9000] %= slots - 1
    return random_values(rng, dtype, (SLOTS,)), places, random_values(rng, dtype, (len(places),))


@pytest.mark.parametrize("slots", [SLOTS, SLOTS - 9], ids=["every element", "some elements"])
@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_many_updates_of_few_elements(dtype: np.dtype, slots: int) -> None:
    """From where on all elements have updates, the rest are plain."""
    data, places, updates = histogram(np.random.default_rng(3), dtype, slots)
    for combination in counted(dtype):
        expected = expected_scatter(data, places, updates, **combination)
        for code in ("i8", "<i4"):
            actual = ndtool.scatter(data, places.astype(code), updates, **combination)
            assert results_match(actual, expected, combination["reduction"]), (combination, code)


@pytest.mark.parametrize("repeated", [0, 1 << 30], ids=["counted", "marked"])
@pytest.mark.parametrize("dtype", ["f4", "i2", "c16"])
def test_elements_are_marked_or_counted_first(
    dtype: str, repeated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neutral elements take the places of current values, unless an update is a NaN."""
    monkeypatch.setattr(tuning, "UPDATES_PER_SLICE", repeated)
    rng, item = np.random.default_rng(4), np.dtype(dtype)
    for combination in counted(item):
        for special in (False, True):
            data, places, updates = histogram(rng, item, SLOTS)
            if not special:
                updates = rng.integers(-9, 9, updates.shape).astype(item)
            expected = expected_scatter(data, places, updates, **combination)
            actual = ndtool.scatter(data, places, updates, **combination)
            assert results_match(actual, expected, combination["reduction"]), combination


@pytest.mark.parametrize("width", [1, 15, 16, 17, 40])
def test_slices_are_divided_after_their_last_update(width: int) -> None:
    """Slices longer than a cache line know how many updates they will have."""
    rng = np.random.default_rng(5)
    data, updates = (random_values(rng, np.dtype("f4"), (n, width)) for n in (300, 900))
    rows = rng.integers(0, 290, 900)
    flat = (rows[:, None] * width + np.arange(width)).ravel()
    for combination in counted(data.dtype):
        expected = expected_scatter(data, flat, updates, **combination)
        for tables in ((), ({(tuning, "SMALL_CALL"): 0, (tuning, "WORK_ITEM"): 1000},)):
            with lowered(*tables):
                actual = ndtool.scatter(data, rows, updates, **combination, threads=3)
            assert results_match(actual, expected, combination["reduction"]), combination


@pytest.mark.parametrize("special", [False, True], ids=["numbers", "NaNs"])
@pytest.mark.parametrize("dtype", ["?", "f2", "f4", "i4", "c16"])
def test_dropped_updates_of_elements_that_all_have_some(dtype: str, special: bool) -> None:
    """Dropped updates stay dropped from where on the rest are plain."""
    rng, item = np.random.default_rng(6), np.dtype(dtype)
    data, places, updates = histogram(rng, item, SLOTS)
    if not special:
        updates = rng.integers(0, 2, updates.shape).astype(item)
    places[10_000:][rng.random(10_000) < 0.1] = SLOTS
    valid = places < SLOTS
    for combination in counted(item):
        expected = ndtool.scatter(data, places[valid], updates[valid], **combination)
        actual = ndtool.scatter(data, places, updates, **combination, out_of_bounds="drop")
        assert bits_equal(actual, expected), combination
        padded = ndtool.scatter(data, places, updates, **combination, pad=SLOTS)
        assert bits_equal(padded, expected), combination


def test_means_of_a_small_call_in_which_all_elements_have_updates() -> None:
    """From where on nothing is copied, means are still counted."""
    rng = np.random.default_rng(8)
    data, updates = np.full(3, 100, "u4"), rng.integers(0, 9, 6000).astype("u4")
    places = rng.integers(0, 3, 6000).astype("i4")
    for axis_first in (False, True):
        shape = (6000, 1) if axis_first else (6000,)
        given = data.reshape(-1, *shape[1:]), places.reshape(shape), updates.reshape(shape)
        with lowered({(tuning, "SMALL_CALL"): 1 << 16}):
            actual = ndtool.scatter_elements(*given, reduction="mean", include_self=False)
        sums, numbers = np.bincount(places, updates), np.bincount(places)
        assert actual.ravel().tolist() == (sums // numbers).tolist()


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("mode", [{"out_of_bounds": "drop"}, {"pad": 300}], ids=["drop", "pad"])
def test_dropped_updates_of_long_slices_in_batches(
    mode: dict[str, Any], include_self: bool
) -> None:
    """Updates longer than a cache line are dropped where a batch is updated in cache, too."""
    rng = np.random.default_rng(7)
    data, indices = np.ones((8, 300, 17), "f4"), rng.integers(0, 301, (8, 200, 1))
    updates = rng.integers(1, 9, (8, 200, 17)).astype("f4")
    for name in ("add", "max", "mean"):
        combination: dict[str, Any] = {"reduction": name, "include_self": include_self}
        actual = ndtool.scatter_nd(data, indices, updates, batch_dims=1, **combination, **mode)
        for one in range(8):
            valid = indices[one, :, 0] < 300
            expected = ndtool.scatter_nd(
                data[one], indices[one][valid], updates[one][valid], **combination
            )
            assert bits_equal(actual[one], expected), (name, one)
