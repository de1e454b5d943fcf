"""Previews: the elements shown have the bits of a complete run; only they are computed."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from command import save
from hypothesis import given
from hypothesis import strategies as st
from npyfile import write_sparse
from strategies import Array, Case, bits_equal, call, cases, many, note_attributes, void_view

from ndtool.analysis import preview
from ndtool.analysis.oracle import reference
from ndtool.rules import dtypes, inference
from ndtool.rules.inference import Inference, Input
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall, Request

LIMITS = {"_MAX_SHOWN": (3, 20, 1000), "_MAX_COMPLETE": (2, 100)}


@pytest.fixture
def limits() -> Iterator[pytest.MonkeyPatch]:
    """Yield a function that sets the limits of previews."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def infer_call(operator: str, arrays: dict[str, Array], attributes: Attributes) -> Inference:
    inputs = {
        role: Input(role, dtypes.from_numpy(array.dtype), array.shape)
        for role, array in arrays.items()
    }
    return inference.infer(operator, inputs, attributes)


def output_window(whole: Array, seen: preview.Window) -> Array:
    """Return a window of the output of a complete run."""
    selection = np.ix_(*(np.array(axis_positions, int) for axis_positions in seen.positions))
    bytes_of_each = void_view(whole)  # a copy of records drops the padding between fields
    return (bytes_of_each[selection] if whole.ndim else bytes_of_each).view(whole.dtype)


@pytest.mark.slow("random cases of previews")
@many
@given(case=cases, **{name: st.sampled_from(values) for name, values in LIMITS.items()})
def test_previews_equal_the_reference(
    limits: pytest.MonkeyPatch, case: Case, **values: int
) -> None:
    note_attributes(case)
    for name, value in values.items():
        limits.setattr(preview, name, value)
    expected = call(reference, case)
    arrays = dict(zip(OPERATORS[case.operator].inputs, case.arrays, strict=True))
    output_inference = infer_call(case.operator, arrays, Attributes(**case.arguments))
    window = preview.choose_window(expected.shape)
    elements = preview.compute_elements(
        output_inference, {**arrays, "indices": arrays["indices"].copy("C")}, window
    )
    assert elements.shape == window.shape
    assert bits_equal(elements, output_window(expected, window))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (8, 9), (1001,), (11, 11), (2,) * 64])
def test_windows_show_few_elements_and_all_of_small_arrays(shape: tuple[int, ...]) -> None:
    window = preview.choose_window(shape)
    assert np.prod(window.shape) <= 1000
    for size, axis_positions in zip(shape, window.positions, strict=True):
        assert list(axis_positions) == sorted(set(axis_positions))
        assert set(axis_positions) <= set(range(size))
    if np.prod(shape, dtype=object) <= 100:
        assert (window.shape, window.leading_axes, window.is_summarized) == (shape, 0, False)
    else:
        assert window.leading_axes or window.is_summarized


def traced_preview(request: Request) -> tuple[str, int]:
    """Return the preview of a run, and Python's peak memory."""
    tracemalloc.start()
    try:
        with OpenCall(request) as call:
            return preview.text(operands.validate(call)), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_preview_of_8_gib_takes_little_memory(workdir: Any) -> None:
    write_sparse("data.npy", "<f4", (1 << 20, 1 << 11))
    write_sparse("fortran.npy", ">f4", (1 << 20, 1 << 11), True)
    save(idx=np.arange(1 << 20)[::-1, None], few=np.zeros((2, 1), int))
    save(upd=np.ones((2, 1 << 11), "f4"))
    for data in ("data.npy", "fortran.npy", "ones:float32[1048576,2048]"):
        text, peak_memory = traced_preview(Request("gather_nd", data, "idx.npy"))
        assert text.startswith("float32[1048576,2048]\n")
        assert peak_memory < 1 << 23
    text, peak_memory = traced_preview(Request("scatter_nd", "data.npy", "few.npy", "upd.npy"))
    assert text.splitlines()[1].startswith("[[1. 1. 1.")
    assert peak_memory < 1 << 23
