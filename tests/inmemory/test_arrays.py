"""The operators in Python: any arguments give a result or an NdtoolError."""

import sys
from array import array
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from strategies import bits_equal, raw_bytes

import ndtool
from ndtool import BoundsError, DtypeError, NdtoolError, ResourceError, RuleError, UsageError
from ndtool._kernels import Layout
from ndtool.engine import tuning

pytestmark = pytest.mark.usefixtures("fast_small_calls")

DATA = np.arange(12, dtype="f4").reshape(3, 4)
ROWS = np.array([[2], [0]])
UPDATES = np.full((2, 4), 7, "f4")
AXIS_INDICES = np.array([[0, 1, 2, 0], [2, 2, 1, 0]])
CALLS: dict[str, dict[str, Any]] = {
    "gather_nd": {"data": DATA, "indices": ROWS, "batch_dims": 0},
    "scatter_nd": {"data": DATA, "indices": ROWS, "updates": UPDATES, "reduction": "add"},
    "gather_elements": {"data": DATA, "indices": AXIS_INDICES, "axis": 0},
    "scatter_elements": {"data": DATA, "indices": AXIS_INDICES, "updates": UPDATES, "axis": 0, "reduction": "max"},
}  # fmt: skip
CALLS["gather"] = {"data": DATA, "indices": [2, 0], "axis": 0}
OPTIONS = {"out": None, "threads": None, "spec": "ndtool"}
SCATTERS = ["scatter_nd", "scatter_elements"]


def call(name: str, **overrides: Any) -> np.ndarray:
    """Call an operator with its valid arguments, some of them overridden."""
    return getattr(ndtool, name)(**{**CALLS[name], **overrides})


def shape_of_result(name: str) -> tuple[int, ...]:
    return (2, 4) if name.startswith("gather") else (3, 4)


# Objects that are unlikely as indices


class Raising:
    """An object that raises in one of the protocols of NumPy or Python."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def fail(self, *_: Any, **__: Any) -> Any:
        raise self.error


def raising(*methods: str, error: BaseException) -> Any:
    """Return an object whose methods and properties of these names raise."""
    special = ("__array_interface__", "__array_struct__", "__class__")
    members = {m: property(Raising.fail) if m in special else Raising.fail for m in methods}
    return type("Broken", (Raising,), members)(error)


class Level(IntEnum):
    """An integer type other than int."""

    ONE = 1


class Word(str):
    """An unhashable str."""

    __hash__ = None  # type: ignore[assignment]


ERRORS = (
    RuntimeError("call detach() first"), KeyError("x"), OSError(5, "no"), MemoryError("none left"),
    TypeError("a\nb"), ValueError("x" * 2000), UserWarning("unusual"), StopIteration(), RecursionError(),
    raising("__str__", "__repr__", error=KeyError("in an error")).error, ZeroDivisionError(),
)  # fmt: skip
HUGE = 10**5000


def unusual_objects() -> Iterator[Any]:
    """Yield new objects of many kinds."""
    yield from (None, Ellipsis, True, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, HUGE, -HUGE, 10**700)
    yield from (1.0, 0.5, float("nan"), float("inf"), 1j, Decimal(1), Fraction(1, 2), Level.ONE)
    yield from ("", "x", "none", "add", "onnx:13", "\0\n\x1b[31m", "\udcff", b"", b"ab", "9" * 5000)
    yield from (Word("add"), Word("ndtool"), np.str_("add"), "onnx:" + "9" * 5000)
    yield from (set(), {1, 2}, {}, {"a": 1}, (n for n in range(3)), range(3), iter([]), object())
    yield from (int, len, np.add, np, lambda: 0, bytearray(4), memoryview(b"abcd"), array("i", [1]))
    yield from (
        [],
        [[]],
        (),
        [[0], [1, 2]],
        [[HUGE]],
        [[2**63], [-1]],
        [None],
        ["a", 1],
        [[object()]],
    )
    yield from ([[True]], [[1.5]], [[1], "x"], [set()], [[1.5], DATA[0]], [[[[[0]]]]])
    for code in (
        "O",
        "M8[s]",
        "m8[ns]",
        "U3",
        "S2",
        "V3",
        "V0",
        "S0",
        "c8",
        "?",
        "g",
        "u8",
        ">i2",
        "T",
    ):
        yield np.zeros((2, 1), code)
    records = np.zeros((2, 1), [("a", "i4"), ("b", "f8")])
    yield from (records, records.view(np.recarray), records["b"], np.zeros(2, [("a", "O")]))
    yield from (np.True_, np.int8(0), np.uint64(2**64 - 1), np.float32(0), np.datetime64("NaT"))
    yield from (
        np.array(0),
        np.array([1, 2]),
        np.array(True),
        np.array([HUGE]),
        np.array([2**70, None]),
    )
    yield from (np.zeros((0, 1), int), np.zeros((2, 0), int), np.zeros((1,) * 64), np.zeros((3, 4)))
    yield from (np.matrix([[0, 1]]), np.ma.array([[0], [1]]), np.ma.masked, [np.ma.array([0])])
    matrix = DATA.copy()
    yield from (matrix, matrix.T, matrix[::-1], matrix[:, ::2], np.broadcast_to(matrix[0], (3, 4)))
    yield from (
        ROWS.copy(),
        AXIS_INDICES.copy(),
        matrix.view(np.recarray),
        np.asfortranarray(matrix),
    )
    yield as_strided(np.zeros(8, "f4"), (3, 4), (4, 4))
    for error in ERRORS:
        for methods in (("__array__",), ("__index__", "__int__"), ("__array_interface__",), ("__repr__",),
                        ("__array_struct__",), ("__len__", "__getitem__"), ("__class__",), ("__iter__",)):  # fmt: skip
            yield raising(*methods, error=error)
    for interface in (
        {},
        {"shape": 3},
        {"shape": (2,), "typestr": "<f4", "data": None, "version": 3},
    ):
        yield type("Interface", (), {"__array_interface__": interface})()
    yield type("Array", (), {"__array__": lambda self, dtype=None, copy=None: [1, 2]})()
    yield type("Array", (), {"__array__": lambda self, dtype=None, copy=None: ROWS})()
    yield type("Index", (), {"__index__": lambda self: 1.5})()
    yield type("Index", (), {"__index__": lambda self: True})()


def call_or_error(name: str, **overrides: Any) -> np.ndarray | NdtoolError:
    try:
        return call(name, **overrides)
    except NdtoolError as error:
        return error


def check_result_or_error(name: str, **overrides: Any) -> None:
    """Check that a call returns a result or raises an error of one line."""
    result = call_or_error(name, **overrides)
    if isinstance(result, NdtoolError):
        assert str(result)
        assert repr(result)
        assert result.message.isprintable()
        assert len(result.message) < 500
    else:
        assert isinstance(result, np.ndarray)
        assert result is overrides.get("out") or overrides.get("out") is None


ARGUMENTS = [(name, a) for name, arguments in CALLS.items() for a in (*arguments, *OPTIONS)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_an_unusual_argument_is_accepted_or_refused(name: str, argument: str) -> None:
    before = [raw_bytes(a) for a in (DATA, ROWS, UPDATES, AXIS_INDICES)]
    for unusual in unusual_objects():
        check_result_or_error(name, **{argument: unusual})
        if argument == "data":
            check_result_or_error(name, data=unusual, out=unusual)
    assert [raw_bytes(a) for a in (DATA, ROWS, UPDATES, AXIS_INDICES)] == before


# Subclasses of ndarray


def test_masked_arrays_are_refused_with_a_hint() -> None:
    masked = np.ma.array(DATA, mask=DATA > 5)
    hint = r"^data is a masked .* pass data\.filled\(\.\.\.\), or data\.data$"
    for name in CALLS:
        for data in (masked, [*masked], [[1, np.ma.masked], (2, 3)]):
            with pytest.raises(DtypeError, match=hint if data is masked else "^data is a masked"):
                call(name, data=data)
        with pytest.raises(DtypeError, match=r"^out is a masked array, .* pass out\.data$"):
            call(name, out=np.ma.zeros(shape_of_result(name), "f4"))
    with pytest.raises(DtypeError, match=r"^data is a masked"):
        call("scatter_nd", data=masked, out=masked)


def subclasses(folder: Path, array: np.ndarray) -> list[np.ndarray]:
    """Return the array as instances of NumPy's subclasses of ndarray, and of another one."""

    class WrongShape(np.ndarray):
        """An ndarray whose shape attribute is wrong."""

        shape = (99,)  # type: ignore[assignment]

    mapped = np.memmap(folder / "mapped", array.dtype, "w+", shape=array.shape)
    mapped[...] = array
    subclasses_of_ndarray = (
        (np.recarray, np.matrix, WrongShape) if array.ndim == 2 else (np.recarray, WrongShape)
    )
    return [mapped, *(array.copy().view(subclass) for subclass in subclasses_of_ndarray)]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("name", CALLS)
def test_subclasses_are_read_and_written(name: str, tmp_path: Path) -> None:
    expected = call(name)
    for data in subclasses(tmp_path, DATA):
        result = call(name, data=data)
        assert type(result) is np.ndarray
        assert bits_equal(result, expected)
    for out in subclasses(tmp_path, np.zeros_like(expected)):
        assert call(name, out=out) is out
        assert bits_equal(np.asarray(out), expected)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("threshold", [0, 1 << 16], ids=["in place", "through a temporary"])
@pytest.mark.parametrize("name", SCATTERS)
def test_subclasses_are_updated_in_place(
    name: str, threshold: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "TEMPORARY_OUTPUT", threshold)
    expected = call(name)
    for data in subclasses(tmp_path, DATA):
        assert call(name, data=data, out=data) is data
        assert bits_equal(np.asarray(data), expected)
    with pytest.raises(RuleError, match="out overlaps data"):
        call(name, data=data, out=np.asarray(data))


def test_records_of_a_record_array_are_records() -> None:
    structured = np.zeros(4, [("a", "i4"), ("b", "f8")])
    structured["a"] = range(4)
    records = structured.view(np.recarray)
    for data, updates in ((structured, records[2:]), (records, structured[2:])):
        result = ndtool.scatter_nd(data, [[0], [1]], updates)
        assert result["a"].tolist() == [2, 3, 2, 3]
    assert ndtool.scatter_nd(records, [[0]], structured[3:].copy(), out=records) is records
    assert records.a.tolist() == [3, 1, 2, 3]


# An `out` whose elements overlap


def windows(shape: tuple[int, ...]) -> np.ndarray:
    buffer = np.zeros(sum(shape) - 1, "f4")
    return sliding_window_view(buffer, shape[1], writeable=True)


OVERLAPPING: dict[str, Callable[[tuple[int, ...]], np.ndarray]] = {
    "rows repeated": lambda shape: as_strided(np.zeros(shape[1], "f4"), shape, (0, 4)),
    "columns repeated": lambda shape: as_strided(np.zeros(shape[0], "f4"), shape, (4, 0)),
    "one element": lambda shape: as_strided(np.zeros(1, "f4"), shape, (0, 0)),
    "windows": windows,
    "windows, reversed": lambda shape: windows(shape)[::-1, ::-1],
    "half an element apart": lambda shape: as_strided(np.zeros(99, "f4"), shape, (16, 2)),
}


@pytest.mark.parametrize("make_out", OVERLAPPING.values(), ids=OVERLAPPING)
@pytest.mark.parametrize("name", CALLS)
def test_an_out_that_overlaps_itself_is_refused(name: str, make_out: Any) -> None:
    out = make_out(shape_of_result(name))
    with pytest.raises(RuleError, match="out overlaps itself: its elements must not share"):
        call(name, out=out)
    if name in SCATTERS:
        with pytest.raises(RuleError, match="out overlaps itself"):
            call(name, data=out, out=out)
    assert not out.any()


def test_elements_that_share_memory_are_detected() -> None:
    """Compared with all addresses; false positives are allowed only for interleaved strides."""
    rng = np.random.default_rng(3)
    for _ in range(3000):
        shape = tuple(rng.integers(0, 5, rng.integers(1, 4)).tolist())
        strides = tuple(rng.integers(-24, 25, len(shape)).tolist())
        offsets = [sum(map(int.__mul__, strides, coordinates)) for coordinates in np.ndindex(shape)]
        addresses = {offset + byte for offset in offsets for byte in range(2)}
        if len(addresses) < 2 * len(offsets):
            assert Layout(shape, strides, 2).may_overlap
    cube = np.zeros((4, 5, 6), "f4")
    for slices in (
        cube,
        cube.T,
        cube[::-1, ::2],
        cube[:, 1:3, ::-3],
        cube[:, None, 2],
        cube.swapaxes(0, 1),
    ):
        assert not Layout(slices.shape, slices.strides, 4).may_overlap
    assert not Layout((0, 3), (0, 0), 4).may_overlap
    assert not Layout((1, 1), (0, 0), 4).may_overlap


# Integers


@pytest.fixture(params=[640, 4300], ids=lambda limit: f"at most {limit} digits")
def digits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the limit of digits of int to str conversion, as PYTHONINTMAXSTRDIGITS does."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(request.param)
    yield
    sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize("value", [HUGE, -(10**700), 2**63], ids=int.bit_length)
def test_integers_of_thousands_of_digits_are_refused(digits: None, value: int) -> None:
    for name, argument, error_type in INTEGER_ARGUMENTS:
        with pytest.raises(
            error_type,
            match=rf"^{argument} is (-?[0-9.]+|about -?10\^\d+): it must fit in 64 bits$",
        ):
            call(name, **{argument: value})
    with pytest.raises(BoundsError) as excinfo:
        call("gather_nd", indices=[[0], [value]])
    assert excinfo.value.value == value
    assert str(excinfo.value).isascii()


INTEGER_ARGUMENTS = (
    ("gather_nd", "batch_dims", RuleError), ("gather_elements", "axis", RuleError),
    ("scatter_nd", "threads", UsageError),
)  # fmt: skip


@pytest.mark.parametrize("value", [True, np.True_, np.array(True), "2", 1.5, np.array([1, 2]), [1]])
def test_non_integers_are_refused_in_one_line(value: Any) -> None:
    for name, argument, error_type in INTEGER_ARGUMENTS:
        with pytest.raises(error_type, match=f"^{argument} is .*: it must be an integer$"):
            call(name, **{argument: value})


def test_integers_of_other_types_are_integers() -> None:
    for value in (np.int8(1), np.array(1), Level.ONE, np.uint64(1)):
        assert bits_equal(call("gather_elements", axis=value), call("gather_elements", axis=1))
        assert bits_equal(call("gather_nd", threads=value), call("gather_nd"))


# Indices


@pytest.mark.parametrize(
    ("indices", "position", "value", "count"),
    [
        ([[2**70]], (0,), 2**70, 1),
        ([[0], [-(2**64)], [2**70]], (1,), -(2**64), 2),
        ([[2**63], [-1]], (0,), 2**63, 1),
        (((1,), (2**64 - 1,), (-9,)), (1,), 2**64 - 1, 2),
        ([[-9], [2**70]], (0,), -9, 2),
        ([[np.int64(1)], [2**64]], (1,), 2**64, 1),
        (np.array([[1], [2**70]]), (1,), 2**70, 1),
    ],
)
def test_an_index_of_more_than_64_bits_is_out_of_bounds(
    indices: Any, position: Any, value: int, count: int
) -> None:
    with pytest.raises(BoundsError) as excinfo:
        ndtool.gather_nd(DATA, indices)
    error = excinfo.value
    assert (error.position, error.component, error.axis) == (position, 0, 0)
    assert (error.value, error.size, error.count, error.total) == (value, 3, count, len(indices))
    assert error.places[0] == f"indices[{position[0]}, 0] = {value}"
    with pytest.raises(BoundsError) as excinfo:
        ndtool.scatter_elements(
            DATA, [[*row, 0] for row in indices], np.zeros((len(indices), 2), "f4"), 1
        )
    assert (excinfo.value.value, excinfo.value.component) == (value, None)


@pytest.mark.parametrize(
    ("indices", "dtype"),
    [
        (np.array([[1]], object), "object"), ([[None]], "object"), ([[2**70, 0.5]], "object"),
        ([[2**63, 0.5]], "float64"), ([["1"]], "U1"), ([[2**70, "x"]], "object"), ([[2**70, None]], "object"),
    ],
)  # fmt: skip
def test_indices_that_are_no_integers_are_refused_by_type(indices: Any, dtype: str) -> None:
    with pytest.raises(DtypeError, match=rf"indices.* dtype {dtype}"):
        ndtool.gather_nd(DATA, indices)


# Unsupported types and insufficient memory


def test_values_that_numpy_cannot_convert_are_refused() -> None:
    with pytest.raises(
        RuleError,
        match=r"^indices is a list that NumPy cannot convert to an array: .*inhomogeneous shape",
    ):
        ndtool.gather_nd(DATA, [[0], [1, 2]])
    tensor = raising("__array__", error=RuntimeError("Use tensor.detach().numpy() instead."))
    for name, arguments in CALLS.items():
        for argument in ("data", "indices", "updates"):
            if argument in arguments:
                with pytest.raises(
                    DtypeError, match=rf"^{argument} is a Broken .*: Use tensor\.detach\(\)"
                ) as excinfo:
                    call(name, **{argument: tensor})
                assert isinstance(excinfo.value.__cause__, RuntimeError)


def test_an_output_beyond_memory_is_refused() -> None:
    large_slice = np.broadcast_to(np.zeros(1), (1, 1 << 46))
    with pytest.raises(
        ResourceError, match=r"gather_nd: not enough memory: .*512\. TiB"
    ) as excinfo:
        ndtool.gather_nd(large_slice, [[0]])
    assert isinstance(excinfo.value, MemoryError)
    with pytest.raises(ResourceError, match="scatter_nd: not enough memory"):
        ndtool.scatter_nd(large_slice, np.zeros((1, 2), int), [1.0])
    with pytest.raises(ResourceError, match="gather_nd: not enough memory"):
        ndtool.gather_nd(raising("__array__", error=MemoryError()), [[0]])


def test_a_size_that_numpy_cannot_represent_is_refused() -> None:
    data = np.broadcast_to(np.zeros(1), (1, 1 << 55))
    with pytest.raises(
        RuleError, match=r"output \[0,64,36028797018963968\] has a size that NumPy cannot represent"
    ):
        ndtool.gather_nd(data, np.zeros((0, 64, 1), int))


# The module's public names


def test_lists_without_elements_are_integers() -> None:
    table = np.arange(6).reshape(3, 2)
    assert ndtool.gather(table, []).shape == (0, 2)
    assert ndtool.gather(table, [[], []]).shape == (2, 0, 2)
    assert ndtool.gather(table, ()).shape == ndtool.gather(table, range(0)).shape == (0, 2)
    for empty in ([[]], [()]):
        assert ndtool.gather_elements(table, empty, axis=1).shape == (1, 0)
    assert ndtool.scatter(table, [], np.zeros((0, 2), int)).tolist() == table.tolist()
    assert ndtool.scatter_nd(table, [[]], table[None]).tolist() == table.tolist()
    assert ndtool.stats("gather", table, []).tuples == 0
    assert ndtool.tensor_scatter(np.zeros((0, 2, 3)), np.zeros((0, 1, 3)), []).shape == (0, 2, 3)
    with pytest.raises(DtypeError, match="indices has dtype float64"):
        ndtool.gather(table, np.array([]))  # an array has a type
