"""ndtool.dask: the operators on dask arrays, with the bits of the sequential loop."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from strategies import EXAMPLES, Case, cases, raw, same, scatter_elements_cases, scatter_nd_cases

import ndtool
from ndtool.analysis.oracle import reference

da = pytest.importorskip("dask.array", exc_type=ImportError)
import dask  # noqa: E402

import ndtool.dask as lazy  # noqa: E402

PACKED = np.dtype([("a", "i1"), ("b", "i8")])
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with dask.config.set(scheduler="sync"):
        yield


@st.composite
def chunks_of(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Draw the chunks of an array: regular, or of any sizes, 0 included."""
    return tuple(draw(_sizes(size)) for size in shape)


@st.composite
def _sizes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    step = draw(st.integers(1, 4))
    if size and draw(st.booleans()):
        return tuple(min(step, size - at) for at in range(0, size, step))
    ends = sorted(draw(st.lists(st.integers(0, size), max_size=3)))
    return tuple(b - a for a, b in zip([0, *ends], [*ends, size], strict=True))


@st.composite
def chunked(draw: st.DrawFn, case: Case) -> list[Any]:
    """Draw the inputs of a case as dask arrays, or as they are."""
    arrays: list[Any] = []
    for array in case.arrays:
        chunks = draw(chunks_of(array.shape))
        note(f"{array.dtype.str} {array.shape} chunks {chunks}")
        arrays.append(da.from_array(array, chunks) if draw(st.integers(0, 3)) else array)
    return arrays


@many
@given(st.data())
def test_any_call_has_the_bits_of_the_reference(data: st.DataObject) -> None:
    check(data, data.draw(cases))


@many
@given(st.data())
def test_updates_meet_in_row_major_order_of_all_indices(data: st.DataObject) -> None:
    check(data, data.draw(st.one_of(scatter_nd_cases(), scatter_elements_cases())))


def check(data: st.DataObject, case: Case) -> None:
    note(f"{case.operator} {case.arguments}")
    arrays = data.draw(chunked(case))
    before = [raw(array) for array in case.arrays]
    result = getattr(lazy, case.operator)(*arrays, **case.arguments)
    expected = getattr(reference, case.operator)(*case.arrays, **case.arguments)
    assert isinstance(result, da.Array)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    blocks = dask.compute(*result.to_delayed().flat)
    assert [block.shape for block in blocks] == list(product(*result.chunks))
    actual = np.asarray(result.compute())
    if expected.dtype.names and expected.dtype.isalignedstruct:  # dask copies no padding
        actual, expected = (one.astype(PACKED) for one in (actual, expected))
    assert same(actual, expected)
    assert [raw(array) for array in case.arrays] == before


@st.composite
def wild(draw: st.DrawFn) -> Case:
    """Draw a call with indices out of bounds, pads and duplicates, and any rules for them."""
    case = draw(cases)
    data, indices, *rest = case.arrays
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    limits = np.iinfo(indices.dtype)
    odd = [
        v for v in (*range(-9, 9), 2**63, limits.min, limits.max) if limits.min <= v <= limits.max
    ]
    some = rng.random(indices.shape) < draw(st.sampled_from((0, 0.1, 0.5)))
    indices = np.where(some, rng.choice(np.array(odd, indices.dtype), indices.shape), indices)
    modes = ("error", "clip", "wrap", "drop" if rest else "fill")
    rules: dict[str, Any] = {"out_of_bounds": draw(st.sampled_from(modes))}
    if draw(st.booleans()):
        rules["pad"] = draw(st.integers(-3, 3))
    if draw(st.booleans()):
        rules["negatives"] = False
    if (
        not rest
        and ("pad" in rules or rules["out_of_bounds"] == "fill")
        and data.dtype.kind in "if"
    ):
        rules["fill"] = draw(st.sampled_from((None, 7)))
    if rest and case.arguments["reduction"] == "none":
        rules["duplicates"] = draw(st.sampled_from(("last", "first", "error")))
    return Case(case.operator, (data, indices, *rest), {**case.arguments, **rules})


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or what its error says."""
    try:
        result = np.asarray(call())
    except ndtool.NdtoolError as error:
        return {name: value for name, value in error.fields().items() if name != "places"}
    return result.astype(PACKED) if result.dtype.isalignedstruct else result


@many
@given(st.data())
def test_indices_out_of_bounds_pads_and_duplicates_as_in_memory(data: st.DataObject) -> None:
    case = data.draw(wild())
    note(f"{case.operator} {case.arguments}")
    arrays = data.draw(chunked(case))
    expected = outcome(lambda: getattr(ndtool, case.operator)(*case.arrays, **case.arguments))
    actual = outcome(lambda: getattr(lazy, case.operator)(*arrays, **case.arguments).compute())
    if isinstance(expected, dict):
        assert actual == expected
    else:
        assert same(actual, expected)
