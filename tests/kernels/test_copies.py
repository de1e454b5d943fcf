"""Scatters into one copy of the output per thread: for associative reductions, with equal bits."""

from itertools import product

import numpy as np
import pytest
from strategies import ARITHMETIC, bits_equal, reductions_of
from test_determinism import THREAD_COUNTS, spy

import ndtool
from ndtool.engine import scatters, tuning
from ndtool.errors import BoundsError
from ndtool.rules import dtypes, reductions
from ndtool.rules.reductions import combining_identity

TYPES_AND_REDUCTIONS = [
    (dtype, reduction)
    for dtype in ARITHMETIC
    for reduction in reductions_of(dtype)
    if combining_identity(dtypes.from_numpy(dtype), reduction)
]
every_type_and_reduction = pytest.mark.parametrize(
    ("dtype", "reduction"), TYPES_AND_REDUCTIONS, ids=str
)


def special_values(dtype: np.dtype) -> np.ndarray:
    """Return special elements: extremes, both zeros, NaNs of many payloads."""
    bits = 8 * dtype.itemsize
    unsigned = np.dtype(f"u{dtype.itemsize}")
    sign_bit = 1 << (bits - 1)
    patterns = [
        0,
        1,
        2,
        3,
        sign_bit - 1,
        sign_bit,
        sign_bit + 1,
        2 * sign_bit - 2,
        2 * sign_bit - 1,
        5 * sign_bit // 8,
    ]
    infinity = reductions._INFINITY_BITS.get(dtype.name, 0)
    quiet = infinity + infinity // 2 & ~infinity if infinity else 0
    for payload in (0, 1, 2, 3, quiet, quiet + 1, quiet + 7):
        patterns += [infinity + payload, sign_bit + infinity + payload]
    return np.array([p % (2 * sign_bit) for p in patterns], unsigned).view(dtype)


@pytest.fixture
def copied_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr("ndtool.machine.threads.MIN_WORK", 1)
    spy(monkeypatch, scatters, "_by_copies", lambda name, _: calls.append(name))
    return calls


def test_only_rounded_or_normalized_reductions_lack_an_identity() -> None:
    without_identity = {
        (dtype.name, reduction)
        for dtype in ARITHMETIC
        for reduction in reductions_of(dtype)
        if reduction != "none" and (dtype, reduction) not in TYPES_AND_REDUCTIONS
    }
    rounded = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
    without_identity = {
        (name, op) for name, op in without_identity if op not in ("sub", "div", "mean")
    }
    assert without_identity == {(name, op) for name in rounded for op in ("add", "mul")} | {
        ("bool", op) for op in ("add", "mul", "max", "min")
    }


@every_type_and_reduction
def test_an_identity_changes_nothing_on_either_side(dtype: np.dtype, reduction: str) -> None:
    values = special_values(dtype)
    element = np.frombuffer(combining_identity(dtypes.from_numpy(dtype), reduction), dtype)
    identities = element.repeat(len(values))
    indices = np.arange(len(values))[:, None]
    for data, updates in ((values, identities), (identities, values)):
        assert bits_equal(ndtool.scatter_nd(data, indices, updates, reduction), values)


@every_type_and_reduction
def test_copies_give_the_bits_of_one_thread(
    dtype: np.dtype, reduction: str, copied_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, values = np.random.default_rng(51), special_values(dtype)
    for size, slice_shape, count, work_item in ((5, (), 999, 500), (3, (2, 2), 300, 1 << 26)):
        monkeypatch.setattr(tuning, "WORK_ITEM", work_item)
        indices = rng.integers(-size, size, (count, 1))
        for choices in (values, values[:4], values[-4:]):
            data, updates = (
                rng.choice(choices, (size, *slice_shape)),
                rng.choice(choices, (count, *slice_shape)),
            )
            expected = ndtool.scatter_nd(data, indices, updates, reduction, threads=1)
            assert not copied_calls
            for threads, in_place in product((2, 3, THREAD_COUNTS[-1]), (False, True)):
                work = data.copy()
                out = work if in_place else None
                result = ndtool.scatter_nd(
                    work, indices, updates, reduction, out=out, threads=threads
                )
                assert bits_equal(result, expected), (size, slice_shape, threads)
                assert copied_calls
                copied_calls.clear()


def test_copies_serve_scatter_elements_of_rank_1(copied_calls: list[str]) -> None:
    rng = np.random.default_rng(52)
    data, updates = rng.integers(-9, 9, (2, 9000), "i4")
    indices = rng.integers(-99, 99, 9000)
    expected = data[:99].copy()
    np.add.at(expected, indices, updates)
    result = ndtool.scatter_elements(data[:99], indices, updates, 0, "add", threads=3)
    assert bits_equal(result, expected)
    assert copied_calls


@pytest.mark.parametrize("position", [0, 499, 999])
def test_a_bad_index_changes_nothing(
    position: int, copied_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "TEMPORARY_OUTPUT", 0)
    data, indices, updates = np.arange(7), np.full((1000, 1), 3), np.ones(1000, int)
    indices[position] = 7
    for threads in (2, 3):
        with pytest.raises(BoundsError, match="= 7"):
            ndtool.scatter_nd(data, indices, updates, "add", out=data, threads=threads)
        assert bits_equal(data, np.arange(7))
    assert copied_calls


def test_bytes_of_unselected_bools_are_preserved(copied_calls: list[str]) -> None:
    data = np.array([7, 7, 0, 1], np.uint8).view(bool)
    indices, updates = np.full((1000, 1), 1), np.zeros(1000, bool)
    result = ndtool.scatter_nd(data, indices, updates, "max", threads=2)
    assert result.view(np.uint8).tolist() == [7, 1, 0, 1]
    assert not copied_calls
