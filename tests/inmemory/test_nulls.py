"""Nulls, masks and mixed types: refused in every protocol, never converted to numbers."""

from collections import UserList, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from strategies import bits_equal

import ndtool
from ndtool import files
from ndtool.errors import DtypeError, RuleError, UsageError

BIG = 2**53 + 1  # the first integer that float64 lacks
ROWS = np.array([2, 0])
MASKED = np.ma.array([BIG, 5, 6], mask=[0, 1, 0])


def stable_id(value: Any) -> str:
    """Return a test ID that is the same in every process."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)


def make_object(library: str = "", **members: Any) -> Any:
    """Return an object of a new class with these attributes; its `__module__` is `library`."""
    return type("Column", (), {"__module__": library or "builtins", **members})()


def array_method(array: Any) -> Callable[..., Any]:
    """Return a method `__array__` that returns an array."""
    return lambda self, dtype=None, copy=None: array


def integers(**members: Any) -> Any:
    """Return an object that NumPy converts to an array of integers, with further members."""
    return make_object(__array__=array_method(np.array([BIG, 5, 6])), **members)


ARRAY_WITH_NAN = array_method(np.array([float(BIG), np.nan, 6.0]))
WITH_NULLS = {
    "null_count, an attribute": make_object(null_count=1, __array__=ARRAY_WITH_NAN),
    "null_count, a method": make_object(null_count=lambda self: 1, __array__=ARRAY_WITH_NAN),
    "isna": make_object(dtype="Int64", isna=lambda self: np.array([False, True]), __array__=ARRAY_WITH_NAN),
    "isna that returns a list": make_object(dtype="x", isna=lambda self: [False, True], __array__=ARRAY_WITH_NAN),
    "a dictionary with nulls": make_object(
        null_count=0, type=make_object(value_type=1), is_null=lambda self: [False, True], __array__=ARRAY_WITH_NAN
    ),
}  # fmt: skip
WITH_MASKS = {
    "a masked array": MASKED,
    "a masked array without a mask": np.ma.array([BIG, 5, 6]),
    "__array__ returns a masked array": make_object(__array__=array_method(MASKED)),
    "a separate mask": integers(mask=np.array([False, True, False])),
    "a mask in a list": integers(mask=[False, True, False]),
    "a mask in __array_interface__": make_object(
        __array_interface__={**MASKED.__array_interface__, "mask": MASKED.mask}, keep=MASKED
    ),
    "a subclass with a mask": np.array([BIG, 5, 6]).view(
        type("Masked", (np.ndarray,), {"mask": property(lambda self: np.array([False, True, False]))})
    ),
}  # fmt: skip
OTHER_TYPES = {
    "integers that NumPy converts to floats": make_object(dtype="Int64", __array__=ARRAY_WITH_NAN),
    "a type that is no dtype": make_object(type="uint32", __array__=ARRAY_WITH_NAN),
    "a dtype that differs from NumPy's": make_object(
        dtype=np.dtype("i8"), __array__=ARRAY_WITH_NAN
    ),
    "columns of two types": make_object(
        get_columns=lambda self: [integers(dtype="Int64"), integers(dtype="Float64")],
        __array__=ARRAY_WITH_NAN,
    ),
}
LAZY = {
    "compute": (integers(compute=lambda self: 1), r"data\.compute\(\)"),
    "collect": (integers(collect=lambda self: 1), r"data\.collect\(\)"),
    "chunks": (integers(chunks=(2,)), r"data\[\.\.\.\]"),
    "netCDF4": (make_object("netCDF4._netCDF4", __array__=ARRAY_WITH_NAN, mask=True), r"data\[\.\.\.\]"),
    "tensorstore": (make_object("tensorstore", __array__=ARRAY_WITH_NAN), r"data\.read\(\)\.result\(\)"),
    "xarray in a file": (
        make_object("xarray.core.variable", _in_memory=False, _data=make_object("xarray.core.indexing"), data=1),
        r"data\.load\(\)",
    ),
}  # fmt: skip


def calls(value: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names of array arguments, each with a call in which a value is this argument."""
    data, updates = np.arange(6), np.array([7, 8])
    for module in (ndtool, files):
        yield "data", lambda m=module: m.gather(value, ROWS)
        yield "data", lambda m=module: m.scatter_nd(value, ROWS[:, None], updates)
        yield "indices", lambda m=module: m.gather(data, value)
        yield "indices", lambda m=module: m.gather_nd(data, value)
        yield "updates", lambda m=module: m.scatter_elements(data, ROWS, value)
        for sequence in ([value, value], (value,), [[value], [value]], deque([value])):
            yield "data", lambda m=module, p=sequence: m.gather(p, [0])
            yield "indices", lambda m=module, p=sequence: m.gather(data, p)
            yield "updates", lambda m=module, p=sequence: m.scatter_elements(data, ROWS, p)


@pytest.mark.parametrize("value", WITH_NULLS.values(), ids=WITH_NULLS)
def test_nulls_are_refused(value: Any) -> None:
    for argument, call in calls(value):
        with pytest.raises(DtypeError, match=f"^{argument} is a Column with nulls: fill them"):
            call()


@pytest.mark.parametrize("value", WITH_MASKS.values(), ids=WITH_MASKS)
def test_masks_are_refused(value: Any) -> None:
    for argument, call in calls(value):
        with pytest.raises(
            DtypeError, match=rf"^{argument} is .*mask.*ndtool does not support masks"
        ):
            call()


@pytest.mark.parametrize("value", OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_types_that_numpy_would_change_are_refused(value: Any) -> None:
    for argument, call in calls(value):
        with pytest.raises(DtypeError, match=rf"^{argument} is a Column of .*: cast"):
            call()


@pytest.mark.parametrize(("value", "message"), LAZY.values(), ids=LAZY)
def test_arrays_outside_memory_are_refused_with_the_call_that_loads_them(
    value: Any, message: str
) -> None:
    for argument, call in calls(value):
        with pytest.raises(
            DtypeError,
            match=rf"^{argument} is a .* NumPy would load completely: pass a part of it, or ",
        ) as excinfo:
            call()
        if argument == "data":
            excinfo.match(message)


def test_arrays_without_nulls_are_accepted_by_every_protocol() -> None:
    values = np.array([BIG, 5, 6])
    for array in (
        integers(), integers(null_count=0), integers(null_count=lambda self: 0), integers(mask=None),
        integers(dtype="Int64", isna=lambda self: np.zeros(3, bool)), integers(dtype=np.dtype("i8")),
        integers(mask=lambda self: 1), integers(chunks=None), integers(type=lambda self: "x"),
        make_object(__array_interface__=values.__array_interface__, keep=values),
        memoryview(values), [BIG, 5, 6], (BIG, 5, 6), deque([BIG, 5, 6]), UserList([BIG, 5, 6]),
        range(BIG, BIG + 3),
        make_object("xarray.core.dataarray", variable=make_object(data=integers()), data=1),
    ):  # fmt: skip
        result = ndtool.gather(array, [0])
        assert (result.dtype, result.tolist()) == (np.int64, [BIG])
        assert files.gather(array, [0]).array.tolist() == [BIG]


def test_a_mask_property_that_raises_is_no_mask() -> None:
    class ArrayWithProperty:
        @property
        def mask(self) -> Any:
            raise RuntimeError("of this class's own")

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.arange(3)

    assert ndtool.gather(ArrayWithProperty(), [2]).tolist() == [2]


def test_a_field_is_no_mask() -> None:
    plain_records = np.array([(1, 2)], [("mask", "i8"), ("chunks", "i8")])
    for records in (
        plain_records,
        plain_records.view(np.recarray),
        [plain_records.view(np.recarray)[0]],
    ):
        assert ndtool.gather(records, [0]).tolist() == [(1, 2)]


# Lists


@pytest.mark.parametrize(
    "elements",
    [
        [BIG, 0.5], [BIG, float("nan")], [[1, 2], [BIG, 0.5]], (BIG, 1.0), [BIG, 1j],
        [np.int64(BIG), np.float64(1)], [np.array(BIG), 0.5], [np.array([BIG]), np.array([0.5])], deque([BIG, 0.5]),
        [2**63, -1], [np.array([1], "u8"), np.array([1])], [np.uint64(1), -1], [2**63 + 1, 0.5],
        [1, "a"], [b"a", "a"], [0.5, "a"], [True, "a"], [2**63, 1],
    ],
    ids=stable_id,
)  # fmt: skip
def test_lists_whose_values_numpy_would_change_are_refused(elements: Any) -> None:
    for call in (
        lambda: ndtool.gather(elements, [0]),
        lambda: files.gather(elements, [0]),
        lambda: ndtool.scatter_elements(np.zeros(9), [0, 1], elements),
    ):
        with pytest.raises(DtypeError, match=r"is a list with .*: give its elements one type$"):
            call()


@pytest.mark.parametrize(
    ("elements", "dtype"),
    [
        ([1, 0.5], "f8"), ([2**53, 0.5], "f8"), ([2**60, 0.5], "f8"), ([1, float("nan")], "f8"), ([True, 2], "i8"),
        ([1, 1j], "c16"), ([1, 2.5, 1j], "c16"), ([True, 0.5], "f8"), ([1, np.int8(2)], "i8"),
        ([np.int32(7), np.float32(0.5)], "f8"), ([[], []], "f8"), (["a", np.str_("b")], "U1"), ([float("inf"), 1], "f8"),
        ([np.float32("nan"), 1.0], "f8"), ([np.array([1, 2]), [3, 4]], "i8"),
    ],
    ids=stable_id,
)  # fmt: skip
def test_lists_of_several_types_are_accepted_if_no_value_changes(elements: Any, dtype: str) -> None:
    indices = list(range(len(elements)))
    result = ndtool.gather(elements, indices)
    assert result.dtype == dtype
    assert result.tolist() == np.array(elements, object).tolist() or np.isnan(result).any()


def test_datetimes_of_several_units_get_the_finest() -> None:
    days, seconds = np.datetime64("2020-01-02"), np.datetime64("2020-01-02T03:04:05")
    for elements in (
        [days, seconds, np.datetime64("NaT")],
        [[days], [seconds]],
        [np.array([days]), np.array([seconds])],
    ):
        result = ndtool.gather(elements, [0, 1])
        assert result.dtype == "M8[s]"
        assert result.ravel().tolist() == [days.astype("M8[s]").item(), seconds.item()]
    spans = ndtool.gather([np.timedelta64(2, "h"), np.timedelta64(5, "m")], [0, 1])
    assert (spans.dtype, spans.astype(int).tolist()) == ("m8[m]", [120, 5])


def test_datetimes_beyond_the_range_of_the_finest_unit_are_refused() -> None:
    with pytest.raises(DtypeError, match=r"is a list with .*3000-01-01.*: give its elements one"):
        ndtool.gather([np.datetime64("3000-01-01"), np.datetime64(1, "ns")], [0])


def test_a_null_in_a_list_is_refused() -> None:
    for elements in ([BIG, None], [[1], [None]], [None, 0.5], (None,), deque([1, None])):
        for argument, call in calls(elements):
            with pytest.raises((DtypeError, RuleError), match=f"^{argument}"):
                call()


# The fill value


class IntegerLike:
    """An integer of another package."""

    def __index__(self) -> int:
        return BIG


class FloatLike:
    """A float of another package."""

    def __float__(self) -> float:
        return 2.5


@pytest.mark.parametrize(
    "fill",
    [np.ma.masked, np.ma.array(5, mask=True), np.ma.array(5), make_object(dtype="x", mask=True, item=lambda self: 5),
     np.datetime64("NaT"), make_object(__float__=lambda self: None), make_object(dtype="x", item=lambda self: None)],
    ids=stable_id,
)  # fmt: skip
def test_a_fill_that_is_masked_or_null_is_refused(fill: Any) -> None:
    for module in (ndtool, files):
        with pytest.raises(DtypeError, match=r"^fill is .*: it must be a number$"):
            module.gather([1.5], [7], out_of_bounds="fill", fill=fill)


@pytest.mark.parametrize(
    "fill",
    [BIG, IntegerLike(), Decimal(BIG), Fraction(BIG), np.int64(BIG), np.longdouble(BIG)],
    ids=stable_id,
)
def test_an_integer_fill_is_exact_or_refused(fill: Any) -> None:
    result = ndtool.gather([1], [7], out_of_bounds="fill", fill=fill)
    assert result.tolist() == [BIG]
    for data in (np.ones(1), np.ones(1, "f4"), np.ones(1, "c16"), np.ones(1, ">f8")):
        with pytest.raises(DtypeError, match=rf"fill is '{BIG}': .* holds exactly"):
            ndtool.gather(data, [7], out_of_bounds="fill", fill=fill)


@pytest.mark.parametrize(
    "fill",
    [0.1, Decimal("0.1"), Fraction(1, 10), 1e23, float(BIG), FloatLike(), Decimal("-0.0")],
    ids=stable_id,
)
def test_a_fill_that_is_no_integer_is_rounded_to_the_nearest(fill: Any) -> None:
    result = ndtool.gather([1.0], [7], out_of_bounds="fill", fill=fill)
    assert result.tobytes() == np.float64(float(fill)).tobytes()


# Columns and arrays of other packages


def test_columns_of_pyarrow() -> None:
    pa = pytest.importorskip("pyarrow")
    complete, with_null = pa.array([BIG, 5]), pa.array([BIG, None])
    for column in (
        complete,
        pa.chunked_array([[BIG], [5]]),
        complete.dictionary_encode(),
        pa.Tensor.from_numpy(np.array([BIG, 5])),
    ):
        assert ndtool.gather(column, [0]).tolist() == [BIG]
    assert ndtool.gather(pa.table({"a": complete, "b": complete}), [0]).tolist() == [[BIG, BIG]]
    assert ndtool.gather(pa.array([True, False]), [0]).dtype == bool
    dictionary_with_null = pa.DictionaryArray.from_arrays(pa.array([0, 1]), with_null)
    run_ends = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), with_null)
    for value in (
        with_null, pa.chunked_array([[BIG], [None]]), with_null.dictionary_encode(), dictionary_with_null, run_ends, pa.array([1.5, None]),
        pa.chunked_array([dictionary_with_null]), pa.table({"a": complete, "b": with_null}), pa.record_batch({"a": with_null}),
        pa.table({"a": dictionary_with_null}), pa.array([None, 1], pa.timestamp("ns")), [with_null], [[with_null], [complete]],
    ):  # fmt: skip
        for argument, call in calls(value):
            with pytest.raises(DtypeError, match=rf"^{argument} is a pyarrow .* with nulls"):
                call()
    with pytest.raises(DtypeError, match="pyarrow Table of int64, double: cast"):
        ndtool.gather(pa.table({"a": complete, "b": pa.array([0.5, 1.5])}), [0])
    with pytest.raises(DtypeError, match="must be a number"):
        ndtool.gather([1.5], [7], out_of_bounds="fill", fill=pa.scalar(None, pa.float64()))
    assert ndtool.gather([1], [7], out_of_bounds="fill", fill=pa.scalar(BIG)).tolist() == [BIG]


def test_columns_of_pandas() -> None:
    pd = pytest.importorskip("pandas")
    for dtype in ("Int64", "int64[pyarrow]", "Float64", "boolean", "category"):
        if "pyarrow" in dtype:
            pytest.importorskip("pyarrow")
        value = pd.Series([1, None], dtype=dtype)
        for container in (
            value,
            value.array,
            pd.Index(value),
            value.to_frame(),
            [value],
            [[value.array]],
        ):
            for argument, call in calls(container):
                with pytest.raises(
                    DtypeError, match=rf"^{argument} is a pandas .* with nulls: fill"
                ):
                    call()
        if dtype.lower().startswith("int"):
            complete = pd.Series([BIG, 5], dtype=dtype)
            for container in (complete, complete.array, pd.Index(complete)):
                assert ndtool.gather(container, [0]).tolist() == [BIG]
    assert np.isnan(ndtool.gather(pd.Series([0.5, None]), [1]))  # NaN is valid in NumPy's types
    frame = pd.DataFrame({"mask": [BIG, 1], "chunks": [2, 3]})
    assert ndtool.gather(frame, [0]).tolist() == [[BIG, 2]]
    with pytest.raises(DtypeError, match="pandas DataFrame of int64, float64: cast"):
        ndtool.gather(pd.DataFrame({"a": [BIG], "b": [0.5]}), [0])
    for missing in (pd.NA, pd.NaT):
        with pytest.raises(DtypeError, match="must be a number"):
            ndtool.gather([1.5], [7], out_of_bounds="fill", fill=missing)
        with pytest.raises(DtypeError, match="data: dtype object"):
            ndtool.gather([BIG, missing], [0])


def test_pandas_columns_of_dictionaries_and_categories() -> None:
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    dictionary_with_null = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([BIG, None]))
    column = pd.Series(pd.arrays.ArrowExtensionArray(dictionary_with_null))
    with pytest.raises(DtypeError, match=r"^data is a pandas .* with nulls"):
        ndtool.gather(column, [0])
    frame = pd.DataFrame({"a": pd.Categorical([BIG]), "b": pd.Categorical([0.5])})
    with pytest.raises(DtypeError, match="pandas DataFrame of category: cast its columns"):
        ndtool.gather(frame, [0])


def test_arrays_of_xarray(tmp_path: Any) -> None:
    xarray, pd = pytest.importorskip("xarray"), pytest.importorskip("pandas")
    data = xarray.DataArray([BIG, 5], dims="x", coords={"x": [3, 4]})
    for array in (data, data.variable, data.isel(x=slice(1))):
        assert ndtool.gather(array, [0]).tolist() == [BIG]
    assert ndtool.gather(data["x"], [0]).tolist() == [3]
    complete, value = (xarray.DataArray(pd.array([BIG, n], dtype="Int64")) for n in (5, None))
    assert ndtool.gather(complete, [0]).tolist() == [BIG]
    for argument, call in calls(value):
        with pytest.raises(DtypeError, match=rf"^{argument} is a pandas .* with nulls"):
            call()


def test_an_array_of_xarray_in_a_file_is_refused_until_it_is_loaded(tmp_path: Any) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("scipy")  # xarray reads the file with it
    name = tmp_path / "a.nc"
    xarray.Dataset({"a": ("x", np.array([7, 5], "i4"))}).to_netcdf(name, engine="scipy")
    with xarray.open_dataset(name, engine="scipy") as dataset:
        for lazy in (dataset["a"], dataset["a"].variable, dataset["a"][1:]):
            for argument, call in calls(lazy):
                with pytest.raises(DtypeError, match=rf"load completely: .*{argument}\.load\(\)$"):
                    call()
        assert ndtool.gather(dataset["a"].load(), [0]).tolist() == [7]


def test_arrays_of_dask_alone_and_in_xarray() -> None:
    dask = pytest.importorskip("dask.array")
    lazy = dask.from_array(np.array([BIG, 5]))
    for argument, call in calls(lazy):
        with pytest.raises(DtypeError, match=rf"dask Array .* {argument}\.compute\(\)$"):
            call()
    xarray = pytest.importorskip("xarray")
    with pytest.raises(DtypeError, match=r"dask Array .* data\.compute\(\)$"):
        ndtool.gather(xarray.DataArray(lazy), [0])


def test_a_dataset_of_hdf5_is_refused(tmp_path: Any) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for chunks in (None, (1,)):
            lazy = file.create_dataset(f"a{chunks}", data=np.array([BIG, 5]), chunks=chunks)
            for argument, call in calls(lazy):
                # ndtool.files accepts datasets of files that are not open for writing
                message = rf"(?s)h5py Dataset .* {argument}\[\.\.\.\], or"
                with pytest.raises((DtypeError, UsageError), match=message):
                    call()
            assert ndtool.gather(lazy[...], [0]).tolist() == [BIG]
        with pytest.raises(DtypeError, match="would load completely"):
            ndtool.gather(file, [0])


def list_columns(rows: list[Any]) -> Iterator[Any]:
    """Yield columns of lists of several libraries, with the same rows."""
    pa, pd, pl = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
    yield pa.array(rows)
    yield pa.chunked_array([rows[:1], rows[1:]])
    yield pd.Series(rows)
    yield pd.Series(pa.array(rows), dtype=pd.ArrowDtype(pa.list_(pa.int64())))
    yield pl.Series(rows)


def test_columns_of_lists_of_equal_lengths_are_arrays() -> None:
    rows = [[1, 2], [3, 4], [5, 6]]
    table, indices = np.array(rows), np.array([2, 0])
    for column in list_columns(rows):
        assert bits_equal(ndtool.gather(column, indices), table[indices])
        assert bits_equal(ndtool.gather(np.arange(9), column), table)
        if str(getattr(column, "dtype", "")) != "object":  # pandas' has no element type
            assert bits_equal(ndtool.gather(column[:0], []), np.zeros((0, 0), "i8"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 2], [3]], r"lists of different lengths or types: row 1 is int64\[1\]"),
        ([[1, 2], None], "null"),
        ([[1, None], [3, 4]], "null|different types"),
    ],
)
def test_other_columns_of_lists_are_refused_by_name(rows: list[Any], message: str) -> None:
    for column in list_columns(rows):
        with pytest.raises(DtypeError, match=f"^data is .*({message})"):
            ndtool.gather(column, [0])
