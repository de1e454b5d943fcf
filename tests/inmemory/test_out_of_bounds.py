"""Out-of-bounds modes: every algorithm, type and layout has the reference's results."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import thresholds
from command import ndtool as command
from command import save
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import EXAMPLES, Array, Case, bits_equal, cases, raw_bytes, seeds, void_view
from thresholds import patched_thresholds

import ndtool
from ndtool import files
from ndtool.analysis import explain, preview
from ndtool.analysis.oracle import reference
from ndtool.arrays import memory
from ndtool.engine.gathers import ignore_progress
from ndtool.errors import BoundsError, DtypeError, RuleError, UsageError
from ndtool.inmemory.normalizing import normalize_indices
from ndtool.outofcore import execution
from ndtool.outofcore.partitioning import partitioning_for, rows_of
from ndtool.rules import dtypes, inference, numbers
from ndtool.rules.inference import Input
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs import operands, steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

GATHERS = ("error", "clip", "wrap", "fill")
SCATTERS = ("error", "clip", "wrap", "drop")
COUNTING = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(
    scope="module",
    params=[(), (thresholds.KERNELS, thresholds.STORAGE)],
    ids=["default thresholds", "small thresholds"],
)
def small_thresholds(request: pytest.FixtureRequest, fast_small_calls: None) -> Iterator[None]:
    """Run a test by default, and with thresholds at which tiny arrays are divided and sorted."""
    with patched_thresholds(*request.param):
        yield


@st.composite
def padded_calls(draw: st.DrawFn) -> tuple[Case, str]:
    """Draw a call with indices out of bounds, and with padding, negatives=False, or both."""
    case, mode = draw(out_of_bounds_calls())
    indices = np.array(case.arrays[1])
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["negatives"] = False
    if not options or draw(st.booleans()):
        info = np.iinfo(indices.dtype)
        options["pad"] = draw(st.sampled_from((-1, 0, 1, 7, int(info.min), int(info.max))))
        if info.min <= options["pad"] <= info.max and indices.size:
            rng = np.random.default_rng(draw(seeds))
            is_pad = rng.random(indices.shape) < draw(st.sampled_from((0.2, 1.0)))
            indices = np.where(is_pad, indices.dtype.type(options["pad"]), indices)
    arrays = (case.arrays[0], indices, *case.arrays[2:])
    return case._replace(arrays=arrays, arguments={**case.arguments, **options}), mode


@st.composite
def out_of_bounds_calls(draw: st.DrawFn) -> tuple[Case, str]:
    """Draw a call and a mode; some indices are out of bounds, by a little or extremely."""
    case = draw(cases)
    indices = np.array(case.arrays[1])
    rng, fraction = np.random.default_rng(draw(seeds)), draw(st.sampled_from((0.0, 0.1, 0.5, 1.0)))
    info = np.iinfo(indices.dtype)
    near = rng.integers(max(-20, info.min), min(20, info.max), indices.shape, endpoint=True)
    extremes = rng.choice(np.array([info.min, info.max], indices.dtype), indices.shape)
    invalid = np.where(rng.random(indices.shape) < 0.8, near.astype(indices.dtype), extremes)
    mixed = np.where(rng.random(indices.shape) < fraction, invalid, indices).astype(indices.dtype)
    modes = SCATTERS if len(case.arrays) == 3 else GATHERS
    mode = draw(st.sampled_from(modes))
    return case._replace(arrays=(case.arrays[0], mixed, *case.arrays[2:])), mode


def result_or_error(call: Any, *arrays: Array, **arguments: Any) -> Any:
    """Return the array that a call returns, or the fields of its BoundsError."""
    try:
        return call(*arrays, **arguments)
    except BoundsError as error:
        return error_fields(error)


def error_fields(error: BoundsError) -> tuple[Any, ...]:
    return error.position, error.value, error.count, error.total


def are_equal(actual: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return isinstance(actual, np.ndarray) and bits_equal(actual, expected)
    return bool(actual == expected)


@settings(max_examples=EXAMPLES, deadline=None)
@given(out_of_bounds_calls() | padded_calls(), st.sampled_from((1, 2, 3)), st.booleans())
def test_arrays(
    small_thresholds: None, case_and_mode: tuple[Case, str], threads: int, has_out: bool
) -> None:
    case, mode = case_and_mode
    name, arrays, arguments = case
    data = arrays[0]
    expected = result_or_error(getattr(reference, name), *arrays, **arguments, out_of_bounds=mode)
    before = [raw_bytes(a) for a in arrays]
    out = None
    if has_out and isinstance(expected, np.ndarray):
        out = np.zeros(expected.shape, data.dtype)
    actual = result_or_error(
        getattr(ndtool, name), *arrays, **arguments, out_of_bounds=mode, threads=threads, out=out
    )
    assert are_equal(actual, expected)
    assert out is None or actual is out
    assert [raw_bytes(a) for a in arrays] == before


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    out_of_bounds_calls() | padded_calls(),
    st.sampled_from((1, 3)),
    st.sampled_from((1, 600, 4000)),
    st.integers(0, 300),
    st.integers(1, 3),
)
def test_files(
    small_thresholds: None, case_and_mode: tuple[Case, str], threads: int, budget: int, in_memory: int, levels: int,
) -> None:  # fmt: skip
    """Direct and external execution have the reference's results."""
    case, mode = case_and_mode
    roles = OPERATORS[case.operator].inputs
    expected = result_or_error(
        getattr(reference, case.operator), *case.arrays, **case.arguments, out_of_bounds=mode
    )
    attributes = Attributes(**case.arguments, out_of_bounds=mode)
    for is_external in (False, True):
        arrays = [np.array(void_view(a), order="C").view(a.dtype) for a in case.arrays]
        sources = {role: memory.source(role, a) for role, a in zip(roles, arrays, strict=True)}
        request = Request(case.operator, *roles, attributes=attributes, threads=threads)
        with OpenCall(request, sources) as call:
            buffer = np.zeros(call.inference.nbytes, np.uint8)
            sink = memory.BufferSink(buffer.data, call.metadata)
            if not isinstance(expected, np.ndarray):
                with pytest.raises(BoundsError) as excinfo:
                    operands.validate(call)
                assert error_fields(excinfo.value) == expected
                continue
            validated = operands.validate(call)
            rows = rows_of(call.inference)
            if not is_external:
                with steps.prepare(call, None) as prepared:
                    steps.execute(prepared, sink=sink)
            elif rows.tuples and rows.width and rows.row_count > 1:
                gathers = "updates" not in sources
                partitioning = partitioning_for(rows, gathers, budget, threads, None, levels)
                partitioning = partitioning._replace(in_memory=in_memory)
                reports: list[BoundsError] = []
                assert list(
                    execution.run(call, partitioning, (), sink, ignore_progress, reports.append)
                )
                bounds_report = validated.bounds_report
                assert [error_fields(report) for report in reports] == (
                    [] if bounds_report is None else [error_fields(bounds_report)]
                )
            else:
                continue
            actual = buffer.view(arrays[0].dtype).reshape(call.inference.plan.output)
            assert bits_equal(actual, np.asarray(expected, arrays[0].dtype))


@given(out_of_bounds_calls() | padded_calls())
def test_the_bounds_report_equals_the_error(case_and_mode: tuple[Case, str]) -> None:
    case, mode = case_and_mode
    arrays = [np.array(void_view(a), order="C").view(a.dtype) for a in case.arrays]
    error = result_or_error(getattr(reference, case.operator), *arrays, **case.arguments)
    result = result_or_error(
        getattr(files, case.operator), *arrays, **case.arguments, out_of_bounds=mode
    )
    if isinstance(result, files.Result):
        count = 0 if isinstance(error, np.ndarray) else error[2]
        assert (result.outside, len(result.warnings)) == (count, count > 0)
    else:
        assert result == error


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i8", ">u8"])
def test_modes_on_extreme_indices(dtype: str) -> None:
    info = np.iinfo(dtype)
    values = [0, 2, 3, 100, info.max, info.max - 1] + ([-1, -3, -4, info.min] if info.min else [])
    indices, data = np.array(values, dtype), np.array([10, 11, 12], np.int16)
    normalized = [i + 3 if -3 <= i < 0 else i for i in values]
    clipped = [10 + min(max(i, 0), 2) for i in normalized]
    wrapped = [10 + i % 3 for i in values]
    filled = [10 + i if 0 <= i < 3 else -7 for i in normalized]
    for call, args in ((ndtool.gather, (indices,)), (ndtool.gather_nd, (indices[:, None],))):
        assert call(data, *args, out_of_bounds="clip").tolist() == clipped
        assert call(data, *args, out_of_bounds="wrap").tolist() == wrapped
        assert call(data, *args, out_of_bounds="fill", fill=-7).tolist() == filled
    for mode, expected in (("clip", clipped), ("wrap", wrapped)):
        coordinates, invalid = normalize_indices(indices, 3, Attributes(out_of_bounds=mode))
        assert (10 + coordinates).tolist() == expected
        assert not invalid.any()
    for mode in ("error", "fill", "drop"):
        coordinates, invalid = normalize_indices(indices, 3, Attributes(out_of_bounds=mode))
        assert [-7 if i == 3 else 10 + i for i in coordinates.tolist()] == filled
        assert invalid.tolist() == [i == -7 for i in filled]
        padding = Attributes(out_of_bounds=mode, pad=info.max)
        coordinates, invalid = normalize_indices(indices, 3, padding)
        assert coordinates[values.index(info.max)] == 3
        assert not invalid[values.index(info.max)]


def test_numpys_modes() -> None:
    rng = np.random.default_rng(3)
    data, indices = rng.random((7, 5)), rng.integers(-30, 30, 200)
    wrapped = np.take(data, indices, 0, mode="wrap")
    assert bits_equal(ndtool.gather(data, indices, out_of_bounds="wrap"), wrapped)
    valid = np.where(indices < 0, np.maximum(indices + 7, 0), indices)
    clipped = np.take(data, valid, 0, mode="clip")  # its clip maps -1 to 0
    assert bits_equal(ndtool.gather(data, indices, out_of_bounds="clip"), clipped)


def test_jaxs_modes() -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(4)
    data = rng.random((7, 5)).astype(np.float32)
    updates = rng.random((200, 5)).astype(np.float32)
    indices = rng.integers(-30, 30, 200).astype(np.int32)
    at_indices, tuples = jax.numpy.asarray(data).at[indices], indices[:, None]
    for mode, jax_mode in (("clip", "clip"), ("fill", "fill")):
        expected = np.asarray(
            at_indices.get(mode=jax_mode, **({"fill_value": 3.0} if mode == "fill" else {}))
        )
        fill = {"fill": 3} if mode == "fill" else {}
        assert bits_equal(ndtool.gather_nd(data, tuples, out_of_bounds=mode, **fill), expected)
    for mode in ("clip", "drop"):
        expected = np.asarray(at_indices.max(updates, mode=mode))
        assert bits_equal(
            ndtool.scatter_nd(data, tuples, updates, "max", out_of_bounds=mode), expected
        )


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_an_axis_of_size_0_has_no_valid_index(mode: str) -> None:
    with pytest.raises(BoundsError) as excinfo:
        ndtool.gather_nd(np.zeros((3, 0)), [[0, 5]], out_of_bounds=mode)
    assert (excinfo.value.axis, excinfo.value.size) == (1, 0)
    with pytest.raises(BoundsError):
        ndtool.scatter_elements(np.zeros((0,)), [1], [2.0], out_of_bounds=mode)


def test_an_axis_of_no_elements_can_be_filled_and_dropped() -> None:
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
        match="a gather has no out_of_bounds drop: expected one of error, clip, wrap, fill",
    ):
        ndtool.gather([1], [0], out_of_bounds="drop")
    with pytest.raises(
        UsageError,
        match="a scatter has no out_of_bounds fill: expected one of error, clip, wrap, drop",
    ):
        ndtool.scatter_nd([1], [[0]], [1], out_of_bounds="fill")
    with pytest.raises(UsageError, match="fill requires out_of_bounds fill or pad, not"):
        ndtool.gather([1], [0], out_of_bounds="clip", fill=0)
    with pytest.raises(UsageError, match="expected one of error, clip, wrap, fill, drop"):
        ndtool.gather([1], [0], out_of_bounds="ignore")
    with pytest.raises(
        RuleError, match=r"onnx:13.* does not accept out_of_bounds clip: no version"
    ):
        ndtool.gather_nd([1], [[0]], out_of_bounds="clip", spec="onnx:13")
    with pytest.raises(DtypeError, match="more than 64 bits cannot be wrapped"):
        ndtool.gather([1], [2**64], out_of_bounds="wrap")
    assert ndtool.gather([1, 2], [2**64, -(2**64)], out_of_bounds="clip").tolist() == [2, 1]
    with pytest.raises(DtypeError, match="fill is 'x': it must be a number"):
        ndtool.gather([1], [0], out_of_bounds="fill", fill="x")


def test_zeros_of_either_sign_are_not_mixed_up() -> None:
    for fill in (0.0, -0.0, 0, np.float32(-0.0)):
        result = ndtool.gather(np.ones(2, np.float32), [5], out_of_bounds="fill", fill=fill)
        assert bits_equal(result, np.array([fill], np.float32))


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


def test_verify_supports_the_modes(workdir: Path) -> None:
    indices = np.array([[9], [1], [-7]])
    updates = np.ones((3, 3), np.float32)
    save(data=COUNTING, idx=indices, upd=updates)
    save(out=ndtool.scatter_nd(COUNTING, indices, updates, "add", out_of_bounds="drop"))
    arguments = (
        "verify", "scatter-nd", "data.npy", "idx.npy", "upd.npy", "out.npy", "--reduction", "add",
    )  # fmt: skip
    assert command(*arguments, "--out-of-bounds", "drop").status == 0
    assert command(*arguments, "--out-of-bounds", "clip").status == 8
    assert command(*arguments).status == 5
    save(out=ndtool.gather_nd(COUNTING, indices, out_of_bounds="fill", fill=5))
    arguments = ("verify", "gather-nd", "data.npy", "idx.npy", "out.npy", "--out-of-bounds", "fill")
    assert command(*arguments, "--fill", "5").status == 0
    assert command(*arguments).status == 8


@given(out_of_bounds_calls() | padded_calls())
def test_a_preview_shows_the_result_of_a_run(case_and_mode: tuple[Case, str]) -> None:
    case, mode = case_and_mode
    expected = result_or_error(
        getattr(reference, case.operator), *case.arrays, **case.arguments, out_of_bounds=mode
    )
    if not isinstance(expected, np.ndarray):
        return
    roles = OPERATORS[case.operator].inputs
    arrays = dict(zip(roles, case.arrays, strict=True))
    inputs = {role: Input(role, dtypes.from_numpy(a.dtype), a.shape) for role, a in arrays.items()}
    attributes = Attributes(**case.arguments, out_of_bounds=mode)
    window = preview.choose_window(expected.shape)
    elements = preview.compute_elements(
        inference.infer(case.operator, inputs, attributes), arrays, window
    )
    bits = void_view(expected)  # NumPy's selection of records drops their padding
    expected_elements = bits[np.ix_(*window.positions)] if expected.ndim else bits
    assert bits_equal(np.asarray(elements), np.asarray(expected_elements).view(expected.dtype))


@given(out_of_bounds_calls(), st.data())
def test_an_explanation_ends_with_the_result_of_a_run(
    case_and_mode: tuple[Case, str], data: st.DataObject
) -> None:
    case, mode = case_and_mode
    arrays = [np.array(void_view(a), order="C").view(a.dtype) for a in case.arrays]
    arguments = {**case.arguments, "out_of_bounds": mode}
    expected = result_or_error(getattr(reference, case.operator), *arrays, **arguments)
    if not isinstance(expected, np.ndarray) or not expected.size:
        return
    position = tuple(data.draw(st.integers(0, size - 1)) for size in expected.shape)
    roles = OPERATORS[case.operator].inputs
    sources = {role: memory.source(role, a) for role, a in zip(roles, arrays, strict=True)}
    with OpenCall(
        Request(case.operator, *roles, attributes=Attributes(**arguments)), sources
    ) as call:
        (element,) = explain.explain(call, [position]).elements
    assert element.value is not None
    assert raw_bytes(element.array) == raw_bytes(np.asarray(expected[(*position, ...)]))
    if mode == "drop":
        assert all(len(step.normalized) == len(step.tuple or ()) for step in element.steps[1:])


def test_a_report_shows_tuples_as_used(workdir: Path) -> None:
    save(data=COUNTING, idx=np.array([[9], [1], [-7]]))
    arguments = ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy", "--html", "page.html")
    assert command(*arguments, "--out-of-bounds", "clip").status == 0
    page = Path("page.html").read_text()
    assert "= 9 is out of bounds: axis 0 of data has size 4: valid -4..3; replaced by (3)" in page
    assert command(*arguments, "--out-of-bounds", "fill", "--fill", "7").status == 0
    page = Path("page.html").read_text()
    assert "from the fill value, because indices[0] = (9) is out of bounds" in page


def test_an_integer_that_would_be_rounded_is_refused_on_the_command_line(workdir: Path) -> None:
    save(data=np.ones(3))
    arguments = ("gather", "data.npy", "[7]", "--out-of-bounds", "fill", "-o", "out.npy", "--fill")
    completed = command(*arguments, "9007199254740993")
    assert (completed.status, Path("out.npy").exists()) == (4, False)
    assert completed.err.splitlines()[0] == (
        "error: fill is '9007199254740993': data of float64 cannot hold it: expected an integer that it"
        " holds exactly; 9007199254740993.0 is rounded"
    )
    for fill in ("9007199254740993.0", "9007199254740992"):
        assert command(*arguments, fill).status == 0
        assert np.load("out.npy").tolist() == [2.0**53]


@pytest.mark.parametrize("fill", ["1e400", "-1e999"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c16"])
def test_a_fill_is_infinite_only_if_it_is_written_so(fill: str, dtype: str, workdir: Path) -> None:
    save(data=np.ones(3, dtype))
    arguments = ("gather", "data.npy", "[7]", "--out-of-bounds", "fill", "-o", "out.npy", "--fill")
    completed = command(*arguments, fill)
    assert completed.status == 4
    assert "it is too large" in completed.err
    assert command(*arguments, "inf").status == 0
    assert np.isinf(np.load("out.npy")).all()


@pytest.mark.parametrize("fill", ["1", b"1", Decimal("1e400")])
def test_a_fill_in_python_is_a_number(fill: object) -> None:
    with pytest.raises(DtypeError, match="it must be a number"):
        ndtool.gather([1.0], [0], out_of_bounds="fill", fill=fill)


@pytest.mark.parametrize(("fill", "expected"), [("1", 1), ("-1", -1), ("", 0)])
def test_a_fill_may_begin_with_very_many_zeros(fill: str, expected: int) -> None:
    sign, digits = ("-" if fill[:1] == "-" else ""), fill.lstrip("-")
    for dtype in ("float64", "float32", "complex64"):
        element = numbers.encode(sign + "0" * 5000 + digits, dtypes.from_name(dtype))
        assert np.frombuffer(element, dtype)[0] == expected


def test_a_warning_has_the_original_index() -> None:
    indices: Any = [1 << 70, 1]
    result = files.gather(np.arange(5), indices, out_of_bounds="clip")
    assert f"indices[0] = {1 << 70}," in result.warnings[0]
