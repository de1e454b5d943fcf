"""Loops over blocks of index tuples: results and errors at every block boundary.

For data that exceed the cache, a loop also computes the offsets of the next block.
"""

from functools import partial
from itertools import product

import numpy as np
import pytest
from thresholds import patched_thresholds

from ndtool import BoundsError, gather_nd, scatter, scatter_elements, scatter_nd
from ndtool.analysis.oracle import reference
from ndtool.engine import tuning

SIZES = {"fits in cache": 5000, "exceeds the cache": 1 << 20}  # bytes of data
COUNTS = [edge + step for edge in (128, 256, 512, 1024) for step in (-1, 0, 1)]


@pytest.mark.parametrize("locality", SIZES)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 16, 24, 64, 65, 300])
def test_tuple_counts_around_the_block_size_are_correct(width: int, locality: str) -> None:
    rng = np.random.default_rng(51)
    rows = SIZES[locality] // width
    data = rng.integers(0, 256, (rows, width), np.uint8)
    for count in COUNTS:
        indices = rng.integers(-rows, rows, (count, 1))
        assert (gather_nd(data, indices, threads=1) == data[indices[:, 0]]).all(), count
        updates = rng.integers(0, 256, (count, width), np.uint8)
        expected = data.copy()
        for location, update in zip(indices[:, 0], updates, strict=True):
            expected[location] = update
        assert (scatter_nd(data, indices, updates, threads=1) == expected).all(), count
        expected = data.copy()
        np.add.at(expected, indices[:, 0], updates)
        assert (scatter_nd(data, indices, updates, "add", threads=1) == expected).all(), count


@pytest.mark.parametrize("locality", SIZES)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_a_bad_index_anywhere_in_a_block_is_reported(k: int, locality: str) -> None:
    rng = np.random.default_rng(52)
    size = round((SIZES[locality] / 4) ** (1 / k))
    data = rng.random((size,) * k, np.float32)
    indices = rng.integers(-size, size, (600, k))
    expected = data[tuple(indices.T)]
    assert (gather_nd(data, indices) == expected).all()
    for location, value in product((0, 127, 128, 255, 256, 511, 512, 599), (size, -size - 1)):
        wrong = indices.copy()
        wrong[location, location % k] = value
        out = np.zeros(600, np.float32)
        for call in (
            partial(gather_nd, data, wrong),
            partial(gather_nd, data, wrong, out=out),
            partial(scatter_nd, data, wrong, expected),
            partial(scatter_nd, data, wrong, expected, "max"),
        ):
            with pytest.raises(BoundsError) as excinfo:
                call()
            assert (excinfo.value.position, excinfo.value.component) == ((location,), location % k)
        assert not out.any()


INDEX_DTYPES = ("int64", "uint64", "int32", "int16")


@pytest.mark.parametrize("negatives", [0, 1, 20, 700])
@pytest.mark.parametrize("reduction", ["add", "sub", "mul", "max", "min", "mean"])
def test_elements_selected_by_negative_indices_are_reduced(reduction: str, negatives: int) -> None:
    rng = np.random.default_rng(58)
    size, count = 300, 700
    names = ("float32", "float64", "int8", "uint16", "bool", "float16", "complex64")
    for number, name in enumerate(names):
        if (name, reduction) in (("complex64", "max"), ("complex64", "min"), ("bool", "mean")):
            continue
        data, updates = ((rng.random(n) * 4 - 1).astype(name) for n in (size, count))
        index_dtype = INDEX_DTYPES[number % 4]
        indices = rng.integers(0, size, (count, 1)).astype(index_dtype)
        if index_dtype[0] == "i":
            indices[rng.permutation(count)[:negatives]] -= size
        expected = reference.scatter_nd(data, indices, updates, reduction)
        result = scatter_nd(data, indices, updates, reduction, threads=1)
        assert result.tobytes() == expected.tobytes(), name
        rows, row_updates = np.stack([data] * 3), np.stack([updates[:size]] * 3)
        row_indices = np.stack([indices[start : start + size, 0] for start in (0, 100, 400)])
        expected = reference.scatter_elements(rows, row_indices, row_updates, 1, reduction)
        result = scatter_elements(rows, row_indices, row_updates, 1, reduction)
        assert result.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("mode", ["error", "clip", "wrap", "fill"])
@pytest.mark.parametrize("batches", [(700,), (3, 250), (40, 2, 9)])
def test_batches_of_one_tuple_are_correct_in_every_mode(
    batches: tuple[int, ...], mode: str
) -> None:
    rng = np.random.default_rng(54)
    data = rng.integers(0, 99, (*batches, 5, 3))
    indices = rng.integers(-5, 5, (*batches, 1))
    attributes = {"batch_dims": len(batches), "out_of_bounds": mode}
    assert (
        gather_nd(data, indices, **attributes) == reference.gather_nd(data, indices, **attributes)
    ).all()
    indices[tuple(n - 1 for n in batches)] = 5
    if mode == "error":
        with pytest.raises(BoundsError) as excinfo:
            gather_nd(data, indices, **attributes)
        assert excinfo.value.position == tuple(n - 1 for n in batches)
    else:
        same = gather_nd(data, indices, **attributes) == reference.gather_nd(
            data, indices, **attributes
        )
        assert same.all()


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_batches_that_share_few_tuples_are_updated_in_work_items(reduction: str) -> None:
    rng = np.random.default_rng(8)
    data, updates = (rng.integers(0, 99, (40, n)).astype("f4") for n in (6, 3))
    expected, index = data.copy(), [5, 0, 3]
    expected[:, index] = updates + data[:, index] * (reduction == "add")
    with patched_thresholds({(tuning, "WORK_ITEM"): 64, (tuning, "COMPILED_CALL"): 0}):
        actual = scatter(data, np.array(index), updates, 1, reduction, threads=1)
    assert (actual == expected).all()
