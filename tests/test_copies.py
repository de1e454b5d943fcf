"""Scatter by copies, one per thread: used for associative reductions, with equal bits."""

from itertools import product

import numpy as np
import pytest
from strategies import ARITHMETIC, bits_equal, reductions_of
from test_determinism import TEAMS, spy

import ndtool
from ndtool.engine import scatters, tuning
from ndtool.errors import BoundsError
from ndtool.rules import dtypes, reductions
from ndtool.rules.reductions import identity

KINDS = [
    (dtype, reduction)
    for dtype in ARITHMETIC
    for reduction in reductions_of(dtype)
    if identity(dtypes.from_numpy(dtype), reduction)
]
EACH = pytest.mark.parametrize(("dtype", "reduction"), KINDS, ids=str)


def special_values(dtype: np.dtype) -> np.ndarray:
    """Return special elements: extremes, both zeros, NaNs of many payloads."""
    bits = 8 * dtype.itemsize
    unsigned = np.dtype(f"u{dtype.itemsize}")
    top, one = 1 << (bits - 1), 1
    patterns = [0, one, 2, 3, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1, 5 * top // 8]
    infinity = reductions._INFINITY.get(dtype.name, 0)
    quiet = infinity + infinity // 2 & ~infinity if infinity else 0
    for payload in (0, 1, 2, 3, quiet, quiet + 1, quiet + 7):
        patterns += [infinity + payload, top + infinity + payload]
    return np.array([p % (2 * top) for p in patterns], unsigned).view(dtype)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr("ndtool.machine.threads.WORTH", 1)
    spy(monkeypatch, scatters, "_by_copies", lambda name, _: seen.append(name))
    return seen


def test_only_what_is_rounded_or_normalised_has_no_identity() -> None:
    without = {
        (dtype.name, reduction)
        for dtype in ARITHMETIC
        for reduction in reductions_of(dtype)
        if reduction != "none" and (dtype, reduction) not in KINDS
    }
    rounded = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
    without = {(name, op) for name, op in without if op not in ("sub", "div", "mean")}
    assert without == {(name, op) for name in rounded for op in ("add", "mul")} | {
        ("bool", op) for op in ("add", "mul", "max", "min")
    }


@EACH
def test_an_identity_changes_nothing_on_either_side(dtype: np.dtype, reduction: str) -> None:
    values = special_values(dtype)
    neutral = np.frombuffer(identity(dtypes.from_numpy(dtype), reduction), dtype)
    identities = neutral.repeat(len(values))
    everywhere = np.arange(len(values))[:, None]
    for data, updates in ((values, identities), (identities, values)):
        assert bits_equal(ndtool.scatter_nd(data, everywhere, updates, reduction), values)


@EACH
def test_the_bits_of_one_thread(
    dtype: np.dtype, reduction: str, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, values = np.random.default_rng(51), special_values(dtype)
    for slots, run, tuples, piece in ((5, (), 999, 500), (3, (2, 2), 300, 1 << 26)):
        monkeypatch.setattr(tuning, "WORK_ITEM", piece)
        indices = rng.integers(-slots, slots, (tuples, 1))
        for some in (values, values[:4], values[-4:]):
            data, updates = rng.choice(some, (slots, *run)), rng.choice(some, (tuples, *run))
            one = ndtool.scatter_nd(data, indices, updates, reduction, threads=1)
            assert not taken
            for threads, in_place in product((2, 3, TEAMS[-1]), (False, True)):
                work = data.copy()
                out = work if in_place else None
                got = ndtool.scatter_nd(work, indices, updates, reduction, out=out, threads=threads)
                assert bits_equal(got, one), (slots, run, threads)
                assert taken
                taken.clear()


def test_elements_of_the_only_line(taken: list[str]) -> None:
    rng = np.random.default_rng(52)
    data, updates = rng.integers(-9, 9, (2, 9000), "i4")
    indices = rng.integers(-99, 99, 9000)
    expected = data[:99].copy()
    np.add.at(expected, indices, updates)
    result = ndtool.scatter_elements(data[:99], indices, updates, 0, "add", threads=3)
    assert bits_equal(result, expected)
    assert taken


@pytest.mark.parametrize("position", [0, 499, 999])
def test_a_bad_index_changes_nothing(
    position: int, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "TEMPORARY_OUTPUT", 0)
    data, indices, updates = np.arange(7), np.full((1000, 1), 3), np.ones(1000, int)
    indices[position] = 7
    for threads in (2, 3):
        with pytest.raises(BoundsError, match="= 7"):
            ndtool.scatter_nd(data, indices, updates, "add", out=data, threads=threads)
        assert bits_equal(data, np.arange(7))
    assert taken


def test_bytes_of_unselected_bools_are_preserved(taken: list[str]) -> None:
    data = np.array([7, 7, 0, 1], np.uint8).view(bool)
    indices, updates = np.full((1000, 1), 1), np.zeros(1000, bool)
    result = ndtool.scatter_nd(data, indices, updates, "max", threads=2)
    assert result.view(np.uint8).tolist() == [7, 1, 0, 1]
    assert not taken
