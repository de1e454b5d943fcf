"""Invalid calls: refused as the reference refuses them, and nothing is written."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from strategies import (
    ALL_DTYPES,
    ARITHMETIC,
    REDUCTIONS,
    Case,
    bits_equal,
    call,
    cases,
    many,
    note_attributes,
    random_values,
    raw_bytes,
    reductions_of,
    threads_used,
    to_layout,
)
from thresholds import patched_thresholds

import ndtool
from ndtool.analysis.oracle import reference
from ndtool.engine import tuning
from ndtool.errors import BoundsError, NdtoolError

# Invalid inputs: one violation at a time, for which both sides must raise the same kind.


def _index_out_of_bounds(case: Case, draw: st.DataObject) -> Case | None:
    data, indices, *updates = case.arrays
    bad = np.array(indices)
    if not bad.size:
        return None
    info = np.iinfo(indices.dtype)
    expected = [-1 - size for size in data.shape] + list(data.shape)
    expected += [int(info.min), int(info.max), 2**32, 2**62 + 2**61]
    for position in draw.draw(st.lists(st.integers(0, bad.size - 1), min_size=1, max_size=4)):
        value = draw.draw(st.sampled_from([v for v in expected if info.min <= v <= info.max]))
        bad[np.unravel_index(position, bad.shape)] = value
    return case._replace(arrays=(data, bad, *updates))


def _indices_of_another_type(case: Case, draw: st.DataObject) -> Case:
    data, indices, *updates = case.arrays
    code = draw.draw(st.sampled_from(["f8", "f2", "?", "c8", "S3", "U2", "m8[s]", "V8"]))
    return case._replace(arrays=(data, np.zeros(indices.shape, code), *updates))


def _updates_of_another_type(case: Case, draw: st.DataObject) -> Case | None:
    if len(case.arrays) < 3:
        return None
    data, indices, updates = case.arrays
    other_dtype = draw.draw(
        st.sampled_from([d for d in ALL_DTYPES if d != data.dtype.newbyteorder("=")])
    )
    return case._replace(arrays=(data, indices, np.zeros(updates.shape, other_dtype)))


def _updates_of_another_shape(case: Case, draw: st.DataObject) -> Case | None:
    if len(case.arrays) < 3:
        return None
    data, indices, updates = case.arrays
    shape = list(updates.shape)
    if draw.draw(st.booleans()) or not shape:
        shape.insert(draw.draw(st.integers(0, len(shape))), draw.draw(st.integers(0, 2)))
    else:
        shape[draw.draw(st.integers(0, len(shape) - 1))] += draw.draw(st.sampled_from((1, 2)))
    return case._replace(arrays=(data, indices, np.zeros(shape, updates.dtype)))


def _rank_0(case: Case, draw: st.DataObject) -> Case:
    arrays = list(case.arrays)
    broken = draw.draw(st.integers(0, 1))
    arrays[broken] = np.zeros((), arrays[broken].dtype)
    return case._replace(arrays=tuple(arrays))


def _argument_out_of_range(case: Case, draw: st.DataObject) -> Case:
    arguments = dict(case.arguments)
    r, q = case.arrays[0].ndim, case.arrays[1].ndim
    wrong: dict[str, list[Any]] = {
        "axis": [r, -r - 1, 2**40],
        "batch_dims": [-1, min(q, r), 10, 2**40],
        "reduction": ["avg", "", "ADD", "means"],
    }
    name = draw.draw(st.sampled_from(sorted(wrong.keys() & arguments.keys())))
    arguments[name] = draw.draw(st.sampled_from(wrong[name]))
    return case._replace(arguments=arguments)


def _reduction_without_meaning(case: Case, draw: st.DataObject) -> Case | None:
    data = case.arrays[0]
    if "reduction" not in case.arguments or data.dtype.newbyteorder("=") in ARITHMETIC[:-2]:
        return None
    has = reductions_of(data.dtype.newbyteorder("="))
    choices = [name for name in REDUCTIONS if name not in has]
    arguments = {**case.arguments, "reduction": draw.draw(st.sampled_from(choices))}
    return case._replace(arguments=arguments)


def _longer_axis(case: Case, draw: st.DataObject) -> Case | None:
    """Repeat indices along one axis: too long off the axis, unequal batches, too few updates."""
    data, indices, *updates = case.arrays
    if not indices.ndim:
        return None
    axis = draw.draw(st.integers(0, indices.ndim - 1))
    longer = np.concatenate([indices] * 2 + [np.zeros_like(indices)], axis=axis)
    return case._replace(arrays=(data, longer, *updates))


BREAKAGES = (
    _index_out_of_bounds, _index_out_of_bounds, _indices_of_another_type,
    _updates_of_another_type, _updates_of_another_shape, _rank_0, _argument_out_of_range,
    _reduction_without_meaning, _longer_axis,
)  # fmt: skip


def refusal(module: Any, case: Case, **options: Any) -> NdtoolError | np.ndarray:
    """Return the error that a call raises, or its result."""
    try:
        return call(module, case, **options)
    except NdtoolError as error:
        return error


@many
@given(cases, st.sampled_from(BREAKAGES), threads_used, st.data())
def test_both_refuse(case: Case, breakage: Any, threads: int, draw: st.DataObject) -> None:
    broken = breakage(case, draw)
    assume(broken is not None)
    note_attributes(broken)
    before = [raw_bytes(array) for array in broken.arrays]
    expected = refusal(reference, broken)
    actual = refusal(ndtool, broken, threads=threads)
    assert [raw_bytes(array) for array in broken.arrays] == before
    if isinstance(expected, np.ndarray):  # not every change is a violation
        assert isinstance(actual, np.ndarray)
        assert bits_equal(actual, expected)
    else:
        assert type(actual) is type(expected)
        assert not isinstance(expected, BoundsError) or actual.fields() == expected.fields()


@pytest.mark.usefixtures("fast_small_calls", "small_thresholds")
@many
@given(cases, threads_used, st.data())
def test_a_bad_index_leaves_out_untouched(case: Case, threads: int, draw: st.DataObject) -> None:
    broken = _index_out_of_bounds(case, draw)
    assume(broken is not None)
    assume(isinstance(refusal(reference, broken), BoundsError))
    shape = call(reference, case).shape
    out = random_values(np.random.default_rng(1), case.arrays[0].dtype, shape)
    before = raw_bytes(out)
    sizes = {(tuning, "TEMPORARY_OUTPUT"): draw.draw(st.sampled_from((0, 1 << 16)))}
    with patched_thresholds(sizes), pytest.raises(BoundsError):
        call(ndtool, broken, out=out, threads=threads)
    assert raw_bytes(out) == before


@many
@given(cases, st.data())
def test_a_wrong_out_is_refused(case: Case, draw: st.DataObject) -> None:
    expected = call(reference, case)
    kind = draw.draw(st.sampled_from(("shape", "rank", "dtype", "read-only", "list")))
    right = np.zeros(expected.shape, expected.dtype)
    wrong: Any = {
        "shape": np.zeros(tuple(d + 1 for d in expected.shape) or (1,), expected.dtype),
        "rank": right[None],
        "dtype": np.zeros(expected.shape, "f4" if expected.dtype != "f4" else "f8"),
        "read-only": to_layout(right, "read-only"),
        "list": right.tolist(),
    }[kind]
    with pytest.raises((TypeError, ValueError)):
        call(ndtool, case, out=wrong)
    if isinstance(wrong, np.ndarray):
        assert not any(raw_bytes(wrong))


def test_out_that_overlaps_an_input_is_refused() -> None:
    base, separate = np.arange(64), np.ones((8, 4), np.int64)
    data, shifted = base[:32].reshape(8, 4), base[4:36].reshape(8, 4)
    indices, square = np.arange(8).reshape(8, 1), np.zeros((8, 4), np.int64)
    before = base.tobytes()
    calls: list[tuple[Any, tuple[Any, ...], Any]] = [
        (ndtool.scatter_nd, (data, indices, shifted), data),  # in place, but updates overlap too
        (ndtool.gather_elements, (separate, square), square),
        *((ndtool.scatter_nd, (data, indices, separate), out) for out in (shifted, data[::-1])),
    ]
    for out in (data, shifted, data[::-1], base[3:35].reshape(8, 4)):
        calls += [
            (ndtool.gather_nd, (data, indices), out),
            (ndtool.gather_elements, (data, square), out),
            (ndtool.scatter_nd, (separate, indices, data), out),
            (ndtool.scatter_elements, (separate, square, data), out),
        ]
    for operator, arrays, out in calls:
        with pytest.raises(ValueError, match="overlap"):
            operator(*arrays, out=out)
    assert base.tobytes() == before
    interleaved = np.arange(64).reshape(8, 8)
    gathered = ndtool.gather_nd(interleaved[:, ::2], indices, out=interleaved[:, 1::2])
    assert bits_equal(gathered, np.arange(64).reshape(8, 8)[:, ::2])


def test_out_that_may_overlap_is_refused() -> None:
    """An exact test of overlap would take too long."""
    memory = np.zeros(1 << 23, np.uint8)
    steps = np.random.default_rng(0).integers(1 << 17, 1 << 19, 10)
    apart = [2000 * 2**i + 7 * i for i in range(10)]  # no element of out overlaps another
    data, out = (as_strided(memory[i:], (2,) * 10, s) for i, s in enumerate((steps, apart)))
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(data, out, max_work=1 << 16)
    with pytest.raises(ValueError, match="out overlaps data"):
        ndtool.gather_elements(data, np.zeros(data.shape, np.int8), out=out)
