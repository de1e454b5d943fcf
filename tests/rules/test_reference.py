"""The oracle: its results equal NumPy's bit for bit, and its refusals follow the rules.

Where NumPy's bits vary by CPU, results equal the table in bits.py.
"""

from itertools import product
from platform import machine

import numpy as np
import pytest
from bits import CURRENT_AND_UPDATE, numpy_matches, result_table, results_match, values_by_name
from strategies import (
    ALL_DTYPES,
    ARITHMETIC,
    COMPLEX,
    COPY_ONLY,
    FLOATS,
    ORDERED,
    UFUNCS,
    bits_equal,
    mean_of,
    random_values,
    raw_bytes,
    reductions_of,
    ufunc_of,
)

import ndtool
from ndtool.analysis.oracle import blocks, reductions, reference
from ndtool.errors import BoundsError

ARITHMETIC_CASES = [(d, r) for d in ARITHMETIC for r in reductions_of(d) if r != "none"]


def _names(values: list) -> list[str]:
    return [f"{d.name}-{r}" for d, r in values]


@pytest.mark.parametrize(("dtype", "reduction"), ARITHMETIC_CASES, ids=_names(ARITHMETIC_CASES))
def test_a_reduction_has_the_bits_of_ufunc_at(dtype: np.dtype, reduction: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(8):
        data, updates = random_values(rng, dtype, (20_000,)), random_values(rng, dtype, (20_000,))
        expected = data.copy()
        with np.errstate(all="ignore"):
            ufunc_of(dtype, reduction).at(expected, np.arange(len(data)), updates)
            actual = reductions.REDUCTIONS[reduction].apply(
                reductions.native(data), reductions.native(updates)
            )
        assert actual.dtype == dtype
        assert results_match(actual, expected, reduction)


@pytest.mark.skipif(machine() not in ("x86_64", "AMD64"), reason="NumPy has other bits elsewhere")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_table_is_what_numpy_does_on_x86(dtype: np.dtype) -> None:
    assert all(
        numpy_matches(dtype, reduction) for reduction in UFUNCS if reduction in reductions_of(dtype)
    )


def _reduce_pairs(data: np.ndarray, updates: np.ndarray, reduction: str) -> list[np.ndarray]:
    """Reduce pairs of numbers singly and as rows: by the reference, and by the kernels."""
    columns, rows = np.arange(len(data))[:, None], np.zeros((1, 1), np.int64)
    results = []
    for scatter in (reference.scatter_nd, ndtool.scatter_nd):
        results.append(scatter(data, columns, updates, reduction))
        results.append(scatter(data[None], rows, updates[None], reduction)[0])
    return results


@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [
        pytest.param(dtype, reduction, id=f"{dtype}-{reduction}")
        for dtype in FLOATS
        for reduction in reductions_of(dtype)
        if reduction in UFUNCS
    ],
)
def test_the_bits_of_zeros_infinities_and_nans(dtype: np.dtype, reduction: str) -> None:
    data, updates = (
        values_by_name(names, dtype) for names in zip(*CURRENT_AND_UPDATE, strict=True)
    )
    expected = values_by_name(result_table(dtype, reduction).values(), dtype)
    for result in _reduce_pairs(data, updates, reduction):
        assert bits_equal(result, expected)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_numbers_have_the_bits_of_their_parts(dtype: np.dtype) -> None:
    component_dtype = np.dtype(f"f{dtype.itemsize // 2}")
    add, sub, mul = (result_table(component_dtype, name) for name in ("add", "sub", "mul"))
    four = list(product(("0", "-0", "1", "inf", "s1", "-q2"), repeat=4))
    sums = [(add[a, c], add[b, d]) for a, b, c, d in four]
    products = [(sub[mul[a, c], mul[b, d]], add[mul[a, d], mul[b, c]]) for a, b, c, d in four]

    def complexes(pairs: list[tuple[str, ...]]) -> np.ndarray:
        return values_by_name([name for pair in pairs for name in pair], component_dtype).view(
            dtype
        )

    data, updates = (complexes([names[i : i + 2] for names in four]) for i in (0, 2))
    differences = [(sub[a, c], sub[b, d]) for a, b, c, d in four]
    for reduction, results in (("add", sums), ("sub", differences), ("mul", products)):
        for result in _reduce_pairs(data, updates, reduction):
            assert bits_equal(result, complexes(results))


@pytest.mark.parametrize("dtype", ORDERED + COMPLEX, ids=str)
def test_duplicates_are_reduced_in_row_major_order(dtype: np.dtype) -> None:
    rng = np.random.default_rng(9)
    for reduction in reductions_of(dtype):
        data, updates = random_values(rng, dtype, (5,)), random_values(rng, dtype, (300,))
        if dtype in COMPLEX:
            data, updates = np.nan_to_num(data), np.ones_like(updates)
        indices = rng.integers(-5, 5, (300, 1))
        expected = data.copy()
        with np.errstate(all="ignore"):
            if reduction == "none":
                for i, location in enumerate(indices[:, 0] % 5):
                    expected[location : location + 1] = updates[i : i + 1]
            else:
                ufunc_of(dtype, reduction).at(expected, indices[:, 0], updates)
                if reduction == "mean":
                    touched, counts = np.unique(indices[:, 0] % 5, return_counts=True)
                    expected[touched] = mean_of(expected[touched], counts + 1)
            result = reference.scatter_nd(data, indices, updates, reduction)
            assert results_match(result, expected, reduction)
            axis_result = reference.scatter_elements(data, indices[:, 0], updates, 0, reduction)
            assert bits_equal(axis_result, result)


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d.names is None], ids=str)
def test_big_endian_is_the_same_values_in_its_own_order(dtype: np.dtype) -> None:
    rng = np.random.default_rng(10)
    data, updates = random_values(rng, dtype, (4, 3)), random_values(rng, dtype, (6, 3))
    indices = rng.integers(-4, 4, (6, 1))
    swapped_dtype = dtype.newbyteorder("S")
    swapped = [array.astype(swapped_dtype) for array in (data, updates)]
    big = indices.astype(">i8")
    assert bits_equal(
        reference.gather_nd(swapped[0], big),
        reference.gather_nd(data, indices).astype(swapped_dtype),
    )
    for reduction in reductions_of(dtype):
        expected = reference.scatter_nd(data, indices, updates, reduction)
        actual = reference.scatter_nd(swapped[0], big, swapped[1], reduction)
        assert bits_equal(actual, expected.astype(swapped_dtype))
        assert bits_equal(reference.scatter_nd(data, big, swapped[1], reduction), expected)


def test_copies_preserve_bytes() -> None:
    bools = np.array([0, 1, 2, 255], np.uint8).view("?")
    assert reference.gather_nd(bools, np.array([[3], [2]])).tobytes() == b"\xff\x02"
    assert reference.scatter_nd(bools, np.array([[0]]), bools[3:]).tobytes() == b"\xff\x01\x02\xff"
    reduced = reference.scatter_nd(bools, np.array([[2], [0]]), bools[2:], "max")
    assert reduced.tobytes() == b"\x01\x01\x01\xff"
    rng = np.random.default_rng(11)
    for dtype in COPY_ONLY:
        data = random_values(rng, dtype, (7,))
        indices = np.array([6, 0, -1, 3])
        expected = b"".join(raw_bytes(data[i : i + 1]) for i in (6, 0, 6, 3))
        assert raw_bytes(reference.gather_elements(data, indices)) == expected


def test_bounds_error_names_the_first_bad_index() -> None:
    data = np.zeros((2, 3, 4))
    indices = np.array([[[0, 0], [2, -5]], [[-4, 4], [0, 0]]])
    with pytest.raises(BoundsError) as excinfo:
        reference.gather_nd(data, indices, 1)
    error = excinfo.value
    assert (error.position, error.component, error.axis) == ((0, 1), 1, 2)
    assert (error.value, error.size, error.count, error.total) == (-5, 4, 2, 4)
    with pytest.raises(IndexError) as excinfo:
        reference.gather_elements(data, np.full((1, 1, 2), 2**63, np.uint64), -1)
    error = excinfo.value
    assert (error.position, error.component, error.axis) == ((0, 0, 0), None, 2)
    assert (error.value, error.count) == (2**63, 2)
    with pytest.raises(IndexError):
        reference.gather_nd(np.zeros((0, 3)), np.array([[0]]))
    with pytest.raises(IndexError):
        reference.gather_nd(np.zeros((2, 0)), np.array([[2]]))


@pytest.mark.parametrize(
    ("error", "operator", "arguments"),
    [
        (TypeError, "gather_nd", ([1, 2], [[0.0]])),
        (TypeError, "gather_nd", ([1, 2], [[True]])),
        (TypeError, "gather_nd", ([{}], [[0]])),
        (TypeError, "gather_nd", ([1, 2], [[0]], 0.5)),
        (TypeError, "scatter_nd", ([1, 2], [[0]], [1.0])),
        (TypeError, "scatter_nd", (["a"], [[0]], ["b"], "add")),
        (TypeError, "scatter_nd", ([1j], [[0]], [1j], "max")),
        (ValueError, "gather_nd", (1, [0])),
        (ValueError, "gather_nd", ([1], 0)),
        (ValueError, "gather_nd", ([1, 2], [[0]], 1)),
        (ValueError, "gather_nd", ([1, 2], [[0]], -1)),
        (ValueError, "gather_nd", ([[1], [2]], [[0]], 1)),
        (ValueError, "gather_nd", ([1, 2], [[0, 0]])),
        (ValueError, "gather_nd", ([1, 2], np.zeros((3, 0), int))),
        (ValueError, "scatter_nd", ([1, 2], [[0], [1]], [1])),
        (ValueError, "scatter_nd", ([1, 2], [[0], [1]], [[1], [1]])),
        (ValueError, "scatter_nd", ([1, 2], [[0]], [1], "avg")),
        (ValueError, "gather_elements", ([1, 2], [[0]])),
        (ValueError, "gather_elements", ([1, 2], [0], 1)),
        (ValueError, "gather_elements", ([1, 2], [0], -2)),
        (ValueError, "gather_elements", ([[1, 2]], [[0], [0]], 1)),
        (ValueError, "scatter_elements", ([1, 2], [0], [1, 2])),
        (ValueError, "scatter_elements", ([[1, 2]], [[0, 0, 0]], [[1, 1, 1]])),
    ],
)
def test_the_reference_refuses(error: type[Exception], operator: str, arguments: tuple) -> None:
    with pytest.raises(error):
        getattr(reference, operator)(*arguments)


def test_the_text_of_k_0_and_0_d_updates() -> None:
    data = np.array([[1, 2], [3, 4]])
    whole = np.array([[[5, 6], [7, 8]], [[1, 1], [1, 1]]])
    empty = np.zeros((2, 0), np.int64)
    assert np.array_equal(reference.scatter_nd(data, empty, whole, "add"), [[7, 9], [11, 13]])
    out = reference.scatter_nd(data, np.array([1, 0]), np.array(9))
    assert np.array_equal(out, [[1, 2], [9, 4]])
    assert data[1, 0] == 3


def results_of_operators(dtype: np.dtype, reduction: str, order: str) -> list[np.ndarray]:
    """Return results of the operators on fixed arrays of several kinds."""
    rng = np.random.default_rng(12)

    def make_array(*shape: int) -> np.ndarray:
        return np.asarray(random_values(rng, dtype, shape), order=order)

    rows, pairs, axis_result = (
        np.asarray(rng.integers(-3, 3, shape), order=order) for shape in ((5, 4, 1), (9, 2), (4, 5))
    )
    data = make_array(3, 5)
    return [
        reference.scatter_nd(data, rows, make_array(5, 4, 5), reduction),
        reference.scatter_nd(data, pairs, make_array(9), reduction),
        reference.scatter_nd(data, np.zeros((2, 0), int), make_array(2, 3, 5), reduction),
        reference.scatter_elements(data, axis_result, make_array(4, 5), 0, reduction),
        reference.gather_nd(data, pairs),
        reference.gather_elements(data, axis_result, 0),
    ]


@pytest.mark.parametrize(("dtype", "order"), [*zip(ARITHMETIC, "CF" * 8, strict=False)], ids=str)
def test_the_size_of_blocks_changes_no_bit(
    dtype: np.dtype, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reduction in reductions_of(dtype):
        expected = results_of_operators(dtype, reduction, order)
        for tuples, block_bytes in ((1, 1), (2, 24), (7, 1 << 20), (1 << 12, 40)):
            with monkeypatch.context() as patched:
                patched.setattr(blocks, "TUPLES", tuples)
                patched.setattr(blocks, "BLOCK_BYTES", block_bytes)
                assert all(map(bits_equal, results_of_operators(dtype, reduction, order), expected))


@pytest.mark.parametrize(("rank", "order"), [(33, "C"), (64, "F")])
def test_many_axes(rank: int, order: str) -> None:
    data = np.arange(6.0).reshape([1] * (rank - 2) + [2, 3], order=order)
    indices = np.zeros((2, rank), np.int64)
    indices[1, -2:] = -1
    first, last = data[(0,) * rank], data[(-1,) * rank]
    assert reference.gather_nd(data, indices).tolist() == [first, last]
    added = reference.scatter_nd(data, indices, np.ones(2), "add")
    assert (added[(0,) * rank], added[(-1,) * rank]) == (first + 1, last + 1)
    zeros = np.zeros(data.shape, np.int64, order)
    assert bits_equal(reference.gather_elements(data, zeros, 0), data)
    assert bits_equal(reference.scatter_elements(data, zeros, data, 0, "add"), 2 * data)
    with pytest.raises(BoundsError, match=r"size 3: valid -3..2"):
        reference.gather_elements(data, zeros + 3, -1)
