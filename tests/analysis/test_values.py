"""Elements as text: correct for any bytes."""

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.format import descr_to_dtype, dtype_to_descr
from strategies import ALL_DTYPES, EXAMPLES, many, seeds, shapes, void_view

from ndtool.analysis import preview, values, verify
from ndtool.errors import DifferenceError, UsageError
from ndtool.rules import dtypes
from ndtool.runs.calls import Request

NO_TEXT = np.array([0x110000, ord("b"), 0xFFFFFFFF, 0], "<u4")
ALIGNED = np.dtype([("f1", "i1"), ("b", "<i4")], align=True)


def preview_of(array: np.ndarray, title: str) -> str:
    """Return a preview of an existing array."""
    window = preview.choose_window(array.shape)
    elements = np.asarray(void_view(array)[np.ix_(*window.positions)])
    return preview.window_text(title, elements.view(array.dtype), window)


def by_numpy(array: np.ndarray) -> str:
    return np.array2string(
        array, max_line_width=80, threshold=100, edgeitems=3, suppress_small=True
    )


@pytest.mark.parametrize("dtype", ["i8", ">f4", "<U3", "M8[D]", ALIGNED, [("a", "i2", (2,))]])
def test_a_preview_is_what_numpy_writes(dtype: Any) -> None:
    shapes = ((), (1,), (100,), (101,), (3, 40), (7, 7, 7), (2, 3, 50), (0, 9), (1, 200, 1))
    for number, shape in enumerate(shapes):
        array = np.zeros(shape, dtype)
        if array.dtype.names is None:
            order: Any = "CF"[number % 2]
            array = np.arange(array.size).astype(dtype).reshape(shape, order=order)
        assert preview_of(array, "title") == f"title\n{by_numpy(array)}\n"


@pytest.mark.parametrize("order", "<>")
def test_invalid_characters_are_escaped(order: str) -> None:
    codes = NO_TEXT.astype(f"{order}u4")
    single, double = codes.view(f"{order}U1"), codes.view(f"{order}U2")
    assert "'\\\\U00110000' 'b' '\\\\Uffffffff' ''" in preview_of(single, "title")
    assert "'\\\\U00110000b' '\\\\Uffffffff'" in preview_of(double, "title")
    assert values.element(double[0, ...]) == "\\U00110000b"
    record = codes.view([("a", f"{order}U1", (2,)), ("n", [("b", f"{order}U1")]), ("", "V4")])
    assert "['\\\\U00110000', 'b'], ('\\\\Uffffffff',)" in preview_of(record, "title")
    assert "('\\\\Uffffffff',)" in values.element(record[0, ...])
    many_texts = np.tile(single, 100)
    assert "..." in preview_of(many_texts, "title")


def test_elements_unknown_to_numpy_are_shown_as_bytes() -> None:
    dates = np.array([1, 2]).view("<M8")
    assert r"b'\x01\x00\x00\x00\x00\x00\x00\x00'" in preview_of(dates, "title")
    assert values.element(dates[1, ...]) == r"b'\x02\x00\x00\x00\x00\x00\x00\x00'"
    axes = descr_to_dtype([("a", "|i1", (1,) * 40)])
    assert r"b'\x00'" in preview_of(np.zeros((1,) * 40, axes), "title")
    rows = descr_to_dtype([("a", "<i4", (2**31 - 1, 0)), ("b", "|i1")])
    assert "([], 0)" in preview_of(np.zeros(2, rows), "title")
    assert values.element(np.zeros((), "S1000")) == "1000 bytes"


TEXTS = [np.dtype(code) for code in ("<U3", ">U1", "S2", "<M8", ">m8[25s]")]


@settings(many, max_examples=EXAMPLES // 3)
@given(st.sampled_from(ALL_DTYPES + TEXTS), shapes(0, 3), seeds)
def test_any_bytes_of_any_type_are_shown(
    element_type: np.dtype, shape: tuple[int, ...], seed: int
) -> None:
    is_record = element_type.names is not None
    from_numpy = dtypes.from_numpy
    dtype = (
        dtypes.from_descr(dtype_to_descr(element_type)) if is_record else from_numpy(element_type)
    )
    count = int(np.prod(shape))
    raw = np.random.default_rng(seed).bytes(count * dtype.itemsize)
    array = values.as_array(memoryview(raw), dtype, shape)
    lines = preview_of(array, "title").splitlines()
    assert lines[0].endswith("title")
    assert all(line.isprintable() and len(line) <= 80 for line in lines)
    if count:
        assert values.element(array[(*(0,) * len(shape), ...)])


def save_array(folder: Path, **arrays: Any) -> dict[str, str]:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: str(folder / f"{name}.npy") for name in arrays}


def test_records_with_gaps_are_verified(tmp_path: Path) -> None:
    data = np.zeros(3, ALIGNED)
    data["b"] = 1, 2, 3
    names = save_array(tmp_path, data=data, indices=[[2], [0]], output=data[[2, 0]])
    with verify.open_call(Request("gather_nd", **names)) as call:
        compared = verify.verify(call)
    assert compared.comparison is not None
    assert compared.comparison.description == "struct[2]"
    names = save_array(tmp_path, data=data, indices=[[2], [0]], output=data[[2, 1]])
    with (
        verify.open_call(Request("gather_nd", **names)) as call,
        pytest.raises(DifferenceError, match="in 1 of 2 elements") as excinfo,
    ):
        verify.verify(call)
    assert excinfo.value.places[0].endswith("output.npy[1] = (0, 2) (bytes 0000000002000000)")


def test_types_of_ml_dtypes() -> None:
    for name, size in dtypes.EXTENSION_DTYPES.items():
        if hasattr(ml_dtypes, name):  # an older one lacks some of the types
            array = values.as_array(memoryview(bytes(3 * size)), dtypes.from_name(name), (3,))
            assert array.dtype == np.dtype(getattr(ml_dtypes, name))
            assert dtypes.from_numpy(array.dtype) == dtypes.from_name(name)


@pytest.mark.parametrize("package", [None, object()], ids=["none", "an old one"])
def test_a_preview_of_a_type_without_its_package(monkeypatch: Any, package: object) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", package)
    with pytest.raises(UsageError, match=r"bfloat16 .* needs the package ml_dtypes") as excinfo:
        values.as_array(memoryview(bytes(2)), dtypes.from_name("bfloat16"), (1,))
    assert excinfo.value.hint == "pip install --upgrade 'ndtool[ml]'"
