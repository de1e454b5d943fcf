"""Out-of-bounds modes: every algorithm, type and layout has the reference's results."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import ndtool as command
from command import save
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case, bits_equal, raw_bytes, void_view
from ways import attributes_of, calls_with_attributes, expected_outcome, flat_sources, open_call

import ndtool
from ndtool.analysis import explain, preview
from ndtool.errors import BoundsError, DtypeError, RuleError, UsageError
from ndtool.rules import dtypes, inference, numbers
from ndtool.rules.inference import Input
from ndtool.rules.operators import OPERATORS

COUNTING = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_an_axis_of_size_0_has_no_valid_index() -> None:
    for mode in ("clip", "wrap"):
        with pytest.raises(BoundsError) as excinfo:
            ndtool.gather_nd(np.zeros((3, 0)), [[0, 5]], out_of_bounds=mode)
        assert (excinfo.value.axis, excinfo.value.size) == (1, 0)
    filled = ndtool.gather(np.zeros((3, 0), np.int8), [4, -1], axis=1, out_of_bounds="fill", fill=9)
    assert bits_equal(filled, np.full((3, 2), 9, np.int8))
    empty = np.zeros((0, 2))
    assert ndtool.scatter_nd(empty, [[4]], [[1.0, 2.0]], out_of_bounds="drop").shape == (0, 2)


def test_long_slices_are_filled_completely() -> None:
    data = np.ones((2, 300_001), np.int16)
    result = ndtool.gather(data, [5, 1, -3], out_of_bounds="fill", fill=300, threads=2)
    assert result.sum(axis=1).tolist() == [300 * 300_001, 300_001, 300 * 300_001]


@pytest.mark.parametrize(
    ("fill", "dtype", "expected"),
    [
        ("0", "U3", bytes(12)),
        (None, "float32", bytes(4)),
        ("-1", "int16", b"\xff\xff"),
        ("true", "bool", b"\1"),
        ("nan", "float32", np.float32("nan").tobytes()),
        ("-0.0", "float64", np.float64(-0.0).tobytes()),
        ("1e3", "float16", np.float16(1000).tobytes()),
        ("0.1", "float32", np.float32(0.1).tobytes()),
        ("1+2j", "complex64", np.complex64(1 + 2j).tobytes()),
        ("18446744073709551615", "uint64", b"\xff" * 8),
        ("9007199254740992", "float64", np.float64(2**53).tobytes()),
        ("-9007199254740994", "float64", np.float64(-(2**53) - 2).tobytes()),
        ("9007199254740993.0", "float64", np.float64(2**53).tobytes()),
        ("1e23", "float64", np.float64(1e23).tobytes()),
        ("16777217.", "float32", np.float32(2**24).tobytes()),
        ("256", "bfloat16", b"\x80\x43"),
        ("257.0", "bfloat16", b"\x80\x43"),
        ("2048+1j", "complex64", np.complex64(2048 + 1j).tobytes()),
        ("1e+22+16777217.0j", "complex64", np.complex64(1e22 + 16777217j).tobytes()),
    ],
)
def test_fill_values(fill: str, dtype: str, expected: bytes) -> None:
    assert numbers.encode_fill(fill, dtypes.from_name(dtype)) == expected


def test_bfloat16_is_rounded_as_ml_dtypes_rounds() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = dtypes.from_name("bfloat16")
    for value in (0.1, 1.00390625, 1.01171875, -3e38, 1e-40, float("inf"), 255.5, 256.5, 257.5):
        expected = np.array(value, np.float32).astype(ml_dtypes.bfloat16).tobytes()
        assert numbers.encode(repr(value), dtype) == expected
    assert np.isnan(np.frombuffer(numbers.encode("nan", dtype), ml_dtypes.bfloat16)[0])
    with pytest.raises(DtypeError):
        numbers.encode("3.4e38", dtype)


@pytest.mark.parametrize(
    ("fill", "dtype", "message"),
    [
        ("nan", "int8", r"an integer in -128\.\.127"),
        ("300", "uint8", r"0\.\.255"),
        ("1.5", "int32", "an integer"),
        ("2", "bool", r"0\.\.1"),
        ("1e300", "float32", "too large"),
        ("x", "float32", "a number"),
        ("1", "U3", "expected 0"),
        ("1_0", "float64", "a number"),
        ("1_0", "complex128", "a number"),
        ("9007199254740993", "float64", r"holds exactly; 9007199254740993\.0 is rounded"),
        ("+9007199254740993", "complex128", "holds exactly"),
        ("16777217", "float32", "holds exactly"),
        ("-2049", "float16", "holds exactly"),
        ("257", "bfloat16", "holds exactly"),
        ("16777217+1j", "complex64", "holds exactly"),
        ("1e+22+16777217j", "complex64", r"; 16777217\.0 is rounded"),
        ("1" + "0" * 400, "float64", "too large"),
    ],
)
def test_fill_values_that_a_type_cannot_hold_are_refused(
    fill: str, dtype: str, message: str
) -> None:
    with pytest.raises(DtypeError, match=message):
        numbers.encode(fill, dtypes.from_name(dtype))


def test_invalid_modes_are_refused() -> None:
    with pytest.raises(
        UsageError,
        match="a gather has no out_of_bounds='drop': expected one of error, clip, wrap, fill",
    ):
        ndtool.gather([1], [0], out_of_bounds="drop")
    with pytest.raises(
        UsageError,
        match="a scatter has no out_of_bounds='fill': expected one of error, clip, wrap, drop",
    ):
        ndtool.scatter_nd([1], [[0]], [1], out_of_bounds="fill")
    with pytest.raises(UsageError, match="fill requires out_of_bounds='fill' or pad"):
        ndtool.gather([1], [0], out_of_bounds="clip", fill=0)
    with pytest.raises(UsageError, match="expected one of error, clip, wrap, fill, drop"):
        ndtool.gather([1], [0], out_of_bounds="ignore")
    with pytest.raises(
        RuleError, match=r"onnx:13.* does not accept out_of_bounds='clip': no version"
    ):
        ndtool.gather_nd([1], [[0]], out_of_bounds="clip", spec="onnx:13")
    with pytest.raises(DtypeError, match="more than 64 bits cannot be wrapped"):
        ndtool.gather([1], [2**64], out_of_bounds="wrap")
    assert ndtool.gather([1, 2], [2**64, -(2**64)], out_of_bounds="clip").tolist() == [2, 1]
    with pytest.raises(DtypeError, match="fill is 'x': it must be a number"):
        ndtool.gather([1], [0], out_of_bounds="fill", fill="x")


def test_on_the_command_line(workdir: Path) -> None:
    save(data=COUNTING, idx=np.array([[0], [4], [-5], [1]]))
    arguments = ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy", "--out-of-bounds")
    completed = command(*arguments, "clip")
    assert completed.status == 0
    assert completed.err == (
        "warning: 2 of 4 index tuples are out of bounds, and clipped; the first: idx.npy[1, 0] = 4,"
        " data axis 0 of data.npy has size 4: valid -4..3; 4 equals the size of the axis: are the"
        " indices 1-based? Then: --index-base 1\n"
    )
    assert np.load("out.npy")[:, 0].tolist() == [0, 9, 0, 3]
    completed = command(*arguments, "fill", "--fill", "nan", "--json")
    assert completed.json["out_of_bounds"] == {
        "rule": "fill",
        "count": 2,
        "first": {"position": [1], "component": 0, "axis": 0, "value": 4, "size": 4},
    }
    assert np.isnan(np.load("out.npy")[:, 0]).tolist() == [False, True, True, False]
    assert command(*arguments, "wrap", "--quiet").err == ""
    assert np.load("out.npy")[:, 0].tolist() == [0, 0, 9, 3]
    assert command(*arguments[:-1]).status == 5
    assert command(*arguments, "drop").status == 2
    assert "clip, wrap, fill" in command(*arguments, "drop").err
    assert command(*arguments, "clip", "--spec", "onnx:13").status == 4
    completed = command(*arguments, "fill", "--dry-run", "--json")
    assert json.loads(completed.out)["out_of_bounds"]["count"] == 2
    save(fine=np.array([[0], [3]]))
    completed = command(
        "gather-nd", "data.npy", "fine.npy", "--out-of-bounds", "clip", "-o", "x.npy", "--json"
    )
    assert completed.json["out_of_bounds"] == {"rule": "clip", "count": 0, "first": None}


@given(calls_with_attributes())
def test_a_preview_shows_the_result_of_a_run(case: Case) -> None:
    expected = expected_outcome(case)
    if not isinstance(expected, np.ndarray) or "index_base" in case.arguments:
        return  # a run subtracts index_base where it reads the indices
    if "fill" in case.arguments and case.arrays[0].dtype.char in "gG":
        return  # a fill for a long double cannot be written as text
    roles = OPERATORS[case.operator].inputs
    arrays = dict(zip(roles, case.arrays, strict=True))
    inputs = {role: Input(role, dtypes.from_numpy(a.dtype), a.shape) for role, a in arrays.items()}
    attributes = attributes_of(case)
    window = preview.choose_window(expected.shape)
    elements = preview.compute_elements(
        inference.infer(case.operator, inputs, attributes), arrays, window
    )
    bits = void_view(expected)  # NumPy's selection of records drops their padding
    expected_elements = bits[np.ix_(*window.positions)] if expected.ndim else bits
    assert bits_equal(np.asarray(elements), np.asarray(expected_elements).view(expected.dtype))


@given(calls_with_attributes(), st.data())
def test_an_explanation_ends_with_the_result_of_a_run(case: Case, data: st.DataObject) -> None:
    expected = expected_outcome(case)
    if not isinstance(expected, np.ndarray) or not expected.size:
        return
    position = tuple(data.draw(st.integers(0, size - 1)) for size in expected.shape)
    with open_call(case, flat_sources(case)) as call:
        (element,) = explain.explain(call, [position]).elements
    assert element.value is not None
    assert raw_bytes(element.array) == raw_bytes(np.asarray(expected[(*position, ...)]))
    if case.arguments["out_of_bounds"] == "drop":
        assert all(len(step.normalized) == len(step.tuple or ()) for step in element.steps[1:])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex128"])
def test_a_fill_is_infinite_only_if_it_is_written_so(dtype: str) -> None:
    for fill in ("1e400", "-1e999"):
        with pytest.raises(DtypeError, match="it is too large"):
            numbers.encode(fill, dtypes.from_name(dtype))
    assert np.isinf(np.frombuffer(numbers.encode("inf", dtypes.from_name(dtype)), dtype)[0])


@pytest.mark.parametrize(("fill", "expected"), [("1", 1), ("-1", -1), ("", 0)])
def test_a_fill_may_begin_with_very_many_zeros(fill: str, expected: int) -> None:
    sign, digits = ("-" if fill[:1] == "-" else ""), fill.lstrip("-")
    for dtype in ("float64", "float32", "complex64"):
        element = numbers.encode(sign + "0" * 5000 + digits, dtypes.from_name(dtype))
        assert np.frombuffer(element, dtype)[0] == expected
