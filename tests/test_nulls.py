"""Nulls, masks and mixed types: refused in every protocol, never converted to numbers."""

import time
from collections import UserList, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import ndtool
from ndtool import files
from ndtool.errors import DtypeError, NdtoolError, RuleError, UsageError

BIG = 2**53 + 1  # the first integer that float64 lacks
ROWS = np.array([2, 0])
MASKED = np.ma.array([BIG, 5, 6], mask=[0, 1, 0])


def named(value: Any) -> str:
    """Return a test ID that is the same in every process."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)


def stand_in(library: str = "", **members: Any) -> Any:
    """Return an object of a class with these members, and optionally a library's name."""
    return type("Column", (), {"__module__": library or "builtins", **members})()


def array_of(array: Any) -> Callable[..., Any]:
    """Return a method `__array__` that returns an array."""
    return lambda self, dtype=None, copy=None: array


def plain(**members: Any) -> Any:
    """Return an object of integers without nulls that NumPy converts to an array, with members."""
    return stand_in(__array__=array_of(np.array([BIG, 5, 6])), **members)


NULLED = array_of(np.array([float(BIG), np.nan, 6.0]))
WITH_NULLS = {
    "null_count, an attribute": stand_in(null_count=1, __array__=NULLED),
    "null_count, a method": stand_in(null_count=lambda self: 1, __array__=NULLED),
    "isna": stand_in(dtype="Int64", isna=lambda self: np.array([False, True]), __array__=NULLED),
    "isna that gives a list": stand_in(dtype="x", isna=lambda self: [False, True], __array__=NULLED),
    "a proxy of a table": stand_in(
        __getattr__=lambda self, name: {
            "__array__": lambda *_, **__: np.array([float(BIG), np.nan]),
            "itercolumns": lambda: [plain(null_count=1)],
        }[name]
        if name in ("__array__", "itercolumns")
        else object.__getattribute__(self, name)
    ),
    "a dictionary with nulls": stand_in(
        null_count=0, type=stand_in(value_type=1), is_null=lambda self: [False, True], __array__=NULLED
    ),
    "columns": stand_in(itercolumns=lambda self: [plain(null_count=1)], __array__=NULLED),
    "get_columns": stand_in(get_columns=lambda self: [plain(null_count=1)], __array__=NULLED),
    "columns and items": stand_in(
        columns=["a"], items=lambda self: [("a", plain(null_count=1))], __array__=NULLED
    ),
}  # fmt: skip
WITH_MASKS = {
    "a masked array": MASKED,
    "a masked array without a mask": np.ma.array([BIG, 5, 6]),
    "__array__ gives a masked array": stand_in(__array__=array_of(MASKED)),
    "a mask beside": plain(mask=np.array([False, True, False])),
    "a mask in a list": plain(mask=[False, True, False]),
    "a mask in __array_interface__": stand_in(
        __array_interface__={**MASKED.__array_interface__, "mask": MASKED.mask}, keep=MASKED
    ),
    "a subclass with a mask": np.array([BIG, 5, 6]).view(
        type("Masked", (np.ndarray,), {"mask": property(lambda self: np.array([False, True, False]))})
    ),
}  # fmt: skip
OTHER_TYPES = {
    "integers that NumPy converts to floats": stand_in(dtype="Int64", __array__=NULLED),
    "a type that is no dtype": stand_in(type="uint32", __array__=NULLED),
    "a dtype that is not what NumPy makes": stand_in(dtype=np.dtype("i8"), __array__=NULLED),
    "columns of two types": stand_in(
        get_columns=lambda self: [plain(dtype="Int64"), plain(dtype="Float64")], __array__=NULLED
    ),
}
LAZY = {
    "compute": (plain(compute=lambda self: 1), r"data\.compute\(\)"),
    "collect": (plain(collect=lambda self: 1), r"data\.collect\(\)"),
    "chunks": (plain(chunks=(2,)), r"data\[\.\.\.\]"),
    "h5py": (stand_in("h5py._hl.dataset", __array__=NULLED), r"data\[\.\.\.\]"),
    "netCDF4": (stand_in("netCDF4._netCDF4", __array__=NULLED, mask=True), r"data\[\.\.\.\]"),
    "tensorstore": (stand_in("tensorstore", __array__=NULLED), r"data\.read\(\)\.result\(\)"),
    "xarray in a file": (
        stand_in("xarray.core.variable", _in_memory=False, _data=stand_in("xarray.core.indexing"), data=1),
        r"data\.load\(\)",
    ),
}  # fmt: skip


def calls(unusual: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each array argument, and calls with an object in its place."""
    data, updates = np.arange(6), np.array([7, 8])
    for module in (ndtool, files):
        yield "data", lambda m=module: m.gather(unusual, ROWS)
        yield "data", lambda m=module: m.scatter_nd(unusual, ROWS[:, None], updates)
        yield "indices", lambda m=module: m.gather(data, unusual)
        yield "indices", lambda m=module: m.gather_nd(data, unusual)
        yield "updates", lambda m=module: m.scatter_elements(data, ROWS, unusual)
        for part in (
            [unusual, unusual],
            (unusual,),
            [[unusual], [unusual]],
            deque([unusual]),
            UserList([unusual]),
        ):
            yield "data", lambda m=module, p=part: m.gather(p, [0])
            yield "indices", lambda m=module, p=part: m.gather(data, p)
            yield "updates", lambda m=module, p=part: m.scatter_elements(data, ROWS, p)


@pytest.mark.parametrize("unusual", WITH_NULLS.values(), ids=WITH_NULLS)
def test_nulls_are_refused(unusual: Any) -> None:
    for argument, call in calls(unusual):
        with pytest.raises(DtypeError, match=f"^{argument} is a Column with nulls: fill them"):
            call()


@pytest.mark.parametrize("unusual", WITH_MASKS.values(), ids=WITH_MASKS)
def test_masks_are_refused(unusual: Any) -> None:
    for argument, call in calls(unusual):
        with pytest.raises(
            DtypeError, match=rf"^{argument} is .*mask.*ndtool does not support masks"
        ):
            call()


@pytest.mark.parametrize("unusual", OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_types_that_numpy_would_change_are_refused(unusual: Any) -> None:
    for argument, call in calls(unusual):
        with pytest.raises(DtypeError, match=rf"^{argument} is a Column of .*: cast"):
            call()


@pytest.mark.parametrize(("unusual", "words"), LAZY.values(), ids=LAZY)
def test_arrays_outside_memory_are_refused_with_the_loading_call(unusual: Any, words: str) -> None:
    for argument, call in calls(unusual):
        with pytest.raises(
            DtypeError,
            match=rf"^{argument} is a .* NumPy would load completely: pass a part of it, or ",
        ) as caught:
            call()
        if argument == "data":
            caught.match(words)


def test_an_array_without_nulls_is_taken_by_whichever_protocol() -> None:
    values = np.array([BIG, 5, 6])
    for taken in (
        plain(), plain(null_count=0), plain(null_count=lambda self: 0), plain(mask=None),
        plain(dtype="Int64", isna=lambda self: np.zeros(3, bool)), plain(dtype=np.dtype("i8")),
        plain(mask=lambda self: 1), plain(chunks=None), plain(type=lambda self: "x"),
        stand_in(__array_interface__=values.__array_interface__, keep=values),
        memoryview(values), [BIG, 5, 6], (BIG, 5, 6), deque([BIG, 5, 6]), UserList([BIG, 5, 6]),
        range(BIG, BIG + 3),
        stand_in("xarray.core.dataarray", variable=stand_in(data=plain()), data=1),
    ):  # fmt: skip
        found = ndtool.gather(taken, [0])
        assert (found.dtype, found.tolist()) == (np.int64, [BIG])
        assert files.gather(taken, [0]).array.tolist() == [BIG]


def test_arrays_wrapped_by_xarray_are_checked() -> None:
    inside = stand_in(null_count=1, __array__=NULLED)
    unusual = stand_in("xarray.core.dataarray", variable=stand_in(data=inside), data=1, compute=len)
    with pytest.raises(DtypeError, match=r"^data is a Column with nulls"):
        ndtool.gather(unusual, [0])


def test_a_subclass_of_a_librarys_type_is_one() -> None:
    kind = type(stand_in("dask.array.core", __array__=NULLED))
    own = type("Own", (kind,), {})()
    with pytest.raises(DtypeError, match="would load completely"):
        ndtool.gather(own, [0])


def test_a_property_that_raises_is_no_mask() -> None:
    class Unusual:
        @property
        def mask(self) -> Any:
            raise RuntimeError("of this class's own")

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.arange(3)

    assert ndtool.gather(Unusual(), [2]).tolist() == [2]


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
    "listed",
    [
        [BIG, 0.5], [BIG, float("nan")], [[1, 2], [BIG, 0.5]], (BIG, 1.0), [BIG, 1j],
        [np.int64(BIG), np.float64(1)], [np.array(BIG), 0.5], [np.array([BIG]), np.array([0.5])], deque([BIG, 0.5]),
        [2**63, -1], [np.array([1], "u8"), np.array([1])], [np.uint64(1), -1], [2**63 + 1, 0.5],
        [1, "a"], [b"a", "a"], [0.5, "a"], [True, "a"], [2**63, 1],
    ],
    ids=named,
)  # fmt: skip
def test_a_list_of_which_numpy_makes_other_values_is_refused(listed: Any) -> None:
    for call in (
        lambda: ndtool.gather(listed, [0]),
        lambda: files.gather(listed, [0]),
        lambda: ndtool.scatter_elements(np.zeros(9), [0, 1], listed),
    ):
        with pytest.raises(DtypeError, match=r"is a list with .*: give its elements one type$"):
            call()


@pytest.mark.parametrize(
    ("listed", "dtype"),
    [
        ([1, 0.5], "f8"), ([2**53, 0.5], "f8"), ([2**60, 0.5], "f8"), ([1, float("nan")], "f8"), ([True, 2], "i8"),
        ([1, 1j], "c16"), ([1, 2.5, 1j], "c16"), ([True, 0.5], "f8"), ([1, np.int8(2)], "i8"),
        ([np.int32(7), np.float32(0.5)], "f8"), ([[], []], "f8"), (["a", np.str_("b")], "U1"), ([float("inf"), 1], "f8"),
        ([np.float32("nan"), 1.0], "f8"), ([np.array([1, 2]), [3, 4]], "i8"),
    ],
    ids=named,
)  # fmt: skip
def test_a_list_of_several_types_is_taken_where_no_value_changes(listed: Any, dtype: str) -> None:
    indices = list(range(len(listed)))
    found = ndtool.gather(listed, indices)
    assert found.dtype == dtype
    assert found.tolist() == np.array(listed, object).tolist() or np.isnan(found).any()


def test_lists_of_numpys_numbers_are_about_as_quick_as_pythons() -> None:
    def seconds(listed: Any) -> float:
        def once() -> float:
            started = time.perf_counter()
            ndtool.gather(listed, [0])
            return time.perf_counter() - started

        return min(once() for _ in range(5))

    assert seconds([np.float32(1)] * 100_000) < 10 * seconds([1.0] * 100_000)


def test_times_of_several_units_are_taken_in_the_finest() -> None:
    days, seconds = np.datetime64("2020-01-02"), np.datetime64("2020-01-02T03:04:05")
    for listed in (
        [days, seconds, np.datetime64("NaT")],
        [[days], [seconds]],
        [np.array([days]), np.array([seconds])],
    ):
        found = ndtool.gather(listed, [0, 1])
        assert found.dtype == "M8[s]"
        assert found.ravel().tolist() == [days.astype("M8[s]").item(), seconds.item()]
    spans = ndtool.gather([np.timedelta64(2, "h"), np.timedelta64(5, "m")], [0, 1])
    assert (spans.dtype, spans.astype(int).tolist()) == ("m8[m]", [120, 5])


def test_times_that_the_finest_unit_has_no_place_for_are_refused() -> None:
    with pytest.raises(DtypeError, match=r"is a list with .*3000-01-01.*: give its elements one"):
        ndtool.gather([np.datetime64("3000-01-01"), np.datetime64(1, "ns")], [0])


def test_a_null_in_a_list_is_refused() -> None:
    for listed in (
        [BIG, None],
        [[1], [None]],
        [None, 0.5],
        (None,),
        deque([1, None]),
        [[1, 2], None],
    ):
        for argument, call in calls(listed):
            with pytest.raises((DtypeError, RuleError), match=f"^{argument}"):
                call()


# The fill value


class Whole:
    """An integer of another package."""

    def __index__(self) -> int:
        return BIG


class Real:
    """A float of another package."""

    def __float__(self) -> float:
        return 2.5


@pytest.mark.parametrize(
    "fill",
    [np.ma.masked, np.ma.array(5, mask=True), np.ma.array(5), stand_in(dtype="x", mask=True, item=lambda self: 5),
     np.datetime64("NaT"), stand_in(__float__=lambda self: None), stand_in(dtype="x", item=lambda self: None)],
    ids=named,
)  # fmt: skip
def test_a_fill_that_is_masked_or_null_is_refused(fill: Any) -> None:
    for module in (ndtool, files):
        with pytest.raises(DtypeError, match=r"^fill is .*: it must be a number$"):
            module.gather([1.5], [7], out_of_bounds="fill", fill=fill)


@pytest.mark.parametrize(
    "fill",
    [BIG, Whole(), Decimal(BIG), Fraction(BIG), np.int64(BIG), np.longdouble(BIG)],
    ids=named,
)
def test_an_integer_fill_keeps_its_value_or_is_refused(fill: Any) -> None:
    exact = ndtool.gather([1], [7], out_of_bounds="fill", fill=fill)
    assert exact.tolist() == [BIG]
    for data in (np.ones(1), np.ones(1, "f4"), np.ones(1, "c16"), np.ones(1, ">f8")):
        with pytest.raises(DtypeError, match=rf"fill is '{BIG}': .* holds exactly"):
            ndtool.gather(data, [7], out_of_bounds="fill", fill=fill)


@pytest.mark.parametrize(
    "fill",
    [
        0.1,
        Decimal("0.1"),
        Fraction(1, 10),
        1e23,
        float(BIG),
        Decimal("0.5"),
        Real(),
        -0.0,
        Decimal("-0.0"),
        Decimal("2.9999999999999999999"),
    ],
    ids=named,
)
def test_a_fill_that_is_no_integer_is_rounded_to_the_nearest(fill: Any) -> None:
    found = ndtool.gather([1.0], [7], out_of_bounds="fill", fill=fill)
    assert found.tobytes() == np.float64(float(fill)).tobytes()


def test_an_attribute_that_is_masked_is_no_integer() -> None:
    with pytest.raises(RuleError, match=r"axis is .*: it must be an integer"):
        ndtool.gather([1], [0], axis=np.ma.array(0, mask=True))
    with pytest.raises(NdtoolError, match=r"threads is .*: it must be an integer"):
        ndtool.gather([1], [0], threads=np.ma.array(1, mask=True))


# The packages themselves


def test_columns_of_pyarrow() -> None:
    pa = pytest.importorskip("pyarrow")
    complete, nulled = pa.array([BIG, 5]), pa.array([BIG, None])
    for taken in (
        complete,
        pa.chunked_array([[BIG], [5]]),
        complete.dictionary_encode(),
        pa.Tensor.from_numpy(np.array([BIG, 5])),
    ):
        assert ndtool.gather(taken, [0]).tolist() == [BIG]
    assert ndtool.gather(pa.table({"a": complete, "b": complete}), [0]).tolist() == [[BIG, BIG]]
    assert ndtool.gather(pa.array([True, False]), [0]).dtype == bool
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1]), nulled)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), nulled)
    for unusual in (
        nulled, pa.chunked_array([[BIG], [None]]), nulled.dictionary_encode(), hidden, runs, pa.array([1.5, None]),
        pa.chunked_array([hidden]), pa.table({"a": complete, "b": nulled}), pa.record_batch({"a": nulled}),
        pa.table({"a": hidden}), pa.array([None, 1], pa.timestamp("ns")), [nulled], [[nulled], [complete]],
    ):  # fmt: skip
        for argument, call in calls(unusual):
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
        unusual = pd.Series([1, None], dtype=dtype)
        for one in (
            unusual,
            unusual.array,
            pd.Index(unusual),
            unusual.to_frame(),
            [unusual],
            [[unusual.array]],
        ):
            for argument, call in calls(one):
                with pytest.raises(
                    DtypeError, match=rf"^{argument} is a pandas .* with nulls: fill"
                ):
                    call()
        if dtype.lower().startswith("int"):
            complete = pd.Series([BIG, 5], dtype=dtype)
            for one in (complete, complete.array, pd.Index(complete)):
                assert ndtool.gather(one, [0]).tolist() == [BIG]
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


def test_columns_of_pandas_whose_types_hide_what_is_in_them() -> None:
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([BIG, None]))
    column = pd.Series(pd.arrays.ArrowExtensionArray(hidden))
    for unusual in (column, column.array, column.to_frame()):
        for argument, call in calls(unusual):
            with pytest.raises(DtypeError, match=rf"^{argument} is a pandas .* with nulls"):
                call()
    frame = pd.DataFrame({"a": pd.Categorical([BIG]), "b": pd.Categorical([0.5])})
    with pytest.raises(DtypeError, match="pandas DataFrame of category: cast its columns"):
        ndtool.gather(frame, [0])


def test_a_subclass_of_a_column_of_pandas_is_one() -> None:
    pd = pytest.importorskip("pandas")
    own = type("Own", (pd.Series,), {})([BIG, None], dtype="Int64")
    with pytest.raises(DtypeError, match="with nulls"):
        ndtool.gather(own, [0])


def test_arrays_of_xarray(tmp_path: Any) -> None:
    xarray, pd = pytest.importorskip("xarray"), pytest.importorskip("pandas")
    data = xarray.DataArray([BIG, 5], dims="x", coords={"x": [3, 4]})
    for taken in (data, data.variable, data.isel(x=slice(1))):
        assert ndtool.gather(taken, [0]).tolist() == [BIG]
    assert ndtool.gather(data["x"], [0]).tolist() == [3]
    complete, unusual = (xarray.DataArray(pd.array([BIG, n], dtype="Int64")) for n in (5, None))
    assert ndtool.gather(complete, [0]).tolist() == [BIG]
    for argument, call in calls(unusual):
        with pytest.raises(DtypeError, match=rf"^{argument} is a pandas .* with nulls"):
            call()


def test_an_array_of_xarray_in_a_file_is_refused_until_it_is_loaded(tmp_path: Any) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("scipy")  # which reads the file
    name = tmp_path / "a.nc"
    xarray.Dataset({"a": ("x", np.array([7, 5], "i4"))}).to_netcdf(name, engine="scipy")
    with xarray.open_dataset(name, engine="scipy") as opened:
        for lazy in (opened["a"], opened["a"].variable, opened["a"][1:]):
            for argument, call in calls(lazy):
                with pytest.raises(DtypeError, match=rf"load completely: .*{argument}\.load\(\)$"):
                    call()
        assert ndtool.gather(opened["a"].load(), [0]).tolist() == [7]


def test_arrays_of_dask_and_around_them() -> None:
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
                # ndtool.files takes those of files that are not open for writing
                words = rf"(?s)h5py Dataset .* {argument}\[\.\.\.\], or"
                with pytest.raises((DtypeError, UsageError), match=words):
                    call()
            assert ndtool.gather(lazy[...], [0]).tolist() == [BIG]
        with pytest.raises(DtypeError, match="would load completely"):
            ndtool.gather(file, [0])
