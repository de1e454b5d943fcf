"""Arrays that other libraries write are as the format's own library reads them, or refused.

Each type of each container is written; nothing is read as other values or shapes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import bits_equal

from ndtool import files
from ndtool.errors import InputError

pytestmark = pytest.mark.usefixtures("workdir")
RNG = np.random.default_rng(11)


def require_equal(argument: str, expected: Any) -> None:
    """Compare a gather of some rows, and the complete array; fields may be packed."""
    expected = np.asarray(expected)
    count = len(expected)
    rows = [count - 1, 0, -2, count // 2]
    for actual, values in (
        (files.gather(argument, f"{rows}").array, expected[rows]),
        (files.gather(argument, f"[{', '.join(map(str, range(count)))}]").array, expected),
    ):
        assert actual.shape == values.shape
        if expected.dtype.names is None:
            assert actual.dtype == values.dtype
            assert bits_equal(actual, np.ascontiguousarray(values))
        else:
            assert actual.dtype.names == values.dtype.names
            for name in values.dtype.names:
                assert np.array_equal(actual[name], values[name]), name


# HDF5


def hdf5_types() -> dict[str, Any]:
    """Return types of HDF5 that NumPy has not, or not as bytes."""
    h5t = pytest.importorskip("h5py").h5t

    def string(padding: int) -> Any:
        text = h5t.C_S1.copy()
        text.set_size(5)
        text.set_strpad(padding)
        return text

    def enum(base: Any, *names: bytes) -> Any:
        made = h5t.enum_create(base)
        for value, name in enumerate(names):
            made.enum_insert(name, value)
        return made

    record = h5t.create(h5t.COMPOUND, 16)
    record.insert(b"b", 8, h5t.IEEE_F64LE)
    record.insert(b"a", 0, h5t.STD_I32BE)
    nested = h5t.create(h5t.COMPOUND, 24)
    nested.insert(b"text", 17, string(h5t.STR_SPACEPAD))
    nested.insert(b"record", 1, record)
    bfloat16 = h5t.IEEE_F16LE.copy()
    bfloat16.set_fields(15, 7, 8, 0, 7)
    bfloat16.set_ebias(127)
    wide = h5t.STD_I32LE.copy()
    wide.set_precision(20)
    return {
        "big-endian byte": h5t.STD_I8BE,
        "bits of a byte": h5t.STD_B8LE,
        "big-endian bits": h5t.STD_B32BE,
        "blank-padded text": string(h5t.STR_SPACEPAD),
        "null-terminated text": string(h5t.STR_NULLTERM),
        "null-padded text": string(h5t.STR_NULLPAD),
        "wide truth": enum(h5t.STD_I16LE, b"FALSE", b"TRUE"),
        "big-endian truth": enum(h5t.STD_I8BE, b"FALSE", b"TRUE"),
        "names": enum(h5t.STD_I16LE, b"A", b"B"),
        "fields out of order": record,
        "nested fields": nested,
        "array": h5t.array_create(h5t.STD_I16LE, (3, 2)),
        "array of big-endian bytes": h5t.array_create(h5t.STD_I8BE, (3,)),
        "bfloat16": bfloat16,
        "20 bits": wide,
    }


@pytest.mark.parametrize("layout", ["contiguous", "chunks", "gzip", "compact"])
def test_types_of_hdf5_are_as_h5py_reads_them(layout: str) -> None:
    h5py = pytest.importorskip("h5py")
    h5d, h5p, h5s = h5py.h5d, h5py.h5p, h5py.h5s
    with h5py.File("x.h5", "w") as file:
        for name, file_type in hdf5_types().items():
            properties = h5p.create(h5p.DATASET_CREATE)
            if layout in ("chunks", "gzip"):
                properties.set_chunk((4,))
            if layout == "gzip":
                properties.set_shuffle()
                properties.set_deflate(1)
            if layout == "compact":
                properties.set_layout(h5d.COMPACT)
            space = h5s.create_simple((10,))
            dataset = h5d.create(file.id, name.encode(), file_type, space, properties)
            raw = RNG.integers(0, 2, 10 * file_type.get_size()).astype("u1")
            if "text" in name:
                raw[:] = ord(" ")
                raw[::5] = ord("a")
                raw[3::15] = 0 if "null" in name else ord(" ")
            if "truth" in name:
                raw[(0 if "wide" in name else 1) :: 2] = 0
                raw[1::2] &= 0 if "wide" in name else 1
            dataset.write(h5s.ALL, h5s.ALL, raw, file_type)
    with h5py.File("x.h5") as file:
        for name in file:
            require_equal(f"x.h5:{name}", file[name][...])


def test_records_of_pytables_and_pandas() -> None:
    tables = pytest.importorskip("tables")

    class Row(tables.IsDescription):  # type: ignore[misc]
        name = tables.StringCol(7)
        count = tables.Int32Col()
        values = tables.Float64Col(shape=(2,))
        flag = tables.BoolCol()

    with tables.open_file("x.h5", "w") as file:
        table = file.create_table("/", "t", Row)
        for i in range(9):
            row = table.row
            row["name"], row["count"], row["values"], row["flag"] = f"n{i}", i, (i, -i), i % 2
            row.append()
        table.flush()
        file.create_array("/", "a", np.arange(12).reshape(4, 3))
        file.create_carray("/", "c", obj=RNG.random((30, 3)), filters=tables.Filters(5, "zlib"))
        file.create_carray("/", "blosc", obj=np.arange(99), filters=tables.Filters(5, "blosc"))
        file.create_array("/", "s", np.array([b"ab", b"c", b"def"]))
        file.create_array("/", "b", np.array([True, False, True]))
    with tables.open_file("x.h5") as file:
        for node in file.walk_nodes("/", "Leaf"):
            if node.name == "blosc":
                pytest.importorskip("numcodecs")
            expected = node.read()
            if node.name == "b":  # PyTables' truth values are bits to HDF5 and h5py
                expected = expected.view("u1")
            require_equal(f"x.h5:{node._v_pathname}", expected)


@pytest.mark.parametrize("is_old", [False, True])
def test_netcdf_variables_have_the_length_of_their_dimensions(is_old: bool) -> None:
    netcdf, h5py = pytest.importorskip("netCDF4"), pytest.importorskip("h5py")
    with netcdf.Dataset("x.nc", "w") as file:
        for name, size in (("time", None), ("level", None), ("x", 3), ("never", None)):
            file.createDimension(name, size)
        file.createVariable("long", "f4", ("time", "x"))[:10] = RNG.random((10, 3))
        for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "S1"):
            file.createVariable(code, code, ("time",))[:4] = np.ones(4, code)
        file.createVariable("filled", "i2", ("time",), fill_value=-5)[:2] = 7
        file.createVariable("unfilled", "i8", ("time",), fill_value=False)[:3] = 1
        file.createVariable("two", "f8", ("level", "time"), chunksizes=(2, 3))[:5, :2] = 1
        file.createVariable("wide", "f8", ("level", "time"), zlib=True)[:3, :9] = 2
        file.createVariable("time", "f8", ("time",))[:7] = np.arange(7)
        file.createVariable("empty", "i4", ("never", "x"))
        file.createVariable("fixed", "i4", ("x",))[:] = 1
        group = file.createGroup("g")
        group.createVariable("deep", "u1", ("x", "time"))[:, :12] = 1
    with h5py.File("x.nc", "r+") as file:
        for node in [*file.values(), file["g/deep"]]:
            if is_old and "_Netcdf4Coordinates" in node.attrs:
                del node.attrs["_Netcdf4Coordinates"]
    with netcdf.Dataset("x.nc") as file:
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        names = [*file.variables, "g/deep"]
        for name in names:
            expected = file[name][:]
            if name in ("two", "wide"):  # of which the library reads uninitialized memory
                expected[...] = netcdf.default_fillvals["f8"]
                expected[:5, :2] = 1
                if name == "wide":
                    expected[...] = netcdf.default_fillvals["f8"]
                    expected[:3, :9] = 2
            if expected.size:
                require_equal(f"x.nc:{name}", expected)
            else:
                assert files.gather(f"x.nc:{name}", "[]").array.shape == expected.shape
        listed = {info.name.rpartition(":/")[2] for info in _describe("x.nc")}
        assert listed == set(names)
    with pytest.raises(InputError) as refused:
        files.gather("x.nc:none", "[0]")
    assert "/i2: int16[12]" in refused.value.places
    with netcdf.Dataset("y.nc", "w") as file:
        file.createDimension("n", 3)
        file.createVariable("only", "i4", ("n",))[:] = [5, 6, 7]
    assert files.gather("y.nc", "[2]").array.tolist() == [7]


def _describe(path: str) -> Any:
    from ndtool.formats import locators

    return locators.describe(path)


def test_virtual_datasets_are_refused() -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File("x.h5", "w") as file:
        file["a"] = np.arange(5)
        layout = h5py.VirtualLayout((5,), "i8")
        layout[:] = h5py.VirtualSource(".", "a", (5,))
        file.create_virtual_dataset("v", layout)
    with pytest.raises(InputError, match="values are in other datasets") as excinfo:
        files.gather("x.h5:v", "[0]")
    assert "h5py reads them" in excinfo.value.hint


def test_gaps_between_the_fields_of_converted_records_are_zeros() -> None:
    h5py = pytest.importorskip("h5py")
    dtype = np.dtype(
        {"names": ["a", "b"], "formats": ["S3", "<i8"], "offsets": [1, 8], "itemsize": 24}
    )
    records = np.zeros(400, dtype)
    records["a"], records["b"] = b"xyz", 7
    with h5py.File("x.h5", "w") as file:
        stored_type = h5py.h5t.create(h5py.h5t.COMPOUND, 24)
        text = h5py.h5t.C_S1.copy()
        text.set_size(3)
        text.set_strpad(h5py.h5t.STR_SPACEPAD)  # NumPy's are padded by zeros
        stored_type.insert(b"a", 1, text)
        stored_type.insert(b"b", 8, h5py.h5t.STD_I64LE)
        space = h5py.h5s.create_simple(records.shape)
        h5py.h5d.create(file.id, b"a", stored_type, space).write(space, space, records)
    used = [np.full(records.nbytes, 255, np.uint8) for _ in range(200)]
    del used
    assert files.gather("x.h5:a", np.arange(400)).array.tobytes() == records.tobytes()


@pytest.mark.parametrize(
    "settings",
    [{"scaleoffset": 2}, {"scaleoffset": 0, "dtype": "i4"}, {"nbit": True}, {"fletcher32": True},
     {"compression": "lzf", "shuffle": True}, {"compression": "gzip", "fletcher32": True},
     {"shuffle": True, "fletcher32": True}, {}],
    ids=str,
)  # fmt: skip
def test_hdf5_keeps_every_bit_that_is_written(settings: dict[str, Any]) -> None:
    """In the layout of the dataset if that keeps them, else in a new one."""
    h5py = pytest.importorskip("h5py")
    dtype = settings.get("dtype", "f8")
    options = {key: value for key, value in settings.items() if key not in ("nbit", "dtype")}
    data = np.round(RNG.random((10, 3)) * 4000).astype(dtype)
    with h5py.File("x.h5", "w") as file:
        if "nbit" in settings:
            file_type = h5py.h5t.STD_I32LE.copy()
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_chunk((4, 2))
            properties.set_filter(5)
            space = h5py.h5s.create_simple((10, 3))
            dataset = h5py.h5d.create(file.id, b"d", file_type, space, properties)
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, (data % 1000).astype("i4"))
        else:
            file.create_dataset("d", data=data, chunks=(4, 2), **options)
        data = file["d"][...]
    updates = np.array([[1.0, 20.25, 1e9], [3, 4, 5]]).astype(data.dtype)
    files.scatter("x.h5:d", "[9, 2]", updates, out="x.h5:d")
    data[[9, 2]] = updates
    with h5py.File("x.h5") as file:
        assert bits_equal(file["d"][...], data)
    require_equal("x.h5:d", data)


# Zarr


V3_FILLS = [
    ("bool", True), ("int8", -5), ("uint64", 2**64 - 1), ("float32", "NaN"), ("float64", "-Infinity"),
    ("float16", 1.5), ("complex64", [1.0, "NaN"]), ("float32", "0x7fc00001"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "dtype",
    ["?", "i1", ">i2", "u8", "f2", ">f8", "c8", ">c16", "S4", "U3", "M8[ns]", "m8[25s]", "V5"],
)
def test_types_of_zarr_are_as_the_zarr_package_reads_them(version: int, dtype: str) -> None:
    zarr = pytest.importorskip("zarr")
    raw = RNG.bytes(35 * np.dtype(dtype).itemsize)
    data = np.frombuffer(raw, dtype).reshape(7, 5)
    if dtype == "?":
        data = RNG.integers(0, 2, (7, 5)).astype(bool)
    if dtype == "U3":
        data = np.array([["ab", "c", "", "äöü", "x"]] * 7, dtype)
    for fill in (np.zeros((), dtype)[()], data[3, 2]):
        array = zarr.create_array(
            "x.zarr", shape=(7, 5), chunks=(2, 3), dtype=dtype, fill_value=fill,
            zarr_format=version, overwrite=True,
        )  # fmt: skip
        array[:5] = data[:5]
        require_equal("x.zarr", zarr.open_array("x.zarr", mode="r")[...])


@pytest.mark.parametrize(("data_type", "fill"), V3_FILLS)
def test_fill_values_of_zarr(data_type: str, fill: Any) -> None:
    zarr = pytest.importorskip("zarr")
    import json

    zarr.create_array("x.zarr", shape=(5,), chunks=(2,), dtype=data_type)
    path = Path("x.zarr/zarr.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "fill_value": fill}))
    require_equal("x.zarr", zarr.open_array("x.zarr", mode="r")[...])


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_tensorstore_writes_zarr(driver: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    for dtype in ("bool", "int8", "uint16", "int64", "float16", "float32", "complex64", "bfloat16"):
        data = RNG.integers(0, 2, (9, 7)).astype("f4" if dtype == "bfloat16" else dtype)
        spec: dict[str, Any] = {"driver": driver, "kvstore": {"driver": "file", "path": "t.zarr"}}
        if driver == "zarr3":
            codecs: list[Any] = [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5}}]
            spec["metadata"] = {"codecs": [{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [2, 3], "codecs": [{"name": "bytes"}, *codecs]}}]}  # fmt: skip
            spec["metadata"]["chunk_grid"] = {
                "name": "regular", "configuration": {"chunk_shape": [4, 6]}
            }  # fmt: skip
        store = tensorstore.open(
            spec, create=True, delete_existing=True, dtype=dtype, shape=(9, 7)
        ).result()
        store.write(data.astype(store.dtype.numpy_dtype)).result()
        expected = store.read().result()
        if dtype == "bfloat16":
            if driver == "zarr3":
                actual = files.gather("t.zarr", "[8, 0]").array
                assert actual.tobytes() == expected[[8, 0]].tobytes()
            continue
        require_equal("t.zarr", expected)


def test_a_store_in_an_archive_has_a_way_on() -> None:
    zarr = pytest.importorskip("zarr")
    store = zarr.storage.ZipStore("x.zarr.zip", mode="w")
    zarr.create_array(store, name="a", data=np.arange(5))
    store.close()
    for argument in ("x.zarr.zip:a", "x.zarr.zip"):
        with pytest.raises(InputError, match="is a Zarr store in an archive") as excinfo:
            files.gather(argument, "[0]")
        assert excinfo.value.hint == "unzip extracts it. Then: unzip x.zarr.zip -d x.zarr"


def test_attributes_that_change_values_are_said() -> None:
    zarr = pytest.importorskip("zarr")
    for version in (2, 3):
        array = zarr.create_array(
            "x.zarr", shape=(3,), dtype="i2", zarr_format=version, overwrite=True
        )
        array.attrs.update({"scale_factor": 0.5, "add_offset": 2, "_FillValue": -1, "units": "m"})
        result = files.gather("x.zarr", "[0]")
        assert any(
            "scale_factor, add_offset, _FillValue not applied" in text for text in result.warnings
        )


# Parquet and Arrow


@pytest.mark.parametrize("library", ["polars", "fastparquet"])
def test_columns_of_other_writers(library: str) -> None:
    other = pytest.importorskip(library)
    pytest.importorskip("pyarrow")
    for dtype in ("bool", "i1", "i4", "i8", "u2", "u8", "f4", "f8"):
        values = RNG.integers(0, 2, 50).astype(dtype)
        if library == "polars":
            frame = other.DataFrame({"a": values, "e": RNG.random((50, 3))})
            for path, write in (
                ("p.parquet", frame.write_parquet), ("p.arrow", frame.write_ipc),
                ("s.arrow", frame.write_ipc_stream),
            ):  # fmt: skip
                write(path)
                require_equal(f"{path}:a", values)
                require_equal(f"{path}:e", np.stack(frame["e"].to_list()))
        else:
            pandas = pytest.importorskip("pandas")
            other.write("f.parquet", pandas.DataFrame({"a": values}), row_group_offsets=20)
            require_equal("f.parquet:a", values)


# safetensors and ONNX
